"""What a procedure of the server's own is: ``CALL name(arguments)``, with rows for an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import duckdb

from swanlake.durations import parse_duration
from swanlake.engine.instance import Engine
from swanlake.errors import InvalidRequest
from swanlake.lake.lake import Lake
from swanlake.pipeline.maintain import Maintenance
from swanlake.queue.runtime import DucklingQueue
from swanlake.sql.statement import Call, Statement

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Scope:
    """What procedures work on, for the session that calls them."""

    lake: Lake
    engine: Engine
    queue: DucklingQueue
    maintenance: Maintenance
    #: The catalog of the lake and the schema in which the session is, if it is in one.
    where: Callable[[], tuple[str, str] | None]
    check: Callable[[], None]


@dataclass(frozen=True)
class Procedure:
    """One procedure: its parameters by name, the columns it gives, and what it does."""

    name: str
    parameters: tuple[str, ...]
    optional: int
    schema: Any
    #: True if it changes the lake; it is then no part of a transaction.
    changes: bool
    body: Callable[..., Rows]

    def run(self, scope: Scope, arguments: list[Any]) -> Rows:
        """Does it; the arguments are in the order of the parameters."""
        return self.body(scope, *arguments)

    def evaluate(
        self, connection: duckdb.DuckDBPyConnection, statement: Statement, parameters: Any
    ) -> list[Any]:
        """The values of the arguments of a CALL; the engine works them out."""
        call = statement.call
        assert call is not None
        order = self._arrange(call)
        if not order:
            return [None] * len(self.parameters)
        columns = ", ".join(f"({call.arguments[i].expression})" for i in order.values())
        [query] = connection.extract_statements(f"SELECT {columns}")
        [row] = connection.execute(query, parameters).fetchall()
        given = dict(zip(order, row, strict=True))
        missing = [name for name in self._required if given.get(name) is None]
        if missing:
            raise InvalidRequest(f"{self.name} needs a {missing[0]}; it was NULL.")
        return [self._converted(name, given.get(name)) for name in self.parameters]

    def _converted(self, name: str, value: Any) -> Any:
        """A value in the type of its parameter; text is read, as drivers bind all as text."""
        convert = _CONVERT.get(name, str)
        try:
            return None if value is None else convert(value)
        except (ValueError, TypeError, ArithmeticError, KeyError):
            raise InvalidRequest(f"{self._usage()} cannot take {value!r} for {name}.") from None

    @property
    def _required(self) -> tuple[str, ...]:
        return self.parameters[: len(self.parameters) - self.optional]

    def _arrange(self, call: Call) -> dict[str, int]:
        """Which argument is for which parameter."""
        order: dict[str, int] = {}
        for position, argument in enumerate(call.arguments):
            name = argument.keyword
            if not name and position < len(self.parameters):
                name = self.parameters[position]
            if name not in self.parameters or name in order:
                raise InvalidRequest(
                    f"{self._usage()} cannot take its argument {position + 1}, "
                    f"{argument.expression}."
                )
            order[name] = position
        for name in self._required:
            if name not in order:
                raise InvalidRequest(f"{self._usage()} needs the argument {name}.")
        return order

    def _usage(self) -> str:
        optional = [f"[{name}]" for name in self.parameters[len(self._required) :]]
        return f"{self.name}({', '.join([*self._required, *optional])})"


def _whole_number(value: Any) -> int:
    number = int(value)
    if isinstance(value, bool) or (not isinstance(value, str) and number != value):
        raise ValueError(value)
    if not 0 <= number < 2**63:
        raise ValueError(value)
    return number


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False, "1": True, "0": False}[str(value).strip().lower()]


def _age(value: Any) -> timedelta:
    """An INTERVAL, or a text such as ``7d``."""
    age = value if isinstance(value, timedelta) else parse_duration(str(value))
    if age < timedelta(0):
        raise ValueError(value)
    return age


#: What parameters are that are not text.
_CONVERT: dict[str, Callable[[Any], Any]] = {
    "at": _whole_number,
    "cascade": _flag,
    "dry_run": _flag,
    "older_than": _age,
    "keep_last": _whole_number,
    "last": _whole_number,
}

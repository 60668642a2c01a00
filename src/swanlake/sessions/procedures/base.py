"""A procedure of the server: ``CALL name(arguments)``, which returns rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import duckdb

from swanlake.access.identity import Identity, Privilege, Role
from swanlake.access.policy import require
from swanlake.durations import parse_duration
from swanlake.engine.instance import Engine
from swanlake.errors import InvalidRequest
from swanlake.lake.lake import Lake
from swanlake.maintenance.service import Maintenance
from swanlake.queue.service import DucklingQueue
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.services import SessionServices
from swanlake.sql.quoting import unquoted
from swanlake.sql.statement import Call

#: A name that contains a dot is quoted, as in SQL: ``main."a.b"``.
_PART = re.compile(r'"(?:[^"]|"")*"|[^."]+')
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern})){{,2}}")

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class ProcedureContext:
    """What a procedure works on, for the session that calls it."""

    identity: Identity
    lake: Lake
    engine: Engine
    #: All engines of the server, that of the session included.
    engines: Callable[[], list[Engine]]
    queue: DucklingQueue
    maintenance: Maintenance
    #: The session's current catalog and schema; None if that is not a catalog of the lake.
    location: Callable[[], tuple[str, str] | None]
    check: Callable[[], None]
    services: SessionServices
    #: The session that calls.
    session: SessionKey

    def require(self, catalog: str, privilege: Privilege) -> None:
        """Raises AccessDenied if the caller does not have a privilege on a catalog."""
        require(self.identity, catalog, privilege)

    def may_read(self, catalog: str) -> bool:
        """True if the caller may read a catalog."""
        return self.identity.privilege(catalog) >= Privilege.READ


@dataclass(frozen=True)
class Procedure:
    """One procedure: its parameters, the columns of its rows, and its body."""

    name: str
    parameters: tuple[str, ...]
    optional: int
    schema: Any
    #: True if it changes the lake; it is then refused in a transaction.
    changes: bool
    #: The lowest role that may call it; its body checks the catalogs that it reads or changes.
    role: Role
    #: Takes a ProcedureContext, and the arguments in the order of the parameters.
    body: Callable[..., Rows]
    #: Conversions of parameters, by name; a parameter without one is text.
    converters: Mapping[str, Callable[[Any], Any]] = field(default_factory=dict)
    #: True if it only reads: then it is a table function as well, as in ``FROM name()``.
    reads: bool = False
    #: What it gives or does, in one sentence.
    help: str = ""

    def evaluate(
        self, connection: duckdb.DuckDBPyConnection, call: Call, parameters: Any
    ) -> list[Any]:
        """The values of the arguments of a call, which DuckDB evaluates."""
        order = self._arrange(call)
        if not order:
            return [None] * len(self.parameters)
        columns = ", ".join(f"({call.arguments[i].expression})" for i in order.values())
        [query] = connection.extract_statements(f"SELECT {columns}")
        [row] = connection.execute(query, parameters).fetchall()
        values = dict(zip(order, row, strict=True))
        missing = [name for name in self._required if values.get(name) is None]
        if missing:
            raise InvalidRequest(f"{self.name} needs a {missing[0]}; it was NULL.")
        return [self._convert(name, values.get(name)) for name in self.parameters]

    def _convert(self, name: str, value: Any) -> Any:
        """A value in the type of its parameter; text is parsed, as some drivers bind only text."""
        convert = self.converters.get(name) or _CONVERT.get(name, str)
        try:
            return None if value is None else convert(value)
        except (ValueError, TypeError, ArithmeticError, KeyError):
            raise InvalidRequest(f"{self.usage} cannot take {value!r} for {name}.") from None

    @property
    def _required(self) -> tuple[str, ...]:
        return self.parameters[: len(self.parameters) - self.optional]

    def _arrange(self, call: Call) -> dict[str, int]:
        """The position of the argument for each parameter."""
        order: dict[str, int] = {}
        for position, argument in enumerate(call.arguments):
            name = argument.keyword
            if not name and position < len(self.parameters):
                name = self.parameters[position]
            if name not in self.parameters or name in order:
                raise InvalidRequest(
                    f"{self.usage} cannot take its argument {position + 1}, {argument.expression}."
                )
            order[name] = position
        for name in self._required:
            if name not in order:
                raise InvalidRequest(f"{self.usage} needs the argument {name}.")
        return order

    @property
    def usage(self) -> str:
        """The name with its parameters; those in brackets are optional."""
        optional = [f"[{name}]" for name in self.parameters[len(self._required) :]]
        return f"{self.name}({', '.join([*self._required, *optional])})"


def split_name(name: str) -> list[str]:
    """The parts of ``t``, ``schema.t`` or ``catalog.schema.t``, without their quotes."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} is not the name of a table: write catalog.schema.table.")
    return [unquoted(part) for part in _PART.findall(name)]


def parse_count(value: Any) -> int:
    """A whole number that is not negative."""
    number = int(value)
    if isinstance(value, bool) or (not isinstance(value, str) and number != value):
        raise ValueError(value)
    if not 0 <= number < 2**63:
        raise ValueError(value)
    return number


def parse_flag(value: Any) -> bool:
    """A boolean, or its text."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False, "1": True, "0": False}[str(value).strip().lower()]


def parse_age(value: Any) -> timedelta:
    """An INTERVAL, or a text such as ``7d``."""
    age = value if isinstance(value, timedelta) else parse_duration(str(value))
    if age < timedelta(0):
        raise ValueError(value)
    return age


#: Conversions of the parameters that are not text.
_CONVERT: dict[str, Callable[[Any], Any]] = {
    "at": parse_count,
    "cascade": parse_flag,
    "last": parse_count,
}

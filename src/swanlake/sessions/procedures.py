"""What ``CALL swanlake_…(…)`` does: catalogs, schemas and snapshots, from any Flight SQL client."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import duckdb
import pyarrow as pa

from swanlake.engine.instance import Engine
from swanlake.errors import AlreadyExists, Code, InvalidRequest, QueryError
from swanlake.lake.lake import Lake
from swanlake.lake.metabase import CatalogInfo, checked_name
from swanlake.sql.statement import Call, Statement

_PREFIX = "swanlake_"
_TIME = pa.timestamp("us", tz="UTC")
_CATALOG = pa.schema(
    [
        ("catalog_name", pa.string()),
        ("parent_name", pa.string()),
        ("parent_snapshot", pa.int64()),
        ("data_path", pa.string()),
        ("created_at", _TIME),
    ]
)
_SNAPSHOT = pa.schema(
    [
        ("snapshot_id", pa.int64()),
        ("snapshot_time", _TIME),
        ("schema_version", pa.int64()),
        ("changes", pa.string()),
        ("author", pa.string()),
        ("commit_message", pa.string()),
    ]
)
_COMMITTED = pa.schema([("catalog_name", pa.string()), ("snapshot_id", pa.int64())])

Rows = list[dict[str, Any]]


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

    def run(self, lake: Lake, engine: Engine, arguments: list[Any]) -> Rows:
        """Does it; the arguments are in the order of the parameters."""
        return self.body(lake, engine, *arguments)

    def evaluate(
        self, connection: duckdb.DuckDBPyConnection, statement: Statement, parameters: Any
    ) -> list[Any]:
        """The values of the arguments of a CALL; the engine works them out."""
        call = statement.call
        assert call is not None
        order = self._arrange(call)
        if not order:
            return []
        columns = ", ".join(f"({call.arguments[i].expression})" for i in order.values())
        [query] = connection.extract_statements(f"SELECT {columns}")
        row = connection.execute(query, parameters).fetchone()
        assert row is not None
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


def _snapshot_number(value: Any) -> int:
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


#: What parameters are that are not text.
_CONVERT: dict[str, Callable[[Any], Any]] = {"at": _snapshot_number, "cascade": _flag}


def find_procedure(statement: Statement) -> Procedure | None:
    """The procedure of ours that a statement calls; raises if it calls one that does not exist."""
    call = statement.call
    if call is None or not call.name.startswith(_PREFIX):
        return None
    procedure = PROCEDURES.get(call.name)
    if procedure is None:
        near = get_close_matches(call.name, PROCEDURES, n=1, cutoff=0)
        raise QueryError(
            f"There is no procedure {call.name}. Did you mean {near[0]}?",
            identifier="CATALOG_ERROR",
            code=Code.INVALID_ARGUMENT,
        )
    return procedure


def _catalog_rows(lake: Lake, infos: list[CatalogInfo]) -> Rows:
    names = {info.id: info.name for info in lake.catalogs()}
    return [
        {
            "catalog_name": info.name,
            "parent_name": None if info.parent is None else names.get(info.parent),
            "parent_snapshot": info.parent_snapshot,
            "data_path": info.data_path,
            "created_at": info.created_at,
        }
        for info in infos
    ]


def _catalogs(lake: Lake, engine: Engine) -> Rows:
    return _catalog_rows(lake, lake.catalogs())


def _check_free(engine: Engine, name: str) -> None:
    """Statements that name a new catalog must not end up in a database of the same name."""
    name = checked_name(name)
    if engine.has_foreign(name):
        raise AlreadyExists(
            f"A database {name} is attached to this server; DETACH it or choose another name."
        )


def _create_catalog(lake: Lake, engine: Engine, name: str) -> Rows:
    _check_free(engine, name)
    return _catalog_rows(lake, [lake.create_catalog(name).info])


def _fork_catalog(lake: Lake, engine: Engine, parent: str, name: str, at: int | None) -> Rows:
    _check_free(engine, name)
    fork = lake.fork_catalog(parent, name, at)
    return _catalog_rows(lake, [fork.info])


def _drop_catalog(lake: Lake, engine: Engine, name: str) -> Rows:
    if name.lower() == engine.catalog:
        raise QueryError(
            f"The catalog {name} is the one in which every session begins; it stays.",
            identifier="CATALOG_IN_USE",
            code=Code.PERMISSION_DENIED,
        )
    info = lake.drop_catalog(name)
    engine.detach(info.name)
    return _catalog_rows(lake, [info])


def _create_schema(lake: Lake, engine: Engine, catalog: str, name: str) -> Rows:
    done = lake.catalog(catalog).create_schema(name)
    return [{"catalog_name": catalog, "snapshot_id": done.snapshot_id}]


def _drop_schema(lake: Lake, engine: Engine, catalog: str, name: str, cascade: bool | None) -> Rows:
    done = lake.catalog(catalog).drop_schema(name, cascade=bool(cascade))
    return [{"catalog_name": catalog, "snapshot_id": done.snapshot_id}]


def _snapshots(lake: Lake, engine: Engine, catalog: str | None) -> Rows:
    return [
        {
            "snapshot_id": snapshot.id,
            "snapshot_time": snapshot.time,
            "schema_version": snapshot.schema_version,
            "changes": snapshot.changes,
            "author": snapshot.author,
            "commit_message": snapshot.message,
        }
        for snapshot in lake.catalog(catalog or engine.catalog).snapshots()
    ]


PROCEDURES = {
    procedure.name: procedure
    for procedure in (
        Procedure("swanlake_catalogs", (), 0, _CATALOG, False, _catalogs),
        Procedure("swanlake_create_catalog", ("name",), 0, _CATALOG, True, _create_catalog),
        Procedure(
            "swanlake_fork_catalog", ("parent", "name", "at"), 1, _CATALOG, True, _fork_catalog
        ),
        Procedure("swanlake_drop_catalog", ("name",), 0, _CATALOG, True, _drop_catalog),
        Procedure(
            "swanlake_create_schema", ("catalog", "name"), 0, _COMMITTED, True, _create_schema
        ),
        Procedure(
            "swanlake_drop_schema",
            ("catalog", "name", "cascade"),
            1,
            _COMMITTED,
            True,
            _drop_schema,
        ),
        Procedure("swanlake_snapshots", ("catalog",), 1, _SNAPSHOT, False, _snapshots),
    )
}

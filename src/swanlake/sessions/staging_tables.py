"""Stand-ins of tables, on which a session tries its INSERTs.

A *shadow* is a temporary table with the columns, defaults and constraints of a table of the lake.
DuckDB so does with every value what it would do in the table itself, and RETURNING gives the rows
as they are to be kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import duckdb

from swanlake.errors import Code, QueryError, Unsupported
from swanlake.lake.layout import Column, DefaultKind
from swanlake.lake.types import duckdb_type
from swanlake.queue.targets import Target
from swanlake.sql.builtins import with_builtins
from swanlake.sql.quoting import identifier, literal

#: What Parquet can hold of a type; a row with anything else could never be flushed.
_STORABLE = {"interval": "NOT contains({}::VARCHAR, '-')", "timestamp_s": "isfinite({})"}

#: A shadow that has seen so much is emptied.
_SHADOW_BYTES = 8 * 1024 * 1024
#: Catalog, schema and table.
Name = tuple[str, str, str]


@dataclass
class Shadow:
    """The stand-in of one table for INSERTs."""

    name: str
    #: What the client calls the table.
    shown_name: str
    table: Name
    target: Target
    #: How DuckDB gives its rows to Arrow.
    schema: Any
    bytes_seen: int = 0
    #: False when the connection does not have it any more.
    exists: bool = True

    @property
    def is_full(self) -> bool:
        """True if it has seen so many rows that it is to be emptied."""
        return self.bytes_seen > _SHADOW_BYTES

    def explained(self, error: duckdb.Error) -> Exception:
        """What DuckDB says of the shadow, with the name that the client used."""
        if isinstance(error, duckdb.ConstraintException) and "CHECK" in str(error):
            return QueryError(
                f"A value does not fit into {self.shown_name}: its files can hold no negative "
                "INTERVAL and no infinite TIMESTAMP_S.",
                identifier="CONSTRAINT_ERROR",
                code=Code.INVALID_ARGUMENT,
            )
        *lines, last = str(error).split("\n")
        if lines and last.strip() == "^":  # it points at a place in the line above
            last = " " * len(self._as_shown(lines[-1][: len(last) - 1])) + "^"
        return type(error)(self._as_shown("\n".join([*lines, last])))

    def _as_shown(self, message: str) -> str:
        message = message.replace(f"temp.main.{self.name}", self.shown_name)
        return message.replace(self.name, self.shown_name)


class Shadows:
    """The shadows of one session, of one kind."""

    def __init__(self, prefix: str, shown_name: Callable[[Name], str], *, keeps_rows: bool) -> None:
        self._prefix = prefix
        self._shown_name = shown_name
        #: True if rows wait for their file, and whoever sent them will not hear of it.
        self._keeps_rows = keeps_rows
        self._shadows: dict[str, Shadow] = {}

    def forget(self) -> None:
        """The connection may not have them any more: each is made again when it is next used.

        They keep their names, because prepared statements call them so.
        """
        for shadow in self._shadows.values():
            shadow.exists = False

    def named(self, name: str) -> Shadow | None:
        """The shadow that is called so."""
        return self._shadows.get(name)

    def of(self, connection: duckdb.DuckDBPyConnection, table: Name, target: Target) -> Shadow:
        """The shadow of a table as it is now; raises Unsupported if it cannot have one."""
        known = next((one for one in self._shadows.values() if one.table == table), None)
        if (
            known is not None
            and known.exists
            and known.target.layout.columns == target.layout.columns
        ):
            known.target = target  # another table may have its name and its columns by now
            return known
        if any(_has_geometry(column) for column in target.layout.columns):
            raise _unkeepable(table)
        name = known.name if known else f"{self._prefix}{len(self._shadows)}"
        columns = ", ".join(
            _definition(column, storable=self._keeps_rows) for column in target.layout.columns
        )
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} ({columns})")
        connection.execute(f"SELECT * FROM temp.main.{name} LIMIT 0")
        try:
            schema = connection.to_arrow_reader(1).schema
        except OSError:  # DuckDB has no Arrow type for one of them
            raise _unkeepable(table) from None
        if known is None:
            known = self._shadows[name] = Shadow(
                name, self._shown_name(table), table, target, schema
            )
        known.target, known.schema, known.exists = target, schema, True
        return known


def default_of(column: Column) -> str:
    """The expression whose value a column gets in a row that does not give one."""
    if column.default is None:
        return "NULL"
    if column.default.kind is DefaultKind.EXPRESSION:
        return with_builtins(column.default.text)
    return f"CAST({literal(column.default.text)} AS {duckdb_type(column)})"


def _definition(column: Column, *, storable: bool) -> str:
    parts = [identifier(column.name), duckdb_type(column)]
    if column.default is not None:
        parts.append(f"DEFAULT ({default_of(column)})")
    if not column.nullable:
        parts.append("NOT NULL")
    if storable and column.type in _STORABLE:
        parts.append(f"CHECK ({_STORABLE[column.type].format(identifier(column.name))})")
    return " ".join(parts)


def _has_geometry(column: Column) -> bool:
    return column.type == "geometry" or any(map(_has_geometry, column.children))


def _unkeepable(table: Name) -> Unsupported:
    return Unsupported(
        f"The table {'.'.join(table)} has a column that the queue cannot keep, such as a VARIANT "
        "or a GEOMETRY; insert into the table itself."
    )

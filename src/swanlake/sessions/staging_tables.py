"""Staging tables: temporary tables on which a session runs its INSERTs first.

A staging table has the columns, defaults and constraints of a table of the lake, so DuckDB converts
and checks every value as it would for the table itself, and RETURNING gives the rows to store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb

from swanlake.errors import Code, QueryError, Unsupported
from swanlake.lake.model.layout import Column, DefaultKind
from swanlake.lake.model.type_registry import find_type
from swanlake.lake.model.types import duckdb_type
from swanlake.lake.read.table_cache import CachedTable
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.execution.names import TableName
from swanlake.sql.builtins import with_builtins
from swanlake.sql.quoting import identifier, literal

#: Rows stay in a staging table until it has received this much.
_MAX_BYTES = 8 * 1024 * 1024


@dataclass
class StagingTable:
    """The staging table of one table of the lake."""

    name: str
    #: The name of the table in messages to the client.
    display_name: str
    target: CachedTable
    #: The Arrow schema in which DuckDB returns its rows.
    schema: Any
    #: The session's generation of temporary tables to which it belongs.
    generation: int
    bytes_seen: int = 0

    def truncate_if_full(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Empties the table once it has received many rows."""
        if self.bytes_seen > _MAX_BYTES:
            connection.execute(f"TRUNCATE temp.main.{self.name}")
            self.bytes_seen = 0

    def explain_error(self, error: duckdb.Error) -> Exception:
        """DuckDB's error about the staging table, with the name that the client used."""
        if isinstance(error, duckdb.ConstraintException) and "CHECK" in str(error):
            return QueryError(
                f"A value does not fit into {self.display_name}: its files can hold no INTERVAL "
                "that is negative or has a time of 1193 hours, no infinite TIMESTAMP_S and no "
                "HUGEINT of more than 38 digits.",
                identifier="CONSTRAINT_ERROR",
                code=Code.INVALID_ARGUMENT,
            )
        *lines, last = str(error).split("\n")
        if lines and last.strip() == "^":  # it points at a position in the line above
            last = " " * len(self._with_display_name(lines[-1][: len(last) - 1])) + "^"
        return type(error)(self._with_display_name("\n".join([*lines, last])))

    def _with_display_name(self, message: str) -> str:
        message = message.replace(f"temp.main.{self.name}", self.display_name)
        return message.replace(self.name, self.display_name)


class StagingTables:
    """The staging tables of one session, for one purpose."""

    def __init__(self, session: EngineSession, prefix: str, *, checks_storable: bool) -> None:
        """``checks_storable`` is for rows that are written to files after the client was answered:
        what no file can hold is refused at once.
        """
        self._session = session
        self._prefix = prefix
        self._checks_storable = checks_storable
        self._tables: dict[TableName, StagingTable] = {}

    def get(self, name: TableName, target: CachedTable, display_name: str) -> StagingTable:
        """The staging table for a table as it is now; raises Unsupported if it cannot have one."""
        known = self._tables.get(name)
        if (
            known is not None
            and known.generation == self._session.temp_generation
            and known.target.layout.columns == target.layout.columns
        ):
            known.target = target  # another table may have its name and its columns by now
            return known
        if any(_has_geometry(column) for column in target.layout.columns):
            raise _unsupported(name)
        staging_name = known.name if known else f"{self._prefix}{len(self._tables)}"
        columns = ", ".join(
            _definition(column, checks_storable=self._checks_storable)
            for column in target.layout.columns
        )
        connection = self._session.connection
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {staging_name} ({columns})")
        self._session.add_staging_table(staging_name)
        connection.execute(f"SELECT * FROM temp.main.{staging_name} LIMIT 0")
        try:
            schema = connection.to_arrow_reader(1).schema
        except OSError:  # DuckDB has no Arrow type for one of them
            raise _unsupported(name) from None
        generation = self._session.temp_generation
        table = StagingTable(staging_name, display_name, target, schema, generation)
        self._tables[name] = table
        return table


def default_expression(column: Column) -> str:
    """The expression whose value a column gets in a row that gives none."""
    if column.default is None:
        return "NULL"
    if column.default.kind is DefaultKind.EXPRESSION:
        return with_builtins(column.default.text)
    return f"CAST({literal(column.default.text)} AS {duckdb_type(column)})"


def _definition(column: Column, *, checks_storable: bool) -> str:
    parts = [identifier(column.name), duckdb_type(column)]
    if column.default is not None:
        parts.append(f"DEFAULT ({default_expression(column)})")
    if not column.nullable:
        parts.append("NOT NULL")
    type_ = find_type(column.type)
    if checks_storable and type_ is not None and type_.storable_if:
        # A row that Parquet cannot store could never be flushed.
        parts.append(f"CHECK ({type_.storable_if.format(identifier(column.name))})")
    return " ".join(parts)


def _has_geometry(column: Column) -> bool:
    return column.type == "geometry" or any(map(_has_geometry, column.children))


def _unsupported(table: TableName) -> Unsupported:
    return Unsupported(
        f"The table {'.'.join(table)} has a column that the queue cannot store, such as a VARIANT "
        "or a GEOMETRY; insert into the table itself."
    )

"""Tables of the lake as DuckDB sees them in a session, its open transaction included."""

from __future__ import annotations

from collections.abc import Iterable

import duckdb

from swanlake.errors import CatalogUnreachable
from swanlake.lake.model.layout import Column
from swanlake.lake.model.types import ColumnSpec, UnsupportedType, number_columns
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sql.quoting import identifier
from swanlake.sql.statement import Statement

#: The virtual column with the snapshot of a row, NULL for the rows of the transaction itself.
SNAPSHOT_COLUMN = "snapshot_id"


def describe_table(
    session: EngineSession, statement: Statement, target: tuple[str, ...]
) -> tuple[str, list[Column]] | None:
    """The name as SQL and the columns of a statement's table or view; None if there is none.

    The ids of the columns are not those of the catalog.
    """
    name = ".".join(map(identifier, session.names.resolve_table(target) or target))

    def describe() -> list[tuple[str, ...]]:
        return session.connection.execute(f"DESCRIBE {name}").fetchall()

    try:
        columns = numbered_columns(session.retry_with_catalogs(statement, describe))
    except (duckdb.CatalogException, duckdb.BinderException, CatalogUnreachable):
        return None  # the statement reports what is missing
    return name, columns


def numbered_columns(described: Iterable[tuple[str, ...]]) -> list[Column]:
    """Columns from names and types; none if the lake does not know one of the types."""
    try:
        return list(number_columns(ColumnSpec(name, type_) for name, type_, *_ in described))
    except UnsupportedType:  # not a table of the lake
        return []


def is_of_lake(session: EngineSession, table: str) -> bool:
    """False for a view, and for a table of another database."""
    try:
        session.connection.execute(f"SELECT rowid, {SNAPSHOT_COLUMN} FROM {table} LIMIT 0")
    except duckdb.BinderException:
        return False
    return True

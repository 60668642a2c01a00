"""What a native statement works with, and what it prepares before its commit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import duckdb

from swanlake.lake.catalog import Catalog
from swanlake.lake.model.layout import DataFile, Table
from swanlake.lake.model.operations import Operation
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.results.stream import Outcome
from swanlake.sessions.run import Run
from swanlake.sql.quoting import literal
from swanlake.sql.statement import Statement

#: The errors of a statement that DuckDB refuses before it runs.
BIND_ERRORS = (duckdb.ParserException, duckdb.BinderException, duckdb.CatalogException)


class FallBackToExtension(Exception):
    """Nothing was done: DuckLake's extension must run the statement, or say what is wrong."""


@dataclass(frozen=True)
class PreparedChange:
    """The operations of a statement, the files they name, and its outcome once committed."""

    operations: tuple[Operation, ...] = ()
    files: Sequence[DataFile] = ()
    outcome: Outcome = field(default_factory=Outcome)


@dataclass(frozen=True)
class PreparedCommit:
    """A change that waits for its commit."""

    catalog: Catalog
    change: PreparedChange
    #: The table on whose snapshot the change is based; None if it is based on none.
    table: Table | None = None


@dataclass(frozen=True)
class NativeContext:
    """One execution of one native statement."""

    session: EngineSession
    run: Run
    statement: Statement
    parameters: Any
    #: The session's connection, or a scratch connection, which sees nothing of the lake.
    connection: duckdb.DuckDBPyConnection
    keep_rows: bool = True

    @property
    def has_client_rows(self) -> bool:
        """True if the client sent rows with the statement, which can be read once only."""
        return self.session.client_rows.rows is not None

    def expose_client_rows(self) -> None:
        """Shows DuckDB the rows that the client sent."""
        self.session.client_rows.expose(self.session.connection)

    def describe(self, query: str) -> list[tuple[str, ...]]:
        """Names and types of a query's columns; raises FallBackToExtension if DuckDB refuses it."""

        def attempt() -> list[tuple[str, ...]]:
            return self.connection.execute(f"DESCRIBE {query}", self.parameters).fetchall()

        is_scratch = self.connection is not self.session.connection
        if not is_scratch:
            self.session.refresh_catalogs(self.run, self.statement)
        try:
            if is_scratch:
                return attempt()
            return self.session.retry_with_catalogs(self.statement, attempt)
        except BIND_ERRORS:
            raise FallBackToExtension from None

    def scratch_connection(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A connection for rows in memory: on the session's, DuckDB looks names up in the lake."""
        return self.session.engine.scratch_connection()

    @contextmanager
    def zoned_scratch_connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A scratch connection in the time zone of the session, on which partitions may depend."""
        time_zone = self.session.names.time_zone
        with self.scratch_connection() as scratch:
            [(usual,)] = scratch.execute("SELECT current_setting('TimeZone')").fetchall()
            if usual != time_zone:
                scratch.execute(f"SET SESSION TimeZone = {literal(time_zone)}")
            yield scratch
            if usual != time_zone:  # a RESET would not restore the setting of the instance
                scratch.execute(f"SET SESSION TimeZone = {literal(usual)}")

    @contextmanager
    def on_scratch(self, parameters: Any) -> Iterator[NativeContext]:
        """The same on a scratch connection, for a statement that has all its rows."""
        with self.scratch_connection() as scratch, self.run.interruptible(scratch):
            yield replace(self, connection=scratch, parameters=parameters)

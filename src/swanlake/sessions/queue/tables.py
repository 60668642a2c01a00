"""The queue's tables: which tables of the lake they mean, and the rows that they still hold.

A statement reads queued rows through a temporary view for each table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import duckdb

from swanlake.access.identity import Privilege
from swanlake.errors import InvalidRequest, NotFound
from swanlake.lake.read.table_cache import CachedTable
from swanlake.queue.flush.flusher import ledger_entry
from swanlake.queue.flush.units import segments_as_query
from swanlake.queue.names import QUEUE
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.execution.names import TableName
from swanlake.sessions.execution.parser import StatementParser
from swanlake.sessions.run import Run
from swanlake.sql.quoting import qualified
from swanlake.sql.references import Reference, Replacement, references, replaced
from swanlake.sql.statement import Statement

_VIEW = "__duckling_queue_rows_"

#: The views that a statement reads, and the tables whose queued rows they show.
Views = Mapping[str, TableName]


@dataclass(frozen=True)
class QueueQuery:
    """A statement with views in place of the queue's tables."""

    statement: Statement
    views: Views


class QueueTables:
    """The tables of the queue, as the statements of one session name and read them."""

    def __init__(self, session: EngineSession, parser: StatementParser) -> None:
        self._session = session
        self._parser = parser
        self._queue = session.services.queue

    def resolve(self, parts: tuple[str, ...]) -> TableName:
        """Catalog, schema and table of a name; its first part is the queue's."""
        parts = parts[1:]
        if not 1 <= len(parts) <= 2:
            raise InvalidRequest(
                f"{QUEUE}.{'.'.join(parts)} is not a table of the queue: write {QUEUE}.table or "
                f"{QUEUE}.schema.table."
            )
        location = self._session.names.location()
        catalog, schema = location or (self._queue.settings.target_catalog, "main")
        return (catalog, parts[0], parts[1]) if len(parts) == 2 else (catalog, schema, parts[0])

    def _resolve_reference(self, parts: tuple[str, ...]) -> tuple[TableName, int]:
        """The table that a reference names, and how many of its parts; the rest is a column."""
        name = self.resolve(parts[:2])
        taken = 2
        if len(parts) > 2:  # a schema and a table, or a table and a column
            in_schema = self.resolve(parts[:3])
            if self._exists(in_schema) or not self._exists(name):
                name, taken = in_schema, 3
        return name, taken

    def rewrite_for_lake(self, sql: str) -> str:
        """A statement that names one table of the queue, with that table of the lake instead."""
        [reference] = references(sql, QUEUE)
        text = sql.encode()
        start, end = text[: reference.start], text[reference.end_of(len(reference.parts)) :]
        name = qualified(*self.resolve(reference.parts))
        return f"{start.decode()}{name}{end.decode()}"

    def find(self, name: TableName) -> CachedTable:
        """The table of that name as it is now; raises NotFound."""
        return self._queue.table_cache.find(*name)

    def _exists(self, name: TableName) -> bool:
        try:
            self.find(name)
        except NotFound:
            return False
        return True

    def rewrite(self, sql: str, reads: Sequence[Reference]) -> QueueQuery:
        """The statement of a text with views in place of the queue's tables that it reads."""
        views: dict[TableName, str] = {}
        replacements: list[Replacement] = []
        for reference in reads:
            name, parts = self._resolve_reference(reference.parts)
            self._session.require(name[0], Privilege.READ)
            self.find(name)  # raises NotFound
            view = views.setdefault(name, f"{_VIEW}{len(views)}")
            replacements.append(Replacement(reference, parts, f"temp.main.{view}", name[2]))
        text = replaced(sql, replacements, self._is_sql)
        tables = {view: name for name, view in views.items()}
        return QueueQuery(self._parser.parse_one(text), tables)

    def _is_sql(self, sql: str) -> bool:
        try:
            self._session.connection.extract_statements(sql)
        except duckdb.Error:
            return False
        return True

    @contextmanager
    def visible(self, run: Run, views: Views) -> Iterator[None]:
        """Fills the views for the block, in the open transaction or in one for the block."""
        if not views:
            yield
            return
        connection = self._session.connection
        is_own = not self._session.transaction.open
        if is_own:
            connection.execute("BEGIN TRANSACTION")
        try:
            with self._filled(run, views):
                yield
            if is_own:
                connection.execute("COMMIT")
        except BaseException:
            if is_own:
                with suppress(duckdb.Error):
                    connection.execute("ROLLBACK")
            raise

    @contextmanager
    def empty(self, views: Views) -> Iterator[None]:
        """Has the views without rows for the block, to describe a statement."""
        with ExitStack() as stack:
            for view, name in views.items():
                self._create(stack, view, self.find(name), [])
            yield

    @contextmanager
    def _filled(self, run: Run, views: Views) -> Iterator[None]:
        """Shows each row once: what the lake shows to the transaction is fixed after the queue was
        read, and segments that were in the lake by then are left out.
        """
        reader = self._session.transaction.queue_reader
        targets = {view: self.find(name) for view, name in views.items()}
        # All of the queue first: the first read of the lake fixes the snapshot.
        segments = {
            view: self._queue.open_segments(target.table, run.check, reader)
            for view, target in targets.items()
        }
        with ExitStack() as stack:
            for view, target in targets.items():
                self._create(stack, view, target, self._not_in_lake(target, segments[view]))
            yield

    def _create(
        self, stack: ExitStack, view: str, target: CachedTable, segments: list[Any]
    ) -> None:
        connection = self._session.connection
        query = stack.enter_context(
            segments_as_query(connection, segments, target.layout, f"{view}_")
        )
        connection.execute(f"CREATE OR REPLACE TEMP VIEW {view} AS {query}")
        stack.callback(_drop_view, connection, view)

    def _not_in_lake(self, target: CachedTable, segments: list[Any]) -> list[Any]:
        """The segments whose rows the transaction does not see in the lake."""
        if not segments:
            return segments
        catalog = self._session.services.lake.catalog(target.table.catalog)
        self._session.catalogs.attach_named({catalog.name})
        row = self._session.connection.execute(
            "FROM ducklake_current_snapshot(?)", [target.table.catalog]
        ).fetchone()
        assert row is not None
        snapshot = row[0]
        flushed = catalog.find_in_ledger([ledger_entry(segment.header.id) for segment in segments])
        return [
            segment
            for segment in segments
            if flushed.get(ledger_entry(segment.header.id), snapshot + 1) > snapshot
        ]


def _drop_view(connection: duckdb.DuckDBPyConnection, view: str) -> None:
    with suppress(duckdb.Error):  # in a transaction that was aborted, the view goes with it
        connection.execute(f"DROP VIEW IF EXISTS temp.main.{view}")

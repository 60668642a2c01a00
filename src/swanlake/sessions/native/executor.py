"""The entrance: executes a statement without DuckLake's extension, or leaves it to the engine.

Files are written before locking, so the commit lock is held for about a millisecond, however many
rows there are, and concurrent appends never conflict.
"""

from __future__ import annotations

from typing import Any

import duckdb

from swanlake.engine.errors import is_interrupt
from swanlake.errors import AlreadyExists, CommitConflict, NotFound, SwanLakeError, Unsupported
from swanlake.lake.files import datafile
from swanlake.lake.model.layout import Table
from swanlake.lake.model.operations import Commit
from swanlake.lake.model.types import UnsupportedType
from swanlake.lake.read.inlined_scan import may_be_inlined
from swanlake.sessions.execution.engine_session import STATEMENT_ERRORS, EngineSession
from swanlake.sessions.execution.names import TableName
from swanlake.sessions.execution.parser import StatementParser
from swanlake.sessions.execution.router import WriteHead
from swanlake.sessions.native import changes
from swanlake.sessions.native.analysis import StatementAnalysis
from swanlake.sessions.native.context import (
    FallBackToExtension,
    NativeContext,
    PreparedChange,
    PreparedCommit,
)
from swanlake.sessions.native.create_table import TableCreator
from swanlake.sessions.native.inserts import Inserter
from swanlake.sessions.native.reads import NativeReader
from swanlake.sessions.results.stream import Outcome
from swanlake.sessions.run import Run
from swanlake.sql.heads import ChangeHead, CreateHead
from swanlake.sql.statement import Kind, Statement

#: How often a statement is tried whose table changes before its commit.
_ATTEMPTS = 3


class NativeExecutor:
    """Executes the native statements of one session.

    Both ways give None, with nothing done, for a statement that the engine must run: one whose
    table is not certainly the lake's, or of which only DuckLake's own code knows what to do.
    """

    def __init__(
        self, session: EngineSession, parser: StatementParser, analysis: StatementAnalysis
    ) -> None:
        self._session = session
        self._services = session.services
        self._table_cache = session.services.queue.table_cache
        self._analysis = analysis
        self._reader = NativeReader(session, self._analysis)
        self._inserter = Inserter(session, parser, self._reader, self._analysis)
        self._creator = TableCreator(self._table_cache, self._analysis)

    def read(self, run: Run, statement: Statement, parameters: Any) -> Outcome | None:
        """Runs a query whose tables have all their rows in the metadata."""
        connection = self._session.connection
        try:
            return self._reader.run(
                NativeContext(self._session, run, statement, parameters, connection)
            )
        except STATEMENT_ERRORS as error:
            self._session.fail(error, statement)

    def exists(self, statement: Statement, head: WriteHead) -> bool:
        """True for a CREATE TABLE IF NOT EXISTS of a table that exists."""
        if not (isinstance(head, CreateHead) and head.if_not_exists):
            return False
        table = self._resolve(statement, head)
        return table is not None and self._creator.find(table) is not None

    def write(
        self, run: Run, statement: Statement, head: WriteHead, parameters: Any, keep_rows: bool
    ) -> Outcome | None:
        """Runs a write and commits it."""
        table = self._resolve(statement, head)
        if table is None:
            return None
        connection = self._session.connection
        context = NativeContext(self._session, run, statement, parameters, connection, keep_rows)
        try:
            return self._write(table, head, context)
        except STATEMENT_ERRORS as error:
            self._session.fail(error, statement)

    def _resolve(self, statement: Statement, head: WriteHead) -> TableName | None:
        """The table of a write; None if its name may not mean a table of the lake."""
        parts = self._services.native
        if not (parts.changes if isinstance(head, ChangeHead) else parts.inserts):
            return None
        if isinstance(head, CreateHead) and self._session.folds_names:
            return None
        # DuckDB refuses a statement that advances a sequence of another database.
        if "nextval" in statement.text.lower():
            return None
        return self._session.names.resolve_table(head.target)

    def _write(self, table: TableName, head: WriteHead, context: NativeContext) -> Outcome | None:
        counts = self._services.writes
        attempt = 1
        while True:
            try:
                with context.run.interruptible(context.connection):
                    prepared = self._prepare(table, head, context)
                self._commit(prepared, table, context)
            except FallBackToExtension:
                if not isinstance(head, ChangeHead):  # most changes fall back, whatever is cached
                    self._table_cache.invalidate(*table)
                counts.increment("extension")
                return None
            except (CommitConflict, AlreadyExists, NotFound) as conflict:
                # The table was altered, dropped or created since it was read.
                self._table_cache.invalidate_all()
                is_last = attempt == _ATTEMPTS
                if context.has_client_rows or (is_last and context.statement.kind is Kind.QUERY):
                    raise
                if is_last or isinstance(conflict, AlreadyExists):
                    # The extension runs it under the writer lock.
                    counts.increment("extension")
                    return None
                attempt += 1
                counts.increment("repeated")
                continue
            if isinstance(head, CreateHead):
                self._table_cache.invalidate(*table)
            counts.increment("native")
            return prepared.change.outcome

    def _commit(self, prepared: PreparedCommit, table: TableName, context: NativeContext) -> None:
        operations, layout = prepared.change.operations, prepared.table
        try:
            context.run.check()
            if operations:
                base = None if layout is None else layout.snapshot_id
                commit = Commit(operations, base=base, by_name=True)
                done = prepared.catalog.commit(commit, context.run.session.id, context.run.check)
                location = self._services.lake.location(prepared.catalog.info)
                self._session.record_commit(location, done.snapshot_id)
                if layout is not None:
                    self._table_cache.confirm(*table, layout, done.snapshot_id)
        except SwanLakeError as error:
            if layout is not None and not error.in_doubt:
                datafile.remove_files(layout, prepared.change.files)
            raise

    def _prepare(self, table: TableName, head: WriteHead, context: NativeContext) -> PreparedCommit:
        try:
            if isinstance(head, CreateHead):
                return self._creator.prepare(table, head, context)
            target = self._table_cache.find(*table, commit_checks=True)
            catalog = self._services.lake.find_open(target.table.catalog_id)
            assert catalog is not None  # the target was found in it
            if target.layout.options.requires_message:
                raise FallBackToExtension  # which refuses it: only a transaction has a message
            if isinstance(head, ChangeHead):
                change = self._change(table, head, context, target.layout)
            else:
                change = self._inserter.prepare(table, head, context, target)
            return PreparedCommit(catalog, change, target.layout)
        except (NotFound, Unsupported, UnsupportedType):
            raise FallBackToExtension from None
        except duckdb.Error as error:
            # DuckDB lost the error of one of its threads; the extension finds it again.
            may_repeat = not context.has_client_rows and context.statement.kind is not Kind.QUERY
            if is_interrupt(error) and may_repeat and not context.run.is_stopped:
                raise FallBackToExtension from None
            raise

    def _change(
        self, name: TableName, head: ChangeHead, context: NativeContext, table: Table
    ) -> PreparedChange:
        if not may_be_inlined(table):
            raise FallBackToExtension
        plain = self._analysis.plain_query(changes.expressions_query(head, name))
        columns = [column.name for column in table.columns]
        if plain is None or not plain.is_row_wise or not plain.names_only(columns):
            raise FallBackToExtension
        scan = self._reader.scan(context.run, name)
        if scan is None:
            raise FallBackToExtension
        if scan.table != table:
            self._reader.forget(name)
            raise FallBackToExtension
        with context.on_scratch(context.parameters) as scratch:
            return changes.prepare(head, name, scratch, scan)

"""Executes the statements of a session: routes each one, and hands it to its executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import duckdb
from duckdb import StatementType

from swanlake.access.policy import require_role
from swanlake.engine.errors import ENGINE_ERRORS
from swanlake.errors import InvalidRequest, NotFound, WriterLockExceeded
from swanlake.lake.metastore.location import LakeLocation
from swanlake.sessions.execution.access import AccessGuard
from swanlake.sessions.execution.alterations import check_transaction, record_alteration
from swanlake.sessions.execution.descriptions import (
    Description,
    DescriptionCache,
    InsertedParameters,
)
from swanlake.sessions.execution.engine_executor import EngineExecutor
from swanlake.sessions.execution.engine_session import STATEMENT_ERRORS, EngineSession
from swanlake.sessions.execution.parser import StatementParser
from swanlake.sessions.execution.prepared import PreparedStatement, describe
from swanlake.sessions.execution.router import (
    Enqueue,
    NativeRead,
    NativeWrite,
    Procedure,
    QueueRead,
    Route,
    RouteContext,
    enqueue_head,
    route,
)
from swanlake.sessions.native.analysis import StatementAnalysis
from swanlake.sessions.native.executor import NativeExecutor
from swanlake.sessions.procedures.functions import TableFunctions
from swanlake.sessions.procedures.registry import run_procedure
from swanlake.sessions.queue.enqueue import EnqueueExecutor
from swanlake.sessions.queue.tables import QueueQuery, QueueTables, Views
from swanlake.sessions.results.stream import Outcome
from swanlake.sessions.run import Run
from swanlake.sql.last_commit import LastCommitCall, replace_calls
from swanlake.sql.quoting import literal
from swanlake.sql.statement import Statement


class StatementExecutor:
    """Executes every statement of one session."""

    def __init__(self, session: EngineSession) -> None:
        self.session = session
        self._parser = StatementParser(session)
        self._guard = AccessGuard(session, self._parser)
        self._queue_tables = QueueTables(session, self._parser)
        self._functions = TableFunctions(session, self._parser)
        self.enqueue = EnqueueExecutor(session, self._queue_tables)
        analysis = StatementAnalysis(session)
        self._native = NativeExecutor(session, self._parser, analysis)
        self._descriptions = DescriptionCache(session, analysis)
        self._inserted = InsertedParameters()
        self._engine = EngineExecutor(session, self._queue_tables)

    def parse(self, sql: str) -> list[Statement]:
        """The statements of a client's text, at least one."""
        try:
            statements = self._parser.parse(sql)
        except ENGINE_ERRORS as error:
            self.session.fail(error)
        if not statements:
            raise InvalidRequest("The statement is empty.", identifier="EMPTY_STATEMENT")
        return statements

    def run_all(self, run: Run, statements: list[Statement]) -> Outcome:
        """Runs statements in order; the outcome is that of the last one."""
        run.statement = statements[-1]
        if len(statements) > 1:
            inserts = sum(enqueue_head(statement) is not None for statement in statements)
            run.check_batch_id(inserts)
        for statement in statements[:-1]:
            self.run_one(run, statement, keep_rows=False)
        outcome = self.run_one(run, statements[-1])
        if outcome.affected is not None:
            run.rows = outcome.affected
        return outcome

    def run_one(
        self, run: Run, statement: Statement, parameters: Any = None, *, keep_rows: bool = True
    ) -> Outcome:
        """Runs one statement by its route."""
        session = self.session
        session.transaction.admit(statement)
        self._guard.check(statement)
        session.catalogs.protect(statement)
        check_transaction(session, statement)
        statement = self._with_last_commits(statement)
        if calls := self._functions.find(statement):
            with self._functions.visible(run, statement, calls) as rewritten:
                outcome = self._run_routed(run, rewritten, parameters, keep_rows)
                if (stream := outcome.stream) is not None:  # the views are dropped now
                    session.call(run, lambda connection: stream.drain())
                    session.live = None
            return outcome
        return self._run_routed(run, statement, parameters, keep_rows)

    def _run_routed(
        self, run: Run, statement: Statement, parameters: Any, keep_rows: bool
    ) -> Outcome:
        session = self.session
        chosen = self._route(statement, keep_rows=keep_rows)
        if isinstance(chosen, Procedure):
            return run_procedure(session, run, chosen.procedure, statement, parameters)
        if isinstance(chosen, Enqueue):
            return self.enqueue.run(run, statement, chosen, parameters)
        outcome: Outcome | None = None
        views: Views = {}
        if isinstance(chosen, NativeWrite):
            outcome = self._native.write(run, statement, chosen.head, parameters, keep_rows)
        elif isinstance(chosen, NativeRead):
            outcome = self._native.read(run, statement, parameters)
        elif isinstance(chosen, QueueRead):
            query = self._rewrite(statement, chosen)
            statement, views = query.statement, query.views
        if outcome is None:
            outcome = self._run_on_engine(run, statement, parameters, keep_rows, views)
        if statement.changes_tables and not session.transaction.open:
            for location in session.names.written_catalogs(statement):
                session.engine.refreshes.mark_changed(location.catalog)
        session.record(statement)
        record_alteration(session, statement)
        return outcome

    def _run_on_engine(
        self, run: Run, statement: Statement, parameters: Any, keep_rows: bool, views: Views
    ) -> Outcome:
        is_one = not (statement.is_expanded and statement.may_write)
        was_open = self.session.transaction.open
        try:
            with nullcontext() if is_one else self.atomic(run, [statement]):
                return self._engine.run(
                    run, statement, parameters, keep_rows=keep_rows, views=views
                )
        except WriterLockExceeded:
            # Only a PostgreSQL catalog accepts a transaction after commits to other tables.
            catalogs = self.session.names.written_catalogs(statement)
            has_sqlite = any(location.sqlite_path is not None for location in catalogs)
            if was_open or views or has_sqlite or self.session.client_rows.rows is not None:
                raise
        run.run_without_lock()
        with self.atomic(run, [statement], locks_at_commit=True):
            return self._engine.run(run, statement, parameters, keep_rows=keep_rows)

    def _route(self, statement: Statement, *, keep_rows: bool = True) -> Route:
        session = self.session
        context = RouteContext(
            native=session.services.native.is_on,
            in_transaction=session.transaction.open,
            has_local_state=session.has_local_state,
            has_client_rows=session.client_rows.rows is not None,
            keep_rows=keep_rows,
        )
        return route(statement, context)

    def _with_last_commits(self, statement: Statement) -> Statement:
        """The statement with this session's commits: the extension knows only its own."""
        text = replace_calls(statement.text, self._last_commit)
        return statement if text == statement.text else self._parser.parse_one(text)

    def _last_commit(self, call: LastCommitCall) -> str | None:
        if call.argument is not None:
            return self._last_commit_by_name(call.argument)
        location = self.session.names.catalog_location(call.qualifiers)
        if location is None:
            return None  # of another database, or the extension reports what is wrong
        return f"SELECT CAST({self._last_commit_value(location)} AS UBIGINT) AS id"

    def _last_commit_by_name(self, argument: str) -> str:
        """The query if only DuckDB knows the name: it is a parameter, or an expression."""
        lake = self.session.services.lake
        cases = " ".join(
            f"WHEN {literal(info.name)} THEN {self._last_commit_value(lake.location(info))}"
            for info in lake.catalogs()
        )
        unknown = "error('The argument of ducklake_last_committed_snapshot names no catalog.')"
        return (
            f"SELECT CAST(CASE lower(CAST(({argument}) AS VARCHAR)) {cases} ELSE {unknown} END "
            "AS UBIGINT) AS id"
        )

    def _last_commit_value(self, location: LakeLocation) -> str:
        snapshot_id = self.session.last_commit(location)
        return "NULL" if snapshot_id is None else str(snapshot_id)

    def _rewrite(self, statement: Statement, queue_read: QueueRead) -> QueueQuery:
        try:
            return self._queue_tables.rewrite(statement.text, queue_read.reads)
        except STATEMENT_ERRORS as error:
            self.session.fail(error, statement)

    @contextmanager
    def atomic(
        self, run: Run, statements: list[Statement], *, locks_at_commit: bool = False
    ) -> Iterator[None]:
        """A transaction around these statements, unless the session already has one.

        One that locks at its commit only keeps no other writer waiting, but may have a conflict.
        """
        session = self.session
        if session.transaction.open:
            yield
            return
        # Locked before the transaction begins: a commit in between would make it fail.
        catalogs = set().union(*map(session.names.written_catalogs, statements))
        with session.writer_lock(run, set() if locks_at_commit else catalogs):
            self.run_one(run, self.parse("BEGIN TRANSACTION")[0])
            try:
                yield
                self.run_one(run, self.parse("COMMIT")[0])
            except BaseException:
                session.roll_back()
                raise

    def creates_nothing(self, statement: Statement) -> bool:
        """True for a CREATE TABLE IF NOT EXISTS of a table that exists in the lake."""
        chosen = self._route(statement)
        return isinstance(chosen, NativeWrite) and self._native.exists(statement, chosen.head)

    def in_lake(self, statement: Statement) -> Statement:
        """A statement that creates a table of the queue, as one that creates it in the lake."""
        try:
            return self._parser.parse_one(self._queue_tables.rewrite_for_lake(statement.text))
        except STATEMENT_ERRORS as error:
            self.session.fail(error, statement)

    def describe(
        self,
        connection: duckdb.DuckDBPyConnection,
        prepared: PreparedStatement,
        values: dict[str, Any] | None = None,
    ) -> None:
        """Fills in the schemas of a prepared statement."""
        for statement in prepared.statements:
            self._guard.check(statement)
        if any(one.type != StatementType.SELECT for one in prepared.statements[:-1]):
            return  # the statements before the last may create what it reads
        statement = prepared.last
        if calls := self._functions.find(statement):
            with self._functions.described(statement, calls) as rewritten:
                describe(self.session.connection, prepared, rewritten, values=values)
            return
        procedure = target = None
        views: Views = {}
        chosen = self._route(statement)
        # A native read depends on no state of the session.
        is_lasting = (
            isinstance(chosen, NativeRead) and values is None and len(prepared.statements) == 1
        )
        if is_lasting and (known := self._descriptions.get(statement)) is not None:
            prepared.dataset_schema = known.dataset_schema
            prepared.parameter_schema = known.parameter_schema
            prepared.is_plain = True
            return
        if isinstance(chosen, Procedure):
            procedure = chosen.procedure
            require_role(self.session.identity, procedure.role, procedure.name)
        elif isinstance(chosen, Enqueue):
            try:
                columns = self.enqueue.stage(statement, chosen).schema
                known = None if chosen.reads_queue else self._inserted.get(statement, columns)
                if known is not None:
                    prepared.parameter_schema = known
                    return
                plan = self.enqueue.plan(statement, chosen)
            except NotFound:
                if self.enqueue.creates_tables:
                    return
                raise
            statement, target, views = plan.statement, plan.staging.schema, plan.views
        elif isinstance(chosen, QueueRead):
            query = self._queue_tables.rewrite(statement.text, chosen.reads)
            statement, views = query.statement, query.views
        with self._queue_tables.empty(views):
            self.session.retry_with_catalogs(
                statement,
                # Attaching a catalog may move the session to another connection.
                lambda: describe(
                    self.session.connection, prepared, statement, procedure, target, values
                ),
            )
        if is_lasting:
            description = Description(prepared.dataset_schema, prepared.parameter_schema)
            prepared.is_plain = self._descriptions.put(statement, description)

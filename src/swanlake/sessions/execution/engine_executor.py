"""Statements that DuckDB runs on the session's connection."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import duckdb

from swanlake.engine.errors import translate
from swanlake.errors import AccessDenied, CatalogUnreachable, CommitConflict
from swanlake.lake.commit.protocol import Retries
from swanlake.sessions.execution.alterations import check_columns
from swanlake.sessions.execution.engine_session import STATEMENT_ERRORS, EngineSession
from swanlake.sessions.execution.inlining import structs_in_files
from swanlake.sessions.execution.wide_integers import checked_integers
from swanlake.sessions.queue.tables import QueueTables, Views
from swanlake.sessions.results.stream import Outcome
from swanlake.sessions.run import Run
from swanlake.sql.statement import Kind, Statement

#: Retries of an autocommit statement that lost to a commit of another program.
_MAX_RETRIES = 5
_BACKOFF = Retries()


class EngineExecutor:
    """Runs statements on the engine, with the rows of the queue that they read."""

    def __init__(self, session: EngineSession, queue_tables: QueueTables) -> None:
        self._session = session
        self._queue_tables = queue_tables

    def run(
        self,
        run: Run,
        statement: Statement,
        parameters: Any,
        *,
        keep_rows: bool,
        views: Views | None = None,
    ) -> Outcome:
        """Runs a statement; ``views`` are those of the queue's tables that it reads."""
        session = self._session
        session.refresh_catalogs(run, statement)
        if statement.is_expanded:  # a step that failed cannot be repeated without those before it
            # Raised again if the statement needs the catalog.
            with suppress(CatalogUnreachable, AccessDenied):
                session.attach_catalogs(statement, session.engine.attach_count)
        retries = 0
        while True:
            seen = session.engine.attach_count
            with session.statement_writer_lock(run, statement):
                try:
                    # Interruptible to the end: a statement that was done must not be reported
                    # stopped.
                    with (
                        run.interruptible(session.connection),
                        self._queue_tables.visible(run, views or {}),
                    ):
                        if statement.kind is Kind.COMMIT:
                            session.check_deletes()
                        check_columns(session, statement)
                        if statement.kind in (Kind.QUERY, Kind.CHANGE):  # it may list tables
                            session.drop_staging_tables()
                        session.client_rows.expose(session.connection)
                        with (
                            structs_in_files(session, run, statement),
                            checked_integers(
                                session,
                                statement,
                                in_transaction=session.transaction.open or bool(views),
                            ),
                        ):
                            session.execute(statement, parameters)
                            outcome = collect_outcome(
                                session, run, statement, keep_rows=keep_rows, drain=bool(views)
                            )
                        session.record_extension_commits(statement)
                        break
                except STATEMENT_ERRORS as error:
                    if isinstance(error, duckdb.Error):
                        is_attached = session.attach_after(error, statement, seen)
                        if is_attached and not statement.is_expanded:
                            continue  # with the writer locks of what was attached
                    # The commit of another program came first, and nothing of this one was stored.
                    may_retry = retries < _MAX_RETRIES and self._may_retry()
                    if not may_retry or not isinstance(translate(error), CommitConflict):
                        session.fail(error, statement)
            retries += 1
            session.services.writes.increment("repeated")
            time.sleep(_BACKOFF.wait_before(retries))
            run.check()
        if statement.changes_tables:
            session.services.queue.table_cache.invalidate_all()
        return outcome

    def _may_retry(self) -> bool:
        # Rows of a client can be read once only: the second time there would be none.
        return not self._session.transaction.open and self._session.client_rows.rows is None


def collect_outcome(
    session: EngineSession,
    run: Run,
    statement: Statement,
    *,
    keep_rows: bool = True,
    drain: bool = False,
) -> Outcome:
    """The outcome of the statement that the session's connection has just executed.

    ``drain`` takes all rows off the connection at once; those of a write always are.
    """
    if statement.kind is Kind.QUERY:
        stream = session.stream(run, session.connection)
        if not keep_rows:
            stream.discard()
        elif drain or statement.may_write:  # the writer lock ends with the statement
            stream.drain()
        elif stream.live:
            session.live = stream
        return Outcome(stream, stream.total_rows if statement.is_change else None)
    columns = [column[0] for column in session.connection.description or ()]
    rows = session.connection.fetchall()
    if statement.kind is not Kind.CHANGE:
        return Outcome()
    # A CREATE without AS has a Count column too, and no row in it.
    return Outcome(affected=rows[0][0] if rows and columns == ["Count"] else None)

"""A session: a DuckDB connection with its transaction, prepared statements and options."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import duckdb

from swanlake._internal.lru_cache import LruCache
from swanlake._internal.waiting import acquiring, wait
from swanlake.access.identity import Identity
from swanlake.engine.instance import EngineSealed
from swanlake.errors import InvalidRequest, NotFound, QueryCancelled, SessionLost
from swanlake.sessions.execution import binding
from swanlake.sessions.execution.catalogs import LakeCatalogs
from swanlake.sessions.execution.client_rows import CLIENT_ROWS
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.execution.executor import StatementExecutor
from swanlake.sessions.execution.parameters import ParameterExecutor
from swanlake.sessions.execution.prepared import EMPTY_SCHEMA, PreparedStatement
from swanlake.sessions.execution.router import enqueue_head
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.results.pending import within_deadline
from swanlake.sessions.results.stream import Outcome
from swanlake.sessions.results.uploads import receive_upload
from swanlake.sessions.run import Run
from swanlake.sessions.services import SessionServices
from swanlake.sessions.transaction import TransactionState
from swanlake.sql.statement import Kind, Statement

log = logging.getLogger("swanlake.sessions")

T = TypeVar("T")

#: Seconds that close() waits for the running statement.
_CLOSE_TIMEOUT = 5.0


class Session:
    """Executes one statement at a time; a result can be read while the next statement runs."""

    def __init__(self, key: SessionKey, services: SessionServices, identity: Identity) -> None:
        self.key = key
        self.identity = identity
        self.created = self.last_used = time.monotonic()
        #: ``host:port`` of the client that called last.
        self.address = ""
        #: The statements so far.
        self.statements = 0
        self.query_timeout: float | None = None
        #: Options set through the protocol.
        self.options: dict[str, str | bool | int | float] = {}
        self._services = services
        self._engine = EngineSession(services, identity, self.touch)
        self._executor = StatementExecutor(self._engine)
        self._bound = ParameterExecutor(self._executor)
        self._lock = threading.Lock()
        self._closed = False
        self._current: Run | None = None
        self._prepared: dict[bytes, PreparedStatement] = {}
        #: Whether the latest execution of a prepared statement was quick, by ``_speed_key``.
        self._quick: LruCache[bool] = LruCache()

    @property
    def transaction(self) -> TransactionState:
        """The state of the transaction."""
        return self._engine.transaction

    def execute(self, run: Run, sql: str, transaction: bytes | None = None) -> Outcome:
        """Runs a text, statement by statement; the outcome is that of the last one."""
        self._announce(run, sql)

        def execute() -> Outcome:
            with self._statement_lock(run, transaction):
                return self._executor.run_all(run, self._executor.parse(sql))

        return self._bounded(run, execute)

    def _bounded(self, run: Run, statement: Callable[[], Outcome]) -> Outcome:
        """The outcome of a statement, at the latest when it is stopped."""
        if not self._services.uses_object_store:
            return statement()  # DuckDB can be interrupted
        return within_deadline(self._services.background, run, statement)

    def query(self, run: Run, sql: str, parameters: list[Any] | None = None) -> Any:
        """The whole result of an internal query, as a table."""

        def execute(connection: duckdb.DuckDBPyConnection) -> Any:
            self._engine.drop_staging_tables()
            return connection.execute(sql, parameters).to_arrow_table()

        return self.with_connection(run, execute)

    def with_connection(self, run: Run, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function with the session's connection, between two statements."""
        with self._statement_lock(run):
            return self._engine.call(run, function, *arguments)

    def ingest(
        self,
        run: Run,
        reader: Any,
        load: Callable[[str], list[str]],
        transaction: bytes | None = None,
    ) -> int:
        """Runs the statements that ``load`` builds around the view of the incoming rows, as one.

        The last of them loads the rows; returns the number of rows.
        """
        texts = load(CLIENT_ROWS)
        self._announce(run, "; ".join(texts))
        with (
            self._statement_lock(run, transaction),
            receive_upload(run, reader, self._engine.buffer) as rows,
        ):
            run.rows = self._bound.load(run, texts, rows)
            return run.rows

    def describe(self, run: Run, sql: str, transaction: bytes | None = None) -> PreparedStatement:
        """Parses a text and describes it without executing any of it."""
        run.sql, run.describes_only = sql, True
        with self._statement_lock(run, transaction):
            prepared = PreparedStatement(sql, self._executor.parse(sql))
            self.transaction.admit(prepared.statements[0])
            self._engine.call(run, self._executor.describe, prepared)
            return prepared

    def prepare(self, run: Run, sql: str, transaction: bytes | None = None) -> PreparedStatement:
        """Describes a text, and remembers it until its handle is closed."""
        prepared = self.describe(run, sql, transaction)
        self._prepared[prepared.handle] = prepared
        return prepared

    def bind(self, run: Run, handle: bytes, reader: Any) -> PreparedStatement:
        """Binds a stream of rows to a prepared statement."""
        prepared = self.prepared(handle)
        prepared.bound = binding.receive_rows(reader, self._engine.memory.open(), run.check)
        return prepared

    def decode_parameters(self, stream: bytes) -> list[Any]:
        """The rows of an Arrow stream inside a message, to be bound to a statement."""
        return binding.decode_rows(stream, self._engine.memory.open())

    def was_quick(self, prepared: PreparedStatement) -> bool:
        """True if the latest execution of a prepared statement ended at once."""
        return self._quick.get(_speed_key(prepared)) or False

    def record_speed(self, prepared: PreparedStatement, *, is_quick: bool) -> None:
        """Takes note of whether an execution ended at once."""
        self._quick.put(_speed_key(prepared), is_quick)

    def prepared(self, handle: bytes) -> PreparedStatement:
        """The prepared statement of a handle of this session."""
        try:
            return self._prepared[handle]
        except KeyError:
            raise NotFound(
                "This session has no such prepared statement: it was closed, or belongs to another "
                "session.",
                identifier="STATEMENT_NOT_FOUND",
            ) from None

    def close_prepared(self, handle: bytes) -> None:
        """Forgets a prepared statement; one that does not exist is ignored."""
        prepared = self._prepared.pop(handle, None)
        if prepared is not None and prepared.last_run is not None:
            prepared.last_run.stop_unless_fetched()

    def execute_prepared(
        self, run: Run, prepared: PreparedStatement, transaction: bytes | None = None
    ) -> Outcome:
        """Runs a prepared statement, once per row that is bound to it."""
        self._announce(run, prepared.sql)
        with self._statement_lock(run, transaction):
            return self._run_bound(run, prepared.statements, prepared.bound)

    def describe_execution(self, run: Run, prepared: PreparedStatement) -> Any:
        """The columns that a prepared read will return now; empty if they cannot be known."""
        if not prepared.is_read:
            return EMPTY_SCHEMA
        if prepared.is_recently_described and not prepared.last.parameters:
            return prepared.dataset_schema
        values = prepared.bound_values()
        if values is None:
            return EMPTY_SCHEMA
        with self._statement_lock(run):
            self.transaction.admit(prepared.last)
            again = replace(prepared, dataset_schema=EMPTY_SCHEMA)
            self._engine.call(run, self._executor.describe, again, values)
            return again.dataset_schema

    def execute_bound(
        self, run: Run, sql: str, bound: list[Any], transaction: bytes | None = None
    ) -> Outcome:
        """Runs a text once per bound row, without preparing it first."""
        self._announce(run, sql)
        with self._statement_lock(run, transaction):
            prepared = PreparedStatement(sql, self._executor.parse(sql))
            if not prepared.last.parameters:
                binding.arrange(bound[0].schema, ())  # raises that nothing can be bound
            return self._run_bound(run, prepared.statements, bound)

    def _announce(self, run: Run, sql: str) -> None:
        """Shows the text of a statement before it waits for the session."""
        run.sql, run.describes_only = sql, False
        self.statements += 1

    def _run_bound(self, run: Run, statements: list[Statement], bound: list[Any] | None) -> Outcome:
        last = run.statement = statements[-1]
        if not last.parameters or bound is None:
            return self._executor.run_all(run, statements)
        order = binding.arrange(bound[0].schema, last.parameters)
        batches = [binding.bindable(batch, order) for batch in bound]
        rows = sum(batch.num_rows for batch in batches)
        if rows == 0 and (probe := last.probe()) is not None:
            [columns] = self._executor.parse(probe)
            return self._executor.run_one(run, columns, dict.fromkeys(columns.parameters))
        once_per_row = rows == 1 or (rows > 1 and last.kind is Kind.QUERY)
        if once_per_row and enqueue_head(last) is None:
            return self._bound.run_rows(run, statements, batches)
        return self._bound.run_bulk(run, statements, iter(batches), batches[0].schema)

    def update_prepared(self, run: Run, prepared: PreparedStatement, reader: Any) -> int:
        """Runs a prepared change for every row of the stream, as one transaction."""
        self._announce(run, prepared.sql)
        with self._statement_lock(run):
            last = run.statement = prepared.last
            if not last.parameters:
                return self._executor.run_all(run, prepared.statements).affected or 0
            order = binding.arrange(reader.schema, last.parameters)
            arranged = binding.bindable_reader(reader, order)
            with receive_upload(run, arranged, self._engine.buffer) as rows:
                outcome = self._bound.run_bulk(run, prepared.statements, rows, rows.schema)
            if outcome.stream is not None:
                outcome.stream.close()
            run.rows = outcome.affected or 0
            return run.rows

    def begin(self, run: Run) -> bytes:
        """Opens a transaction; returns its handle."""
        self._announce(run, "BEGIN TRANSACTION")
        with self._statement_lock(run):
            if self.transaction.open:
                raise InvalidRequest(
                    "This session already has an open transaction; commit or roll back first.",
                    identifier="TRANSACTION_ACTIVE",
                )
            self._executor.run_all(run, self._executor.parse("BEGIN TRANSACTION"))
            return self.transaction.handle

    def end(self, run: Run, handle: bytes, commit: bool) -> None:
        """Commits or rolls back the transaction of a handle."""
        sql = "COMMIT" if commit else "ROLLBACK"
        self._announce(run, sql)
        with self._statement_lock(run, handle):
            self._executor.run_all(run, self._executor.parse(sql))

    @property
    def catalogs(self) -> LakeCatalogs:
        """The catalogs of the lake; each is attached when a statement first names it."""
        return self._engine.catalogs

    def attach_for_metadata(self, run: Run, name: str | None) -> None:
        """Attaches one catalog, or all that the caller may read; broken ones are shown empty."""
        try:
            self.catalogs.attach_for_metadata(name)
        except EngineSealed:
            with self._statement_lock(run):
                self._engine.attach_for_metadata(name)

    def location(self, run: Run) -> tuple[str, str]:
        """The current catalog and schema."""
        table = self.query(run, "SELECT current_catalog() AS c, current_schema() AS s")
        return table["c"][0].as_py(), table["s"][0].as_py()

    @property
    def current(self) -> Run | None:
        """The statement that has the session."""
        return self._current

    @property
    def known_catalog(self) -> str | None:
        """The current catalog; None if it is not known without a query."""
        return self._engine.names.known_catalog

    @property
    def running(self) -> bool:
        """True while a statement executes or waits for the lock, or DuckDB produces a result."""
        live = self._engine.live
        return self._lock.locked() or (live is not None and live.run.is_interruptible)

    @property
    def idle_seconds(self) -> float:
        """Seconds since the session was last used; 0 while it is running."""
        return 0.0 if self.running else time.monotonic() - self.last_used

    def touch(self) -> None:
        """Records that the session is in use."""
        self.last_used = time.monotonic()

    def leave_retired_engine(self) -> None:
        """Moves an idle session off a retired engine; a busy one moves with its next statement."""
        if not self._engine.engine.retired or not self._lock.acquire(blocking=False):
            return
        try:
            if not self._closed:
                self._engine.leave_retired_engine()
        finally:
            if self._closed:
                self._engine.release()
            self._lock.release()

    def close(self, reason: str) -> None:
        """Cancels the running statement and releases the connection; bounded, idempotent."""
        if self._closed:
            return
        self._closed = True
        self._prepared.clear()  # and the rows that are bound to them
        stop = QueryCancelled(f"The session was closed ({reason}).")
        deadline = time.monotonic() + _CLOSE_TIMEOUT

        def cancel_running() -> None:
            for run in (self._current, self._engine.live.run if self._engine.live else None):
                if run is not None:
                    run.cancel(stop)

        if not wait(acquiring(self._lock), cancel_running, deadline):
            log.warning("session %s is still busy; its statement frees it when it ends", self.key)
            return
        try:
            self._engine.release()
        finally:
            self._lock.release()

    @contextmanager
    def _statement_lock(self, run: Run, transaction: bytes | None = None) -> Iterator[None]:
        """Holds the lock for one statement, on a working connection without a live result."""
        wait(acquiring(self._lock), run.check)
        try:
            self._current = run
            self.touch()
            if self._closed:
                raise SessionLost(f"The session {self.key.id} is closed.")
            self._engine.renew()
            if transaction is not None:
                self.transaction.check_handle(transaction)
            self._engine.settle(run.check)
            self._engine.leave_retired_engine()
            yield
        finally:
            self._current = None
            self.touch()
            if self._closed:
                self._engine.release()
            self._lock.release()


def _speed_key(prepared: PreparedStatement) -> str:
    """What executions of about the same duration have in common: the text, or only the handle.

    A client prepares one text again and again; with other values, it may take much longer.
    """
    varies = prepared.statements[-1].parameters and not prepared.is_plain
    return prepared.handle.hex() if varies else prepared.sql

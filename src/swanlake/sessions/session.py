"""A session: one DuckDB connection and everything that lives with it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import duckdb
import pyarrow as pa

from swanlake.engine.errors import ENGINE_ERRORS, translate
from swanlake.engine.host import EngineHost, Lease
from swanlake.errors import (
    InvalidRequest,
    NotFound,
    QueryCancelled,
    SessionLost,
    SwanLakeError,
)
from swanlake.lake.gate import CommitGate
from swanlake.lake.lake import Lake
from swanlake.queue.runtime import DucklingQueue
from swanlake.sessions import binding
from swanlake.sessions.catalogs import LakeCatalogs
from swanlake.sessions.describe import describe
from swanlake.sessions.direct import BOUND
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.prepared import PreparedStatement
from swanlake.sessions.procedure import Procedure, Scope
from swanlake.sessions.procedures import find_procedure
from swanlake.sessions.queueing import SessionQueue, Shadow, pragma_as_call
from swanlake.sessions.results import ResultStream
from swanlake.sessions.runs import Run
from swanlake.sessions.transaction import TransactionState
from swanlake.sessions.uploads import received
from swanlake.sql.statement import Kind, Statement, parse

log = logging.getLogger("swanlake.sessions")

T = TypeVar("T")

#: What may go wrong in a statement: the engine, or the decision to stop it.
STATEMENT_ERRORS: tuple[type[Exception], ...] = (*ENGINE_ERRORS, SwanLakeError)
_TURN_POLL = 0.05
_CLOSE_PATIENCE = 5.0


@dataclass(frozen=True)
class SessionServices:
    """What every session of a server shares."""

    host: EngineHost
    lake: Lake
    gate: CommitGate
    queue: DucklingQueue
    result_buffer_bytes: int
    spill_directory: Path


@dataclass(frozen=True)
class Outcome:
    """What a statement gave: a stream of rows, a number of affected rows, both, or neither."""

    stream: ResultStream | None = None
    affected: int | None = None


class Session:
    """One connection's worth of state. Statements take turns; results outlive their turn."""

    def __init__(self, key: SessionKey, services: SessionServices) -> None:
        self.key = key
        self.created = self.last_used = time.monotonic()
        self.query_timeout: float | None = None
        self.transaction = TransactionState()
        self._services = services
        self._lease: Lease = services.host.lease()
        self._busy = threading.Lock()
        self._closed = self._released = False
        self._current: Run | None = None
        self._live: ResultStream | None = None
        self._prepared: dict[bytes, PreparedStatement] = {}
        #: SET and USE by what they set, to be repeated on a new connection.
        self._settings: dict[str, str] = {}
        #: Options set through the protocol, as they were given.
        self.options: dict[str, str | bool | int | float] = {}
        self._has_temporary_state = self._has_lake_turn = False
        self._queue = SessionQueue(services.queue, services.lake, self._expose)
        #: Rows of a client that the running statement can read, and rows to be queued as one.
        self._bound: Any = None
        self._exposed = False
        self._to_queue: list[Any] | None = None
        self._location: tuple[str, str] | None = None

    # ---- statements ----------------------------------------------------------------------------

    def execute(self, run: Run, sql: str, transaction: bytes | None = None) -> Outcome:
        """Runs a text once, statement by statement; the outcome is that of the last one."""
        with self._turn(run, transaction):
            return self._run_all(run, self._parse(sql))

    def query(self, run: Run, sql: str, parameters: list[Any] | None = None) -> Any:
        """The whole result of a query of the server's own, as a table."""
        return self.inspect(run, lambda con: con.execute(sql, parameters).to_arrow_table())

    def inspect(self, run: Run, look: Callable[..., T], *arguments: Any) -> T:
        """What ``look`` finds out with the session's connection, in a turn of its own."""
        with self._turn(run):
            return self._look(run, look, *arguments)

    def ingest(
        self,
        run: Run,
        reader: Any,
        load: Callable[[str], list[str]],
        transaction: bytes | None = None,
    ) -> int:
        """Runs the statements that ``load`` builds around the name of the incoming rows, as one.

        The last of them loads the rows, and its count is the answer.
        """
        with self._turn(run, transaction), self._upload(run, reader) as rows:
            affected = 0
            texts = load(BOUND)
            with self._given(rows):
                if self._queue.is_insert(texts[-1]):  # each for itself: the queue is its own end
                    return [self._run_all(run, self._parse(sql)) for sql in texts][-1].affected or 0
                statements = [self._parse(sql)[0] for sql in texts]
                with self._atomic(run, statements):
                    for statement in statements:
                        affected = self._run_one(run, statement).affected or 0
            return affected

    # ---- prepared statements -------------------------------------------------------------------

    def prepare(self, run: Run, sql: str, transaction: bytes | None = None) -> PreparedStatement:
        """Parses a text and describes it without executing any of it."""
        with self._turn(run, transaction):
            prepared = PreparedStatement(sql, self._parse(sql))
            self.transaction.admit(prepared.last)
            self._look(run, self._describe, prepared, run)
            self._prepared[prepared.handle] = prepared
            return prepared

    def prepared(self, handle: bytes) -> PreparedStatement:
        """The prepared statement of that handle, if this session made it."""
        try:
            return self._prepared[handle]
        except KeyError:
            raise NotFound(
                "This session has no such prepared statement: it was closed, or belongs to another "
                "session.",
                identifier="STATEMENT_NOT_FOUND",
            ) from None

    def close_prepared(self, handle: bytes) -> None:
        self._prepared.pop(handle, None)

    def execute_prepared(self, run: Run, prepared: PreparedStatement) -> Outcome:
        """Runs a prepared statement with what is bound to it, once per bound row."""
        with self._turn(run):
            last, bound = prepared.last, prepared.bound
            if not last.parameters or bound is None:
                return self._run_all(run, prepared.statements)
            batches = _arranged(bound, last)
            rows = sum(batch.num_rows for batch in batches)
            if rows == 0 and (probe := last.probe()) is not None:
                [columns] = self._parse(probe)
                return self._run_one(run, columns, dict.fromkeys(columns.parameters))
            once_per_row = rows == 1 or (rows > 1 and last.kind is Kind.QUERY)
            if once_per_row and not self._queue.is_insert(last.text):
                return self._run_rows(run, prepared.statements, batches)
            return self._run_bulk(run, prepared.statements, iter(batches), batches[0].schema)

    def update_prepared(self, run: Run, prepared: PreparedStatement, reader: Any) -> int:
        """Runs a prepared change for every row of the stream, as one transaction."""
        with self._turn(run):
            last = prepared.last
            if not last.parameters:
                return self._run_all(run, prepared.statements).affected or 0
            order = binding.arrange(reader.schema, last.parameters)
            with self._upload(run, binding.bindable_reader(reader, order)) as rows:
                outcome = self._run_bulk(run, prepared.statements, rows, rows.schema)
            if outcome.stream is not None:
                outcome.stream.close()
            return outcome.affected or 0

    # ---- transactions --------------------------------------------------------------------------

    def begin(self, run: Run) -> bytes:
        """Opens a transaction and names it."""
        with self._turn(run):
            if self.transaction.open:
                raise InvalidRequest(
                    "This session already has an open transaction; commit or roll back first.",
                    identifier="TRANSACTION_ACTIVE",
                )
            self._run_all(run, self._parse("BEGIN TRANSACTION"))
            return self.transaction.handle

    def end(self, run: Run, handle: bytes, commit: bool) -> None:
        """Commits or rolls back the named transaction."""
        with self._turn(run, handle):
            self._run_all(run, self._parse("COMMIT" if commit else "ROLLBACK"))

    # ---- settings ------------------------------------------------------------------------------

    @property
    def catalogs(self) -> LakeCatalogs:
        """The catalogs of the lake; they are attached when they are first named."""
        return LakeCatalogs(self._lease.engine, self._services.lake)

    def location(self, run: Run) -> tuple[str, str]:
        """The current catalog and schema."""
        table = self.query(run, "SELECT current_catalog() AS c, current_schema() AS s")
        return table["c"][0].as_py(), table["s"][0].as_py()

    # ---- life ----------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """True while a statement executes, or waits to, or DuckDB works on a result."""
        live = self._live
        return self._busy.locked() or (live is not None and live.run.engaged_now)

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self.running else time.monotonic() - self.last_used

    def touch(self) -> None:
        self.last_used = time.monotonic()

    def close(self, reason: str) -> None:
        """Stops what runs and frees the connection; bounded, idempotent."""
        if self._closed:
            return
        self._closed = True
        stop = QueryCancelled(f"The session was closed ({reason}).")
        deadline = time.monotonic() + _CLOSE_PATIENCE
        while not self._busy.acquire(timeout=_TURN_POLL):
            for run in (self._current, self._live.run if self._live else None):
                if run is not None:
                    run.cancel(stop)
            if time.monotonic() > deadline:
                log.warning(
                    "session %s is still busy; its statement frees it when it ends", self.key
                )
                return
        try:
            self._release()
        finally:
            self._busy.release()

    # ---- inside --------------------------------------------------------------------------------

    @property
    def _connection(self) -> duckdb.DuckDBPyConnection:
        return self._lease.connection

    @contextmanager
    def _turn(self, run: Run, transaction: bytes | None = None) -> Iterator[None]:
        """One statement at a time, on a working connection that holds no live result."""
        while not self._busy.acquire(timeout=_TURN_POLL):
            run.check()
        try:
            self._current = run
            self.touch()
            if self._closed:
                raise SessionLost(f"The session {self.key.id} is closed.")
            self._renew_connection()
            if transaction is not None:
                self.transaction.check_handle(transaction)
            if self._live is not None:
                self._live.settle(run.check)
                self._live = None
                if self.transaction.open and not self.transaction.aborted:
                    # It may have failed after its statement, while it was fetched.
                    self.transaction.aborted = self._transaction_is_aborted()
            yield
        finally:
            self._current = None
            self.touch()
            if self._closed:
                self._release()
            self._busy.release()

    def _release(self) -> None:
        if not self._released:
            self._released = True
            if self._live is not None:
                self._live.abandon(QueryCancelled("The session was closed."))
            self._services.host.release(self._lease)

    def _parse(self, sql: str) -> list[Statement]:
        try:
            statements = parse(self._connection, pragma_as_call(sql))
            if not statements:
                raise InvalidRequest("The statement is empty.", identifier="EMPTY_STATEMENT")
            return [
                self._queue.translate(self._connection, statement, self._where)
                for statement in statements
            ]
        except STATEMENT_ERRORS as error:
            self._fail(error)

    def _run_all(self, run: Run, statements: list[Statement]) -> Outcome:
        for statement in statements[:-1]:
            self._run_one(run, statement, keep_rows=False)
        return self._run_one(run, statements[-1])

    def _run_one(
        self,
        run: Run,
        statement: Statement,
        parameters: Any = None,
        *,
        keep_rows: bool = True,
    ) -> Outcome:
        """The only place where a client's statement meets DuckDB."""
        self.transaction.admit(statement)
        self.catalogs.keep(statement)
        procedure = find_procedure(statement)
        if procedure is not None:
            return self._run_procedure(run, procedure, statement, parameters)
        shadow = self._queue.shadow_of(statement)
        if shadow is not None:
            return self._run_enqueue(run, statement, parameters, shadow)
        with self._commit_turn(run, statement):
            try:
                # One engagement to the end: a statement that was done must not be reported stopped.
                with run.engaged(self._connection), self._queued_rows(run, statement):
                    self._expose()
                    self._with_catalogs(
                        statement,
                        lambda: self._connection.execute(statement.parsed, parameters),
                    )
                    outcome = self._collect(run, statement, keep_rows)
            except STATEMENT_ERRORS as error:
                self._fail(error, statement)
        self._remember(statement)
        return outcome

    # ---- the queue -----------------------------------------------------------------------------

    def _run_enqueue(
        self, run: Run, statement: Statement, parameters: Any, shadow: Shadow
    ) -> Outcome:
        """Puts the rows of an INSERT into the queue, or beside those that go there with them."""
        if self.transaction.open:
            self._queue.refuse_in_transaction()
        connection = self._connection
        try:
            with run.engaged(connection), self._queued_rows(run, statement):
                rows = self._queue.rows_of(connection, statement, parameters, shadow, self._bound)
                if self._to_queue is not None:
                    batches = list(rows)
                    self._to_queue += batches
                    return Outcome(affected=sum(batch.num_rows for batch in batches))
                ingest = run.ingest(shadow.shown_name)
                return Outcome(affected=self._queue.keep(shadow, rows, ingest, run.check))
        except STATEMENT_ERRORS as error:
            self._fail(error, statement)

    @contextmanager
    def _queued_rows(self, run: Run, statement: Statement) -> Iterator[None]:
        """The rows in the queue, for a statement that reads them; in a transaction of its own."""
        if not self._queue.reads(statement):
            yield
            return
        connection = self._connection
        own = not self.transaction.open
        if own:
            connection.execute("BEGIN TRANSACTION")
        try:
            with self._queue.buffered_rows(connection, statement, run.check):
                yield
            if own:
                connection.execute("COMMIT")
        except BaseException:
            if own:
                with suppress(duckdb.Error):
                    connection.execute("ROLLBACK")
            raise

    def _where(self) -> tuple[str, str] | None:
        """The catalog of the lake and the schema in which the session is, if it is in one."""
        if self._location is None:  # as after every SET and USE
            row = self._connection.execute("SELECT current_catalog(), current_schema()").fetchone()
            assert row is not None
            self._location = (row[0], row[1])
        catalog = self._lease.engine.attached(self._location[0])
        return None if catalog is None else (catalog.catalog, self._location[1])

    def _with_catalogs(self, statement: Statement, attempt: Callable[[], T]) -> T:
        """Attaches what a statement names and the engine does not know, and lets it try again.

        DuckDB refused it while binding, so nothing of it was done.
        """
        try:
            return attempt()
        except (duckdb.CatalogException, duckdb.BinderException):
            # Statements need not name the catalog of USE; it may have gone and come back.
            names = statement.names | self._names_in_use()
            if not self.catalogs.attach_named(names):
                raise
            return attempt()

    def _names_in_use(self) -> set[str]:
        sql = self._settings.get("use")
        return parse(self._connection, sql)[0].names if sql else set()

    def _run_procedure(
        self, run: Run, procedure: Procedure, statement: Statement, parameters: Any
    ) -> Outcome:
        """A procedure of the server's own; its rows are a result like any other."""
        if procedure.changes and self.transaction.open:
            raise InvalidRequest(
                f"{procedure.name} cannot be part of a transaction: commit or roll back first.",
                identifier="TRANSACTION_ACTIVE",
            )
        arguments = self._look(run, procedure.evaluate, statement, parameters)
        services = self._services
        scope = Scope(services.lake, self._lease.engine, services.queue, run.check)
        with self._lake_turn(run, procedure.changes and not procedure.takes_turns):
            rows = procedure.run(scope, arguments)
        services.queue.targets.forget()
        with self._registered(pa.Table.from_pylist(rows, schema=procedure.schema)):
            return self._look(run, self._all_rows, run)

    def _describe(
        self, connection: duckdb.DuckDBPyConnection, prepared: PreparedStatement, run: Run
    ) -> None:
        with self._queue.buffered_rows(connection, prepared.last, run.check, describe=True):
            self._with_catalogs(prepared.last, lambda: describe(connection, prepared))

    def _all_rows(self, connection: duckdb.DuckDBPyConnection, run: Run) -> Outcome:
        connection.execute(f"SELECT * FROM {BOUND}")
        stream = self._stream(run)
        stream.drain()
        return Outcome(stream)

    def _stream(self, run: Run) -> ResultStream:
        return ResultStream(
            run,
            self._connection,
            activity=self.touch,
            report=self._report,
            memory_limit=self._services.result_buffer_bytes,
            spill_directory=self._services.spill_directory,
        )

    def _collect(self, run: Run, statement: Statement, keep_rows: bool) -> Outcome:
        if statement.kind is Kind.QUERY:
            stream = self._stream(run)
            if not keep_rows:
                stream.discard()
            elif statement.may_write or self._queue.reads(statement):
                stream.drain()  # a write is over when its turn is over
            elif stream.live:
                self._live = stream
            return Outcome(stream, stream.total_rows if statement.is_change else None)
        columns = [column[0] for column in self._connection.description or ()]
        rows = self._connection.fetchall()
        if statement.kind is not Kind.CHANGE:
            return Outcome()
        # A CREATE without AS has a Count column too, and no row in it.
        return Outcome(affected=rows[0][0] if rows and columns == ["Count"] else None)

    def _run_rows(self, run: Run, statements: list[Statement], batches: list[Any]) -> Outcome:
        """Once per bound row; the rows of all executions form one result."""
        for statement in statements[:-1]:
            self._run_one(run, statement, keep_rows=False)
        last = statements[-1]
        if sum(batch.num_rows for batch in batches) == 1:
            batch, row = next(binding.rows(batches))
            return self._run_row(run, last, batch, row)
        result: ResultStream | None = None
        with self._atomic(run, [last]) if last.may_write else nullcontext():
            for batch, row in binding.rows(batches):
                stream = self._run_row(run, last, batch, row).stream
                assert stream is not None
                self._look(run, lambda _, stream=stream: stream.drain())
                self._live = None
                if result is None:
                    result = stream
                else:
                    result.append_from(stream)
        return Outcome(stream=result)

    def _run_bulk(
        self, run: Run, statements: list[Statement], batches: Any, schema: Any
    ) -> Outcome:
        """A change for any number of rows, as one transaction; one INSERT if that is the same."""
        last = statements[-1]
        sql = last.over_rows(BOUND)
        first = list(islice(batches, 2))
        batches = chain(first, batches)
        with self._as_one(run, statements, row_by_row=sql is None):
            for statement in statements[:-1]:
                self._run_one(run, statement, keep_rows=False)
            if sql is not None:
                with self._given(pa.RecordBatchReader.from_batches(schema, batches)):
                    statement = self._parse(sql)[0]
                    if not self._is_better_alone(first, last, statement):
                        return self._run_one(run, statement)
                return self._run_row(run, last, first[0], 0)
            affected = 0
            for batch in batches:
                for row in range(batch.num_rows):
                    affected += self._run_row(run, last, batch, row).affected or 0
            return Outcome(affected=affected)

    def _is_better_alone(self, first: list[Any], last: Statement, bulk: Statement) -> bool:
        """True for one row of plain values: to show it to DuckDB as a table costs more."""
        if len(first) != 1 or first[0].num_rows != 1 or binding.plain_values(first[0], 0) is None:
            return False
        if self._queue.shadow_of(last) is None:
            return not self._queue.is_insert(last.text)
        return not self._queue.takes_directly(bulk, self._bound)

    @contextmanager
    def _as_one(self, run: Run, statements: list[Statement], *, row_by_row: bool) -> Iterator[None]:
        """All rows of the last statement in one transaction, or at once into the queue."""
        shadow = self._queue.shadow_of(statements[-1])
        if shadow is None and not self._queue.is_insert(statements[-1].text):
            with self._atomic(run, statements):
                yield
            return
        if not row_by_row:
            yield
            return
        if shadow is None:
            raise InvalidRequest(
                "The table does not exist, and cannot be made from this INSERT: give its rows as "
                "VALUES of parameters alone, or create it first."
            )
        self._to_queue = []
        try:
            yield
            rows = self._to_queue
        finally:
            self._to_queue = None
        self._queue.keep(shadow, iter(rows), run.ingest(shadow.shown_name), run.check)

    def _run_row(self, run: Run, statement: Statement, batch: Any, row: int) -> Outcome:
        values = binding.plain_values(batch, row)
        if values is not None:
            names = statement.parameters
            if all(name.isdigit() for name in names):
                return self._run_one(run, statement, values)
            return self._run_one(run, statement, dict(zip(names, values, strict=True)))
        # Intervals, nested values and their like have no exact Python form: they go from Arrow into
        # DuckDB variables, which the planner treats as constants.
        variables = {name: f"{binding.VARIABLE_PREFIX}{name}" for name in statement.parameters}
        for i, variable in enumerate(variables.values()):
            value = batch.select([i]).slice(row, 1)
            with self._registered(pa.RecordBatchReader.from_batches(value.schema, [value])):
                self._look(
                    run,
                    duckdb.DuckDBPyConnection.execute,
                    f"SET VARIABLE {variable} = (SELECT c{i} FROM {BOUND})",
                )
        try:
            sql = statement.with_parameters(lambda name: f"getvariable('{variables[name]}')")
            return self._run_one(run, self._parse(sql)[0])
        finally:
            if self._live is None and not self.transaction.aborted:
                for variable in variables.values():
                    self._look(run, duckdb.DuckDBPyConnection.execute, f"RESET VARIABLE {variable}")

    def _look(self, run: Run, look: Callable[..., T], *arguments: Any) -> T:
        """Something of the session's own, between the statements of the client."""
        try:
            with run.engaged(self._connection):
                return look(self._connection, *arguments)
        except STATEMENT_ERRORS as error:
            self._fail(error)

    @contextmanager
    def _atomic(self, run: Run, statements: list[Statement]) -> Iterator[None]:
        """A transaction around these statements, unless the session already has one."""
        if self.transaction.open:
            yield
            return
        # The turn begins before the transaction: what others commit in between would break it.
        with self._lake_turn(run, any(map(self._writes_the_lake, statements))):
            self._run_one(run, self._parse("BEGIN TRANSACTION")[0])
            try:
                yield
                self._run_one(run, self._parse("COMMIT")[0])
            except BaseException:
                self.transaction.reset()
                with suppress(duckdb.Error):  # a broken engine has rolled back already
                    self._connection.execute("ROLLBACK")
                raise

    def _upload(self, run: Run, reader: Any) -> AbstractContextManager[Any]:
        services = self._services
        return received(run, reader, services.result_buffer_bytes, services.spill_directory)

    @contextmanager
    def _registered(self, rows: Any) -> Iterator[None]:
        """Makes Arrow rows visible to this connection alone, under one fixed name."""
        with self._given(rows):
            self._expose()
            yield

    @contextmanager
    def _given(self, rows: Any) -> Iterator[None]:
        """Arrow rows that a statement may read; DuckDB sees them when they are exposed."""
        self._bound, self._exposed = rows, False
        try:
            yield
        finally:
            if self._exposed:
                self._connection.unregister(BOUND)
            self._bound, self._exposed = None, False

    def _expose(self) -> None:
        # DuckDB asks the lake for names whenever it makes a view: that takes milliseconds.
        if self._bound is not None and not self._exposed:
            try:
                self._connection.register(BOUND, self._bound)
            except ENGINE_ERRORS as error:
                self._fail(error)
            self._exposed = True

    @contextmanager
    def _commit_turn(self, run: Run, statement: Statement) -> Iterator[None]:
        """The lake's writers go one at a time: around a write, or around the COMMIT of several."""
        if self.transaction.open:
            commits = statement.kind is Kind.COMMIT and self.transaction.wrote
        else:
            commits = self._writes_the_lake(statement)
        with self._lake_turn(run, commits):
            yield

    @contextmanager
    def _lake_turn(self, run: Run, wanted: bool) -> Iterator[None]:
        if not wanted or self._has_lake_turn:
            yield
            return
        with self._services.gate.turn(run.check):
            self._has_lake_turn = True
            try:
                yield
            finally:
                self._has_lake_turn = False

    def _writes_the_lake(self, statement: Statement) -> bool:
        """True unless it only reads, or writes to a table of this session alone."""
        target = statement.target
        if not statement.may_write:
            return False
        if target is None or not self._has_temporary_state:
            return True
        table = target if target.lower().startswith("temp.") else f"temp.main.{target}"
        try:
            self._connection.execute(f"SELECT 1 FROM {table} LIMIT 0")
        except duckdb.Error:
            return True
        return False

    def _remember(self, statement: Statement) -> None:
        self.transaction.succeeded(statement)
        if statement.changes_tables:
            self._services.queue.targets.forget()
        if statement.is_setting:
            self._location = None
            self._settings.pop(statement.setting_name, None)
            self._settings[statement.setting_name] = statement.text
        self._has_temporary_state = self._has_temporary_state or statement.leaves_state

    def _fail(self, error: Exception, statement: Statement | None = None) -> NoReturn:
        """Raises what an error means, once it is known what it did to transaction and engine."""
        lost_engine = self._report(error)
        if statement is not None and self._was_to_end_outside(statement):
            # Stopped before DuckDB did it, or just after: either way no transaction may be left.
            self.transaction.reset()
            with suppress(duckdb.Error):
                self._connection.execute("ROLLBACK")
        elif self.transaction.open and not lost_engine:
            self.transaction.aborted = self._transaction_is_aborted()
        translated = translate(error)
        if translated is error:
            raise translated
        raise translated from error

    def _was_to_end_outside(self, statement: Statement) -> bool:
        """True for COMMIT and ROLLBACK, and for a BEGIN that was not inside a transaction."""
        if statement.kind is Kind.BEGIN:
            return not self.transaction.open
        return statement.kind in (Kind.COMMIT, Kind.ROLLBACK)

    def _report(self, error: Exception) -> bool:
        return self._services.host.report(self._lease, error)

    def _transaction_is_aborted(self) -> bool:
        try:
            self._connection.execute("SELECT 1").fetchall()
        except duckdb.Error:
            return True
        return False

    def _renew_connection(self) -> None:
        """Moves to a new engine after the old one broke; says so if something was lost with it."""
        if not self._lease.engine.broken:
            return
        lost = [
            what
            for what, had in (
                ("its open transaction", self.transaction.open),
                ("its temporary objects and attached databases", self._has_temporary_state),
            )
            if had
        ]
        old, self._lease = self._lease, self._services.host.lease()
        self._services.host.release(old)
        self.transaction.reset()
        self._has_temporary_state = False
        self._queue.forget_shadows()
        self._location = None
        for name, sql in list(self._settings.items()):
            try:
                [setting] = parse(self._connection, sql)
                self._with_catalogs(setting, partial(self._connection.execute, setting.parsed))
            except STATEMENT_ERRORS:  # what it named was lost with the engine
                del self._settings[name]
                lost.append(f"its setting of {name}")
        if lost:
            raise SessionLost(
                f"The engine was restarted after a fatal error and the session lost "
                f"{' and '.join(lost)}. The statement was not run; the session can be used again."
            )


def _arranged(batches: list[Any], statement: Statement) -> list[Any]:
    order = binding.arrange(batches[0].schema, statement.parameters)
    return [binding.bindable(batch, order) for batch in batches]

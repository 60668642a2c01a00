"""Statements on one connection: what they do to it, to its transaction, and to the lake."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import duckdb
import pyarrow as pa
from duckdb import StatementType

from swanlake.engine.errors import ENGINE_ERRORS, translate
from swanlake.engine.host import Lease
from swanlake.errors import (
    CommitConflict,
    InvalidRequest,
    NotFound,
    QueryCancelled,
    SessionLost,
    SwanLakeError,
)
from swanlake.lake.commit import Retries
from swanlake.lake.location import LakeLocation
from swanlake.queue.targets import Target
from swanlake.sessions.catalogs import LakeCatalogs
from swanlake.sessions.client_rows import ClientRows
from swanlake.sessions.describe import describe
from swanlake.sessions.direct import BOUND
from swanlake.sessions.lake_names import LakeNames
from swanlake.sessions.lake_reads import LakeReads
from swanlake.sessions.lake_writes import LakeWrite, LakeWrites, Workplace
from swanlake.sessions.prepared import PreparedStatement
from swanlake.sessions.procedure import Procedure, Scope
from swanlake.sessions.procedures import find_procedure
from swanlake.sessions.queueing import SessionQueue, pragma_as_call
from swanlake.sessions.recent import Recent
from swanlake.sessions.results import Outcome, ResultStream
from swanlake.sessions.runs import Run
from swanlake.sessions.services import SessionServices
from swanlake.sessions.shadows import Shadow
from swanlake.sessions.transaction import TransactionState
from swanlake.sql.statement import Kind, Statement, parse

T = TypeVar("T")

#: How often a statement of its own is tried again that lost to a commit of another program.
_REPEATS = 5
_AFTER_OTHERS = Retries()

#: What may go wrong in a statement: the engine, or the decision to stop it.
STATEMENT_ERRORS: tuple[type[Exception], ...] = (*ENGINE_ERRORS, SwanLakeError)


class Execution:
    """The connection of a session, and the only place where a client's statement meets DuckDB.

    It is used by one thread at a time; the session sees to that.
    """

    def __init__(self, services: SessionServices, activity: Callable[[], None]) -> None:
        self.transaction = TransactionState()
        self.live: ResultStream | None = None
        self._services = services
        self._activity = activity
        self._lease: Lease = services.host.lease()
        self._released = False
        #: SET and USE by what they set, to be repeated on a new connection.
        self._settings: dict[str, str] = {}
        self._names = LakeNames(lambda: self._lease)
        self._has_lake_turn = False
        self.client_rows = ClientRows(lambda: self.connection, self._fail)
        self.queue = SessionQueue(
            services.queue,
            services.lake,
            self.client_rows.expose,
            lambda name: self.catalogs.attach_named({name}),
        )
        self._writes = LakeWrites(services.lake, services.queue.targets, services.writes)
        self._reads = LakeReads(services, self._names, lambda: self._is_like_any_other)
        #: Rows to be queued as one.
        self.to_queue: list[tuple[Target, Any]] | None = None
        #: Clients send the same short texts again and again.
        self._parsed: Recent[list[Statement]] = Recent()
        self._parsed_under = self._lease.engine.global_settings

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        return self._lease.connection

    @property
    def catalogs(self) -> LakeCatalogs:
        """The catalogs of the lake; they are attached when they are first named."""
        return LakeCatalogs(self._lease.engine, self._services.lake)

    def parse(self, sql: str) -> list[Statement]:
        if self._parsed_under != self._lease.engine.global_settings:
            self._forget_texts()
        return self._parsed.of(sql, self._parse)

    def _forget_texts(self) -> None:
        """Settings such as integer_division say how a text is parsed."""
        self._parsed_under = self._lease.engine.global_settings
        self._parsed.forget()
        self._writes.forget_texts()
        self.queue.forget_texts()

    def _parse(self, sql: str) -> list[Statement]:
        try:
            statements = parse(self.connection, pragma_as_call(sql))
        except ENGINE_ERRORS as error:
            self._fail(error)
        if not statements:
            raise InvalidRequest("The statement is empty.", identifier="EMPTY_STATEMENT")
        return statements

    def translated(self, statement: Statement) -> Statement:
        """The statement as DuckDB takes it, with something in place of the queue's tables.

        It is asked for when the statement is run: what it names may come with the one before it.
        """
        try:
            return self.queue.translate(self.connection, statement, self._names.where)
        except STATEMENT_ERRORS as error:
            self._fail(error)

    def run_all(self, run: Run, statements: list[Statement]) -> Outcome:
        if len(statements) > 1:
            run.check_names(sum(self.queue.is_insert(one.text) for one in statements))
        for statement in statements[:-1]:
            self.run_one(run, statement, keep_rows=False)
        return self.run_one(run, statements[-1])

    def run_one(
        self,
        run: Run,
        statement: Statement,
        parameters: Any = None,
        *,
        keep_rows: bool = True,
        translated: Statement | None = None,
    ) -> Outcome:
        """The only place where a client's statement meets DuckDB."""
        self.transaction.admit(statement)
        self.catalogs.keep(statement)
        procedure = find_procedure(statement)
        if procedure is not None:
            return self._run_procedure(run, procedure, statement, parameters)
        statement = translated or self.translated(statement)
        shadow = self.queue.shadow_of(statement)
        if shadow is not None:
            return self._run_enqueue(run, statement, parameters, shadow)
        write = self._lake_write(statement)
        if write is not None:
            outcome = self._run_write(run, write, parameters, keep_rows)
        else:
            outcome = self._run_read(run, statement, parameters) if keep_rows else None
        if outcome is None:
            self._catch_up(run, statement)
            outcome = self._run_on_engine(run, statement, parameters, keep_rows)
            if statement.changes_tables:
                self._services.queue.targets.forget()
        if statement.changes_tables and not self.transaction.open:
            for location in self._names.written_catalogs(statement):
                self._lease.engine.reads.changed(location.catalog)
        self._remember(statement)
        return outcome

    def _catch_up(self, run: Run, statement: Statement) -> None:
        """Waits for whoever reads a catalog that the statement may mean, and that has changed."""
        reads = self._lease.engine.reads
        for catalog in reads.pending:
            if self._names.may_mean(statement, catalog):
                reads.catch_up(catalog, run.check)

    def _run_on_engine(
        self, run: Run, statement: Statement, parameters: Any, keep_rows: bool
    ) -> Outcome:
        repeats = _REPEATS
        while True:
            seen = self._lease.engine.attachments
            with self._commit_turn(run, statement):
                try:
                    # To the end: a statement that was done must not be reported stopped.
                    with run.engaged(self.connection), self._queued_rows(run, statement):
                        self.client_rows.expose()
                        self.connection.execute(statement.parsed, parameters)
                        return self._collect(run, statement, keep_rows)
                except (duckdb.CatalogException, duckdb.BinderException) as error:
                    if not self._attach_named_in(statement, seen):
                        self._fail(error, statement)
                    continue  # with the turns of what was attached
                except STATEMENT_ERRORS as error:
                    # Another program's commit came first, and nothing of this one was kept.
                    may_repeat = repeats and self._may_repeat()
                    if not may_repeat or not isinstance(translate(error), CommitConflict):
                        self._fail(error, statement)
                    repeats -= 1
                    self._services.writes.count("repeated")
            time.sleep(_AFTER_OTHERS.wait_before(_REPEATS - repeats))
            run.check()

    def _may_repeat(self) -> bool:
        # Rows of a client can be read once only: the second time there would be none.
        return not self.transaction.open and self.client_rows.rows is None

    def _with_catalogs(self, statement: Statement, attempt: Callable[[], T]) -> T:
        """Attaches what a statement names and the engine does not know, and lets it try again.

        DuckDB refused it while binding, so nothing of it was done.
        """
        seen = self._lease.engine.attachments
        try:
            return attempt()
        except (duckdb.CatalogException, duckdb.BinderException):
            if not self._attach_named_in(statement, seen):
                raise
            return attempt()

    def _attach_named_in(self, statement: Statement, seen: int) -> bool:
        """Attaches what a statement names; True if the engine then knows more than it had seen."""
        # Statements need not name the catalog of USE; it may have gone and come back.
        self.catalogs.attach_named(statement.names | self._names_in_use())
        # Another session may have attached it since the statement failed.
        return self._lease.engine.attachments > seen

    def _names_in_use(self) -> set[str]:
        sql = self._settings.get("use")
        return parse(self.connection, sql)[0].names if sql else set()

    def _run_procedure(
        self, run: Run, procedure: Procedure, statement: Statement, parameters: Any
    ) -> Outcome:
        """A procedure of the server's own; its rows are a result like any other."""
        if procedure.changes and self.transaction.open:
            raise InvalidRequest(
                f"{procedure.name} cannot be part of a transaction: commit or roll back first.",
                identifier="TRANSACTION_ACTIVE",
            )
        arguments = self.look(run, procedure.evaluate, statement, parameters)
        services = self._services
        scope = Scope(
            services.lake,
            self._lease.engine,
            services.queue,
            services.maintenance,
            lambda: self.look(run, lambda connection: self._names.where()),
            run.check,
        )
        rows = procedure.run(scope, arguments)
        services.queue.targets.forget()
        with self.client_rows.registered(pa.Table.from_pylist(rows, schema=procedure.schema)):
            return self.look(run, self._all_rows, run)

    def _all_rows(self, connection: duckdb.DuckDBPyConnection, run: Run) -> Outcome:
        connection.execute(f"SELECT * FROM {BOUND}")
        stream = self._stream(run, connection)
        stream.drain()
        return Outcome(stream)

    def _stream(self, run: Run, connection: duckdb.DuckDBPyConnection) -> ResultStream:
        return ResultStream(
            run,
            connection,
            activity=self._activity,
            report=self._report,
            memory_limit=self._services.result_buffer_bytes,
            spill_directory=self._services.spill_directory,
            in_transaction=self.transaction.open,
        )

    def _collect(self, run: Run, statement: Statement, keep_rows: bool) -> Outcome:
        if statement.kind is Kind.QUERY:
            stream = self._stream(run, self.connection)
            if not keep_rows:
                stream.discard()
            elif statement.may_write or self.queue.reads(statement):
                stream.drain()  # a write is over when its turn is over
            elif stream.live:
                self.live = stream
            return Outcome(stream, stream.total_rows if statement.is_change else None)
        columns = [column[0] for column in self.connection.description or ()]
        rows = self.connection.fetchall()
        if statement.kind is not Kind.CHANGE:
            return Outcome()
        # A CREATE without AS has a Count column too, and no row in it.
        return Outcome(affected=rows[0][0] if rows and columns == ["Count"] else None)

    def look(self, run: Run, look: Callable[..., T], *arguments: Any) -> T:
        """Something of the session's own, between the statements of the client."""
        try:
            with run.engaged(self.connection):
                return look(self.connection, *arguments)
        except STATEMENT_ERRORS as error:
            self._fail(error)

    def describe(
        self, connection: duckdb.DuckDBPyConnection, prepared: PreparedStatement, run: Run
    ) -> None:
        if len(prepared.statements) > 1:
            return  # it may make what its last statement reads
        try:
            last = self.translated(prepared.last)
        except NotFound:
            if self.queue.is_insert(prepared.last.text) and self.queue.makes_tables():
                return
            raise
        with self.queue.buffered_rows(connection, last, run.check, describe=True):
            shadow = self.queue.shadow_of(last)
            target = shadow.schema if shadow else None
            self._with_catalogs(last, lambda: describe(connection, prepared, last, target))

    # ---- the lake ------------------------------------------------------------------------------

    def makes_nothing(self, statement: Statement) -> bool:
        """True for a CREATE TABLE IF NOT EXISTS of one that exists in the lake."""
        write = self._lake_write(statement)
        return write is not None and self._writes.is_done(write)

    def _lake_write(self, statement: Statement) -> LakeWrite | None:
        """The statement as a write that needs no extension, if it is one."""
        if self.transaction.open or self.queue.reads(statement):
            return None
        return self._writes.find(statement, self._names.table)

    def _run_write(
        self, run: Run, write: LakeWrite, parameters: Any, keep_rows: bool
    ) -> Outcome | None:
        seen = self._lease.engine.attachments
        place = Workplace(
            run,
            self.connection,
            parameters,
            self.client_rows.rows is not None,
            self.client_rows.expose,
            lambda: self._attach_named_in(write.statement, seen),
            lambda: self._collect(run, write.statement, keep_rows),
            self._lease.engine.beside,
            lambda: self._catch_up(run, write.statement),
            self._reads,
        )
        try:
            return self._writes.run(write, place)
        except STATEMENT_ERRORS as error:
            self._fail(error, write.statement)

    def _run_read(self, run: Run, statement: Statement, parameters: Any) -> Outcome | None:
        """Runs a query of small tables without the lake; None if it must be run on it."""
        if statement.type != StatementType.SELECT or self.client_rows.rows is not None:
            return None
        try:
            return self._reads.run(
                statement.body, parameters, run, self._lease.engine.beside, self._stream
            )
        except STATEMENT_ERRORS as error:
            self._fail(error, statement)

    @property
    def _is_like_any_other(self) -> bool:
        """True if a plain statement means the same on a connection without the session's state."""
        if self.transaction.open or self._names.has_temporary:
            return False
        return self._settings.keys() <= {"use"}

    # ---- the queue -----------------------------------------------------------------------------

    def _run_enqueue(
        self, run: Run, statement: Statement, parameters: Any, shadow: Shadow
    ) -> Outcome:
        """Puts the rows of an INSERT into the queue, or beside those that go there with them."""
        if self.transaction.open:
            self.queue.refuse_in_transaction()
        connection = self.connection
        try:
            with run.engaged(connection), self._queued_rows(run, statement):
                target, rows = self.queue.rows_of(
                    connection, statement, parameters, shadow, self.client_rows.rows
                )
                if self.to_queue is not None:
                    batches = list(rows)
                    self.to_queue += [(target, batch) for batch in batches]
                    return Outcome(affected=sum(batch.num_rows for batch in batches))
                ingest = run.ingest(shadow.shown_name)
                return Outcome(affected=self.queue.keep(target, rows, ingest, run.check))
        except STATEMENT_ERRORS as error:
            self._fail(error, statement)

    @contextmanager
    def _queued_rows(self, run: Run, statement: Statement) -> Iterator[None]:
        """The rows in the queue, for a statement that reads them; in a transaction of its own."""
        if not self.queue.reads(statement):
            yield
            return
        connection = self.connection
        own = not self.transaction.open
        if own:
            connection.execute("BEGIN TRANSACTION")
        try:
            with self.queue.buffered_rows(connection, statement, run.check):
                yield
            if own:
                connection.execute("COMMIT")
        except BaseException:
            if own:
                with suppress(duckdb.Error):
                    connection.execute("ROLLBACK")
            raise

    # ---- transactions --------------------------------------------------------------------------

    @contextmanager
    def atomic(self, run: Run, statements: list[Statement]) -> Iterator[None]:
        """A transaction around these statements, unless the session already has one."""
        if self.transaction.open:
            yield
            return
        # The turn begins before the transaction: what others commit in between would break it.
        with self._lake_turn(run, set().union(*map(self._names.written_catalogs, statements))):
            self.run_one(run, self.parse("BEGIN TRANSACTION")[0])
            try:
                yield
                self.run_one(run, self.parse("COMMIT")[0])
            except BaseException:
                self._forget_transaction()
                with suppress(duckdb.Error):  # a broken engine has rolled back already
                    self.connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _commit_turn(self, run: Run, statement: Statement) -> Iterator[None]:
        """The lake's writers go one at a time: around a write, or around the COMMIT of several."""
        catalogs = set[LakeLocation]()
        if not self.transaction.open:
            catalogs = self._names.written_catalogs(statement)
        elif statement.kind is Kind.COMMIT:
            catalogs = self.transaction.wrote_to
        with self._lake_turn(run, catalogs):
            yield

    @contextmanager
    def _lake_turn(self, run: Run, catalogs: set[LakeLocation]) -> Iterator[None]:
        if not catalogs or self._has_lake_turn:
            yield
            return
        with self._services.lake.turn(catalogs, run.session.id, run.check):
            self._has_lake_turn = True
            try:
                yield
            finally:
                self._has_lake_turn = False

    def _remember(self, statement: Statement) -> None:
        self.transaction.succeeded(statement)
        if self.transaction.open:
            self.transaction.wrote_to |= self._names.written_catalogs(statement)
            self.transaction.written = self._written_tables(statement)
        if statement.kind is Kind.BEGIN:
            self.queue.begin()
        elif statement.kind in (Kind.COMMIT, Kind.ROLLBACK):
            self.queue.end(undone=statement.kind is Kind.ROLLBACK)
        if statement.is_setting:
            self._names.moved()
            if statement.is_global:
                self._lease.engine.global_settings += 1
            self._forget_texts()
            self._settings.pop(statement.setting_name, None)
            self._settings[statement.setting_name] = statement.text
        self._names.has_temporary = self._names.has_temporary or statement.leaves_state

    def _forget_transaction(self) -> None:
        self.transaction.reset()
        self.queue.end(undone=True)

    def _fail(self, error: Exception, statement: Statement | None = None) -> NoReturn:
        """Raises what an error means, once it is known what it did to transaction and engine."""
        lost_engine = self._report(error)
        translated = translate(
            error, partial(self._table_name, statement), self._written_tables(statement)
        )
        if statement is not None and self._was_to_end_outside(statement):
            # Stopped before DuckDB did it, or just after: either way no transaction may be left.
            self._forget_transaction()
            with suppress(duckdb.Error):
                self.connection.execute("ROLLBACK")
        elif self.transaction.open and not lost_engine:
            self.transaction.aborted = self._transaction_is_aborted()
        if translated is error:
            raise translated
        raise translated from error

    def _written_tables(self, statement: Statement | None) -> list[str]:
        target = None if statement is None else statement.target
        before = self.transaction.written
        return before if target is None or target in before else [*before, target]

    def _table_name(self, statement: Statement | None, id: int) -> str:
        """What the table with that id is called, in the one of the catalogs that has it."""
        now = set() if statement is None else self._names.written_catalogs(statement)
        for location in self.transaction.wrote_to | now:
            with suppress(SwanLakeError):
                return self._services.lake.catalog(location.catalog).table_by_id(id).full_name
        written = self._written_tables(statement)
        return written[0] if len(written) == 1 else f"with the id {id}"

    def _was_to_end_outside(self, statement: Statement) -> bool:
        """True for COMMIT and ROLLBACK, and for a BEGIN that was not inside a transaction."""
        if statement.kind is Kind.BEGIN:
            return not self.transaction.open
        return statement.kind in (Kind.COMMIT, Kind.ROLLBACK)

    def _report(self, error: Exception) -> bool:
        return self._services.host.report(self._lease, error)

    def _transaction_is_aborted(self) -> bool:
        try:
            self.connection.execute("SELECT 1").fetchall()
        except duckdb.Error:
            return True
        return False

    # ---- life ----------------------------------------------------------------------------------

    def settle(self, check: Callable[[], None]) -> None:
        """Takes the rest of a live result off the connection."""
        if self.live is None:
            return
        self.live.settle(check)
        self.live = None
        if self.transaction.open and not self.transaction.aborted:
            # It may have failed after its statement, while it was fetched.
            self.transaction.aborted = self._transaction_is_aborted()

    def release(self) -> None:
        if not self._released:
            self._released = True
            self.queue.end(undone=True)
            if self.live is not None:
                self.live.abandon(QueryCancelled("The session was closed."))
            self._services.host.release(self._lease)

    def renew(self) -> None:
        """Moves to a new engine after the old one broke; says so if something was lost with it."""
        if not self._lease.engine.broken:
            return
        lost = [
            what
            for what, had in (
                ("its open transaction", self.transaction.open),
                ("its temporary objects and attached databases", self._names.has_temporary),
            )
            if had
        ]
        old, self._lease = self._lease, self._services.host.lease()
        self._services.host.release(old)
        self._forget_transaction()
        self._writes.forget()
        self._names.has_temporary = False
        self._names.moved()
        for name, sql in list(self._settings.items()):
            try:
                [setting] = parse(self.connection, sql)
                self._with_catalogs(setting, partial(self.connection.execute, setting.parsed))
            except STATEMENT_ERRORS:  # what it named was lost with the engine
                del self._settings[name]
                lost.append(f"its setting of {name}")
        if lost:
            raise SessionLost(
                f"The engine was restarted after a fatal error and the session lost "
                f"{' and '.join(lost)}. The statement was not run; the session can be used again."
            )

"""A session's DuckDB connection: its lease, transaction, settings and live result.

Everything that executes statements for the session works through this object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import duckdb
from duckdb import StatementType

from swanlake.access.identity import Identity, Privilege
from swanlake.access.policy import require
from swanlake.access.scope import Scope
from swanlake.engine.errors import (
    ENGINE_ERRORS,
    as_denied,
    is_from_extension,
    is_interrupt,
    may_invalidate,
    translate,
)
from swanlake.engine.host import EngineConnection
from swanlake.engine.instance import Engine, EngineSealed
from swanlake.errors import (
    CatalogUnreachable,
    QueryCancelled,
    SessionLost,
    SwanLakeError,
)
from swanlake.lake.metastore.location import LakeLocation
from swanlake.lake.model.layout import Table, folded
from swanlake.sessions.execution.catalogs import LakeCatalogs
from swanlake.sessions.execution.client_rows import ClientRows
from swanlake.sessions.execution.names import NameResolver, TableName
from swanlake.sessions.results.spill import SpillBuffer
from swanlake.sessions.results.stream import ResultStream
from swanlake.sessions.run import Run
from swanlake.sessions.services import SessionServices
from swanlake.sessions.transaction import TransactionState
from swanlake.sql.quoting import literal
from swanlake.sql.statement import Kind, Statement, parse

T = TypeVar("T")

#: What a statement can fail with: an error of the engine, or the decision to stop the statement.
STATEMENT_ERRORS: tuple[type[Exception], ...] = (*ENGINE_ERRORS, SwanLakeError)
_MISSING_CATALOG = re.compile(r'Catalog "([^"]*)" does not exist')
#: What DuckDB raises for an unknown name, before it has done anything.
_BIND_ERRORS = (duckdb.CatalogException, duckdb.BinderException)


class EngineSession:
    """The engine's side of a session. One thread uses it at a time; the session sees to that."""

    def __init__(
        self, services: SessionServices, identity: Identity, on_activity: Callable[[], None]
    ) -> None:
        self.services = services
        self.identity = identity
        self._scope = Scope.from_identity(identity)
        self.transaction = TransactionState()
        self.client_rows = ClientRows()
        self.memory = services.memory.account(identity.name)
        #: The result that DuckDB still produces on the connection.
        self.live: ResultStream | None = None
        self._on_activity = on_activity
        self._lease: EngineConnection = services.host.acquire(self._scope)
        self.names = NameResolver(self._lease)
        self._released = False
        #: The latest SET or USE for each setting, to be repeated on a new connection.
        self._settings: dict[str, str] = {}
        self._settings_changed = 0
        #: True after a PRAGMA, which may have changed the connection.
        self._has_pragmas = False
        #: Counts the times when temporary tables may have been lost: a rollback, a new engine.
        self.temp_generation = 0
        #: Staging tables, which a statement of the client must not see.
        self._staging_tables: set[str] = set()
        #: Those that the open transaction dropped; its rollback brings them back.
        self._dropped_staging: set[str] = set()
        self._has_writer_lock = False
        #: The last snapshot that the session committed, by the storage name of the catalog.
        self._last_commits: dict[str, int] = {}

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        return self._lease.connection

    @property
    def engine(self) -> Engine:
        return self._lease.engine

    @property
    def catalogs(self) -> LakeCatalogs:
        """The catalogs of the lake; each is attached when a statement first names it."""
        return LakeCatalogs(self.engine, self.services.lake)

    def require(self, catalog: str, privilege: Privilege) -> None:
        """Raises AccessDenied if the caller does not have a privilege on a catalog."""
        require(self.identity, catalog, privilege)

    @property
    def settings_version(self) -> tuple[int, int]:
        """Changes with every SET: settings such as integer_division decide how SQL is parsed."""
        return self.engine.global_settings, self._settings_changed

    @property
    def has_local_state(self) -> bool:
        """True if a statement may mean something else on another connection of the engine."""
        if self.transaction.open or self.names.has_temporary:
            return True
        return not self._settings.keys() <= {"use"}

    @property
    def folds_names(self) -> bool:
        """True if DuckDB may not keep the letter case of the names in a CREATE."""
        return any("preserve_identifier_case" in name for name in self._settings)

    def call(self, run: Run, function: Callable[..., T], *arguments: Any) -> T:
        """Calls a function with the connection, as interruptible work of the run."""
        try:
            with run.interruptible(self.connection):
                return function(self.connection, *arguments)
        except STATEMENT_ERRORS as error:
            self.fail(error)

    def execute(self, statement: Statement, parameters: Any = None) -> None:
        """Runs all steps of a statement; the connection then has its result."""
        for step in statement.preparation:
            self.connection.execute(step)
        self.connection.execute(statement.parsed, parameters)

    def buffer(self, schema: Any) -> SpillBuffer:
        """A buffer for rows of a client: in memory within the caller's share, beyond it on disk."""
        services = self.services
        return SpillBuffer(
            schema, services.result_buffer_bytes, services.spill_directory, self.memory.open()
        )

    def stream(self, run: Run, connection: duckdb.DuckDBPyConnection) -> ResultStream:
        """The result of the statement that the connection has just executed."""
        return ResultStream(
            run,
            connection,
            activity=self._on_activity,
            report=self._report,
            buffer=self.buffer,
            in_transaction=self.transaction.open,
        )

    def attach_catalogs(
        self, statement: Statement, seen: int, error: duckdb.Error | None = None
    ) -> bool:
        """Attaches what a statement names; True if more was attached since the count was ``seen``.

        Another session may have attached it since the statement failed. A view or macro may name
        more than the statement: the error of the statement says what is missing.
        """
        names = statement.names | self._names_in_use()
        if error is not None:
            names |= {name.lower() for name in _MISSING_CATALOG.findall(str(error))}
        try:
            self.catalogs.attach_named(names)
        except EngineSealed as sealed:
            self._use_engine_with(sealed)
            return True
        except CatalogUnreachable:
            # Its name may be any other word of the statement, which then needs only the others.
            if self.engine.attach_count == seen:
                raise
        return self.engine.attach_count > seen

    def attach_for_metadata(self, name: str | None) -> None:
        """Attaches one catalog, or all; a session that cannot leave its engine sees those of it."""
        try:
            self.catalogs.attach_for_metadata(name)
        except EngineSealed as sealed:
            with suppress(CatalogUnreachable):
                self._use_engine_with(sealed)

    def attach_after(self, error: duckdb.Error, statement: Statement, seen: int) -> bool:
        """Attaches what a statement names; True if that may mend its error and it can be repeated.

        ``seen`` is as for ``attach_catalogs``.
        """
        # A write is repeated only if it was certainly refused before it did anything.
        is_read = statement.kind is Kind.QUERY and not statement.may_write
        may_repeat = is_read or statement.type == StatementType.CALL
        if not isinstance(error, _BIND_ERRORS) and not (may_repeat and self._hides_binding(error)):
            return False
        return self.attach_catalogs(statement, seen, error)

    def _hides_binding(self, error: duckdb.Error) -> bool:
        """True if it may be the error of another catalog.

        DuckDB looks for a function of an unknown catalog in all attached ones, and fails if one of
        them cannot be read.
        """
        if not is_from_extension(error) or is_interrupt(error) or may_invalidate(error):
            return False
        if self.client_rows.rows is not None:  # which can be read once only
            return False
        return not self.transaction.open or not self._is_transaction_aborted()

    def retry_with_catalogs(self, statement: Statement, attempt: Callable[[], T]) -> T:
        """Attempts to bind a statement, again once the catalogs that it names are attached."""
        seen = self.engine.attach_count
        try:
            return attempt()
        except duckdb.Error as error:
            is_known = isinstance(error, _BIND_ERRORS) or self._hides_binding(error)
            if not is_known or not self.attach_catalogs(statement, seen, error):
                raise
            return attempt()

    def _names_in_use(self) -> set[str]:
        """The names in the last USE: its catalog may have been dropped and created again."""
        sql = self._settings.get("use")
        return parse(self.connection, sql)[0].names if sql else set()

    def refresh_catalogs(self, run: Run, statement: Statement) -> None:
        """Waits until DuckLake has read again the changed catalogs that a statement may read."""
        refreshes = self.engine.refreshes
        for catalog in refreshes.stale_catalogs:
            if self.names.may_reference(statement, catalog):
                refreshes.refresh(catalog, run.check)

    @contextmanager
    def writer_lock(self, run: Run, catalogs: set[LakeLocation]) -> Iterator[None]:
        """Holds the writer lock of these catalogs, unless the session already holds one."""
        if not catalogs or self._has_writer_lock:
            yield
            return
        lake, seconds = self.services.lake, self.services.writer_lock_seconds
        with lake.exclusive_writer(catalogs, run.session.id, run.check) as is_awaited:
            self._has_writer_lock = True
            try:
                with run.holding_lock(seconds, is_awaited):
                    yield
            finally:
                self._has_writer_lock = False

    def statement_writer_lock(self, run: Run, statement: Statement) -> AbstractContextManager[None]:
        """Holds the writer lock around a write, or around the COMMIT of a transaction's writes."""
        return self.writer_lock(run, self._committed_catalogs(statement))

    def _committed_catalogs(self, statement: Statement) -> set[LakeLocation]:
        """The catalogs to which a statement may commit."""
        if not self.transaction.open:
            return self.names.written_catalogs(statement)
        return self.transaction.wrote_to if statement.kind is Kind.COMMIT else set()

    def last_commit(self, location: LakeLocation) -> int | None:
        """The last snapshot of a catalog that this session committed."""
        return self._last_commits.get(location.storage_name)

    def record_commit(self, location: LakeLocation, snapshot_id: int) -> None:
        """The session committed a snapshot without the extension."""
        self._last_commits[location.storage_name] = snapshot_id

    def record_extension_commits(self, statement: Statement) -> None:
        """Takes note of what the extension committed for a statement.

        The session still holds the writer lock, so a commit that is new to the engine is its own.
        """
        for location in self._committed_catalogs(statement):
            query = f"FROM ducklake_last_committed_snapshot({literal(location.catalog)})"
            [(snapshot_id,)] = self.connection.execute(query).fetchall()
            if self.engine.note_commit(location, snapshot_id):
                self.record_commit(location, snapshot_id)

    def record(self, statement: Statement) -> None:
        """Takes note of what a successful statement did to the transaction and the settings."""
        if statement.kind in (Kind.COMMIT, Kind.ROLLBACK):
            self.end_transaction(undone=statement.kind is Kind.ROLLBACK)
        elif statement.kind is Kind.BEGIN:
            self.transaction.begin(self.services.queue.register_reader())
        if self.transaction.open:
            catalogs = self.names.written_catalogs(statement)
            self.transaction.wrote_to |= catalogs
            self.transaction.written = self._written_tables(statement)
            if statement.may_delete_rows and catalogs:  # not from a temporary table
                self.transaction.deleted_from.add(self.folded_name(statement.target_parts))
            if statement.changes_rows and catalogs:
                self.transaction.changed_rows_of.add(self.folded_name(statement.written_table))
        if statement.is_setting:
            self.names.invalidate_location()
            if statement.may_be_global:
                self.engine.global_settings += 1
            self._settings_changed += 1
            self._settings.pop(statement.setting_name, None)
            self._settings[statement.setting_name] = statement.text
        self._has_pragmas |= statement.is_pragma
        self.names.has_temporary |= statement.creates_session_state
        self.names.has_session_macros |= statement.may_create_session_macro

    def folded_name(self, parts: tuple[str, ...] | None) -> TableName | None:
        """Catalog, schema and table of a name as DuckDB compares them; None if it is not known."""
        name = None if parts is None else self.names.resolve_table(parts)
        return None if name is None else (name[0], folded(name[1]), folded(name[2]))

    def check_deletes(self) -> None:
        """Raises CommitConflict if the transaction's COMMIT would bring deleted rows back."""
        deleted_from = self.transaction.deleted_from
        # On SQLite a transaction conflicts with every commit since its first read.
        for location in self.transaction.wrote_to if deleted_from else ():
            if location.sqlite_path is None:
                query = f"SELECT id FROM ducklake_current_snapshot({literal(location.catalog)})"
                [(base,)] = self.connection.execute(query).fetchall()

                def deletes_from(table: Table, catalog: str = location.catalog) -> bool:
                    name = (catalog, folded(table.schema), folded(table.name))
                    return name in deleted_from or None in deleted_from

                self.services.lake.catalog(location.catalog).check_deletes(base, deletes_from)

    def end_transaction(self, *, undone: bool) -> None:
        """Forgets the transaction; if it was undone, so are the temporary tables made in it."""
        reader = self.transaction.queue_reader
        if reader is not None:
            self.services.queue.release_reader(reader)
        self.transaction = TransactionState()
        if undone:
            self.temp_generation += 1
            self._staging_tables |= self._dropped_staging
        self._dropped_staging.clear()

    def add_staging_table(self, name: str) -> None:
        """The connection has a staging table, until a statement might list it."""
        self._staging_tables.add(name)

    def drop_staging_tables(self) -> None:
        """Drops all staging tables; they are created again when they are needed."""
        if not self._staging_tables:
            return
        for name in self._staging_tables:
            self.connection.execute(f"DROP TABLE IF EXISTS temp.main.{name}")
        self.temp_generation += 1
        if self.transaction.open:
            self._dropped_staging |= self._staging_tables
        self._staging_tables.clear()

    def roll_back(self) -> None:
        """Leaves no transaction open, whatever state the engine is in."""
        self.end_transaction(undone=True)
        with suppress(duckdb.Error):  # a broken engine has rolled back already
            self.connection.execute("ROLLBACK")

    def fail(self, error: Exception, statement: Statement | None = None) -> NoReturn:
        """Raises the error for the client, after finding out what the failure left behind."""
        lost_engine = self._report(error)
        translated = translate(
            error,
            partial(self._table_name, statement),
            self._written_tables(statement),
            lost_engine=lost_engine,
        )
        if statement is not None and self._ends_outside_transaction(statement):
            # Stopped before DuckDB did it, or just after: either way no transaction may be left.
            self.roll_back()
        elif self.transaction.open and not lost_engine:
            # As in DuckDB: some steps of an expanded write may be done, whatever the error.
            is_partial = statement is not None and statement.is_expanded and statement.may_write
            self.transaction.aborted |= is_partial or self._is_transaction_aborted()
        if self._scope.is_restricted:
            translated = as_denied(translated)
        if translated is error:
            raise translated
        raise translated from error

    def _written_tables(self, statement: Statement | None) -> list[str]:
        target = None if statement is None else statement.target
        before = self.transaction.written
        return before if target is None or target in before else [*before, target]

    def _table_name(self, statement: Statement | None, id: int) -> str:
        """The name of the table with that id, in the first written catalog that has it."""
        catalogs = set() if statement is None else self.names.written_catalogs(statement)
        for location in self.transaction.wrote_to | catalogs:
            with suppress(SwanLakeError):
                catalog = self.services.lake.catalog(location.catalog)
                return catalog.table_by_id(id).full_name
        written = self._written_tables(statement)
        return written[0] if len(written) == 1 else f"with the id {id}"

    def _ends_outside_transaction(self, statement: Statement) -> bool:
        """True for COMMIT and ROLLBACK, and for a BEGIN outside of a transaction."""
        if statement.kind is Kind.BEGIN:
            return not self.transaction.open
        return statement.kind in (Kind.COMMIT, Kind.ROLLBACK)

    def _report(self, error: Exception) -> bool:
        return self.services.host.report_error(self._lease, error)

    def _is_transaction_aborted(self) -> bool:
        try:
            self.connection.execute("SELECT 1").fetchall()
        except duckdb.Error:
            return True
        return False

    def settle(self, check: Callable[[], None]) -> None:
        """Takes the rest of a live result off the connection."""
        if self.live is None:
            return
        stream = self.live
        stream.settle(check)
        self.live = None
        if self.transaction.open and not self.transaction.aborted:
            # The statement may have failed after its execution, while its result was fetched. One
            # that was stopped between two batches has failed too, though DuckDB does not know it.
            self.transaction.aborted = stream.run.is_stopped or self._is_transaction_aborted()

    def release(self) -> None:
        """Gives the connection back; idempotent."""
        if not self._released:
            self._released = True
            self.end_transaction(undone=True)
            if self.live is not None:
                self.live.abandon(QueryCancelled("The session was closed."))
            self.services.host.release(self._lease)

    def renew(self) -> None:
        """Moves to a new engine if the old one broke; raises if session state was lost with it."""
        if not self.engine.broken:
            return
        lost = ["its open transaction"] if self.transaction.open else []
        if self.names.has_temporary:
            lost.append("its temporary objects and attached databases")
        old, self._lease = self._lease, self.services.host.acquire(self._scope)
        self.services.host.release(old)
        lost += [f"its setting of {name}" for name in self._start_on_engine()]
        if lost:
            raise SessionLost(
                f"The engine was restarted after a fatal error and the session lost "
                f"{' and '.join(lost)}. The statement was not run; the session can be used again."
            )

    def leave_retired_engine(self) -> None:
        """Moves to the engine that took the place of a retired one, unless state would be lost."""
        if not self.engine.retired or self.engine.broken or self._has_unrepeatable_state:
            return
        with suppress(*STATEMENT_ERRORS):  # the statement says so itself if it needs the catalog
            self._change_engine()

    def _use_engine_with(self, sealed: EngineSealed) -> None:
        """Moves to an engine that has the catalogs which a sealed engine cannot attach."""
        if self._has_unrepeatable_state:
            raise sealed
        old = self.engine
        self._change_engine(sealed.locations)
        if self.engine is old:
            raise sealed

    def _change_engine(self, catalogs: Collection[LakeLocation] = ()) -> None:
        """Moves to an engine that has these catalogs, unless a setting would be lost."""
        new = self.services.host.acquire(self._scope, catalogs)
        old, self._lease, settings = self._lease, new, self._settings.copy()
        if self._start_on_engine():
            # The session stays: a setting could not be repeated, as when a catalog is unreachable.
            self._lease, self._settings = old, settings
            self.names = NameResolver(old)
        self.services.host.release(new if self._lease is old else old)

    @property
    def _has_unrepeatable_state(self) -> bool:
        """True if the session has more on its connection than settings with constant values."""
        is_live = self.live is not None and self.live.live
        has_state = self.transaction.open or self.names.has_temporary or self._has_pragmas
        return is_live or has_state or any(map(_is_variable, self._settings))

    def _start_on_engine(self) -> list[str]:
        """Begins on a new connection with the session's settings; returns those that were lost."""
        self.end_transaction(undone=True)
        self.names = NameResolver(self._lease)
        lost = []
        for name, sql in list(self._settings.items()):
            try:
                [setting] = parse(self.connection, sql)
                self.retry_with_catalogs(setting, partial(self.connection.execute, setting.parsed))
            except STATEMENT_ERRORS:  # what it named was lost with the engine
                del self._settings[name]
                lost.append(name)
        return lost


def _is_variable(setting: str) -> bool:
    """True for a SET VARIABLE: its expression may have another value when it is repeated."""
    return setting.startswith("variable ")

"""A DuckDB instance with the lake attached, and the connections of its sessions."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from weakref import WeakSet

import duckdb

from swanlake._internal.free_list import FreeList
from swanlake.access.policy import METADATA_PREFIX
from swanlake.access.scope import UNRESTRICTED, Scope
from swanlake.config import Settings
from swanlake.engine.catalog_refresh import CatalogRefreshes
from swanlake.engine.database import new_temp_directory, open_database
from swanlake.engine.errors import may_invalidate
from swanlake.engine.object_storage import use_object_store
from swanlake.errors import CatalogUnreachable, StartupError
from swanlake.lake.files.storage import is_url
from swanlake.lake.files.storage_options import StorageOptions
from swanlake.lake.metastore.location import LakeLocation
from swanlake.lake.model.layout import Table
from swanlake.sql.quoting import identifier, literal

log = logging.getLogger("swanlake.engine")

#: A writer that holds the catalog's lock competes only with stock DuckDB writers. With DuckLake's
#: default delays (100 ms, growing by half) it would hold the lock for seconds.
_QUICK_RETRIES = """
    SET GLOBAL ducklake_max_retry_count = 15;
    SET GLOBAL ducklake_retry_wait_ms = 1;
    SET GLOBAL ducklake_retry_backoff = 1.3;
"""
#: Opening a PostgreSQL connection takes longer than most statements, so the pool is larger than
#: DuckDB's default of four. Every catalog has its own pool and PostgreSQL allows about a hundred
#: connections in all, so idle ones are closed.
_CONNECTION_POOL = """
    SET GLOBAL pg_pool_max_connections = 32;
    SET GLOBAL pg_pool_idle_timeout_millis = 10000;
"""
#: UUID, HUGEINT and similar types keep every bit on the way to Arrow; sessions.results.wire
#: converts them to types that stock clients read.
LOSSLESS = "SET GLOBAL arrow_lossless_conversion = true"
#: DuckDB estimates how much of a statement is done, and prints nothing. As settings these would be
#: locked in a sealed instance.
_PROGRESS = "PRAGMA enable_progress_bar; PRAGMA disable_print_progress_bar"
_MAX_SCRATCH_CONNECTIONS = 16
#: DuckLake keeps the whole schema of a catalog for every version that it has read, and the
#: statistics of a table for every commit. DuckDB frees them at its memory limit only, and they
#: take twice the memory that it counts.
_CACHE_MEMORY = "OBJECT_CACHE"
_MAX_CACHED_BYTES = 48 * 1024 * 1024
#: An attached catalog in PostgreSQL costs a megabyte and a thread. An instance with many of them is
#: replaced after this time; those that are still used are attached again.
_MANY_CATALOGS = 64
_MANY_CATALOGS_SECONDS = 600.0
#: The default database of sessions that may not read the default catalog.
_NO_CATALOG = "memory"
#: Settings that differ between instances by design.
_OWN_SETTINGS = ("temp_directory",)
#: What sessions can create in an instance for all of them: databases, secrets, and objects of the
#: database that every instance has.
_SHARED_OBJECTS = """
    SELECT 'database ' || database_name FROM duckdb_databases() WHERE NOT internal
    UNION ALL SELECT 'secret ' || name FROM duckdb_secrets() WHERE NOT persistent
    UNION ALL SELECT 'table ' || table_name FROM duckdb_tables() WHERE database_name = 'memory'
    UNION ALL SELECT 'view ' || view_name FROM duckdb_views()
        WHERE database_name = 'memory' AND NOT internal
    UNION ALL SELECT 'type ' || type_name FROM duckdb_types()
        WHERE database_name = 'memory' AND NOT internal
    UNION ALL SELECT 'sequence ' || sequence_name FROM duckdb_sequences()
        WHERE database_name = 'memory'
    UNION ALL SELECT 'macro ' || function_name FROM duckdb_functions()
        WHERE database_name = 'memory' AND NOT internal
"""
#: Sessions of a sealed instance load no extensions, and cannot list them.
_SHARED_EXTENSIONS = """
    UNION ALL SELECT 'extension ' || extension_name FROM duckdb_extensions() WHERE loaded
"""
_TABLE_FUNCTIONS = """
    SELECT DISTINCT lower(function_name) FROM duckdb_functions()
    WHERE database_name = 'system' AND function_type IN ('table', 'table_macro', 'pragma')
"""


@dataclass(frozen=True)
class EngineSpec:
    """The configuration of an instance."""

    lake: LakeLocation
    temp_directory: Path
    #: Where the lake's files are, and how they are reached if that is an object store.
    data_location: str = ""
    storage: StorageOptions = field(default_factory=StorageOptions)
    init_sql: str = field(default="", repr=False)
    memory_limit: str = ""
    threads: int = 0
    #: Whose sessions use the instance: it has only the catalogs that they may read.
    scope: Scope = UNRESTRICTED
    #: Attached at the start, besides the default catalog.
    catalogs: tuple[LakeLocation, ...] = ()
    #: The only directories and URLs that statements can reach; None if they can reach any.
    directories: tuple[str, ...] | None = None
    #: The instance is outgrown once DuckDB counts this much for caches that are never freed.
    max_cached_bytes: int = _MAX_CACHED_BYTES

    @classmethod
    def from_settings(cls, settings: Settings, lake: LakeLocation) -> EngineSpec:
        return cls(
            lake=lake,
            temp_directory=settings.temp_directory,
            data_location=settings.data_location,
            storage=StorageOptions.from_settings(settings),
            init_sql=settings.ducklake_init_sql,
            memory_limit=settings.duckdb_memory_limit,
            threads=settings.duckdb_threads,
        )


class EngineSealed(CatalogUnreachable):
    """A sealed instance cannot attach a catalog; a new instance can."""

    def __init__(self, *locations: LakeLocation) -> None:
        names = ", ".join(location.catalog for location in locations)
        super().__init__(
            f"The session cannot reach the catalog {names}, because it has a transaction, "
            "temporary objects or an unread result. End them, or open a new session."
        )
        self.locations = locations


@dataclass(frozen=True)
class EngineMemory:
    """The memory that DuckDB counts for one instance; its limit is that of ``total_bytes``."""

    retired: bool
    total_bytes: int
    #: Schemas and statistics that DuckLake has read, of all their versions.
    cached_bytes: int


def is_outgrown(
    cached_bytes: int, needed_bytes: int, max_bytes: int, *, catalogs: int, age_seconds: float
) -> bool:
    """True if an instance caches much that no statement needs, or may hold forgotten catalogs."""
    if catalogs > _MANY_CATALOGS and age_seconds > _MANY_CATALOGS_SECONDS:
        return True
    # Twice: an instance that needs much may double before opening another one is worth it.
    return cached_bytes > max_bytes + 2 * needed_bytes


class Engine:
    """A DuckDB instance. It is expensive to open; its connections are cheap."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self.is_sealed = False
        #: Set by the host once a fatal error has made DuckDB refuse all further statements.
        self.broken = False
        #: Set by the host once other instances take the sessions that have no state in this one.
        self.retired = False
        self._closed = False
        self._opened = time.monotonic()
        # Not self._lock, which sessions need to connect: attaching waits for a database.
        self._attaching = threading.Lock()
        #: The attached catalogs of the lake, with their locations at that time.
        self._attached: dict[str, LakeLocation] = {}
        #: The cached bytes that the attached catalogs need, and whether all are part of it.
        self._needed_bytes = 0
        self._is_measured = True
        #: Attaches so far: a statement that failed on a missing name may be retried if it grew.
        self.attach_count = 0
        #: The last snapshot that the extension committed here, by the storage name of its catalog.
        self._last_commits: dict[str, int] = {}
        #: The ids of tables that have an inlining limit of this instance.
        self._inlining_limits: set[int] = set()
        #: Changes of settings for all connections so far.
        self.global_settings = 0
        self.refreshes = CatalogRefreshes(self._load_schema)
        self._scratch = FreeList(
            self._open_scratch,
            limit=_MAX_SCRATCH_CONNECTIONS,
            is_reusable=lambda connection: not (self.broken or self._closed),
        )
        #: All open connections, to interrupt their statements when the instance breaks.
        self._connections: WeakSet[duckdb.DuckDBPyConnection] = WeakSet()
        temp_directory = new_temp_directory(spec.temp_directory)
        self._root = open_database(temp_directory, spec.memory_limit, spec.threads)
        try:
            self._root.execute(_QUICK_RETRIES)
            self._root.execute(_CONNECTION_POOL)
            self._root.execute(LOSSLESS)
            if is_url(spec.data_location):
                use_object_store(self._root, spec.storage, spec.data_location)
            if spec.scope.may_read(spec.lake.catalog):
                self.attach(spec.lake)
            for location in spec.catalogs:
                if spec.scope.may_read(location.catalog):
                    with suppress(CatalogUnreachable):  # the statements that name it say so
                        self.attach(location)
            self._run_init_sql()
            # Before it is sealed: DuckDB reads its stored secrets when they are first listed.
            self._initial_objects = self._list_shared_objects()
            self._seal()
        except BaseException:
            self._root.close()
            raise

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A new connection with the lake as its default catalog."""
        connection = self._cursor()
        catalog = self.catalog if self.scope.may_read(self.catalog) else _NO_CATALOG
        try:
            connection.execute(f"USE {identifier(catalog)}")
        except duckdb.Error as unreachable:
            if may_invalidate(unreachable):
                raise
            connection.close()
            reason = " ".join(str(unreachable).split())
            raise CatalogUnreachable(
                f"The catalog {self.catalog} cannot be used: {reason}"
            ) from unreachable
        return connection

    def scratch_connection(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
        """A connection for the block that resolves no name of the lake or of other sessions.

        The block leaves no objects on it, unless it raises.
        """
        return self._scratch.borrow()

    def check_answers(self) -> None:
        """Raises what DuckDB raises if it cannot run a query."""
        with self.scratch_connection() as connection:
            connection.execute("SELECT 1").fetchall()

    def _open_scratch(self) -> duckdb.DuckDBPyConnection:
        connection = self._cursor()
        connection.execute("SET search_path = 'temp'")
        return connection

    def _load_schema(self, catalog: str) -> None:
        """Has DuckLake read a catalog; an error is left to the next statement that names it."""
        with self._cursor() as connection, suppress(duckdb.Error):
            connection.execute(f"USE {identifier(catalog)}")

    def has_unrelated_database(self, name: str) -> bool:
        """True if a database that is not of the lake is attached under the name."""
        if self.attached_location(name) is not None:
            return False
        with self.scratch_connection() as connection:
            rows = connection.execute("SELECT database_name FROM duckdb_databases()").fetchall()
        return any(database.lower() == name.lower() for (database,) in rows)

    @property
    def scope(self) -> Scope:
        """Whose sessions use the instance."""
        return self._spec.scope

    @cached_property
    def table_functions(self) -> frozenset[str]:
        """The names of the table functions and pragmas of DuckDB and its extensions."""
        with self._cursor() as connection:
            rows = connection.execute(_TABLE_FUNCTIONS).fetchall()
        return frozenset(name for (name,) in rows)

    @property
    def catalog(self) -> str:
        """The default catalog of sessions."""
        return self._spec.lake.catalog

    def attached_location(self, name: str) -> LakeLocation | None:
        """The location from which a catalog was attached; None if it is not attached."""
        return self._attached.get(name.lower())

    @property
    def attached_locations(self) -> list[LakeLocation]:
        """The locations of the attached catalogs of the lake."""
        return list(self._attached.copy().values())

    @property
    def attached_names(self) -> list[str]:
        """The names of the attached catalogs of the lake."""
        return sorted(self._attached.copy())

    def has_inlining_limit(self, table_id: int) -> bool:
        """True if a table of that id, of any catalog, has a limit of this instance."""
        return table_id in self._inlining_limits

    def set_inlining_limit(self, location: LakeLocation, table: Table, limit: int) -> None:
        """Sets how many rows the extension inlines at once, for this instance only.

        The extension takes an option into its memory at once, and keeps it there after a rollback.
        """
        self._inlining_limits.add(table.id)
        with self._cursor() as connection:
            connection.execute("BEGIN TRANSACTION")
            connection.execute(
                f"CALL {identifier(location.catalog)}.set_option('data_inlining_row_limit', "
                f"{limit}, schema => {literal(table.schema)}, table_name => {literal(table.name)})"
            )
            connection.execute("ROLLBACK")

    def note_commit(self, location: LakeLocation, snapshot_id: int | None) -> bool:
        """True if the extension's last commit to a catalog is another than at the last call.

        The caller holds the writer lock of the catalog.
        """
        known = self._last_commits.get(location.storage_name)
        if snapshot_id is None or snapshot_id == known:
            return False
        self._last_commits[location.storage_name] = snapshot_id
        return True

    def is_readable(self, name: str) -> bool:
        """True if an attached catalog can still be read."""
        return self._answers("FROM ducklake_current_snapshot(?)", [name])

    def attach(self, location: LakeLocation) -> None:
        """Attaches a catalog of the lake for all connections of this instance.

        Raises EngineSealed if only another instance can have it.
        """
        with self._attaching:
            if self._attached.get(location.catalog) == location:
                return
            if self.is_sealed:
                raise EngineSealed(location)
            with self._cursor() as connection:
                self._detach(connection, location.catalog)
                if self.has_unrelated_database(location.catalog):
                    # Statements would write rows meant for the lake to that database.
                    raise CatalogUnreachable(
                        f"The catalog {location.catalog} cannot be attached: another database is "
                        "attached under its name. DETACH that database first."
                    )
                with _lazy_transactions(connection):
                    read_only = not self.scope.may_write(location.catalog)
                    location.attach(connection, read_only=read_only)
            self._attached[location.catalog] = location
            if location.sqlite_path is None:  # to load it now would keep a connection open
                self._is_measured = False
            else:
                before = self.memory().cached_bytes
                self._load_schema(location.catalog)
                self._needed_bytes += max(self.memory().cached_bytes - before, 0)
            self.attach_count += 1

    def detach(self, name: str) -> None:
        """Detaches a catalog that is no longer in the lake."""
        with self._attaching, self._cursor() as connection:
            self._detach(connection, name.lower())

    def _detach(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        if self._attached.pop(name, None) is not None:
            connection.execute(f"DETACH DATABASE IF EXISTS {identifier(name)}")

    def memory(self) -> EngineMemory:
        """What DuckDB counts now."""
        with self.scratch_connection() as connection:
            query = "SELECT tag, memory_usage_bytes FROM duckdb_memory()"
            usage = dict(connection.execute(query).fetchall())
        return EngineMemory(self.retired, sum(usage.values()), usage[_CACHE_MEMORY])

    @property
    def is_outgrown(self) -> bool:
        """True if a new instance would need much less memory for the same statements."""
        cached_bytes = self.memory().cached_bytes
        if not self._is_measured:  # soon after an attach
            self._is_measured, self._needed_bytes = True, cached_bytes
        return is_outgrown(
            cached_bytes,
            self._needed_bytes,
            self._spec.max_cached_bytes,
            catalogs=len(self._attached),
            age_seconds=time.monotonic() - self._opened,
        )

    def session_objects(self) -> list[str]:
        """What sessions made in this instance that another instance does not have."""
        of_lake = {
            f"database {prefix}{name}"
            for name in self.attached_names
            for prefix in ("", METADATA_PREFIX)
        }
        return sorted(self._list_shared_objects() - self._initial_objects - of_lake)

    def _list_shared_objects(self) -> set[str]:
        query = _SHARED_OBJECTS if self.is_sealed else _SHARED_OBJECTS + _SHARED_EXTENSIONS
        with self._cursor() as connection:
            return {name for (name,) in connection.execute(query).fetchall()}

    def copy_settings(self, other: Engine) -> None:
        """Takes over the settings for all connections of another instance."""
        self.global_settings = other.global_settings
        own = self._read_settings()
        with self._cursor() as connection:
            for name, value in other._read_settings().items() - own.items():
                if name not in _OWN_SETTINGS:
                    connection.execute(f"SET GLOBAL {identifier(name)} = {literal(value)}")

    def _read_settings(self) -> dict[str, str]:
        with self._cursor() as connection:
            rows = connection.execute(
                "SELECT name, value FROM duckdb_settings() "
                "WHERE scope = 'GLOBAL' AND value IS NOT NULL"
            ).fetchall()
        return dict(rows)

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """A new connection; the caller closes it."""
        with self._lock:
            connection = self._root.cursor()
            with suppress(duckdb.Error):  # a broken instance fails each statement by itself
                connection.execute(_PROGRESS)
            self._connections.add(connection)
            return connection

    def interrupt(self) -> None:
        """Ends the statements that run on the instance: DuckDB lets them run on when it breaks."""
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.interrupt()

    def is_valid(self) -> bool:
        """False once a fatal error has made DuckDB refuse all further statements."""
        return self._answers("SELECT 1")

    def _answers(self, sql: str, parameters: list[str] | None = None) -> bool:
        with self._cursor() as probe:
            try:
                probe.execute(sql, parameters)
            except duckdb.Error:
                return False
        return True

    def close(self) -> None:
        """Closes the instance; connections still open keep it alive until they are closed."""
        with self._lock:
            self._closed = True
            if not self.broken:
                self._scratch.close()
                self._root.close()

    def _seal(self) -> None:
        """Bars statements from files outside of the directories; it cannot be undone.

        Databases that the init SQL attached cannot be made read-only afterwards, so they are
        detached unless the sessions may write to them.
        """
        if self.scope.is_restricted:
            for database in self._foreign_databases():
                if not self.scope.may_write(database):
                    self._root.execute(f"DETACH DATABASE {identifier(database)}")
        if self._spec.directories is not None:
            allowed = ", ".join(literal(f"{name.rstrip('/')}/") for name in self._spec.directories)
            self._root.execute(f"SET GLOBAL allowed_directories = [{allowed}]")
            self._root.execute("SET GLOBAL enable_external_access = false")
            self.is_sealed = True

    def _foreign_databases(self) -> list[str]:
        """The databases that are neither DuckDB's own nor of the lake."""
        rows = self._root.execute(
            "SELECT database_name FROM duckdb_databases() WHERE NOT internal"
        ).fetchall()
        own = {_NO_CATALOG}
        for name in self.attached_names:
            own |= {name, METADATA_PREFIX + name}
        return [name for (name,) in rows if name.lower() not in own]

    def _run_init_sql(self) -> None:
        if not self._spec.init_sql:
            return
        if self.scope.is_restricted:
            self._run_init_statements()
            return
        try:
            self._root.execute(self._spec.init_sql)
        except duckdb.Error as failed:
            # DuckDB quotes the offending line, which may contain a secret: name only the kind.
            raise StartupError(
                f"ducklake_init_sql failed with a {type(failed).__name__}; run it in a DuckDB "
                "shell to see the statement (it is not shown here because it may contain secrets)."
            ) from None

    def _run_init_statements(self) -> None:
        """Runs the init SQL as far as restricted sessions may: it may write to the lake, or attach
        a file that only one instance can open.
        """
        for number, statement in enumerate(self._root.extract_statements(self._spec.init_sql), 1):
            try:
                self._root.execute(statement)
            except duckdb.Error as failed:  # its message may contain a secret
                log.warning(
                    "statement %d of ducklake_init_sql failed with a %s in the engine of a %s",
                    number,
                    type(failed).__name__,
                    self.scope.role,
                )


@contextmanager
def _lazy_transactions(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Turns immediate_transaction_mode off for the block, which a session may have set for all.

    With it, DuckLake begins a transaction of the new catalog before it knows its metadata schema.
    """
    setting = "immediate_transaction_mode"
    [(is_immediate,)] = connection.execute(f"SELECT current_setting('{setting}')").fetchall()
    if not is_immediate:
        yield
        return
    connection.execute(f"SET GLOBAL {setting} = false")
    try:
        yield
    finally:
        connection.execute(f"SET GLOBAL {setting} = true")

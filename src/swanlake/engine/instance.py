"""A DuckDB instance with the lake attached, and the connections of its sessions."""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from swanlake._internal.free_list import FreeList
from swanlake.config import Settings
from swanlake.engine.catalog_refresh import CatalogRefreshes
from swanlake.engine.database import open_database
from swanlake.engine.errors import may_invalidate
from swanlake.errors import CatalogUnreachable, StartupError
from swanlake.lake.metastore.location import LakeLocation
from swanlake.sql.quoting import identifier

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
_LOSSLESS = "SET GLOBAL arrow_lossless_conversion = true"
_MAX_SCRATCH_CONNECTIONS = 16


@dataclass(frozen=True)
class EngineSpec:
    """The configuration of an instance."""

    lake: LakeLocation
    temp_directory: Path
    init_sql: str = field(default="", repr=False)
    memory_limit: str = ""
    threads: int = 0

    @classmethod
    def from_settings(cls, settings: Settings, lake: LakeLocation) -> EngineSpec:
        return cls(
            lake=lake,
            temp_directory=settings.temp_directory,
            init_sql=settings.ducklake_init_sql,
            memory_limit=settings.duckdb_memory_limit,
            threads=settings.duckdb_threads,
        )


class Engine:
    """A DuckDB instance. It is expensive to open; its connections are cheap."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        #: Set by the host once a fatal error has made DuckDB refuse all further statements.
        self.broken = False
        # Not self._lock, which sessions need to connect: attaching waits for a database.
        self._attaching = threading.Lock()
        #: The attached catalogs of the lake, with their locations at that time.
        self._attached: dict[str, LakeLocation] = {}
        #: Attaches so far: a statement that failed on a missing name may be retried if it grew.
        self.attach_count = 0
        #: Changes of settings for all connections so far.
        self.global_settings = 0
        self.refreshes = CatalogRefreshes(self._load_schema)
        self._scratch = FreeList(
            self._open_scratch,
            limit=_MAX_SCRATCH_CONNECTIONS,
            is_reusable=lambda connection: not self.broken,
        )
        self._root = open_database(spec.temp_directory, spec.memory_limit, spec.threads)
        try:
            self._root.execute(_QUICK_RETRIES)
            self._root.execute(_CONNECTION_POOL)
            self._root.execute(_LOSSLESS)
            self.attach(spec.lake)
            self._run_init_sql()
        except BaseException:
            self._root.close()
            raise

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A new connection with the lake as its default catalog."""
        connection = self._cursor()
        try:
            connection.execute(f"USE {identifier(self.catalog)}")
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
    def catalog(self) -> str:
        """The default catalog of sessions."""
        return self._spec.lake.catalog

    def attached_location(self, name: str) -> LakeLocation | None:
        """The location from which a catalog was attached; None if it is not attached."""
        return self._attached.get(name.lower())

    @property
    def attached_names(self) -> list[str]:
        """The names of the attached catalogs of the lake."""
        return sorted(self._attached.copy())

    def is_readable(self, name: str) -> bool:
        """True if an attached catalog can still be read."""
        return self._answers("FROM ducklake_current_snapshot(?)", [name])

    def attach(self, location: LakeLocation) -> None:
        """Attaches a catalog of the lake for all connections of this instance."""
        with self._attaching:
            if self._attached.get(location.catalog) == location:
                return
            with self._cursor() as connection:
                self._detach(connection, location.catalog)
                if self.has_unrelated_database(location.catalog):
                    # Statements would write rows meant for the lake to that database.
                    raise CatalogUnreachable(
                        f"The catalog {location.catalog} cannot be attached: another database is "
                        "attached under its name. DETACH that database first."
                    )
                location.attach(connection)
            self._attached[location.catalog] = location
            self.attach_count += 1

    def detach(self, name: str) -> None:
        """Detaches a catalog that is no longer in the lake."""
        with self._attaching, self._cursor() as connection:
            self._detach(connection, name.lower())

    def _detach(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        if self._attached.pop(name, None) is not None:
            connection.execute(f"DETACH DATABASE IF EXISTS {identifier(name)}")

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """A new connection; the caller closes it."""
        with self._lock:
            return self._root.cursor()

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
            if not self.broken:
                self._scratch.close()
                self._root.close()

    def _run_init_sql(self) -> None:
        if not self._spec.init_sql:
            return
        try:
            self._root.execute(self._spec.init_sql)
        except duckdb.Error as failed:
            # DuckDB quotes the offending line, which may contain a secret: name only the kind.
            raise StartupError(
                f"ducklake_init_sql failed with a {type(failed).__name__}; run it in a DuckDB "
                "shell to see the statement (it is not shown here because it may contain secrets)."
            ) from None

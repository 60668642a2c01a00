"""One DuckDB instance with the lake attached, and the connections sessions work on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from swanlake.config import Settings
from swanlake.engine.catalog_reads import CatalogReads
from swanlake.engine.database import open_database
from swanlake.engine.errors import may_invalidate
from swanlake.engine.extensions import load_extensions
from swanlake.errors import CatalogUnreachable, StartupError
from swanlake.lake.location import LakeLocation
from swanlake.sql.quoting import identifier

log = logging.getLogger("swanlake.engine")

#: Who holds a catalog's turn fights with nobody but stock writers. After 100 ms, growing by half
#: each time, it would keep everybody waiting for seconds.
_QUICK_RETRIES = """
    SET GLOBAL ducklake_max_retry_count = 15;
    SET GLOBAL ducklake_retry_wait_ms = 1;
    SET GLOBAL ducklake_retry_backoff = 1.3;
"""
#: Every statement that runs has a connection to PostgreSQL, and DuckDB keeps four when they are
#: done. To open one takes the database longer than most statements take. But every catalog keeps
#: its own, and a database has a hundred for all: a catalog that rests gives them back.
_KEPT_CONNECTIONS = """
    SET GLOBAL pg_pool_max_connections = 32;
    SET GLOBAL pg_pool_idle_timeout_millis = 10000;
"""
#: UUID, HUGEINT and their like keep every bit on the way to Arrow; sessions.wire gives them the
#: form that stock clients read.
_LOSSLESS = "SET GLOBAL arrow_lossless_conversion = true"
_MOST_BESIDE = 16


@dataclass(frozen=True)
class EngineSpec:
    """What an instance is built from."""

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
    """One DuckDB instance. Connections are cheap; the instance is not."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        #: Set by the host once a fatal error has made DuckDB refuse all further work here.
        self.broken = False
        # Apart from the lock that sessions need to connect: a database may be slow to answer.
        self._attaching = threading.Lock()
        #: The catalogs of the lake that are attached here, as they were found.
        self._attached: dict[str, LakeLocation] = {}
        #: How often one was attached: who finds a name missing may have looked a moment too early.
        self.attachments = 0
        #: How often a setting was made for all connections.
        self.global_settings = 0
        self.reads = CatalogReads(self._read)
        #: Connections beside the lake that nobody uses now; to make one takes a statement.
        self._beside: list[duckdb.DuckDBPyConnection] = []
        self._root = open_database(spec.temp_directory, spec.memory_limit, spec.threads)
        try:
            load_extensions(self._root)
            self._root.execute(_QUICK_RETRIES)
            self._root.execute(_KEPT_CONNECTIONS)
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

    @contextmanager
    def beside(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection for the block that finds no name, neither in the lake nor in what sessions
        share: only what DuckDB brings along, and what is made on the connection itself.

        Whoever leaves the block without an error leaves nothing behind on it.
        """
        with self._lock:
            connection = self._beside.pop() if self._beside else None
        if connection is None:
            connection = self._cursor()
            connection.execute("SET search_path = 'temp'")
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if len(self._beside) < _MOST_BESIDE and not self.broken:
                self._beside.append(connection)
                return
        connection.close()

    def _read(self, catalog: str) -> None:
        """Has DuckLake read a catalog; who names it next will say what is wrong with it."""
        with self._cursor() as connection, suppress(duckdb.Error):
            connection.execute(f"USE {identifier(catalog)}")

    def has_foreign(self, name: str) -> bool:
        """True if a database of that name is attached that is not the lake's."""
        if self.attached(name) is not None:
            return False
        with self.beside() as connection:
            found = connection.execute("SELECT database_name FROM duckdb_databases()").fetchall()
        return any(known.lower() == name.lower() for (known,) in found)

    @property
    def catalog(self) -> str:
        """The catalog in which sessions begin."""
        return self._spec.lake.catalog

    def attached(self, name: str) -> LakeLocation | None:
        """Where the catalog of that name was found when it was attached; None if it was not."""
        return self._attached.get(name.lower())

    @property
    def attached_names(self) -> list[str]:
        """The catalogs of the lake that are attached."""
        return sorted(self._attached.copy())

    def can_read(self, name: str) -> bool:
        """True if an attached catalog still answers."""
        return self._answers("FROM ducklake_current_snapshot(?)", [name])

    def attach(self, location: LakeLocation) -> None:
        """Makes a catalog of the lake known to all connections of this instance."""
        with self._attaching:
            if self._attached.get(location.catalog) == location:
                return
            with self._cursor() as connection:
                self._detach(connection, location.catalog)
                if self.has_foreign(location.catalog):
                    # It would be taken for the catalog, and get the rows meant for the lake.
                    raise CatalogUnreachable(
                        f"The catalog {location.catalog} cannot be attached: another database is "
                        "attached under its name. DETACH that one first."
                    )
                location.attach(connection)
            self._attached[location.catalog] = location
            self.attachments += 1

    def detach(self, name: str) -> None:
        """Forgets a catalog of the lake that is gone."""
        with self._attaching, self._cursor() as connection:
            self._detach(connection, name.lower())

    def _detach(self, connection: duckdb.DuckDBPyConnection, name: str) -> None:
        if self._attached.pop(name, None) is not None:
            connection.execute(f"DETACH DATABASE IF EXISTS {identifier(name)}")

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        """A connection for something of the engine's own; it is closed at the end of the block."""
        with self._lock:
            return self._root.cursor()

    def is_valid(self) -> bool:
        """False once a fatal error has made DuckDB refuse all further work on this instance."""
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
                for connection in self._beside:
                    connection.close()
                self._beside.clear()
                self._root.close()

    def _run_init_sql(self) -> None:
        if not self._spec.init_sql:
            return
        try:
            self._root.execute(self._spec.init_sql)
        except duckdb.Error as failed:
            # DuckDB quotes the offending line, and the line may hold a secret: only say what kind.
            raise StartupError(
                f"ducklake_init_sql failed with a {type(failed).__name__}; run it in a DuckDB "
                "shell to see the statement (it is not shown here because it may hold secrets)."
            ) from None

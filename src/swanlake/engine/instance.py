"""One DuckDB instance with the lake attached, and the connections sessions work on."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb

from swanlake.config import Settings
from swanlake.engine.extensions import load_extensions
from swanlake.errors import ConfigError, StartupError
from swanlake.lake.location import LakeLocation
from swanlake.sql.quoting import identifier

log = logging.getLogger("swanlake.engine")


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
        #: The catalogs of the lake that are attached here, as they were found.
        self._attached: dict[str, LakeLocation] = {}
        self._root = open_database(spec)
        try:
            load_extensions(self._root)
            # One time zone for all, or the type of every TIMESTAMPTZ would depend on the machine.
            self._root.execute("SET GLOBAL TimeZone = 'UTC'")
            self.attach(spec.lake)
            self._run_init_sql()
        except BaseException:
            self._root.close()
            raise

    def connect(self) -> duckdb.DuckDBPyConnection:
        """A new connection with the lake as its default catalog."""
        with self._lock:
            connection = self._root.cursor()
        # UUID, HUGEINT and their like keep every bit on the way to Arrow; sessions.wire gives them
        # the form that stock clients read.
        connection.execute("SET arrow_lossless_conversion = true")
        connection.execute(f"USE {identifier(self.catalog)}")
        return connection

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
        with self._lock:
            return sorted(self._attached)

    def can_read(self, name: str) -> bool:
        """True if an attached catalog still answers."""
        with self._lock:
            probe = self._root.cursor()
        try:
            probe.execute("FROM ducklake_current_snapshot(?)", [name])
        except duckdb.Error:
            return False
        finally:
            probe.close()
        return True

    def attach(self, location: LakeLocation) -> None:
        """Makes a catalog of the lake known to all connections of this instance."""
        with self._lock:
            if self._attached.get(location.catalog) == location:
                return
            self._detach(location.catalog)
            location.attach(self._root)
            self._attached[location.catalog] = location

    def detach(self, name: str) -> None:
        """Forgets a catalog of the lake that is gone."""
        with self._lock:
            self._detach(name.lower())

    def _detach(self, name: str) -> None:
        if self._attached.pop(name, None) is not None:
            self._root.execute(f"DETACH DATABASE IF EXISTS {identifier(name)}")

    def is_valid(self) -> bool:
        """False once a fatal error has made DuckDB refuse all further work on this instance."""
        with self._lock:
            probe = self._root.cursor()
        try:
            probe.execute("SELECT 1")
        except duckdb.Error:
            return False
        finally:
            probe.close()
        return True

    def close(self) -> None:
        """Closes the instance; connections still open keep it alive until they are closed."""
        with self._lock:
            if not self.broken:
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


def open_database(spec: EngineSpec) -> duckdb.DuckDBPyConnection:
    """A bare in-memory instance with the limits of the specification."""
    spec.temp_directory.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {
        "temp_directory": str(spec.temp_directory),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        # Without this a table name that is not found is looked up among the server's own variables.
        "python_enable_replacements": False,
    }
    if spec.memory_limit:
        options["memory_limit"] = spec.memory_limit
    if spec.threads:
        options["threads"] = spec.threads
    try:
        return duckdb.connect(":memory:", config=options)
    except duckdb.Error as refused:
        raise ConfigError(
            f"DuckDB refused duckdb_memory_limit or duckdb_threads: {refused}"
        ) from None

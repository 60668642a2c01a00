"""Catalogs in SQLite: a file for each, and one for the registry."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Engine,
    Executable,
    bindparam,
    create_engine,
    event,
    literal_column,
    text,
)
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import QueuePool

from swanlake._internal.backoff import backoff
from swanlake._internal.disk import fsync_path
from swanlake._internal.waiting import POLL_SECONDS
from swanlake.lake.commit.writer_lock import FileWriterLock, WriterLockTimeout, writer_lock_path
from swanlake.lake.lifecycle import forks
from swanlake.lake.metastore import bootstrap
from swanlake.lake.metastore.base import CatalogInfo, Metastore
from swanlake.lake.metastore.fence import FENCE_TRIGGERS, SQLITE_SEQUENCE, sqlite_fence
from swanlake.lake.metastore.store import (
    CatalogStore,
    ErrorKind,
    LockedTransaction,
    Query,
    QueryResult,
)
from swanlake.lake.metastore.tables import tables_in
from swanlake.lake.read.metadata import newest_snapshot

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_LOCK_SECONDS = 60.0
_SWITCH_SECONDS = 10.0
#: The schema name under which a new fork sees its parent.
_PARENT = "parent"
#: The fence advances the value when the snapshot is written; until then the lock protects it.
_NEXT_SNAPSHOT_ID = literal_column(
    "(SELECT last_value + 1 FROM ducklake_snapshot_id_seq)", BigInteger
)


def sqlite_engine(path: Path, *, create: bool = False) -> Engine:
    """The connections to a SQLite file, in WAL mode; without ``create`` it must exist."""
    mode = "rwc" if create else "rw"

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode={mode}",
            uri=True,
            check_same_thread=False,
            isolation_level=None,  # we BEGIN: it must take the lock before the first read
        )
        _into_wal_mode(connection)
        connection.execute("PRAGMA synchronous = full")  # a commit is on disk when it returns
        connection.execute("PRAGMA busy_timeout = 10000")
        return connection

    engine = create_engine(
        "sqlite://", creator=connect, poolclass=QueuePool, pool_size=5, max_overflow=20
    )

    @event.listens_for(engine, "checkout")
    def checkout(*_: object) -> None:
        """Refuses a connection to a deleted file, which stays usable while it is open."""
        if not path.exists():
            raise DisconnectionError(f"{path} is gone")  # a new connection then says why

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        """Begins explicitly, as the driver would not: reads then see one state of the file."""
        kind = connection.get_execution_options().get("swanlake_begin", "DEFERRED")
        connection.exec_driver_sql(f"BEGIN {kind}")

    return engine


def _into_wal_mode(connection: sqlite3.Connection) -> None:
    """Switches the file to WAL; in SQLite's default mode a writer locks out all readers.

    When several connections switch a new file, SQLite refuses all but one without waiting.
    """
    deadline = time.monotonic() + _SWITCH_SECONDS
    for attempt in count(1):
        try:
            connection.execute("PRAGMA journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(backoff(attempt, first=0.005, longest=POLL_SECONDS))


class SqliteStore(CatalogStore):
    """The metadata of one catalog, in its own file."""

    errors = (*CatalogStore.errors, WriterLockTimeout)

    def __init__(self, name: str, engine: Engine, writer_lock: FileWriterLock) -> None:
        super().__init__(name, tables_in(None), engine)
        self._writer_lock = writer_lock

    @contextmanager
    def locked(
        self, deadline: float, prefetch: Sequence[Query] = (), *, holds_writer_lock: bool = False
    ) -> Iterator[LockedTransaction]:
        with (
            nullcontext() if holds_writer_lock else self._writer_lock.hold(deadline),
            super().locked(deadline, prefetch, holds_writer_lock=holds_writer_lock) as transaction,
        ):
            yield transaction

    def lock(
        self,
        connection: Connection,
        timeout: float,
        prefetch: Sequence[Query],
        *,
        holds_writer_lock: bool,
    ) -> Sequence[QueryResult]:
        driver: Any = connection.connection.driver_connection
        driver.execute(f"PRAGMA busy_timeout = {int(timeout * 1000)}")
        connection.execution_options(swanlake_begin="IMMEDIATE")
        connection.begin()
        return ()  # there is no round trip to save

    def set_lock_timeout(self, connection: Connection, seconds: int) -> None:
        """Nothing to do: the holder of the file's only lock waits for no other."""

    @property
    def next_snapshot_id(self) -> ColumnElement[int]:
        return _NEXT_SNAPSHOT_ID

    now = bindparam("earliest", type_=tables_in(None).snapshot.c.snapshot_time.type)

    def earliest(self, head: datetime) -> datetime:
        return max(datetime.now(UTC), head)

    @staticmethod
    def classify(error: Exception) -> ErrorKind:
        cause = getattr(error, "orig", None) or error
        code = getattr(cause, "sqlite_errorcode", None)
        if isinstance(cause, WriterLockTimeout):
            return ErrorKind.LOCK_TIMEOUT
        if code is not None and code & 0xFF in _BUSY:
            return ErrorKind.LOCK_TIMEOUT
        if isinstance(cause, sqlite3.IntegrityError):
            return ErrorKind.TRANSIENT
        if "no such table" in str(cause):
            return ErrorKind.MISSING_TABLE
        return ErrorKind.FATAL

    def fence_statements(self) -> Sequence[Executable]:
        return [text(statement.replace(":", r"\:")) for statement in sqlite_fence()]

    def has_fence(self, connection: Connection) -> bool:
        guards = {str(index.name) for index in self.tables.guards}
        wanted = {*FENCE_TRIGGERS, *guards, SQLITE_SEQUENCE}
        found = connection.execute(text("SELECT name FROM sqlite_master")).scalars().all()
        return wanted <= set(found)


class SqliteMetastore(Metastore):
    """All catalogs of a lake as files in one directory."""

    store_type = SqliteStore
    errors = (*SqliteStore.errors, sqlite3.Error, OSError)

    def __init__(self, directory: Path, data_location: str) -> None:
        super().__init__(None, data_location)
        self._directory = directory
        self._open: dict[str, tuple[Engine, FileWriterLock]] = {}
        self._lock = threading.Lock()
        self._registry_engine: Engine | None = None

    @contextmanager
    def registry(self, *, write: bool = False) -> Iterator[Connection]:
        with self._registry_connections().connect() as connection:
            if write:
                connection.execution_options(swanlake_begin="IMMEDIATE")
            # Forks and clean-ups hold it longer than a commit holds a catalog.
            driver: Any = connection.connection.driver_connection
            driver.execute(f"PRAGMA busy_timeout = {int(_LOCK_SECONDS * 1000)}")
            with connection.begin():
                yield connection

    def _registry_connections(self) -> Engine:
        with self._lock:
            if self._registry_engine is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                engine = sqlite_engine(self._directory / "registry.sqlite", create=True)
                with engine.connect().execution_options(swanlake_begin="IMMEDIATE") as connection:
                    with connection.begin():
                        for table in self.shared_tables:
                            table.create(connection, checkfirst=True)
                self._registry_engine = engine
            return self._registry_engine

    def store(self, info: CatalogInfo) -> SqliteStore:
        with self._lock:
            if info.storage_name not in self._open:
                path = self._path(info.storage_name)
                self._open[info.storage_name] = (
                    sqlite_engine(path),
                    FileWriterLock(writer_lock_path(path)),
                )
            engine, writer_lock = self._open[info.storage_name]
        return SqliteStore(info.name, engine, writer_lock)

    def exists(self, storage_name: str) -> bool:
        return self._path(storage_name).exists()

    def create(self, registry: Connection, info: CatalogInfo) -> None:
        with self._new_file(info) as (store, connection):
            bootstrap.create(connection, store, info.data_path)

    def fork(
        self, registry: Connection, parent: CatalogInfo, info: CatalogInfo, at: int | None
    ) -> int:
        with self.store(parent).locked(time.monotonic() + _LOCK_SECONDS) as source:
            tables = self.store(parent).tables
            snapshot = newest_snapshot(source.connection, tables) if at is None else at
            with self._new_file(info, parent) as (store, connection):
                store.tables.everything.create_all(connection, checkfirst=False)
                shared = forks.ForkCopy(
                    connection, tables_in(_PARENT), store.tables, snapshot, info.data_path
                ).run()
                bootstrap.install_fence(connection, store)
                # The parent must know of the sharing before the fork relies on it.
                forks.mark_shared(source.connection, tables, shared)
                source.connection.commit()
        return snapshot

    def adopt(self, registry: Connection, info: CatalogInfo) -> None:
        with self.store(info).locked(time.monotonic() + _LOCK_SECONDS) as transaction:
            bootstrap.adopt(transaction.connection, self.store(info))
            transaction.connection.commit()

    def remove(self, registry: Connection, info: CatalogInfo) -> None:
        with self._lock:
            opened = self._open.pop(info.storage_name, None)
        if opened is not None:
            opened[0].dispose()
        _remove(self._path(info.storage_name))

    def close(self) -> None:
        with self._lock:
            for engine, _ in self._open.values():
                engine.dispose()
            if self._registry_engine is not None:
                self._registry_engine.dispose()

    def _path(self, storage_name: str) -> Path:
        return self._directory / f"{storage_name}.sqlite"

    @contextmanager
    def _new_file(
        self, info: CatalogInfo, parent: CatalogInfo | None = None
    ) -> Iterator[tuple[SqliteStore, Connection]]:
        """A new file, which gets its final name when the block succeeds."""
        partial = self._directory / f".{info.id}.partial"
        engine = sqlite_engine(partial, create=True)
        store = SqliteStore(info.name, engine, FileWriterLock(writer_lock_path(partial)))
        try:
            with engine.connect() as connection:
                if parent is not None:
                    driver: Any = connection.connection.driver_connection
                    driver.execute(f"ATTACH ? AS {_PARENT}", [str(self._path(parent.storage_name))])
                with connection.begin():
                    yield store, connection
            engine.dispose()
            partial.rename(self._path(info.storage_name))
            fsync_path(self._directory)
        except BaseException:
            engine.dispose()
            _remove(partial)
            raise


def _remove(path: Path) -> None:
    """Removes a catalog's file, SQLite's files next to it and the writer lock."""
    for suffix in ("", "-wal", "-shm", ".turns"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)

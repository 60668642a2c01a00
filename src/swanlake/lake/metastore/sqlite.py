"""Catalogs in SQLite: a file for each, and one for the registry."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
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

from swanlake.lake import bootstrap, forks
from swanlake.lake.disk import sync
from swanlake.lake.metabase import CatalogInfo, Metabase
from swanlake.lake.reading import newest_snapshot
from swanlake.lake.store import Answer, CatalogStore, LockedTransaction, Question, Trouble
from swanlake.lake.tables import tables_in
from swanlake.lake.turns import FileTurns, TurnTimeout, turns_beside

_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_LOCK_SECONDS = 60.0
_SWITCH_SECONDS = 10.0
#: The name under which a fork in the making sees its parent.
_PARENT = "parent"
_TRIGGERS = ("ducklake_fence", "swanlake_defer")
#: The fence takes the value up when the snapshot is written; until then the lock protects it.
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
            isolation_level=None,  # BEGIN is ours: it must take the lock before anything is read
        )
        _into_wal_mode(connection)
        connection.execute("PRAGMA synchronous = full")  # a commit is on disk when it is answered
        connection.execute("PRAGMA busy_timeout = 10000")
        return connection

    engine = create_engine(
        "sqlite://", creator=connect, poolclass=QueuePool, pool_size=5, max_overflow=20
    )

    @event.listens_for(engine, "checkout")
    def checkout(*_: object) -> None:
        """A file that was deleted can be read and written for as long as it is open."""
        if not path.exists():
            raise DisconnectionError(f"{path} is gone")  # a new connection says so

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        """Reads see one state of the file; the driver would not begin by itself."""
        kind = connection.get_execution_options().get("swanlake_begin", "DEFERRED")
        connection.exec_driver_sql(f"BEGIN {kind}")

    return engine


def _into_wal_mode(connection: sqlite3.Connection) -> None:
    """The mode is kept in the file; in SQLite's default one a writer locks all readers out.

    Of those who switch a new file at once, SQLite refuses all but one without waiting.
    """
    deadline = time.monotonic() + _SWITCH_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = wal")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)


class SqliteStore(CatalogStore):
    """The metadata of one catalog, in a file of its own."""

    errors = (*CatalogStore.errors, TurnTimeout)

    def __init__(self, name: str, engine: Engine, turns: FileTurns) -> None:
        super().__init__(name, tables_in(None), engine)
        self._turns = turns

    @contextmanager
    def locked(
        self, deadline: float, ahead: Sequence[Question] = (), *, has_turn: bool = False
    ) -> Iterator[LockedTransaction]:
        with (
            nullcontext() if has_turn else self._turns.turn(deadline),
            super().locked(deadline, ahead, has_turn=has_turn) as transaction,
        ):
            yield transaction

    def lock(
        self, connection: Connection, timeout: float, ahead: Sequence[Question], *, has_turn: bool
    ) -> Sequence[Answer]:
        driver: Any = connection.connection.driver_connection
        driver.execute(f"PRAGMA busy_timeout = {int(timeout * 1000)}")
        connection.execution_options(swanlake_begin="IMMEDIATE")
        connection.begin()
        return ()  # there is no round trip to be spared

    def wait_at_most(self, connection: Connection, seconds: int) -> None:
        """Who has the file's only lock waits for nobody."""

    @property
    def next_snapshot_id(self) -> ColumnElement[int]:
        return _NEXT_SNAPSHOT_ID

    now = bindparam("earliest", type_=tables_in(None).snapshot.c.snapshot_time.type)

    def earliest(self, head: datetime) -> datetime:
        return max(datetime.now(UTC), head)

    def trouble(self, error: Exception) -> Trouble:
        cause = getattr(error, "orig", None) or error
        code = getattr(cause, "sqlite_errorcode", None)
        if isinstance(cause, TurnTimeout):
            return Trouble.LOCK_TIMEOUT
        if code is not None and code & 0xFF in _BUSY:
            return Trouble.LOCK_TIMEOUT
        if isinstance(cause, sqlite3.IntegrityError):
            return Trouble.TRANSIENT
        if "no such table" in str(cause):
            return Trouble.MISSING_TABLE
        return Trouble.FATAL

    def fence_statements(self) -> Sequence[Executable]:
        return [text(statement.replace(":", r"\:")) for statement in _fence()]

    def has_fence(self, connection: Connection) -> bool:
        guards = {str(index.name) for index in self.tables.guards}
        wanted = {*_TRIGGERS, *guards, "ducklake_snapshot_id_seq"}
        found = connection.execute(text("SELECT name FROM sqlite_master")).scalars().all()
        return wanted <= set(found)


class SqliteMetabase(Metabase):
    """All catalogs of a lake as files in one directory."""

    errors = (*SqliteStore.errors, sqlite3.Error, OSError)

    def __init__(self, directory: Path, data_location: str) -> None:
        super().__init__(None, data_location)
        self._directory = directory
        self._open: dict[str, tuple[Engine, FileTurns]] = {}
        self._lock = threading.Lock()
        self._registry_engine: Engine | None = None

    @contextmanager
    def registry(self, *, write: bool = False) -> Iterator[Connection]:
        with self._registry_connections().connect() as connection:
            if write:
                connection.execution_options(swanlake_begin="IMMEDIATE")
            # Forks and collections hold it for longer than a commit holds a catalog.
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
                        for table in (self._registry, self.maintenance):
                            table.create(connection, checkfirst=True)
                self._registry_engine = engine
            return self._registry_engine

    def store(self, info: CatalogInfo) -> SqliteStore:
        with self._lock:
            if info.place not in self._open:
                path = self._path(info.place)
                self._open[info.place] = sqlite_engine(path), FileTurns(turns_beside(path))
            engine, turns = self._open[info.place]
        return SqliteStore(info.name, engine, turns)

    def exists(self, place: str) -> bool:
        return self._path(place).exists()

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
                shared = forks.Copy(
                    connection, tables_in(_PARENT), store.tables, snapshot, info.data_path
                ).run()
                bootstrap.raise_fence(connection, store)
                # The parent knows of the sharing before the fork is there to rely on it.
                forks.share(source.connection, tables, shared)
                source.connection.commit()
        return snapshot

    def adopt(self, registry: Connection, info: CatalogInfo) -> None:
        with self.store(info).locked(time.monotonic() + _LOCK_SECONDS) as transaction:
            bootstrap.adopt(transaction.connection, self.store(info))
            transaction.connection.commit()

    def remove(self, registry: Connection, info: CatalogInfo) -> None:
        with self._lock:
            opened = self._open.pop(info.place, None)
        if opened is not None:
            opened[0].dispose()
        _remove(self._path(info.place))

    def is_busy(self, error: Exception) -> bool:
        cause = getattr(error, "orig", None) or error
        code = getattr(cause, "sqlite_errorcode", None)
        return isinstance(cause, TurnTimeout) or (code is not None and code & 0xFF in _BUSY)

    def close(self) -> None:
        with self._lock:
            for engine, _ in self._open.values():
                engine.dispose()
            if self._registry_engine is not None:
                self._registry_engine.dispose()

    def _path(self, place: str) -> Path:
        return self._directory / f"{place}.sqlite"

    @contextmanager
    def _new_file(
        self, info: CatalogInfo, parent: CatalogInfo | None = None
    ) -> Iterator[tuple[SqliteStore, Connection]]:
        """A file that gets its name only when the block has filled it."""
        unfinished = self._directory / f".{info.id}.unfinished"
        engine = sqlite_engine(unfinished, create=True)
        store = SqliteStore(info.name, engine, FileTurns(turns_beside(unfinished)))
        try:
            with engine.connect() as connection:
                if parent is not None:
                    driver: Any = connection.connection.driver_connection
                    driver.execute(f"ATTACH ? AS {_PARENT}", [str(self._path(parent.place))])
                with connection.begin():
                    yield store, connection
            engine.dispose()
            unfinished.rename(self._path(info.place))
            sync(self._directory)
        except BaseException:
            engine.dispose()
            _remove(unfinished)
            raise


def _remove(path: Path) -> None:
    """Removes a catalog's file, and what SQLite and we keep beside it."""
    for suffix in ("", "-wal", "-shm", ".turns"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


def _fence() -> list[str]:
    """The statements that make writers of any kind obey the order of commits."""
    return [
        "CREATE TABLE IF NOT EXISTS ducklake_snapshot_id_seq(last_value BIGINT NOT NULL)",
        "INSERT INTO ducklake_snapshot_id_seq SELECT 0 "
        "WHERE NOT EXISTS (SELECT 1 FROM ducklake_snapshot_id_seq)",
        "UPDATE ducklake_snapshot_id_seq SET last_value = (SELECT snapshot_id FROM ducklake_head)",
        # The message has the words after which the stock extension retries.
        """
CREATE TRIGGER IF NOT EXISTS ducklake_fence BEFORE INSERT ON ducklake_snapshot BEGIN
  SELECT RAISE(ABORT, 'snapshot conflict: concurrent commit moved the DuckLake head')
   WHERE NOT EXISTS (
     SELECT 1 FROM ducklake_head
      WHERE snapshot_id < NEW.snapshot_id AND next_catalog_id <= NEW.next_catalog_id
        AND next_file_id <= NEW.next_file_id);
  UPDATE ducklake_head SET snapshot_id = NEW.snapshot_id,
    next_catalog_id = NEW.next_catalog_id, next_file_id = NEW.next_file_id;
  UPDATE ducklake_snapshot_id_seq SET last_value = NEW.snapshot_id;
END""",
        # Files that a fork can see are never handed to the clean-up of one catalog alone.
        """
CREATE TRIGGER IF NOT EXISTS swanlake_defer BEFORE INSERT ON ducklake_files_scheduled_for_deletion
WHEN EXISTS (
  SELECT 1 FROM swanlake_shared_file WHERE path = CASE WHEN NEW.path_is_relative THEN
    (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL) || NEW.path
    ELSE NEW.path END)
BEGIN
  INSERT OR IGNORE INTO swanlake_deferred_file
  VALUES (CASE WHEN NEW.path_is_relative THEN
    (SELECT value FROM ducklake_metadata WHERE key = 'data_path' AND scope IS NULL) || NEW.path
    ELSE NEW.path END, strftime('%Y-%m-%d %H:%M:%f000+00', 'now'));
  SELECT RAISE(IGNORE);
END""",
    ]

"""Leases: names that one process at a time holds, and that are free again when it dies.

PostgreSQL's advisory locks reach every host that shares the metastore. With SQLite all processes
are on one machine, and locked files do the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import quote

import psycopg

from swanlake.errors import CatalogUnreachable
from swanlake.lake.metastore.advisory_locks import LockConnection, LockKey
from swanlake.lake.metastore.postgres_connection import connect

#: A lost database is noticed within half a minute: other servers may take over the names.
_TIMEOUTS = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class Leases(ABC):
    """The names that this process holds."""

    @abstractmethod
    def acquire(self, name: str) -> bool:
        """Acquires a name, or confirms that it is held; False if another process holds it."""

    @abstractmethod
    def release(self, name: str) -> None:
        """Releases a name."""

    @abstractmethod
    def close(self) -> None:
        """Releases all names."""


class FileLeases(Leases):
    """One locked file per name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}

    def acquire(self, name: str) -> bool:
        with self._lock:
            if name in self._held:
                return True
            self._directory.mkdir(parents=True, exist_ok=True)
            descriptor = try_lock_file(self._path(name))
            if descriptor is None:
                return False
            self._held[name] = descriptor
            return True

    def release(self, name: str) -> None:
        with self._lock:
            descriptor = self._held.pop(name, None)
            if descriptor is not None:
                # Removed while locked: a process that opened it meanwhile notices and retries.
                self._path(name).unlink(missing_ok=True)
                os.close(descriptor)

    def close(self) -> None:
        for name in list(self._held):
            self.release(name)

    def _path(self, name: str) -> Path:
        return self._directory / f"{quote(name, safe='')}.lock"


def try_lock_file(path: Path) -> int | None:
    """Locks a file, creating it; returns its descriptor, or None if another process holds it."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its owner removed it between open and flock


class PostgresLeases(Leases):
    """Advisory locks of one connection; a lost connection is replaced and its names reacquired."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._connection: LockConnection | None = None
        self._held: set[str] = set()

    def acquire(self, name: str) -> bool:
        with self._lock:
            if self._connection is not None and not self._connection.is_alive():
                self._disconnect()
            if name in self._held:
                return True
            try:
                if self._connection is None:
                    self._connection = LockConnection(connect(self._url, **_TIMEOUTS))
                is_free = self._connection.try_acquire(LockKey.for_name(name))
            except psycopg.Error as lost:
                self._disconnect()
                raise CatalogUnreachable(
                    f"The lake's metadata cannot be reached to acquire the lease {name}: {lost}"
                ) from lost
            if is_free:
                self._held.add(name)
            return is_free

    def release(self, name: str) -> None:
        with self._lock:
            if name in self._held and self._connection is not None:
                self._held.discard(name)
                with contextlib.suppress(psycopg.Error):
                    self._connection.release(LockKey.for_name(name))

    def close(self) -> None:
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        self._held.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None

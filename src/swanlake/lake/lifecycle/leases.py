"""Names that only one process at a time holds, and that are free again when it dies.

Advisory locks of PostgreSQL reach every host that shares the metabase; with SQLite all processes
are on one machine, and locked files do the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import threading
from abc import ABC, abstractmethod
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg.conninfo import make_conninfo

from swanlake.errors import CatalogUnreachable

#: A database that went away is noticed within half a minute, whatever was asked of it.
_PATIENCE = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class Claims(ABC):
    """The names that this process holds."""

    @abstractmethod
    def take(self, name: str) -> bool:
        """Takes a name, or keeps it; False if another process holds it."""

    @abstractmethod
    def give(self, name: str) -> None:
        """Gives a name back."""

    @abstractmethod
    def close(self) -> None:
        """Gives all names back."""


class FileClaims(Claims):
    """One locked file per name."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}

    def take(self, name: str) -> bool:
        with self._lock:
            if name in self._held:
                return True
            self._directory.mkdir(parents=True, exist_ok=True)
            descriptor = lock_file(self._path(name))
            if descriptor is None:
                return False
            self._held[name] = descriptor
            return True

    def give(self, name: str) -> None:
        with self._lock:
            descriptor = self._held.pop(name, None)
            if descriptor is not None:
                # Removed while it is locked: who waits for this very file finds out and asks again.
                self._path(name).unlink(missing_ok=True)
                os.close(descriptor)

    def close(self) -> None:
        for name in list(self._held):
            self.give(name)

    def _path(self, name: str) -> Path:
        return self._directory / f"{quote(name, safe='')}.lock"


def lock_file(path: Path) -> int | None:
    """The descriptor of a file that is locked from now on; None if another process has it."""
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
        os.close(descriptor)  # its owner removed it between our two steps


class PostgresClaims(Claims):
    """Advisory locks of one connection; when that is lost, they are taken again on a new one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()
        self._connection: psycopg.Connection[tuple[bool]] | None = None
        self._held: set[str] = set()

    def take(self, name: str) -> bool:
        with self._lock:
            try:
                if self._connection is not None:
                    self._connection.execute("SELECT true")
            except psycopg.Error:
                self._forget()
            if name in self._held:
                return True
            if not self._ask("pg_try_advisory_lock", name):
                return False
            self._held.add(name)
            return True

    def give(self, name: str) -> None:
        with self._lock:
            if name in self._held:
                self._held.discard(name)
                with contextlib.suppress(CatalogUnreachable):
                    self._ask("pg_advisory_unlock", name)

    def close(self) -> None:
        with self._lock:
            self._forget()

    def _ask(self, function: str, name: str) -> bool:
        try:
            if self._connection is None:
                self._connection = psycopg.connect(
                    make_conninfo(self._url, **_PATIENCE), autocommit=True
                )
            row = self._connection.execute(f"SELECT {function}(%s)", [_key(name)]).fetchone()
        except psycopg.Error as lost:
            self._forget()
            raise CatalogUnreachable(
                f"The lake's metadata cannot be reached to claim {name}: {lost}"
            ) from lost
        assert row is not None
        return row[0]

    def _forget(self) -> None:
        self._held.clear()
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _key(name: str) -> int:
    """The number of an advisory lock: 64 bits of the name's hash."""
    digest = hashlib.blake2b(f"swanlake:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)

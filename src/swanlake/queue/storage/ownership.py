"""Ownership of segments: a server owns those in its directory for as long as it lives.

A server locks a file in its directory and holds a lease in the lake's database. Both are released
when it dies, and another server may then adopt its segments. Between processes of one machine the
file lock decides. Machines that share the directory may not see each other's file locks: there the
lease must be free too, and the heartbeat of the owner must have stopped for a while.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from swanlake._internal.disk import fsync_path, make_directories
from swanlake.errors import CatalogUnreachable
from swanlake.lake.lifecycle.leases import Leases, try_lock_file
from swanlake.lake.model.ids import uuid7
from swanlake.queue.storage.segment import SegmentDamaged
from swanlake.queue.storage.store import SegmentFile, SegmentStore

log = logging.getLogger("swanlake.queue")

_OWNER = "owner.lock"
#: How long the heartbeat of an owner on another machine must have stopped.
SILENCE_SECONDS = 60.0


class Ownership:
    """The directory of this server, and the search for abandoned ones."""

    def __init__(
        self, root: Path, leases: Leases, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = root
        self._leases = leases
        self._clock = clock
        self.id = str(uuid7())
        self.directory = root / self.id
        #: The last heartbeat of each owner on another machine, and when it was first seen.
        self._heartbeats: dict[Path, tuple[int, float]] = {}
        # Renamed once it is locked: no other server may find it abandoned before.
        unnamed = root / f".{self.id}"
        changed = make_directories(str(unnamed))
        descriptor = try_lock_file(unnamed / _OWNER)
        assert descriptor is not None, "a new directory has no other owner"
        self._descriptor = descriptor
        content = {"machine": _machine(), "host": socket.gethostname(), "pid": os.getpid()}
        os.write(descriptor, json.dumps(content).encode())
        leases.acquire(lease_name(self.directory))
        unnamed.rename(self.directory)
        for directory in changed - {str(unnamed)}:
            fsync_path(directory)

    def heartbeat(self) -> bool:
        """Shows that this server lives; False if another server took its lease meanwhile."""
        with suppress(OSError):
            os.utime(self._descriptor)
        try:
            return self._leases.acquire(lease_name(self.directory))
        except CatalogUnreachable:
            return True  # no other server can take the lease either

    def abandoned_directories(self) -> Iterator[Path]:
        """The directories whose server is gone; each is locked while the caller processes it."""
        for directory in sorted(self._root.iterdir()):
            if directory == self.directory or not _is_server(directory):
                continue
            try:
                descriptor = try_lock_file(directory / _OWNER)
            except FileNotFoundError:
                continue
            if descriptor is None:
                continue
            lease = lease_name(directory)
            try:
                if self._is_silent(directory / _OWNER) and self._leases.acquire(lease):
                    try:
                        yield directory
                        self._remove_empty(directory)
                    finally:
                        self._leases.release(lease)
            finally:
                os.close(descriptor)

    def release(self) -> None:
        """Gives the directory up for adoption; deletes it if it is empty."""
        self._remove_empty(self.directory)
        with suppress(CatalogUnreachable):
            self._leases.release(lease_name(self.directory))
        os.close(self._descriptor)

    def _is_silent(self, owner: Path) -> bool:
        try:
            machine = json.loads(owner.read_text())["machine"]
        except (OSError, ValueError, LookupError, TypeError):
            machine = None
        if machine == _machine():
            return True
        heartbeat = owner.stat().st_mtime_ns
        last, since = self._heartbeats.get(owner, (None, 0.0))
        if heartbeat != last:
            self._heartbeats[owner] = (heartbeat, self._clock())
            return False
        return self._clock() - since >= SILENCE_SECONDS

    def _remove_empty(self, directory: Path) -> None:
        """Deletes a directory that holds nothing but its lock file."""
        with suppress(OSError):
            for folder in sorted(directory.glob("**/"), reverse=True):
                if folder != directory:
                    folder.rmdir()
            if [path.name for path in directory.iterdir()] == [_OWNER]:
                (directory / _OWNER).unlink()
                directory.rmdir()


class Adoption:
    """Moves abandoned segments into this server's directory and reports them."""

    def __init__(
        self,
        ownership: Ownership,
        store: SegmentStore,
        on_adopted: Callable[[SegmentFile], None],
        on_unreadable: Callable[[Path, str], None],
    ) -> None:
        self._ownership = ownership
        self._store = store
        self._on_adopted = on_adopted
        self._on_unreadable = on_unreadable
        #: Files in this server's directory that were not read yet.
        self._unexamined: list[Path] = []

    def adopt(self) -> None:
        """Searches once; the next search retries what cannot be moved or read now."""
        for directory in self._ownership.abandoned_directories():
            try:
                adopted = list(self._move(directory))
            except OSError as error:
                log.error("the segments in %s cannot be taken over: %s", directory, error)
                continue
            if adopted:
                log.info("%d segments of the server %s were adopted", len(adopted), directory.name)
        for path in list(self._unexamined):
            try:
                self._examine(path)
                self._unexamined.remove(path)
            except (CatalogUnreachable, OSError) as error:
                log.error("%s stays where it is: %s", path, error)

    def _move(self, directory: Path) -> Iterator[Path]:
        for path in self._store.adopt(directory):
            self._unexamined.append(path)  # at once: a failure of the next must not lose this one
            yield path

    def _examine(self, path: Path) -> None:
        try:
            segment = self._store.examine(path)
        except SegmentDamaged as damaged:
            log.error("%s cannot be read: %s", path, damaged)
            self._on_unreadable(path, str(damaged))
            path.unlink()
            return
        self._on_adopted(segment)


def lease_name(directory: Path) -> str:
    """The lease that the owner of a queue directory holds."""
    return f"queue:{directory.name}"


def _is_server(directory: Path) -> bool:
    try:
        UUID(directory.name)
    except ValueError:
        return False
    return directory.is_dir()


def _machine() -> str:
    """An id of this machine, new with each boot."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()

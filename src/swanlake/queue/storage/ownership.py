"""Who a segment belongs to: the server whose directory it is in, for as long as that server lives.

A server locks a file in its directory and claims its name in the lake's database; both are free
again when it dies, and then another server may take its segments over. The lock on the file is what
counts between processes of one machine. Where the directory is shared by machines, locks may not
reach across: there the claim must be free too, and the owner must have stopped to give signs of
life for a while.
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

from swanlake.errors import CatalogUnreachable
from swanlake.lake.claims import Claims, lock_file
from swanlake.lake.disk import make_directories, sync
from swanlake.lake.ids import uuid7

log = logging.getLogger("swanlake.queue")

_OWNER = "owner.lock"
#: How long the owner on another machine must have been silent.
SILENCE_SECONDS = 60.0


class Ownership:
    """This server's directory, and the search for those whose server is gone."""

    def __init__(
        self, root: Path, claims: Claims, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._root = root
        self._claims = claims
        self._clock = clock
        self.id = str(uuid7())
        self.directory = root / self.id
        #: The last sign of life of each owner elsewhere, and when it was first seen.
        self._signs: dict[Path, tuple[int, float]] = {}
        # It gets its name when it has its owner: nobody may find it abandoned before.
        unnamed = root / f".{self.id}"
        changed = make_directories(str(unnamed))
        descriptor = lock_file(unnamed / _OWNER)
        assert descriptor is not None, "a new directory has no other owner"
        self._descriptor = descriptor
        content = {"machine": _machine(), "host": socket.gethostname(), "pid": os.getpid()}
        os.write(descriptor, json.dumps(content).encode())
        claims.take(self._claim(self.directory))
        unnamed.rename(self.directory)
        for directory in changed - {str(unnamed)}:
            sync(directory)

    def give_sign(self) -> bool:
        """Says that this server lives; False if another one has taken its place meanwhile."""
        with suppress(OSError):
            os.utime(self._descriptor)
        try:
            return self._claims.take(self._claim(self.directory))
        except CatalogUnreachable:
            return True  # then nobody else can claim it either

    def abandoned(self) -> Iterator[Path]:
        """Directories whose server is gone; each is ours until the loop goes on."""
        for directory in sorted(self._root.iterdir()):
            if directory == self.directory or not _is_server(directory):
                continue
            try:
                descriptor = lock_file(directory / _OWNER)
            except FileNotFoundError:
                continue
            if descriptor is None:
                continue
            claim = self._claim(directory)
            try:
                if self._is_silent(directory / _OWNER) and self._claims.take(claim):
                    try:
                        yield directory
                        self._remove_empty(directory)
                    finally:
                        self._claims.give(claim)
            finally:
                os.close(descriptor)

    def release(self) -> None:
        """Leaves the directory to whoever comes next; it goes if nothing is in it."""
        self._remove_empty(self.directory)
        with suppress(CatalogUnreachable):
            self._claims.give(self._claim(self.directory))
        os.close(self._descriptor)

    def _is_silent(self, owner: Path) -> bool:
        try:
            machine = json.loads(owner.read_text())["machine"]
        except (OSError, ValueError, LookupError, TypeError):
            machine = None
        if machine == _machine():
            return True
        sign = owner.stat().st_mtime_ns
        seen, since = self._signs.get(owner, (None, 0.0))
        if sign != seen:
            self._signs[owner] = (sign, self._clock())
            return False
        return self._clock() - since >= SILENCE_SECONDS

    def _remove_empty(self, directory: Path) -> None:
        """Removes a directory in which nothing is left; never anything that is in it."""
        with suppress(OSError):
            for folder in sorted(directory.glob("**/"), reverse=True):
                if folder != directory:
                    folder.rmdir()
            if [path.name for path in directory.iterdir()] == [_OWNER]:
                (directory / _OWNER).unlink()
                directory.rmdir()

    def _claim(self, directory: Path) -> str:
        return f"queue:{directory.name}"


def _is_server(directory: Path) -> bool:
    try:
        UUID(directory.name)
    except ValueError:
        return False
    return directory.is_dir()


def _machine() -> str:
    """What tells this machine, since it was started, from all others."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()

"""Turns at a file, across the threads and processes of a machine.

SQLite lets a writer that finds the file locked sleep and try again, for longer each time: whoever
comes first has the best chance, and some wait for seconds. Taking turns before that costs nothing
and starves nobody. It is a courtesy: SQLite's own lock is what keeps the data right.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

_CHECK_INTERVAL = 0.05


class TurnTimeout(Exception):
    """The turn did not come before the deadline."""


class Turns(ABC):
    """Turns at a catalog, across all processes that write to it with SwanLake."""

    @abstractmethod
    def turn(
        self, deadline: float, check: Callable[[], None] = lambda: None
    ) -> AbstractContextManager[None]:
        """Holds the turn for the block; ``deadline`` is on the monotonic clock.

        ``check`` is called while waiting and raises when the turn is no longer wanted.
        """


class FileTurns(Turns):
    """One holder at a time, in about the order of arrival; a process that dies gives it up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._queue: deque[threading.Event] = deque()

    @contextmanager
    def turn(self, deadline: float, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        with self._among_threads(deadline, check):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                _lock(descriptor, deadline, check)
                yield
            finally:
                os.close(descriptor)

    @contextmanager
    def _among_threads(self, deadline: float, check: Callable[[], None]) -> Iterator[None]:
        mine = threading.Event()
        with self._lock:
            self._queue.append(mine)
            if self._queue[0] is mine:
                mine.set()
        try:
            _wait(mine, deadline, check)
            yield
        finally:
            with self._lock:
                self._queue.remove(mine)
                if self._queue:
                    self._queue[0].set()


def turns_beside(path: Path) -> Path:
    """The file at which the writers of a SQLite catalog take turns."""
    return Path(f"{path}.turns")


def _lock(descriptor: int, deadline: float, check: Callable[[], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    # The kernel's queue has no deadline, so a thread waits in it, with a descriptor of its own: the
    # number of a closed one may soon be another file. If it is left waiting, closing the last of
    # the two gives the lock back in the moment it comes.
    done = threading.Event()
    failures: list[OSError] = []
    own = os.dup(descriptor)

    def wait() -> None:
        try:
            fcntl.flock(own, fcntl.LOCK_EX)
        except OSError as error:
            failures.append(error)
        finally:
            os.close(own)
            done.set()

    threading.Thread(target=wait, name="swanlake-turn", daemon=True).start()
    _wait(done, deadline, check)
    if failures:
        raise failures[0]


def _wait(event: threading.Event, deadline: float, check: Callable[[], None]) -> None:
    while not event.wait(max(0.0, min(_CHECK_INTERVAL, deadline - time.monotonic()))):
        check()
        if time.monotonic() >= deadline:
            raise TurnTimeout("the catalog was locked by other writers until the deadline")

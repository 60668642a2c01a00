"""The writer lock of a catalog, and its form for SQLite: a locked file.

A SQLite writer that finds the database locked sleeps and retries with growing delays, so some
writers wait for seconds. Queueing in front of it prevents that. The writer lock only orders
SwanLake's writers; SQLite's own lock protects the data.
"""

from __future__ import annotations

import fcntl
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from swanlake._internal.waiting import never_cancelled, wait


class WriterLockTimeout(Exception):
    """The lock was not free before the deadline."""


class WriterLock(ABC):
    """A lock that all SwanLake processes that write to a catalog respect."""

    @abstractmethod
    def hold(
        self, deadline: float, check: Callable[[], None] = never_cancelled
    ) -> AbstractContextManager[None]:
        """Holds the lock for the block; ``deadline`` is on the monotonic clock.

        ``check`` is called while waiting and raises when the caller gives up. Raises
        WriterLockTimeout.
        """


class FileWriterLock(WriterLock):
    """A locked file: roughly first come, first served; a process that dies releases it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._waiters: deque[threading.Event] = deque()

    @contextmanager
    def hold(self, deadline: float, check: Callable[[], None] = never_cancelled) -> Iterator[None]:
        with self._queue_threads(deadline, check):
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                _flock(descriptor, deadline, check)
                yield
            finally:
                os.close(descriptor)

    @contextmanager
    def _queue_threads(self, deadline: float, check: Callable[[], None]) -> Iterator[None]:
        is_first = threading.Event()
        with self._lock:
            self._waiters.append(is_first)
            if self._waiters[0] is is_first:
                is_first.set()
        try:
            _wait(is_first, deadline, check)
            yield
        finally:
            with self._lock:
                self._waiters.remove(is_first)
                if self._waiters:
                    self._waiters[0].set()


def writer_lock_path(path: Path) -> Path:
    """The file that is the writer lock of a SQLite catalog."""
    return Path(f"{path}.turns")


def _flock(descriptor: int, deadline: float, check: Callable[[], None]) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    except BlockingIOError:
        pass
    # The kernel's wait has no deadline, so a thread waits, on its own descriptor: the number of a
    # closed one may be reused. If the caller gives up, the lock is released as soon as the thread
    # gets it, when the last of the two descriptors is closed.
    done = threading.Event()
    failures: list[OSError] = []
    duplicate = os.dup(descriptor)

    def acquire() -> None:
        try:
            fcntl.flock(duplicate, fcntl.LOCK_EX)
        except OSError as error:
            failures.append(error)
        finally:
            os.close(duplicate)
            done.set()

    threading.Thread(target=acquire, name="swanlake-writer-lock", daemon=True).start()
    _wait(done, deadline, check)
    if failures:
        raise failures[0]


def _wait(event: threading.Event, deadline: float, check: Callable[[], None]) -> None:
    if not wait(event.wait, check, deadline):
        raise WriterLockTimeout("the catalog was locked by other writers until the deadline")

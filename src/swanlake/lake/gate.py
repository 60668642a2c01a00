"""One writer at a time, in the order of arrival.

DuckLake's stock commit path answers contention with collisions and back-off. Letting the writers
of a process commit one after the other is faster and fails nobody.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from swanlake.errors import ServerUnavailable

_CHECK_INTERVAL = 0.05


class CommitGate:
    """A FIFO lock whose waiters have a deadline and can give up."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._queue: deque[threading.Event] = deque()

    @property
    def waiting(self) -> tuple[threading.Event, ...]:
        """Who is at the gate: the holder first, then the others in their order."""
        with self._lock:
            return tuple(self._queue)

    @contextmanager
    def turn(self, check: Callable[[], None]) -> Iterator[None]:
        """Waits for the caller's turn and holds it for the block.

        ``check`` is called while waiting and raises when the caller no longer wants the turn.
        """
        mine = threading.Event()
        with self._lock:
            self._queue.append(mine)
            if self._queue[0] is mine:
                mine.set()
        try:
            self._wait(mine, check)
            yield
        finally:
            with self._lock:
                self._queue.remove(mine)
                if self._queue:
                    self._queue[0].set()

    def _wait(self, mine: threading.Event, check: Callable[[], None]) -> None:
        deadline = time.monotonic() + self._timeout
        while not mine.wait(_CHECK_INTERVAL):
            check()
            if time.monotonic() > deadline:
                raise ServerUnavailable(
                    f"Waited {self._timeout:g} s for other writers to commit and gave up; the "
                    "statement was not run. Try again, or raise commit_lock_timeout_seconds.",
                    identifier="COMMIT_LOCK_TIMEOUT",
                )

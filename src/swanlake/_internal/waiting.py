"""Blocking waits that end when a statement is cancelled or a deadline passes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: How soon a waiting thread notices a cancellation, a timeout or a deadline.
POLL_SECONDS = 0.05


def never_cancelled() -> None:
    """The check of a wait that nothing but its deadline ends."""


def wait(
    block: Callable[[float], object],
    check: Callable[[], None] = never_cancelled,
    deadline: float | None = None,
) -> bool:
    """Waits in short slices; True once the wait is over, False at the deadline.

    ``block`` waits at most the given number of seconds and returns a true value when the wait is
    over: ``event.wait``, ``acquiring(lock)``, ``polling(is_over)``. ``check`` is called between
    slices and raises when the caller gave up. ``deadline`` is on the monotonic clock.

    >>> event = threading.Event()
    >>> wait(event.wait, deadline=time.monotonic() + 0.01)
    False
    """
    while True:
        left = POLL_SECONDS if deadline is None else deadline - time.monotonic()
        if block(max(0.0, min(POLL_SECONDS, left))):
            return True
        check()
        if deadline is not None and time.monotonic() >= deadline:
            return False


def acquiring(lock: threading.Lock) -> Callable[[float], bool]:
    """A ``block`` that takes a lock."""
    return lambda seconds: lock.acquire(timeout=seconds)


def polling(is_over: Callable[[], object]) -> Callable[[float], bool]:
    """A ``block`` for a condition that sends no signal: tests it, then sleeps."""

    def block(seconds: float) -> bool:
        if is_over():
            return True
        time.sleep(seconds)
        return False

    return block

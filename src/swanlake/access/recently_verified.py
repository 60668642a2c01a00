"""A cache of credentials that were verified."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentlyVerified(Generic[T]):
    """Remembers for a short time what was expensive to verify; bounded in size."""

    def __init__(
        self,
        seconds: float,
        max_entries: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seconds = seconds
        self._max_entries = max_entries
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, tuple[T, float]] = OrderedDict()

    def find(self, key: str) -> T | None:
        """What was verified with the key lately; None if nothing was."""
        with self._lock:
            value, until = self._entries.get(key, (None, 0.0))
            return value if self._clock() < until else None

    def add(self, key: str, value: T) -> None:
        """Remembers a value, and forgets the oldest if there are too many."""
        with self._lock:
            self._entries[key] = value, self._clock() + self._seconds
            self._entries.move_to_end(key)
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)

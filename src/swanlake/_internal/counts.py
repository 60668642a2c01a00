"""Counters by name, which metrics read."""

from __future__ import annotations

import threading
from collections import Counter


class Counts:
    """Counters by name; safe for many threads."""

    def __init__(self, *names: str) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(names, 0))

    def increment(self, name: str, by: int = 1) -> None:
        """Adds to a counter."""
        with self._lock:
            self._counts[name] += by

    def as_dict(self) -> dict[str, int]:
        """The current counts."""
        with self._lock:
            return dict(self._counts)

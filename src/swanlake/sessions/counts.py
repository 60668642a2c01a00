"""How often something was done in which way, for the status."""

from __future__ import annotations

import threading
from collections import Counter


class Counts:
    """Numbers by name, for many threads."""

    def __init__(self, *ways: str) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter(dict.fromkeys(ways, 0))

    def count(self, way: str) -> None:
        """One more."""
        with self._lock:
            self._counts[way] += 1

    def as_dict(self) -> dict[str, int]:
        """All of them."""
        with self._lock:
            return dict(self._counts)


def write_counts() -> Counts:
    """How sessions write to the lake; a statement that is begun anew is counted each time."""
    return Counts("native", "extension", "repeated")


def read_counts() -> Counts:
    """Queries that had all rows from the metadata, and those that were run again on the lake."""
    return Counts("metadata", "repeated")

"""Which batches of which producers were taken: sent again, they are not taken again.

Sequence numbers need not come in order, so what is remembered is sets of them, kept as ranges.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import quote
from uuid import UUID

from swanlake.queue.names import Ingest, QueueTable

_NOTE = "ingest"
_WAIT_SECONDS = 0.05
#: Beyond this, what is known of producers is forgotten, and looked up again for those who come.
_MOST_KNOWN = 100_000


@dataclass
class Ranges:
    """A set of whole numbers, as its ranges without gaps: (first, last), in order."""

    ranges: list[tuple[int, int]] = field(default_factory=list)

    def __contains__(self, number: int) -> bool:
        place = bisect_right(self.ranges, (number, float("inf"))) - 1
        return place >= 0 and self.ranges[place][1] >= number

    def add(self, first: int, last: int) -> None:
        """Adds all numbers from the first to the last."""
        # The ranges that it meets or touches become one with it.
        start = bisect_left(self.ranges, first - 1, key=lambda one: one[1])
        end = bisect_right(self.ranges, last + 1, key=lambda one: one[0])
        if start < end:
            first = min(first, self.ranges[start][0])
            last = max(last, self.ranges[end - 1][1])
        self.ranges[start:end] = [(first, last)]


class Taken:
    """The batches that were taken, of any number of producers."""

    def __init__(self) -> None:
        self._ranges: dict[str, Ranges] = {}

    def __contains__(self, ingest: Ingest) -> bool:
        ranges = self._ranges.get(ingest.producer)
        return ranges is not None and ingest.sequence in ranges

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def add(self, ingest: Ingest) -> None:
        self._ranges.setdefault(ingest.producer, Ranges()).add(ingest.sequence, ingest.sequence)

    @property
    def producers(self) -> list[str]:
        return list(self._ranges)

    def ranges(self, producer: str) -> list[tuple[int, int]]:
        """The sequence numbers of a producer, as ranges without gaps."""
        return list(self._ranges[producer].ranges) if producer in self._ranges else []

    def both(self, producer: str, others: Ranges) -> list[Ingest]:
        """Those of a producer that are among others too."""
        found: list[Ingest] = []
        for first, last in self.ranges(producer):
            place = bisect_left(others.ranges, first, key=lambda one: one[1])
            while place < len(others.ranges) and others.ranges[place][0] <= last:
                low, high = others.ranges[place]
                numbers = range(max(first, low), min(last, high) + 1)
                found += [Ingest(producer, number) for number in numbers]
                place += 1
        return found


class Producers:
    """Lets a batch with a name in once, however often and from wherever it is sent."""

    def __init__(self, taken_by: Callable[[QueueTable, str], Ranges]) -> None:
        self._taken_by = taken_by
        self._changed = threading.Condition()
        self._known: dict[tuple[QueueTable, str], Ranges] = {}
        self._in_flight: set[tuple[QueueTable, Ingest]] = set()

    @contextmanager
    def taking(
        self, table: QueueTable, ingest: Ingest, check: Callable[[], None]
    ) -> Iterator[bool]:
        """True if the batch is new: it counts as taken if the block succeeds."""
        flight = (table, ingest)
        with self._changed:
            while flight in self._in_flight:
                self._changed.wait(_WAIT_SECONDS)
                check()
            self._in_flight.add(flight)
        try:
            is_new = ingest.sequence not in self._ranges(table, ingest.producer)
            yield is_new
            known = self._ranges(table, ingest.producer)
            with self._changed:  # others of the same producer come to their end as well
                known.add(ingest.sequence, ingest.sequence)
        except BaseException:
            self.forget()  # it may have been kept all the same
            raise
        finally:
            with self._changed:
                self._in_flight.discard(flight)
                self._changed.notify_all()

    def forget(self) -> None:
        """What was taken is looked up again."""
        with self._changed:
            self._known.clear()

    def _ranges(self, table: QueueTable, producer: str) -> Ranges:
        key = (table, producer)
        with self._changed:
            known = self._known.get(key)
        if known is None:
            found = self._taken_by(table, producer)
            with self._changed:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                known = self._known.setdefault(key, found)
        return known


def prefix(producer: str, table_id: int) -> str:
    """How the notes begin that the ledger keeps of a producer's batches in a table."""
    return f"{_NOTE}:{quote(producer, safe='')}:{table_id}:"


def notes(taken: Taken, table_id: int, segment: UUID) -> list[str]:
    """What the ledger is to keep of the batches of a segment."""
    return [
        f"{prefix(producer, table_id)}{first}-{last}@{segment}"
        for producer in taken.producers
        for first, last in taken.ranges(producer)
    ]


def read_notes(entries: Iterable[str]) -> Ranges:
    """The sequence numbers in the notes of one producer and table."""
    found = Ranges()
    for entry in entries:
        numbers = entry.rpartition(":")[2].partition("@")[0]
        first, _, last = numbers.partition("-")
        found.add(int(first), int(last))
    return found

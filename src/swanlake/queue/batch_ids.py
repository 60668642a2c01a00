"""Batch ids: a producer numbers its batches, so that a batch sent again is recognised.

Sequence numbers need not arrive in order. Sets of them are stored as intervals.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import quote
from uuid import UUID

_NOTE = "ingest"


@dataclass(frozen=True, order=True)
class BatchId:
    """The identity of a batch: its producer, and the producer's number for it."""

    producer: str
    sequence: int


@dataclass
class IntervalSet:
    """A set of integers as disjoint, sorted intervals (first, last), both inclusive."""

    intervals: list[tuple[int, int]] = field(default_factory=list)

    def __contains__(self, number: int) -> bool:
        index = bisect_right(self.intervals, (number, float("inf"))) - 1
        return index >= 0 and self.intervals[index][1] >= number

    def add(self, first: int, last: int) -> None:
        """Adds all integers from the first to the last."""
        # Intervals that overlap or touch the new one are merged with it.
        start = bisect_left(self.intervals, first - 1, key=lambda interval: interval[1])
        end = bisect_right(self.intervals, last + 1, key=lambda interval: interval[0])
        if start < end:
            first = min(first, self.intervals[start][0])
            last = max(last, self.intervals[end - 1][1])
        self.intervals[start:end] = [(first, last)]


class BatchIdSet:
    """A set of batch ids of any number of producers."""

    def __init__(self) -> None:
        self._sequences: dict[str, IntervalSet] = {}

    def __contains__(self, batch_id: BatchId) -> bool:
        sequences = self._sequences.get(batch_id.producer)
        return sequences is not None and batch_id.sequence in sequences

    def __bool__(self) -> bool:
        return bool(self._sequences)

    def add(self, batch_id: BatchId) -> None:
        sequences = self._sequences.setdefault(batch_id.producer, IntervalSet())
        sequences.add(batch_id.sequence, batch_id.sequence)

    @property
    def producers(self) -> list[str]:
        return list(self._sequences)

    def intervals(self, producer: str) -> list[tuple[int, int]]:
        """The sequence numbers of a producer."""
        return list(self._sequences[producer].intervals) if producer in self._sequences else []

    def intersection(self, producer: str, other: IntervalSet) -> list[BatchId]:
        """The batch ids of a producer whose sequence numbers are in another set too."""
        return [
            BatchId(producer, number)
            for first, last in self.intervals(producer)
            for number in range(first, last + 1)
            if number in other
        ]


def ledger_prefix(producer: str, table_id: int) -> str:
    """The prefix of the ledger notes about a producer's batches in a table."""
    return f"{_NOTE}:{quote(producer, safe='')}:{table_id}:"


def ledger_notes(batch_ids: BatchIdSet, table_id: int, segment: UUID) -> list[str]:
    """The ledger notes about the batches of a segment."""
    return [
        f"{ledger_prefix(producer, table_id)}{first}-{last}@{segment}"
        for producer in batch_ids.producers
        for first, last in batch_ids.intervals(producer)
    ]


def parse_ledger_notes(notes: Iterable[str]) -> IntervalSet:
    """The sequence numbers in the notes of one producer and table."""
    sequences = IntervalSet()
    for note in notes:
        numbers = note.rpartition(":")[2].partition("@")[0]
        first, _, last = numbers.partition("-")
        sequences.add(int(first), int(last))
    return sequences

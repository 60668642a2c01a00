"""The segments that a queue holds: those on their way to the lake, and those that linger.

A transaction that sees the lake as it was does not see what was flushed since. For such readers a
segment stays after its flush, until the last of them is gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from swanlake.queue.names import QueueTable
from swanlake.queue.store import SegmentFile


class Reader:
    """A transaction that may see the lake as it was."""


class Holdings:
    """Segments by id, and what they occupy; whoever changes them holds the queue's lock."""

    def __init__(self) -> None:
        self.segments: dict[UUID, SegmentFile] = {}
        self.bytes = 0
        self._sizes: dict[UUID, int] = {}
        self._readers: set[Reader] = set()
        self._lingering: dict[SegmentFile, set[Reader]] = {}

    def put(self, segment: SegmentFile) -> None:
        """A segment is here, or has grown."""
        self.segments[segment.id] = segment
        self.bytes += segment.size - self._sizes.get(segment.id, 0)
        self._sizes[segment.id] = segment.size

    def drop(self, segments: Iterable[SegmentFile]) -> None:
        """Segments are on their way no more."""
        for segment in segments:
            del self.segments[segment.id]
            self.bytes -= self._sizes.pop(segment.id)

    def of(self, table: QueueTable, reader: Reader | None = None) -> list[SegmentFile]:
        """The segments of a table, oldest first; with those that linger for a reader."""
        lingering = [one for one, readers in self._lingering.items() if reader in readers]
        found = {one.id: one for one in [*lingering, *self.segments.values()] if one.table == table}
        return [found[id] for id in sorted(found)]

    def enter(self) -> Reader:
        """A new reader."""
        reader = Reader()
        self._readers.add(reader)
        return reader

    def leave(self, reader: Reader) -> list[SegmentFile]:
        """The segments that lingered for this reader alone; they can be removed."""
        self._readers.discard(reader)
        for readers in self._lingering.values():
            readers.discard(reader)
        gone = [one for one, readers in self._lingering.items() if not readers]
        for segment in gone:
            del self._lingering[segment]
        return gone

    def linger(self, segments: list[SegmentFile]) -> list[SegmentFile]:
        """Keeps flushed segments for the readers there are; gives back those to be removed."""
        if not self._readers:
            return segments
        self._lingering |= {segment: set(self._readers) for segment in segments}
        return []

"""The segments of a queue: those on their way to the lake, and those retained for readers.

A transaction that reads an older snapshot of the lake does not see rows flushed since. For such
readers a flushed segment is retained until the last of them is released.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from swanlake._internal.fair_shares import FairShares, is_fair
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.storage.store import SegmentFile


class SnapshotReader:
    """A transaction that may read an older snapshot of the lake."""


class SegmentIndex:
    """Segments by id, and the bytes they occupy; callers hold the queue's lock."""

    def __init__(self, max_bytes: int) -> None:
        self.segments: dict[UUID, SegmentFile] = {}
        #: The bytes on disk by table.
        self.tables = FairShares(max_bytes)
        #: The bytes of rows by caller; those that another process wrote belong to none.
        self.callers = FairShares(max_bytes)
        self._written: dict[UUID, Counter[str]] = {}
        self._sizes: dict[UUID, int] = {}
        self._readers: set[SnapshotReader] = set()
        self._retained: dict[SegmentFile, set[SnapshotReader]] = {}

    def add(self, segment: SegmentFile, written: Mapping[str, int]) -> None:
        """Adds a segment, or one that has grown: by these bytes of these callers."""
        self.segments[segment.id] = segment
        self.tables.add(segment.table, segment.size - self._sizes.get(segment.id, 0))
        self._sizes[segment.id] = segment.size
        for caller, size in written.items():
            self.callers.add(caller, size)
            self._written.setdefault(segment.id, Counter())[caller] += size

    def remove(self, segments: Iterable[SegmentFile]) -> None:
        """Removes segments that were flushed."""
        for segment in segments:
            del self.segments[segment.id]
            self.tables.add(segment.table, -self._sizes.pop(segment.id))
            for caller, size in self._written.pop(segment.id, Counter()).items():
                self.callers.add(caller, -size)

    def find_refusal(self, table: TableRef, caller: str) -> str:
        """Why a caller cannot write to a table now; empty if it can."""
        held, limit = self.tables.held, self.tables.limit
        if held >= limit:
            return f"The queue holds {held:,} bytes that are not in the lake yet"
        own = self.tables[table]
        if own and not is_fair(limit, held, own, 0):
            return (
                f"The queue holds {held:,} bytes that are not in the lake yet, {own:,} of them for "
                f"{table.full_name}, which is the share of one table"
            )
        own = self.callers[caller] if caller else 0
        if own and not is_fair(limit, held, own, 0):
            return (
                f"The queue holds {held:,} bytes that are not in the lake yet, {own:,} of them "
                f"from {caller}, which is the share of one caller"
            )
        return ""

    def find(self, table: TableRef, reader: SnapshotReader | None = None) -> list[SegmentFile]:
        """The segments of a table, oldest first; with those retained for the reader."""
        retained = [segment for segment, readers in self._retained.items() if reader in readers]
        by_id = {
            segment.id: segment
            for segment in [*retained, *self.segments.values()]
            if segment.table == table
        }
        return [by_id[id] for id in sorted(by_id)]

    def register_reader(self) -> SnapshotReader:
        """A new reader."""
        reader = SnapshotReader()
        self._readers.add(reader)
        return reader

    def release_reader(self, reader: SnapshotReader) -> list[SegmentFile]:
        """The segments that were retained for this reader alone; they can be removed."""
        self._readers.discard(reader)
        for readers in self._retained.values():
            readers.discard(reader)
        removable = [segment for segment, readers in self._retained.items() if not readers]
        for segment in removable:
            del self._retained[segment]
        return removable

    def retain(self, segments: Sequence[SegmentFile]) -> Sequence[SegmentFile]:
        """Retains flushed segments for the registered readers; returns those to remove now."""
        if not self._readers:
            return segments
        self._retained |= {segment: set(self._readers) for segment in segments}
        return []

"""Group commit: concurrent appends to a table's open segment share one write and one sync.

The first caller writes for all waiting callers, then hands over to the next one in line. Small
inserts of many clients become one record batch.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from swanlake._internal.waiting import wait
from swanlake.errors import QueueStateUnknown, QueueUnavailable
from swanlake.lake.model.layout import Table
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.batch_ids import BatchId
from swanlake.queue.storage.store import OpenSegmentFile, SegmentStore

#: How long a write may take before its outcome is reported as unknown.
_WRITE_SECONDS = 60.0
_MAX_GROUP_ROWS = 100_000


@dataclass(eq=False)
class _PendingWrite:
    """Rows that wait to be written, and the outcome."""

    batch: Any
    layout: Table
    batch_id: BatchId | None
    caller: str
    #: Set when the rows are written or refused, or when the caller is to write the next group.
    woken: threading.Event = field(default_factory=threading.Event)
    done: bool = False
    error: Exception | None = None


class TableWriter:
    """The open segment of one table, and the callers waiting to write to it."""

    def __init__(
        self,
        table: TableRef,
        store: SegmentStore,
        clock: Callable[[], float],
        on_written: Callable[[OpenSegmentFile, Mapping[str, int]], None],
        on_sealed: Callable[[OpenSegmentFile], None],
    ) -> None:
        self._table = table
        self._store = store
        self._clock = clock
        self._on_written = on_written
        self._on_sealed = on_sealed
        self._lock = threading.Lock()
        self._writing = False
        self._waiting: list[_PendingWrite] = []
        #: Held while the segment changes.
        self._segment_lock = threading.Lock()
        self._segment: OpenSegmentFile | None = None

    @property
    def waiting_bytes(self) -> int:
        """The bytes of the rows that wait to be written."""
        with self._lock:
            return sum(entry.batch.nbytes for entry in self._waiting)

    def append(
        self,
        batch: Any,
        layout: Table,
        batch_id: BatchId | None,
        check: Callable[[], None],
        caller: str = "",
    ) -> None:
        """Returns when the rows are on disk; raises if they are not."""
        entry = _PendingWrite(batch, layout, batch_id, caller)
        with self._lock:
            self._waiting.append(entry)
            writes = not self._writing
            self._writing = True
        if not writes:
            self._wait(entry, check)
        if not entry.done:
            self._write_for_all()
        if entry.error is not None:
            raise entry.error

    def seal(self, segment: OpenSegmentFile | None = None) -> None:
        """Seals the open segment; with an argument, only if that segment is still the open one."""
        with self._segment_lock:
            self._seal(segment)

    def _seal(self, segment: OpenSegmentFile | None = None) -> None:
        if self._segment is None or (segment is not None and segment is not self._segment):
            return
        closing, self._segment = self._segment, None
        if closing.rows:
            closing.seal()
            self._on_sealed(closing)

    def _wait(self, entry: _PendingWrite, check: Callable[[], None]) -> None:
        def check_unless_writing() -> None:
            try:
                check()
            except BaseException:
                if self._withdraw(entry):
                    raise
                # The rows are being written: the caller must learn the outcome.

        if wait(entry.woken.wait, check_unless_writing, time.monotonic() + _WRITE_SECONDS):
            return
        if self._withdraw(entry):
            raise QueueUnavailable(
                f"The queue's disk did not answer for {_WRITE_SECONDS:g} s. Nothing was written."
            )
        if not entry.woken.is_set():  # it may have been woken since the deadline
            raise QueueStateUnknown(
                f"The queue's disk did not answer for {_WRITE_SECONDS:g} s; it is not known "
                "whether the rows are kept."
            )

    def _withdraw(self, entry: _PendingWrite) -> bool:
        """Cancels a write that has not started; False if it is too late."""
        with self._lock:
            if entry not in self._waiting or entry.woken.is_set():
                return False
            self._waiting.remove(entry)
            return True

    def _write_for_all(self) -> None:
        with self._lock:
            group = self._next_group()
        try:
            # Rows of equal types fit in one batch; types include the time zone of the session.
            for _, entries in groupby(
                group, lambda entry: (entry.layout.columns, entry.batch.schema)
            ):
                self._write(list(entries))
        finally:
            with self._lock:
                if self._waiting:
                    self._waiting[0].woken.set()
                else:
                    self._writing = False

    def _next_group(self) -> list[_PendingWrite]:
        """Removes and returns the first waiting write, and as many more as fit the limit."""
        rows = count = 0
        for entry in self._waiting:
            rows += entry.batch.num_rows
            if count and rows > _MAX_GROUP_ROWS:
                break
            count += 1
        group, self._waiting = self._waiting[:count], self._waiting[count:]
        return group

    def _write(self, entries: list[_PendingWrite]) -> None:
        error: Exception | None = None
        try:
            with self._segment_lock:
                segment = self._segment_for(entries[0].layout, entries[0].batch.schema)
                try:
                    segment.append(_combined(entries, segment))
                except QueueUnavailable:
                    self._seal()  # a file whose write failed is not appended to again
                    raise
                self._on_written(segment, _bytes_by_caller(entries))
        except Exception as failure:  # noqa: BLE001 - every caller of the group raises it
            error = failure
        for entry in entries:
            entry.error, entry.done = error, True
            entry.woken.set()

    def _segment_for(self, layout: Table, arrow_schema: Any) -> OpenSegmentFile:
        if self._segment is not None and self._segment.columns != layout.columns:
            self._seal()
        if self._segment is None:
            self._segment = self._store.new_segment(
                self._table, layout, arrow_schema, self._clock()
            )
        return self._segment


def _bytes_by_caller(entries: list[_PendingWrite]) -> Mapping[str, int]:
    written: Counter[str] = Counter()
    for entry in entries:
        if entry.caller:
            written[entry.caller] += entry.batch.nbytes
    return written


def _combined(
    entries: list[_PendingWrite], segment: OpenSegmentFile
) -> list[tuple[Any, BatchId | None]]:
    """All rows without a batch id as one batch; batches with an id stay separate.

    Drops batches that a producer sent again while the first attempt was still under way.
    """
    plain = [entry.batch for entry in entries if entry.batch_id is None]
    if len(plain) > 1:
        plain = [pa.concat_batches(plain)]
    named: dict[BatchId, Any] = {}
    for entry in entries:
        if entry.batch_id is not None and entry.batch_id not in segment.batch_ids:
            named.setdefault(entry.batch_id, entry.batch)
    return [*((batch, None) for batch in plain), *((batch, id) for id, batch in named.items())]

"""Appending to a table's open segment: whoever comes while a write is under way shares the next.

The first to come writes for all who wait, then hands over to the next of them. Small inserts of
many clients so become one record batch and one sync.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from swanlake.errors import QueueStateUnknown, QueueUnavailable
from swanlake.lake.layout import Table
from swanlake.queue.names import Ingest, QueueTable
from swanlake.queue.store import OpenSegment, Store

_CHECK_SECONDS = 0.05
#: How long a disk may take; then nobody can say whether the rows are kept.
_WRITE_SECONDS = 60.0
_ROWS_AT_ONCE = 100_000


@dataclass(eq=False)
class _Entry:
    """Rows that wait to be written, and what became of them."""

    batch: Any
    layout: Table
    ingest: Ingest | None
    #: Set when the rows are written or refused, or when it is the caller's turn to write.
    woken: threading.Event = field(default_factory=threading.Event)
    done: bool = False
    error: Exception | None = None


class TableWriter:
    """The open segment of one table, and those who wait to write to it."""

    def __init__(
        self,
        table: QueueTable,
        store: Store,
        clock: Callable[[], float],
        written: Callable[[OpenSegment], None],
        sealed: Callable[[OpenSegment], None],
    ) -> None:
        self._table = table
        self._store = store
        self._clock = clock
        self._written = written
        self._sealed = sealed
        self._lock = threading.Lock()
        self._writing = False
        self._waiting: list[_Entry] = []
        #: Held while the segment changes.
        self._segment_lock = threading.Lock()
        self._segment: OpenSegment | None = None

    def append(
        self, batch: Any, layout: Table, ingest: Ingest | None, check: Callable[[], None]
    ) -> None:
        """Returns when the rows are on disk; raises if they are not."""
        entry = _Entry(batch, layout, ingest)
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

    def seal(self, segment: OpenSegment | None = None) -> None:
        """Closes the open segment, or that very one if it still is."""
        with self._segment_lock:
            self._seal(segment)

    def _seal(self, segment: OpenSegment | None = None) -> None:
        if self._segment is None or (segment is not None and segment is not self._segment):
            return
        closing, self._segment = self._segment, None
        if closing.rows:
            closing.seal()
            self._sealed(closing)

    def _wait(self, entry: _Entry, check: Callable[[], None]) -> None:
        waited = 0.0
        while not entry.woken.wait(_CHECK_SECONDS):
            try:
                check()
            except BaseException:
                if self._withdraw(entry):
                    raise
                # It is being written. How that ends is what the caller has to be told.
            waited += _CHECK_SECONDS
            if waited > _WRITE_SECONDS:
                if self._withdraw(entry):
                    raise QueueUnavailable(
                        f"The queue's disk did not answer for {_WRITE_SECONDS:g} s. Nothing was "
                        "written."
                    )
                if entry.woken.is_set():
                    continue  # its turn has come, or its end, in this very moment
                raise QueueStateUnknown(
                    f"The queue's disk did not answer for {_WRITE_SECONDS:g} s; it is not known "
                    "whether the rows are kept."
                )

    def _withdraw(self, entry: _Entry) -> bool:
        """Takes rows back that nobody has begun to write; False if it is too late for that."""
        with self._lock:
            if entry not in self._waiting or entry.woken.is_set():
                return False
            self._waiting.remove(entry)
            return True

    def _write_for_all(self) -> None:
        with self._lock:
            entries = self._take()
        try:
            for _, group in groupby(entries, key=_kind):
                self._write(list(group))
        finally:
            with self._lock:
                if self._waiting:
                    self._waiting[0].woken.set()
                else:
                    self._writing = False

    def _take(self) -> list[_Entry]:
        """Those who are written together now: the first at least, then as many as fit."""
        rows = count = 0
        for entry in self._waiting:
            rows += entry.batch.num_rows
            if count and rows > _ROWS_AT_ONCE:
                break
            count += 1
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        return taken

    def _write(self, entries: list[_Entry]) -> None:
        error: Exception | None = None
        try:
            with self._segment_lock:
                segment = self._segment_for(entries[0].layout, entries[0].batch.schema)
                try:
                    segment.append(_combined(_new(entries, segment)))
                except QueueUnavailable:
                    self._seal()  # a file that could not be written once is not written again
                    raise
                self._written(segment)
        except Exception as failed:  # noqa: BLE001 - each caller raises it as its own
            error = failed
        for entry in entries:
            entry.error, entry.done = error, True
            entry.woken.set()

    def _segment_for(self, layout: Table, arrow_schema: Any) -> OpenSegment:
        if self._segment is not None and self._segment.columns != layout.columns:
            self._seal()
        if self._segment is None:
            self._segment = self._store.new_segment(
                self._table, layout, arrow_schema, self._clock()
            )
        return self._segment


def _kind(entry: _Entry) -> tuple[Any, Any]:
    """What rows must have in common to be one batch; the time zone of a session is in its types."""
    return entry.layout.columns, entry.batch.schema


def _new(entries: list[_Entry], segment: OpenSegment) -> list[_Entry]:
    """Without batches that were given up as lost and sent again, and came after all."""
    named: set[Ingest] = set()
    new: list[_Entry] = []
    for entry in entries:
        if entry.ingest is not None:
            if entry.ingest in segment.taken or entry.ingest in named:
                continue
            named.add(entry.ingest)
        new.append(entry)
    return new


def _combined(entries: list[_Entry]) -> list[tuple[Any, Ingest | None]]:
    """One batch of all rows without a name of their own; the others stay what they are called."""
    plain = [entry.batch for entry in entries if entry.ingest is None]
    named = [(entry.batch, entry.ingest) for entry in entries if entry.ingest is not None]
    if len(plain) > 1:
        plain = [pa.concat_batches(plain)]
    return [*((batch, None) for batch in plain), *named]

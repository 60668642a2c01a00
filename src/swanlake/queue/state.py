"""The shared state of a queue: its segments, the coordinator and the flush waiters.

One lock guards all of it. Code that holds the lock does no I/O.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from uuid import UUID

from swanlake._internal.waiting import wait
from swanlake.errors import QueueUnavailable
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.coordinator import (
    Action,
    Coordinator,
    Enqueued,
    Event,
    Failed,
    Flushed,
    FlushRequested,
    Limits,
    Sealed,
    Tick,
)
from swanlake.queue.flush.flusher import FlushReport
from swanlake.queue.storage.segment_index import SegmentIndex
from swanlake.queue.storage.store import OpenSegmentFile, SegmentFile

#: How long callers wait for the recovery at startup. The recovery itself has no deadline.
_RECOVERY_SECONDS = 60.0


@dataclass(eq=False)
class FlushWaiter:
    """A caller that waits for these segments; ids are removed as their flushes succeed."""

    segments: dict[TableRef, set[UUID]]
    reports: dict[TableRef, FlushReport] = field(default_factory=dict)
    errors: dict[TableRef, str] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        return all(not ids or table in self.errors for table, ids in self.segments.items())

    def mark_flushed(self, table: TableRef, ids: Collection[UUID], report: FlushReport) -> None:
        if self._waits_for(table, ids):
            self.reports[table] = self.reports.get(table, FlushReport(table)) + report
            self.segments[table].difference_update(ids)

    def mark_failed(self, table: TableRef, ids: Collection[UUID], error: str) -> None:
        if self._waits_for(table, ids):
            self.errors[table] = error

    def fail(self, reason: str) -> None:
        """Fails every table that is still waited for."""
        for table, ids in self.segments.items():
            if ids:
                self.errors.setdefault(table, reason)

    def _waits_for(self, table: TableRef, ids: Collection[UUID]) -> bool:
        return not self.segments.get(table, set()).isdisjoint(ids)


class QueueState:
    """Feeds what happened to the coordinator, and queues the actions it decides on."""

    def __init__(
        self, limits: Limits, clock: Callable[[], float], max_bytes: int, *, paused: bool
    ) -> None:
        self.clock = clock
        self.lock = threading.Condition()
        self.coordinator = Coordinator(limits)
        self.coordinator.paused = paused
        self.index = SegmentIndex(max_bytes)
        self.waiters: list[FlushWaiter] = []
        #: For the director to carry out; None wakes it up.
        self.actions: SimpleQueue[Action | None] = SimpleQueue()
        self.stopping = threading.Event()
        #: Set when the segments found at startup are in the index.
        self.recovered = threading.Event()
        #: True when another server has taken over the queue directory.
        self.lost_ownership = False

    def record_written(self, segment: OpenSegmentFile, written: Mapping[str, int]) -> None:
        """Rows of these callers, with these bytes, were appended to an open segment."""
        with self.lock:
            self.index.add(segment, written)
            self._handle(Enqueued(segment.table, segment.id, segment.rows, segment.size))

    def record_sealed(self, segment: SegmentFile, caller: str = "") -> None:
        """A segment takes no more rows; the second report of the same segment has no effect."""
        with self.lock:
            state = self.coordinator.tables.get(segment.table)
            if state is not None and any(sealed.id == segment.id for sealed in state.sealed):
                return  # a replayed segment may also be found in the directory of a dead server
            self.index.add(segment, {caller: segment.size} if caller else {})
            created_at = segment.header.created_at
            self._handle(Sealed(segment.table, segment.id, segment.rows, segment.size, created_at))

    def record_flushed(
        self, table: TableRef, segments: Sequence[SegmentFile], report: FlushReport
    ) -> None:
        """Segments are in the lake or among the dead letters."""
        ids = tuple(segment.id for segment in segments)
        with self.lock:
            self.index.remove(segments)
            for waiter in self.waiters:
                waiter.mark_flushed(table, ids, report)
            self._handle(Flushed(table, ids))

    def record_failure(self, table: TableRef, ids: Sequence[UUID], error: str) -> None:
        """A flush failed; its segments stay in the queue."""
        with self.lock:
            for waiter in self.waiters:
                waiter.mark_failed(table, ids, error)
            self._handle(Failed(table, error))

    def set_paused(self, paused: bool) -> None:
        """Stops or resumes flushes; a pause fails all flush waiters."""
        with self.lock:
            if paused == self.coordinator.paused:
                return
            self.coordinator.paused = paused
            for waiter in self.waiters if paused else ():
                waiter.fail("the queue was paused.")
            self._handle(Tick())

    def tick(self) -> None:
        """Lets the coordinator act on the time that has passed."""
        with self.lock:
            self._handle(Tick())

    def _handle(self, event: Event) -> None:
        for action in self.coordinator.handle(event, self.clock()):
            self.actions.put(action)
        self.lock.notify_all()

    def request_flush(self, wanted: Callable[[TableRef], bool]) -> FlushWaiter:
        """Registers a waiter for the segments that matching tables hold now."""
        with self.lock:
            if self.coordinator.paused:
                raise QueueUnavailable(
                    "The queue is paused; `CALL duckling_queue_resume()` lets it flush again.",
                    identifier="QUEUE_PAUSED",
                )
            waiter = FlushWaiter(
                {
                    table: {segment.id for segment in state.segments}
                    for table, state in self.coordinator.tables.items()
                    if wanted(table)
                }
            )
            self.waiters.append(waiter)
            self._handle(FlushRequested(frozenset(waiter.segments)))
        return waiter

    def wait_for_recovery(self, check: Callable[[], None]) -> None:
        """Returns when all segments found at startup are known: earlier answers are incomplete."""
        deadline = time.monotonic() + _RECOVERY_SECONDS
        if not self.wait_until(self.recovered.is_set, check, deadline):
            raise QueueUnavailable(
                "The queue is still recovering the segments it held before the start; retry in a "
                "moment. The server's log says what it waits for."
            )

    def wait_until(
        self,
        is_reached: Callable[[], bool],
        check: Callable[[], None],
        deadline: float | None = None,
    ) -> bool:
        """True when the condition holds; False at the deadline. Raises on shutdown."""

        def check_running() -> None:
            if self.stopping.is_set():
                raise shutting_down()
            check()

        with self.lock:
            return wait(partial(self.lock.wait_for, is_reached), check_running, deadline)


def shutting_down() -> QueueUnavailable:
    """The error for calls that arrive during shutdown."""
    return QueueUnavailable("The server is shutting down; retry elsewhere.")

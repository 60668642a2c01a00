"""The flushes that run and those that ended last, for the pages that show them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.flush.flusher import FlushReport
from swanlake.queue.storage.store import SegmentFile

#: Ended flushes that are remembered.
_REMEMBERED = 200


@dataclass(frozen=True)
class FlushRun:
    """One flush of one table: running, done or failed."""

    number: int
    table: TableRef
    segments: int
    #: As queued; duplicates, damage and transforms change what reaches the lake.
    rows: int
    bytes: int
    started_at: float
    finished_at: float | None = None
    #: What it did; None while it runs, and if it failed.
    report: FlushReport | None = None
    error: str = ""

    @property
    def state(self) -> str:
        """``running``, ``done`` or ``failed``."""
        if self.finished_at is None:
            return "running"
        return "failed" if self.error else "done"


class FlushJournal:
    """Remembers the latest flushes since the server started."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running: dict[int, FlushRun] = {}
        self._ended: deque[FlushRun] = deque(maxlen=_REMEMBERED)
        self._count = 0

    def begin(self, table: TableRef, segments: Sequence[SegmentFile]) -> FlushRun:
        """Lists a flush as running until it is passed to ``end``."""
        rows = sum(segment.rows for segment in segments)
        size = sum(segment.size for segment in segments)
        with self._lock:
            self._count += 1
            run = FlushRun(self._count, table, len(segments), rows, size, self._clock())
            self._running[run.number] = run
        return run

    def end(self, run: FlushRun, report: FlushReport | None = None, error: str = "") -> None:
        """Records the outcome of a flush."""
        ended = replace(run, finished_at=self._clock(), report=report, error=error)
        with self._lock:
            del self._running[run.number]
            self._ended.appendleft(ended)

    def list_all(self) -> list[FlushRun]:
        """The running flushes, then the ended ones, each newest first."""
        with self._lock:
            return [*reversed(self._running.values()), *self._ended]

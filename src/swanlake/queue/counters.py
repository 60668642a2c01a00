"""What the queue has done since the server started."""

from __future__ import annotations

from dataclasses import dataclass, field

from swanlake._internal.counts import Counts
from swanlake._internal.histogram import LONG, SHORT, Histogram
from swanlake.queue.flush.flusher import FlushReport


@dataclass(frozen=True)
class QueueCounters:
    """Counts and durations of inserts and flushes."""

    #: From an insert to its acknowledgement.
    ack_seconds: Histogram = field(default_factory=lambda: Histogram(SHORT))
    flush_seconds: Histogram = field(default_factory=lambda: Histogram(LONG))
    inserts: Counts = field(default_factory=lambda: Counts("rows", "refused"))
    flushes: Counts = field(
        default_factory=lambda: Counts("done", "failed", "rows", "bytes", "files", "dead_letters")
    )

    def count_insert(self, rows: int, seconds: float) -> None:
        """Rows are on disk."""
        self.ack_seconds.observe(seconds)
        self.inserts.increment("rows", rows)

    def count_flush(self, report: FlushReport | None, seconds: float) -> None:
        """A flush has ended; without a report it failed."""
        self.flush_seconds.observe(seconds)
        if report is None:
            self.flushes.increment("failed")
            return
        self.flushes.increment("done")
        for name in ("rows", "bytes", "files", "dead_letters"):
            self.flushes.increment(name, getattr(report, name))

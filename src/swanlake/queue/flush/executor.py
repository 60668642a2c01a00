"""The threads that flush, and what happens to segments afterwards."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import duckdb

from swanlake._internal.tracing import SpanRef, Trace, begin, current, recording
from swanlake.errors import SwanLakeError
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.coordinator import Flush
from swanlake.queue.flush.flusher import Flusher, FlushReport
from swanlake.queue.flush.journal import FlushJournal
from swanlake.queue.settings import QueueSettings
from swanlake.queue.state import QueueState
from swanlake.queue.storage.store import SegmentFile, SegmentStore

log = logging.getLogger("swanlake.queue")

#: Statements that a flush links to.
_MAX_LINKS = 32


class FlushExecutor:
    """Runs flushes on a thread pool and reports their outcome to the queue's state."""

    def __init__(
        self,
        settings: QueueSettings,
        state: QueueState,
        store: SegmentStore,
        flusher: Flusher,
        count: Callable[[FlushReport | None, float], None] = lambda report, seconds: None,
    ) -> None:
        """``count`` is called after each flush, with its seconds; without a report it failed."""
        self._state = state
        self._count = count
        self._store = store
        self._flusher = flusher
        self._keeps_flushed = settings.retention_seconds > 0
        self.journal = FlushJournal(state.clock)
        #: Exports the trace of a flush; None: none is recorded.
        self.send_trace: Callable[[Trace, TableRef, FlushReport | None], None] | None = None
        #: The traced statements whose rows the next flush of a table may bring to the lake.
        self._inserts: dict[TableRef, deque[SpanRef]] = {}
        self._pool = ThreadPoolExecutor(
            settings.limits.max_parallel_flushes, thread_name_prefix="swanlake-flush"
        )
        #: Flushes under way, guarded by the state's lock.
        self.running = 0

    def submit(self, action: Flush) -> None:
        """Starts a flush as soon as a thread is free."""
        self._pool.submit(self._run, action)

    def stop(self) -> None:
        """Starts no more flushes; the next start of the server does what was still queued."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def remove(self, segments: Sequence[SegmentFile]) -> None:
        """Removes flushed segments, or moves them to where they are kept for the retention."""
        for segment in segments:
            try:
                self._store.remove(segment, keep=self._keeps_flushed)
            except OSError as error:
                # Its id is in the ledger: the server that finds it only removes it.
                log.warning("%s cannot be removed: %s", segment.path, error)

    def _run(self, action: Flush) -> None:
        state = self._state
        with state.lock:
            if state.stopping.is_set():
                return
            self.running += 1
        try:
            self._flush(action)
        except Exception as error:  # noqa: BLE001 - on any error the rows stay in the queue
            self._fail(action, error)
        finally:
            with state.lock:
                self.running -= 1
                state.lock.notify_all()

    def _flush(self, action: Flush) -> None:
        with self._state.lock:
            segments = [self._state.index.segments[id] for id in action.segments]
        report = self._flush_recorded(action, segments)
        with self._state.lock:
            removable = self._state.index.retain(segments)
        self.remove(removable)
        log.info(
            "flushed %s: %d rows, %d files, snapshot %s, %.0f ms",
            action.table.full_name,
            report.rows,
            report.files,
            report.snapshot_id,
            report.milliseconds,
        )
        self._state.record_flushed(action.table, segments, report)

    def _flush_recorded(self, action: Flush, segments: Sequence[SegmentFile]) -> FlushReport:
        run = self.journal.begin(action.table, segments)
        started, trace = time.monotonic(), self._begin_trace(action.table)
        report: FlushReport | None = None
        try:
            with recording(trace):
                report = self._flusher.flush(action.table, segments)
        except BaseException as error:
            self.journal.end(run, error=_one_line(error))
            raise
        finally:
            self._count(report, time.monotonic() - started)
            if trace is not None and self.send_trace is not None:
                self.send_trace(trace, action.table, report)
        self.journal.end(run, report)
        return report

    def note_insert(self, table: TableRef) -> None:
        """The statement of this thread has inserted rows: the flush links to its trace."""
        trace = current()
        if trace is not None and self.send_trace is not None:
            with self._state.lock:
                self._inserts.setdefault(table, deque(maxlen=_MAX_LINKS)).append(trace.ref)

    def _begin_trace(self, table: TableRef) -> Trace | None:
        if self.send_trace is None:
            return None
        with self._state.lock:
            links = self._inserts.pop(table, ())
        return begin(links=tuple(links))

    def _fail(self, action: Flush, error: Exception) -> None:
        is_expected = isinstance(error, SwanLakeError | duckdb.Error | OSError)
        text = _one_line(error)
        message = "the flush of %s failed and is tried again: %s"
        log.warning(message, action.table.full_name, text, exc_info=not is_expected)
        self._state.record_failure(action.table, action.segments, text)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

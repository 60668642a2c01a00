"""The threads that flush, and what happens to segments afterwards."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import duckdb

from swanlake.errors import SwanLakeError
from swanlake.queue.coordinator import Flush
from swanlake.queue.flush.flusher import Flusher, FlushReport
from swanlake.queue.flush.journal import FlushJournal
from swanlake.queue.settings import QueueSettings
from swanlake.queue.state import QueueState
from swanlake.queue.storage.store import SegmentFile, SegmentStore

log = logging.getLogger("swanlake.queue")


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
        started = time.monotonic()
        try:
            report = self._flusher.flush(action.table, segments)
        except BaseException as error:
            self._count(None, time.monotonic() - started)
            self.journal.end(run, error=_one_line(error))
            raise
        self._count(report, time.monotonic() - started)
        self.journal.end(run, report)
        return report

    def _fail(self, action: Flush, error: Exception) -> None:
        is_expected = isinstance(error, SwanLakeError | duckdb.Error | OSError)
        text = _one_line(error)
        message = "the flush of %s failed and is tried again: %s"
        log.warning(message, action.table.full_name, text, exc_info=not is_expected)
        self._state.record_failure(action.table, action.segments, text)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

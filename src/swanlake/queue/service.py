"""The queue of one server: makes rows durable and brings them to the lake."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from swanlake._internal.memory_budget import MemoryAccount
from swanlake._internal.tracing import Trace, step
from swanlake._internal.waiting import wait
from swanlake.errors import QueryError, QueueUnavailable, StartupError
from swanlake.jobs.runner import FlushRunner
from swanlake.jobs.segment_transfer.grants import TransferGrants
from swanlake.lake.lake import Lake
from swanlake.lake.model.table_ref import TableRef
from swanlake.lake.read.table_cache import CachedTable, TableCache
from swanlake.queue.batch_ids import BatchId
from swanlake.queue.counters import QueueCounters
from swanlake.queue.director import Director
from swanlake.queue.flush.dead_letters import DeadLetter, DeadLetters
from swanlake.queue.flush.executor import FlushExecutor
from swanlake.queue.flush.flusher import Flusher, FlushReport
from swanlake.queue.flush.journal import FlushRun
from swanlake.queue.flush.replay import Replayer, ReplayResult
from swanlake.queue.ingest.enqueuer import Enqueuer
from swanlake.queue.settings import QueueSettings
from swanlake.queue.state import QueueState
from swanlake.queue.status import SegmentStatus, TableStatus, segment_status, table_status
from swanlake.queue.storage.ownership import Adoption, Ownership
from swanlake.queue.storage.segment import Segment, SegmentDamaged
from swanlake.queue.storage.segment_index import SnapshotReader
from swanlake.queue.storage.store import SegmentStore


class DucklingQueue:
    """All that a session, a command or a server needs of the queue."""

    def __init__(
        self,
        settings: QueueSettings,
        lake: Lake,
        runner: FlushRunner,
        clock: Callable[[], float] = time.time,
        transfer_grants: TransferGrants | None = None,
    ) -> None:
        self.settings = settings
        self.table_cache = TableCache(lake)
        self._leases = lake.leases()
        try:
            self._ownership = Ownership(settings.root, self._leases)
        except OSError as unusable:
            self._leases.close()
            raise StartupError(
                f"The queue cannot use its directory {settings.root}: {unusable.strerror}."
            ) from unusable
        self._state = QueueState(
            settings.limits, clock, settings.max_bytes, paused=settings.pause_file.exists()
        )
        self._store = store = SegmentStore(settings.root, self._ownership.directory)
        self._dead_letters = DeadLetters(settings.dead_letters)
        self._enqueuer = Enqueuer(self._state, store, lake)
        flusher = Flusher(lake, runner, self._dead_letters, transfer_grants)
        self.counters = QueueCounters()
        self._flushes = FlushExecutor(
            settings, self._state, store, flusher, self.counters.count_flush
        )
        self._replayer = Replayer(self._state, store, self._dead_letters, self.table_cache)
        adoption = Adoption(
            self._ownership, store, self._state.record_sealed, self._dead_letters.add_unreadable
        )
        self._director = Director(
            settings, self._state, store, self._ownership, adoption, self._enqueuer, self._flushes
        )

    def enqueue(
        self,
        target: CachedTable,
        batches: Iterable[Any],
        batch_id: BatchId | None = None,
        check: Callable[[], None] = lambda: None,
        account: MemoryAccount | None = None,
    ) -> int:
        """Returns the number of rows once all of them are on disk; on an error none are.

        The batches have the columns of the target's layout, by position. A batch whose id was
        enqueued before counts as enqueued and is not written again. The account is that of
        the caller: rows that wait in memory are charged to it, those for which it has no room go
        to disk at once, and what is on disk counts for the caller's share of the queue.
        """
        started = time.monotonic()
        with step("queue"):
            rows = self._enqueue(target, batches, batch_id, check, account)
        self._flushes.note_insert(target.table)
        self.counters.count_insert(rows, time.monotonic() - started)
        return rows

    def _enqueue(
        self,
        target: CachedTable,
        batches: Iterable[Any],
        batch_id: BatchId | None,
        check: Callable[[], None],
        account: MemoryAccount | None,
    ) -> int:
        try:
            return self._enqueuer.enqueue(target, batches, batch_id, check, account)
        except QueueUnavailable:
            self.counters.inserts.increment("refused")
            raise

    def check_writable(self) -> None:
        """Raises QueueUnavailable if rows cannot be stored now; a full queue is no reason."""
        self._enqueuer.check_open()
        self._store.check_writable()

    def register_reader(self) -> SnapshotReader:
        """A reader for which segments that are flushed from now on are retained."""
        with self._state.lock:
            return self._state.index.register_reader()

    def release_reader(self, reader: SnapshotReader) -> None:
        """Removes the segments that were retained for this reader alone."""
        with self._state.lock:
            removable = self._state.index.release_reader(reader)
        self._flushes.remove(removable)

    def open_segments(
        self, table: TableRef, check: Callable[[], None], reader: SnapshotReader | None = None
    ) -> list[Segment]:
        """The segments of a table that may not be in the lake yet, as they are at this moment.

        For a reader, also those flushed since it was registered. A segment whose file is gone by
        the time it is opened is in the lake.
        """
        self._state.wait_for_recovery(check)
        with self._state.lock:
            segments = self._state.index.find(table, reader)
        opened: list[Segment] = []
        for segment in segments:
            try:
                opened.append(segment.read())
            except FileNotFoundError:
                continue
            except SegmentDamaged as damaged:
                raise QueryError(
                    f"The segment {segment.id} of {table.full_name} cannot be read: {damaged}. "
                    "Its flush puts it among the dead letters.",
                    identifier="QUEUE_DAMAGED",
                ) from damaged
        return opened

    def status(self) -> list[TableStatus]:
        """What the queue holds, a row per table."""
        with self._state.lock:
            return table_status(self._state.coordinator, self._state.clock())

    @property
    def memory_bytes(self) -> int:
        """The bytes of the rows in memory, which are not on disk yet."""
        return self._enqueuer.waiting_bytes

    def segments(self) -> list[SegmentStatus]:
        """Every segment that is not in the lake yet, oldest first in each table."""
        state = self._state
        with state.lock:
            return segment_status(state.coordinator, state.index.segments, state.clock())

    def flushes(self) -> list[FlushRun]:
        """The flushes that run, then the latest ones that ended, each newest first."""
        return self._flushes.journal.list_all()

    def export_flushes(self, send: Callable[[Trace, TableRef, FlushReport | None], None]) -> None:
        """Has a function called with the trace of each flush from now on."""
        self._flushes.send_trace = send

    @property
    def is_paused(self) -> bool:
        """True while no flush is started."""
        with self._state.lock:
            return self._state.coordinator.paused

    def flush(
        self,
        wanted: Callable[[TableRef], bool] = lambda table: True,
        check: Callable[[], None] = lambda: None,
    ) -> list[FlushReport]:
        """Brings what matching tables hold now into the lake; a report per table.

        Raises if the flush of a table failed; its rows are still in the queue then.
        """
        self._state.wait_for_recovery(check)
        waiter = self._state.request_flush(wanted)
        try:
            self._state.wait_until(lambda: waiter.is_done, check)
        finally:
            with self._state.lock:
                self._state.waiters.remove(waiter)
        if waiter.errors:
            table, error = next(iter(waiter.errors.items()))
            raise QueueUnavailable(
                f"The rows for {table.full_name} could not be brought to the lake and stay in the "
                f"queue: {error}",
                identifier="FLUSH_FAILED",
            )
        return sorted(waiter.reports.values(), key=lambda report: report.table.full_name)

    def pause(self) -> None:
        """Starts no more flushes until the queue is resumed, not even after a restart."""
        self.settings.pause_file.touch()
        self._director.follow_pause()

    def resume(self) -> None:
        """Lets flushes start again."""
        self.settings.pause_file.unlink(missing_ok=True)
        self._director.follow_pause()

    def dead_letters(self) -> list[DeadLetter]:
        """The segments that no table accepts, oldest first."""
        return self._dead_letters.list_all()

    def dead_letter_rows(self, segment_id: str, limit: int) -> list[Any]:
        """The first rows of a dead letter, as record batches; none if its bytes are damaged."""
        return self._dead_letters.first_rows(segment_id, limit)

    def discard(self, segment_id: str) -> DeadLetter:
        """Deletes a dead letter and its rows for ever."""
        return self._replayer.discard(segment_id)

    def replay(self, segment_id: str | None = None) -> list[ReplayResult]:
        """Brings one dead letter, or all that are replayable, back into the queue.

        Raises if the named letter cannot be replayed. Without a name each result says why its
        letter was refused.
        """
        return self._replayer.replay(segment_id)

    def stop(self, grace: float) -> None:
        """Starts no more flushes, waits for those that run, and releases the directory."""
        self._state.stopping.set()
        self._director.join(grace)
        deadline = time.monotonic() + grace
        self._flushes.stop()
        with self._state.lock:
            is_idle = wait(
                partial(
                    self._state.lock.wait_for,
                    lambda: not (self._flushes.running or self._enqueuer.running),
                ),
                deadline=deadline,
            )
        if is_idle:  # otherwise the directory stays locked until the process ends
            self._ownership.release()
        self._leases.close()

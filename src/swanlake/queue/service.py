"""The queue of one server: takes rows, keeps them, and sees to it that they reach the lake.

Decisions are the coordinator's. Here its events are reported and its actions carried out: by the
director, a thread that seals segments and starts flushes, and by the threads that flush.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa

from swanlake.errors import (
    CatalogUnreachable,
    QueryError,
    QueueUnavailable,
    StartupError,
    SwanLakeError,
)
from swanlake.lake.ids import uuid7
from swanlake.lake.lake import Lake
from swanlake.pipeline.loans import Lender
from swanlake.pipeline.runner import FlushRunner
from swanlake.queue.adoption import Adoption
from swanlake.queue.coordinator import (
    Action,
    Coordinator,
    Enqueued,
    Event,
    Failed,
    Flush,
    Flushed,
    FlushRequested,
    Paused,
    Resumed,
    Seal,
    Sealed,
    Tick,
)
from swanlake.queue.dead_letters import DeadLetter, DeadLetters
from swanlake.queue.flush import Flusher, FlushReport
from swanlake.queue.holdings import Holdings, Reader
from swanlake.queue.names import Ingest, QueueTable
from swanlake.queue.ownership import Ownership
from swanlake.queue.producers import Producers, Ranges, prefix, read_notes
from swanlake.queue.replay import Replay, check_replayable, replayed
from swanlake.queue.segment import Header, Segment, SegmentDamaged
from swanlake.queue.settings import QueueSettings
from swanlake.queue.status import SegmentStatus, TableStatus, segment_status, table_status
from swanlake.queue.store import OpenSegment, SegmentFile, Store
from swanlake.queue.targets import Target, Targets
from swanlake.queue.wishes import Wish, Wishes
from swanlake.queue.writer import TableWriter

log = logging.getLogger("swanlake.queue")

#: What is larger than this is not kept in memory on its way to disk.
_SMALL_BYTES = 4 * 1024 * 1024
_TICK_SECONDS = 1.0
_SIGN_SECONDS = 5.0
_WAIT_SECONDS = 0.05
#: How long the recovery may keep others waiting; it goes on behind them.
_RECOVERY_SECONDS = 60.0
_PAUSED = "paused"


class DucklingQueue:
    """All that a session, a command or a server needs of the queue."""

    def __init__(
        self,
        settings: QueueSettings,
        lake: Lake,
        runner: FlushRunner,
        clock: Callable[[], float] = time.time,
        lender: Lender | None = None,
    ) -> None:
        self.settings = settings
        self._lake = lake
        self._clock = clock
        self._claims = lake.claims()
        try:
            self._ownership = Ownership(settings.root, self._claims)
        except OSError as unusable:
            self._claims.close()
            raise StartupError(
                f"The queue cannot use its directory {settings.root}: {unusable.strerror}."
            ) from unusable
        self._store = Store(settings.root, self._ownership.directory)
        self.targets = Targets(lake)
        self._dead_letters = DeadLetters(settings.dead_letters)
        self._flusher = Flusher(lake, runner, self._dead_letters, lender)
        self._producers = Producers(self._taken_by)
        self._adoption = Adoption(self._ownership, self._store, self._dead_letters, self._on_sealed)
        self._coordinator = Coordinator(settings.limits)
        self._coordinator.paused = (settings.root / _PAUSED).exists()
        #: Guards the coordinator, the segments and the wishes; nothing is waited for under it.
        self._lock = threading.Condition()
        self._writers: dict[QueueTable, TableWriter] = {}
        self._holdings = Holdings()
        self._wishes = Wishes()
        self._actions: SimpleQueue[Action | None] = SimpleQueue()
        #: Flushes that are under way.
        self._running = 0
        self._stopping = threading.Event()
        self._recovered = threading.Event()
        self._lost_ownership = False
        self._replaying = threading.Lock()
        #: Inserts that are under way.
        self._enqueuing = 0
        self._flushes = ThreadPoolExecutor(
            settings.limits.max_parallel_flushes, thread_name_prefix="swanlake-flush"
        )
        self._director = threading.Thread(target=self._direct, name="swanlake-queue", daemon=True)
        self._director.start()

    # ---- writing -------------------------------------------------------------------------------

    def enqueue(
        self,
        target: Target,
        batches: Iterable[Any],
        ingest: Ingest | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> int:
        """Keeps rows for a table and returns their number once they are on disk: all, or none.

        The batches have the columns of the target's layout, by place. A batch whose name was taken
        before is not taken again.
        """
        with self._under_way():
            if ingest is None:
                return self._keep(target, iter(batches), None, check)
            self._await_recovery(check)
            with self._producers.taking(target.table, ingest, check) as is_new:
                if not is_new:
                    return sum(batch.num_rows for batch in batches)
                return self._keep(target, iter(batches), ingest, check)

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """An insert: the directory is not given up before it is over."""
        with self._lock:
            self._check_accepting()
            self._enqueuing += 1
        try:
            yield
        finally:
            with self._lock:
                self._enqueuing -= 1

    def _keep(
        self,
        target: Target,
        batches: Iterator[Any],
        ingest: Ingest | None,
        check: Callable[[], None],
    ) -> int:
        few: list[Any] = []
        size = 0
        for batch in batches:
            few.append(batch)
            size += batch.nbytes
            if size > _SMALL_BYTES:
                return self._keep_many(target, chain(few, batches), ingest, check)
        few = [batch for batch in few if batch.num_rows]
        if not few:
            return 0
        rows = few[0] if len(few) == 1 else pa.concat_batches(few)
        self._writer(target.table).append(rows, target.layout, ingest, check)
        return int(rows.num_rows)

    def _keep_many(
        self,
        target: Target,
        batches: Iterator[Any],
        ingest: Ingest | None,
        check: Callable[[], None],
    ) -> int:
        """A segment of its own, which nobody sees before it is whole."""
        first = next(batches)

        def watched() -> Iterator[Any]:
            for batch in chain([first], batches):
                check()
                yield batch

        header = Header(uuid7(), target.table, self._clock())
        segment = self._store.write_sealed(
            header,
            header.schema(first.schema, target.layout.columns),
            ((batch, ingest) for batch in watched()),
        )
        self._on_sealed(segment)
        return segment.rows

    def _check_accepting(self) -> None:
        if self._lost_ownership:
            raise QueueUnavailable(
                "Another server has taken this one for dead and took its queue over. Restart it."
            )
        if self._stopping.is_set():
            raise QueueUnavailable("The server is shutting down; retry elsewhere.")
        if self._holdings.bytes >= self.settings.max_bytes:
            raise QueueUnavailable(
                f"The queue holds {self._holdings.bytes:,} bytes that are not in the lake yet, and "
                f"duckling_queue_max_bytes is {self.settings.max_bytes:,}. Nothing was written. "
                "Retry in a few seconds; `CALL duckling_queue_status()` says what it waits for.",
                identifier="QUEUE_FULL",
            )

    def _writer(self, table: QueueTable) -> TableWriter:
        with self._lock:
            writer = self._writers.get(table)
            if writer is None:
                writer = self._writers[table] = TableWriter(
                    table, self._store, self._clock, self._on_written, self._on_sealed
                )
            return writer

    def _on_written(self, segment: OpenSegment) -> None:
        with self._lock:
            self._holdings.put(segment)
            self._tell(
                Enqueued(segment.table, segment.id, segment.rows, segment.size, self._clock())
            )

    def _on_sealed(self, segment: SegmentFile) -> None:
        with self._lock:
            if self._is_sealed(segment):
                return  # replayed here, and found in the directory of a server that died in it
            self._holdings.put(segment)
            self._tell(
                Sealed(
                    segment.table,
                    segment.id,
                    segment.rows,
                    segment.size,
                    segment.header.created_at,
                    self._clock(),
                )
            )

    def _is_sealed(self, segment: SegmentFile) -> bool:
        state = self._coordinator.tables.get(segment.table)
        return state is not None and any(one.id == segment.id for one in state.sealed)

    # ---- reading -------------------------------------------------------------------------------

    def reader(self) -> Reader:
        """Somebody whose view of the lake may grow old: what is flushed then stays for them."""
        with self._lock:
            return self._holdings.enter()

    def leave(self, reader: Reader) -> None:
        """Lets go of what stayed for a reader alone."""
        with self._lock:
            gone = self._holdings.leave(reader)
        self._remove(gone)

    def buffered(
        self, table: QueueTable, check: Callable[[], None], reader: Reader | None = None
    ) -> list[Segment]:
        """The segments of a table that may not be in the lake yet, as they are at this moment.

        For a reader also those that came into the lake since it is one. A segment that is gone by
        the time it is opened is in the lake.
        """
        self._await_recovery(check)
        with self._lock:
            segments = self._holdings.of(table, reader)
        opened: list[Segment] = []
        for segment in segments:
            try:
                opened.append(segment.open())
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
        with self._lock:
            return table_status(self._coordinator, self._clock())

    def segments(self) -> list[SegmentStatus]:
        """Every segment that is not in the lake yet, oldest first in each table."""
        with self._lock:
            return segment_status(self._coordinator, self._holdings.segments, self._clock())

    # ---- control -------------------------------------------------------------------------------

    def flush(
        self,
        wanted: Callable[[QueueTable], bool] = lambda table: True,
        check: Callable[[], None] = lambda: None,
    ) -> list[FlushReport]:
        """Brings what tables hold now into the lake, and says what became of each.

        Raises if that failed for one of them; the rows are still in the queue then.
        """
        self._await_recovery(check)
        with self._lock:
            if self._coordinator.paused:
                raise QueueUnavailable(
                    "The queue is paused; `CALL duckling_queue_resume()` lets it flush again.",
                    identifier="QUEUE_PAUSED",
                )
            wish = Wish(
                {
                    table: {segment.id for segment in state.segments}
                    for table, state in self._coordinator.tables.items()
                    if wanted(table)
                }
            )
            self._wishes.add(wish)
            self._tell(FlushRequested(frozenset(wish.segments), self._clock()))
        try:
            self._wait_until(lambda: wish.fulfilled, check)
        finally:
            with self._lock:
                self._wishes.remove(wish)
        if wish.errors:
            table, error = next(iter(wish.errors.items()))
            raise QueueUnavailable(
                f"The rows for {table.full_name} could not be brought to the lake and stay in the "
                f"queue: {error}",
                identifier="FLUSH_FAILED",
            )
        return sorted(wish.reports.values(), key=lambda report: report.table.full_name)

    def pause(self) -> None:
        """No flush begins any more, also after a restart, until the queue is resumed."""
        (self.settings.root / _PAUSED).touch()
        self._follow_pause()

    def resume(self) -> None:
        """Flushes begin again."""
        (self.settings.root / _PAUSED).unlink(missing_ok=True)
        self._follow_pause()

    def dead_letters(self) -> list[DeadLetter]:
        """The segments that were put aside."""
        return self._dead_letters.all()

    def replay(self, segment_id: str | None = None) -> list[Replay]:
        """Brings dead letters back into the queue: one, or all that can be.

        One that cannot be is an error if it was asked for, and else says why it stays.
        """
        self.targets.forget()
        with self._replaying:
            if segment_id is not None:
                letter = self._dead_letters.named(segment_id)
                self._replay(letter)
                return [Replay(letter)]
            done: list[Replay] = []
            for letter in self._dead_letters.all():
                try:
                    self._replay(letter)
                    done.append(Replay(letter))
                except SwanLakeError as refused:
                    done.append(Replay(letter, refused.message))
            return done

    def _replay(self, letter: DeadLetter) -> None:
        check_replayable(letter)
        with self._lock:
            known = self._holdings.segments.get(UUID(letter.segment_id))
            state = self._coordinator.tables.get(known.table) if known else None
            flushing = state is not None and UUID(letter.segment_id) in state.flushing
        if flushing:
            raise QueueUnavailable(
                f"The flush that made {letter.segment_id} a dead letter is not over yet; try again."
            )
        if known is None:
            target = self.targets.find(letter.catalog, letter.schema, letter.table)
            # Its id is what it was: if it is in the lake by now, the ledger knows.
            self._on_sealed(replayed(letter, self._dead_letters, target, self._store))
        # Else a replay was cut off, and its segment was adopted.
        self._dead_letters.remove(letter)

    def stop(self, grace: float) -> None:
        """Begins no more flushes, waits for those that run, and lets go of the directory."""
        self._stopping.set()
        self._actions.put(None)
        self._director.join(max(grace, _TICK_SECONDS))
        deadline = time.monotonic() + grace
        # What was decided and has not begun is left for the next start.
        self._flushes.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            while (self._running or self._enqueuing) and time.monotonic() < deadline:
                self._lock.wait(_WAIT_SECONDS)
            is_idle = not self._running and not self._enqueuing
        if is_idle:  # else the directory stays locked until the process is gone
            self._ownership.release()
        self._claims.close()

    # ---- the director --------------------------------------------------------------------------

    def _tell(self, event: Event) -> None:
        """Reports an event; the caller holds the lock."""
        for action in self._coordinator.handle(event):
            self._actions.put(action)
        self._lock.notify_all()

    def _direct(self) -> None:
        while not self._stopping.is_set() and not self._guarded(self._adopt):
            self._stopping.wait(_TICK_SECONDS)
        self._recovered.set()
        with self._lock:
            self._lock.notify_all()
        ticked = swept = signed = time.monotonic()
        pause = min(_TICK_SECONDS, self.settings.limits.sweep_seconds)
        while not self._stopping.is_set():
            with suppress(Empty):
                action = self._actions.get(timeout=max(0.0, ticked + pause - time.monotonic()))
                if action is not None:
                    self._guarded(partial(self._act, action))
                    if time.monotonic() - ticked < pause:
                        continue
            ticked = time.monotonic()
            with self._lock:
                self._tell(Tick(self._clock()))
            if ticked - signed >= _SIGN_SECONDS:
                signed = ticked
                self._guarded(self._give_sign)
            if ticked - swept >= self.settings.limits.sweep_seconds:
                swept = ticked
                self._guarded(self._follow_pause)
                self._guarded(self._adopt)
                self._guarded(lambda: self._store.remove_kept(self.settings.retention_seconds))

    def _guarded(self, work: Callable[[], object]) -> bool:
        """False if it failed; it is tried again with the next sweep."""
        try:
            work()
        except CatalogUnreachable as unreachable:
            log.warning("%s", unreachable)
            return False
        except Exception:
            log.exception("the queue's housekeeping failed")
            return False
        return True

    def _follow_pause(self) -> None:
        """Servers on one root are paused and resumed together."""
        paused = (self.settings.root / _PAUSED).exists()
        with self._lock:
            if paused == self._coordinator.paused:
                return
            if paused:
                self._wishes.give_up("the queue was paused.")
            self._tell(Paused(self._clock()) if paused else Resumed(self._clock()))

    def _act(self, action: Action) -> None:
        match action:
            case Seal():
                with self._lock:
                    segment = self._holdings.segments.get(action.segment)
                if isinstance(segment, OpenSegment):
                    self._writer(action.table).seal(segment)
            case Flush():
                self._flushes.submit(self._flush, action)

    def _give_sign(self) -> None:
        if not self._ownership.give_sign():
            self._lost_ownership = True
            log.critical("another server has taken over the queue directory of this one")

    def _adopt(self) -> None:
        self._adoption.adopt()
        self._producers.forget()

    def _flush(self, action: Flush) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            self._running += 1
        try:
            self._bring(action)
        except Exception as error:
            log.exception("the end of a flush of %s failed", action.table.full_name)
            self._flush_failed(action, error)
        finally:
            with self._lock:
                self._running -= 1
                self._lock.notify_all()

    def _bring(self, action: Flush) -> None:
        with self._lock:
            segments = [self._holdings.segments[id] for id in action.segments]
        try:
            report = self._flusher.flush(action.table, segments)
        except Exception as error:  # noqa: BLE001 - whatever it is, the rows stay in the queue
            self._flush_failed(action, error)
            return
        with self._lock:
            gone = self._holdings.linger(segments)
        self._remove(gone)
        log.info(
            "flushed %s: %d rows, %d files, snapshot %s, %.0f ms",
            action.table.full_name,
            report.rows,
            report.files,
            report.snapshot_id,
            report.milliseconds,
        )
        with self._lock:
            self._holdings.drop(segments)
            self._wishes.flushed(action.table, action.segments, report)
            self._tell(Flushed(action.table, action.segments, self._clock()))

    def _remove(self, segments: list[SegmentFile]) -> None:
        for segment in segments:
            try:
                self._store.remove(segment, keep=self.settings.retention_seconds > 0)
            except OSError as stays:
                # It is in the ledger: whoever finds it only removes it.
                log.warning("%s cannot be removed: %s", segment.path, stays)

    def _flush_failed(self, action: Flush, error: Exception) -> None:
        expected = isinstance(error, SwanLakeError | duckdb.Error | OSError)
        text = " ".join(str(error).split()) or type(error).__name__
        log.warning(
            "the flush of %s failed and is tried again: %s",
            action.table.full_name,
            text,
            exc_info=not expected,
        )
        with self._lock:
            self._wishes.failed(action.table, action.segments, text)
            self._tell(Failed(action.table, text, self._clock()))

    # ---- inside --------------------------------------------------------------------------------

    def _taken_by(self, table: QueueTable, producer: str) -> Ranges:
        """The batches of a producer that are in the queue or in the lake."""
        # In this order: what moves from the one to the other meanwhile is seen at least once.
        with self._lock:
            segments = self._holdings.of(table)
        waiting = [one.taken.ranges(producer) for one in segments]
        catalog = self._lake.catalog(table.catalog)
        taken = read_notes(catalog.ledger_under(prefix(producer, table.table_id)))
        for first, last in chain.from_iterable(waiting):
            taken.add(first, last)
        return taken

    def _await_recovery(self, check: Callable[[], None]) -> None:
        """Returns when what was found at the start is known: without it no answer is whole."""
        deadline = time.monotonic() + _RECOVERY_SECONDS

        def checked() -> None:
            check()
            if time.monotonic() > deadline:
                raise QueueUnavailable(
                    "The queue still looks at what it held before the start; retry in a moment. "
                    "The server's log says what it waits for."
                )

        self._wait_until(self._recovered.is_set, checked)

    def _wait_until(self, reached: Callable[[], bool], check: Callable[[], None]) -> None:
        with self._lock:
            while not reached():
                if self._stopping.is_set():
                    raise QueueUnavailable("The server is shutting down; retry elsewhere.")
                self._lock.wait(_WAIT_SECONDS)
                check()

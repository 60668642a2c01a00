"""Enqueue: rows of a client become durable in a segment."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from typing import Any

import pyarrow as pa

from swanlake._internal.memory_budget import Charge, MemoryAccount, MemoryBudget
from swanlake.errors import InvalidRequest, QueueUnavailable
from swanlake.lake.lake import Lake
from swanlake.lake.model.ids import uuid7
from swanlake.lake.model.table_ref import TableRef
from swanlake.lake.read.table_cache import CachedTable
from swanlake.queue.batch_ids import BatchId, IntervalSet, ledger_prefix, parse_ledger_notes
from swanlake.queue.coordinator import Seal
from swanlake.queue.ingest.deduplication import Deduplicator
from swanlake.queue.ingest.writer import TableWriter
from swanlake.queue.state import QueueState, shutting_down
from swanlake.queue.storage.segment import SegmentHeader
from swanlake.queue.storage.store import OpenSegmentFile, SegmentStore

#: Inserts above this size are streamed into a segment of their own instead of buffered.
_BUFFERED_BYTES = 4 * 1024 * 1024
#: Of one name in a path, on the file systems in use.
_MAX_NAME_BYTES = 255
#: For rows that are no caller's, such as those of a test.
_UNLIMITED = MemoryBudget(sys.maxsize).account("")


class Enqueuer:
    """Writes rows to segments: small inserts share an open one, large ones get their own."""

    def __init__(self, state: QueueState, store: SegmentStore, lake: Lake) -> None:
        self._state = state
        self._store = store
        self._lake = lake
        self._writers: dict[TableRef, TableWriter] = {}
        self.deduplicator = Deduplicator(self._read_ingested)
        #: Inserts under way, guarded by the state's lock.
        self.running = 0

    def enqueue(
        self,
        target: CachedTable,
        batches: Iterable[Any],
        batch_id: BatchId | None,
        check: Callable[[], None],
        account: MemoryAccount | None = None,
    ) -> int:
        """Returns the number of rows once all of them are on disk; on an error none are."""
        _check_directory(target.layout.directory)
        caller = account.caller if account else ""
        with self._counted(target.table, caller):
            if batch_id is None:
                return self._write(target, iter(batches), None, check, account)
            self._state.wait_for_recovery(check)
            with self.deduplicator.admit(target.table, batch_id, check) as is_new:
                if not is_new:
                    return sum(batch.num_rows for batch in batches)
                return self._write(target, iter(batches), batch_id, check, account)

    @property
    def waiting_bytes(self) -> int:
        """The bytes of small inserts that wait to be written."""
        with self._state.lock:
            writers = list(self._writers.values())
        return sum(writer.waiting_bytes for writer in writers)

    def seal(self, action: Seal) -> None:
        """Seals the open segment that the action names, if it still is open."""
        with self._state.lock:
            segment = self._state.index.segments.get(action.segment)
        if isinstance(segment, OpenSegmentFile):
            self._writer(action.table).seal(segment)

    @contextmanager
    def _counted(self, table: TableRef, caller: str) -> Iterator[None]:
        """Counts an insert, so that a shutdown keeps the directory until it ends."""
        with self._state.lock:
            self._check_accepting(table, caller)
            self.running += 1
        try:
            yield
        finally:
            with self._state.lock:
                self.running -= 1

    def check_open(self) -> None:
        """Raises QueueUnavailable if the queue stops, or is not this server's any more."""
        if self._state.lost_ownership:
            raise QueueUnavailable(
                "Another server has taken this one for dead and took its queue over. Restart it."
            )
        if self._state.stopping.is_set():
            raise shutting_down()

    def _check_accepting(self, table: TableRef, caller: str) -> None:
        self.check_open()
        refusal = self._state.index.find_refusal(table, caller)
        if refusal:
            raise QueueUnavailable(
                f"{refusal}, and duckling_queue_max_bytes is {self._state.index.tables.limit:,}. "
                "Nothing was written. Retry in a few seconds; `CALL duckling_queue_status()` says "
                "what it waits for.",
                identifier="QUEUE_FULL",
            )

    def _write(
        self,
        target: CachedTable,
        batches: Iterator[Any],
        batch_id: BatchId | None,
        check: Callable[[], None],
        account: MemoryAccount | None,
    ) -> int:
        with (account or _UNLIMITED).open() as memory:
            return self._write_charged(target, batches, batch_id, check, memory)

    def _write_charged(
        self,
        target: CachedTable,
        batches: Iterator[Any],
        batch_id: BatchId | None,
        check: Callable[[], None],
        memory: Charge,
    ) -> int:
        buffered: list[Any] = []
        size = 0
        for batch in batches:
            buffered.append(batch)
            size += batch.nbytes
            if size > _BUFFERED_BYTES or not memory.add(batch.nbytes):
                return self._write_segment(
                    target, chain(buffered, batches), batch_id, check, memory.caller
                )
        buffered = [batch for batch in buffered if batch.num_rows]
        if not buffered:
            return 0
        rows = buffered[0] if len(buffered) == 1 else pa.concat_batches(buffered)
        writer = self._writer(target.table)
        writer.append(rows, target.layout, batch_id, check, memory.caller)
        return int(rows.num_rows)

    def _write_segment(
        self,
        target: CachedTable,
        batches: Iterator[Any],
        batch_id: BatchId | None,
        check: Callable[[], None],
        caller: str,
    ) -> int:
        """Streams rows into a segment of their own, which is invisible until it is complete."""
        first = next(batches)

        def checked() -> Iterator[tuple[Any, BatchId | None]]:
            for batch in chain([first], batches):
                check()
                yield batch, batch_id

        header = SegmentHeader(uuid7(), target.table, self._state.clock())
        schema = header.schema(first.schema, target.layout.columns)
        segment = self._store.write_sealed(header, schema, checked())
        self._state.record_sealed(segment, caller)
        return segment.rows

    def _writer(self, table: TableRef) -> TableWriter:
        state = self._state
        with state.lock:
            writer = self._writers.get(table)
            if writer is None:
                writer = self._writers[table] = TableWriter(
                    table, self._store, state.clock, state.record_written, state.record_sealed
                )
            return writer

    def _read_ingested(self, table: TableRef, producer: str) -> IntervalSet:
        """The sequence numbers of a producer that are in the queue or in the lake."""
        # The queue first: a batch that is flushed in between is then seen at least once.
        with self._state.lock:
            segments = self._state.index.find(table)
        queued = [segment.batch_ids.intervals(producer) for segment in segments]
        catalog = self._lake.catalog(table.catalog)
        ingested = parse_ledger_notes(catalog.list_ledger(ledger_prefix(producer, table.table_id)))
        for first, last in chain.from_iterable(queued):
            ingested.add(first, last)
        return ingested


@lru_cache
def _check_directory(directory: str) -> None:
    """Raises InvalidRequest if the rows could never be flushed: no file fits into the directory."""
    longest = max(directory.split("/"), key=len)
    if "://" not in directory and len(longest.encode()) > _MAX_NAME_BYTES:
        raise InvalidRequest(
            f"The directory of the table has a name of {len(longest)} characters, which is too "
            "long for a file system: no file can be written for it. Create the table under a "
            "shorter name.",
            identifier="NAME_TOO_LONG",
        )

"""Idempotent producers: a batch that is sent again is enqueued once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from swanlake._internal.waiting import wait
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.batch_ids import BatchId, IntervalSet

#: Entries of the cache; when it is full it is cleared and filled again on demand.
_MAX_CACHED = 100_000


class Deduplicator:
    """Admits each batch id of a table once, whichever connection it comes from."""

    def __init__(self, read_ingested: Callable[[TableRef, str], IntervalSet]) -> None:
        self._read_ingested = read_ingested
        self._changed = threading.Condition()
        self._cache: dict[tuple[TableRef, str], IntervalSet] = {}
        self._in_flight: set[tuple[TableRef, BatchId]] = set()

    @contextmanager
    def admit(
        self, table: TableRef, batch_id: BatchId, check: Callable[[], None]
    ) -> Iterator[bool]:
        """True if the batch is new; it counts as ingested when the block succeeds."""
        key = (table, batch_id)
        with self._changed:
            wait(partial(self._changed.wait_for, lambda: key not in self._in_flight), check)
            self._in_flight.add(key)
        try:
            is_new = batch_id.sequence not in self._ingested(table, batch_id.producer)
            yield is_new
            ingested = self._ingested(table, batch_id.producer)
            with self._changed:  # other batches of the same producer end concurrently
                ingested.add(batch_id.sequence, batch_id.sequence)
        except BaseException:
            self.invalidate()  # the batch may be on disk all the same
            raise
        finally:
            with self._changed:
                self._in_flight.discard(key)
                self._changed.notify_all()

    def invalidate(self) -> None:
        """Clears the cache: ingested batches are read again from the queue and the ledger."""
        with self._changed:
            self._cache.clear()

    def _ingested(self, table: TableRef, producer: str) -> IntervalSet:
        key = (table, producer)
        with self._changed:
            cached = self._cache.get(key)
        if cached is None:
            ingested = self._read_ingested(table, producer)
            with self._changed:
                if len(self._cache) >= _MAX_CACHED:
                    self._cache.clear()
                cached = self._cache.setdefault(key, ingested)
        return cached

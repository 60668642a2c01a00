"""Replay: a dead letter becomes a segment again, for the table that has its name now.

Or it is discarded, which excludes a replay at the same time.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from uuid import UUID

from swanlake.errors import InvalidRequest, QueueUnavailable, SwanLakeError
from swanlake.lake.model.layout import Column, folded
from swanlake.lake.read.table_cache import CachedTable, TableCache
from swanlake.queue.flush.dead_letters import DeadLetter, DeadLetters
from swanlake.queue.state import QueueState
from swanlake.queue.storage.segment import Segment, SegmentDamaged, SegmentHeader, nested_columns
from swanlake.queue.storage.store import SegmentFile, SegmentStore


@dataclass(frozen=True)
class ReplayResult:
    """The outcome of a replay."""

    letter: DeadLetter
    #: Why the letter was not replayed; None if it was.
    refused: str | None = None


class Replayer:
    """Brings dead letters back into the queue, one replay at a time."""

    def __init__(
        self,
        state: QueueState,
        store: SegmentStore,
        dead_letters: DeadLetters,
        table_cache: TableCache,
    ) -> None:
        self._state = state
        self._store = store
        self._dead_letters = dead_letters
        self._table_cache = table_cache
        self._lock = threading.Lock()

    def replay(self, segment_id: str | None) -> list[ReplayResult]:
        """Replays one letter, or raises; without an id, all letters, with an outcome for each."""
        self._table_cache.invalidate_all()
        with self._lock:
            if segment_id is not None:
                letter = self._dead_letters.get(segment_id)
                self._replay(letter)
                return [ReplayResult(letter)]
            results: list[ReplayResult] = []
            for letter in self._dead_letters.list_all():
                try:
                    self._replay(letter)
                    results.append(ReplayResult(letter))
                except SwanLakeError as error:
                    results.append(ReplayResult(letter, error.message))
            return results

    def discard(self, segment_id: str) -> DeadLetter:
        """Deletes a letter; raises if there is none, or if its flush is not over yet."""
        with self._lock:
            letter = self._dead_letters.get(segment_id)
            self._find_queued(letter)
            self._dead_letters.remove(letter)
        return letter

    def _replay(self, letter: DeadLetter) -> None:
        check_replayable(letter)
        queued = self._find_queued(letter)
        # A segment that is queued already was adopted after an interrupted replay.
        if queued is None:
            target = self._table_cache.find(letter.catalog, letter.schema, letter.table)
            # The segment keeps its id: if it is in the lake by now, the ledger knows.
            self._state.record_sealed(
                restore_segment(letter, self._dead_letters, target, self._store)
            )
        self._dead_letters.remove(letter)

    def _find_queued(self, letter: DeadLetter) -> SegmentFile | None:
        """The segment of a letter if the queue has it; raises if it is being flushed."""
        segment_id = UUID(letter.segment_id)
        with self._state.lock:
            queued = self._state.index.segments.get(segment_id)
            state = self._state.coordinator.tables.get(queued.table) if queued else None
            is_flushing = state is not None and segment_id in state.flushing
        if is_flushing:
            raise QueueUnavailable(
                f"The flush that made {letter.segment_id} a dead letter is not over yet; try again."
            )
        return queued


def check_replayable(letter: DeadLetter) -> None:
    """Raises if a letter holds no rows to replay."""
    if not letter.replayable:
        raise InvalidRequest(
            f"The dead letter {letter.segment_id} holds damaged bytes and no rows to replay.",
            identifier="NOT_REPLAYABLE",
        )


def restore_segment(
    letter: DeadLetter, letters: DeadLetters, target: CachedTable, store: SegmentStore
) -> SegmentFile:
    """Writes the rows of a letter as a segment; the letter can be removed then."""
    check_replayable(letter)
    try:
        content = letters.read(letter)
    except SegmentDamaged as damaged:
        raise InvalidRequest(
            f"The dead letter {letter.segment_id} cannot be read: {damaged}.",
            identifier="NOT_REPLAYABLE",
        ) from damaged
    header = SegmentHeader(content.header.id, target.table, content.header.created_at)
    schema = header.schema(content.schema, _match_columns(content, target))
    batch_ids = (batch.batch_id for batch in content.batches)
    rows = zip(content.record_batches(), batch_ids, strict=True)
    segment = store.write_sealed(header, schema, rows)
    letters.add_unreplayed_parts(letter, content)
    return segment


def _match_columns(content: Segment, target: CachedTable) -> list[Column]:
    """The target's columns for those of a letter: by id in the same table, else by name."""
    if content.header.table == target.table:
        return nested_columns(content.schema)
    by_name = {folded(column.name): column for column in target.layout.columns}
    unknown = [name for name in content.schema.names if folded(name) not in by_name]
    if unknown:
        raise InvalidRequest(
            f"The table {target.table.full_name} has no column {unknown[0]}, and the dead letter "
            f"{content.header.id} has values for it. Add the column to replay it.",
            identifier="NOT_REPLAYABLE",
        )
    # Nested fields are left out, so they are matched by name as well.
    return [Column(by_name[folded(name)].id, name, "") for name in content.schema.names]

"""The contents of the queue, for its status procedures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.coordinator import Coordinator, TableState
from swanlake.queue.storage.store import SegmentFile


@dataclass(frozen=True)
class TableStatus:
    """The rows of one table that are in the queue."""

    table: TableRef
    state: str
    rows: int
    bytes: int
    segments: int
    oldest_seconds: float
    failures: int
    last_error: str


@dataclass(frozen=True)
class SegmentStatus:
    """One segment that is not in the lake yet."""

    table: TableRef
    id: UUID
    state: str
    rows: int
    bytes: int
    age_seconds: float
    path: str


def table_status(coordinator: Coordinator, now: float) -> list[TableStatus]:
    """A row per table that has rows in the queue."""
    return [
        TableStatus(
            table,
            _state(state, coordinator.paused),
            sum(segment.rows for segment in state.segments),
            sum(segment.bytes for segment in state.segments),
            len(state.segments),
            _age(state.oldest_at, now),
            state.failures,
            state.last_error,
        )
        for table, state in _sorted_tables(coordinator)
        if state.segments
    ]


def segment_status(
    coordinator: Coordinator, files: Mapping[UUID, SegmentFile], now: float
) -> list[SegmentStatus]:
    """A row per segment, oldest first in each table."""
    return [
        SegmentStatus(
            table,
            segment.id,
            _segment_state(state, segment.id),
            segment.rows,
            segment.bytes,
            _age(segment.oldest_at, now),
            str(files[segment.id].path),
        )
        for table, state in _sorted_tables(coordinator)
        for segment in state.segments
    ]


def _state(state: TableState, paused: bool) -> str:
    if state.flushing:
        return "flushing"
    if paused:
        return "paused"
    if state.failures:
        return "retrying"
    return "sealed" if state.sealed else "open"


def _segment_state(state: TableState, id: UUID) -> str:
    if id in state.flushing:
        return "flushing"
    return "open" if state.open is not None and state.open.id == id else "sealed"


def _age(since: float, now: float) -> float:
    return max(0.0, round(now - since, 3))


def _sorted_tables(coordinator: Coordinator) -> list[tuple[TableRef, TableState]]:
    return sorted(coordinator.tables.items(), key=lambda item: item[0].full_name)

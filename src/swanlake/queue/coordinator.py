"""Decides when segments are sealed and flushed: events in, actions out, no clock and no I/O.

Its memory grows with the number of tables and segments, not with the rows in them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from swanlake._internal.backoff import backoff
from swanlake.lake.model.table_ref import TableRef


@dataclass(frozen=True)
class Limits:
    """When a segment is full, how old rows may get, and how many flushes run at once."""

    max_rows: int = 50_000
    max_bytes: int = 100_000_000
    max_age_seconds: float = 300.0
    sweep_seconds: float = 60.0
    max_parallel_flushes: int = 2
    first_retry_seconds: float = 1.0
    longest_retry_seconds: float = 60.0


@dataclass(frozen=True)
class Enqueued:
    """Rows are on disk in the table's open segment; the totals are those of the segment."""

    table: TableRef
    segment: UUID
    rows: int
    bytes: int


@dataclass(frozen=True)
class Sealed:
    """A segment takes no more rows; segments found at startup are sealed."""

    table: TableRef
    segment: UUID
    rows: int
    bytes: int
    oldest_at: float


@dataclass(frozen=True)
class Flushed:
    """These segments are in the lake or among the dead letters."""

    table: TableRef
    segments: tuple[UUID, ...]


@dataclass(frozen=True)
class Failed:
    """A flush failed and changed nothing."""

    table: TableRef
    error: str


@dataclass(frozen=True)
class FlushRequested:
    """A caller asks for a flush of these tables now."""

    tables: frozenset[TableRef]


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


Event = Enqueued | Sealed | Flushed | Failed | FlushRequested | Tick


@dataclass(frozen=True)
class Seal:
    """Close the table's open segment."""

    table: TableRef
    segment: UUID


@dataclass(frozen=True)
class Flush:
    """Flush these segments of one table, in this order."""

    table: TableRef
    segments: tuple[UUID, ...]


Action = Seal | Flush


@dataclass
class SegmentState:
    """A segment that takes rows, is being sealed, or waits for its flush."""

    id: UUID
    rows: int
    bytes: int
    oldest_at: float
    sealing: bool = False


@dataclass
class TableState:
    """The segments of one table, and its flush and retry state."""

    open: SegmentState | None = None
    sealed: list[SegmentState] = field(default_factory=list)
    flushing: tuple[UUID, ...] = ()
    requested: bool = False
    failures: int = 0
    retry_at: float = 0.0
    last_error: str = ""

    @property
    def segments(self) -> list[SegmentState]:
        """All of them, oldest first."""
        return [*self.sealed, *([self.open] if self.open else [])]

    @property
    def oldest_at(self) -> float:
        return min(segment.oldest_at for segment in self.segments)


class Coordinator:
    """The state of all tables of one queue: takes events, returns the actions to perform."""

    def __init__(self, limits: Limits, jitter: random.Random | None = None) -> None:
        self._limits = limits
        self._jitter = jitter or random.Random()
        #: Read-only for callers.
        self.tables: dict[TableRef, TableState] = {}
        self._running = 0
        self._swept_at = float("-inf")
        #: While it is set, no flush starts.
        self.paused = False

    def handle(self, event: Event, at: float) -> list[Action]:
        """The actions that an event makes due at this time."""
        seals: Iterable[Seal] = ()
        match event:
            case Enqueued():
                return list(self._enqueued(event, at))  # nothing else becomes due
            case Sealed():
                self._sealed(event)
            case Flushed():
                self._flushed(event)
            case Failed():
                self._failed(event, at)
            case FlushRequested():
                seals = self._requested(event, at)
            case Tick():
                seals = self._sweep(at)
        return [*seals, *self._flushes(at)]

    def _state(self, table: TableRef) -> TableState:
        return self.tables.setdefault(table, TableState())

    def _enqueued(self, event: Enqueued, at: float) -> Iterator[Seal]:
        state = self._state(event.table)
        if state.open is None or state.open.id != event.segment:
            state.open = SegmentState(event.segment, event.rows, event.bytes, at)
        else:
            state.open.rows, state.open.bytes = event.rows, event.bytes
        if event.rows >= self._limits.max_rows or event.bytes >= self._limits.max_bytes:
            yield from self._seal(event.table)

    def _sealed(self, event: Sealed) -> None:
        state = self._state(event.table)
        if state.open is not None and state.open.id == event.segment:
            state.open = None
        state.sealed.append(SegmentState(event.segment, event.rows, event.bytes, event.oldest_at))
        state.sealed.sort(key=lambda segment: segment.oldest_at)

    def _flushed(self, event: Flushed) -> None:
        state = self._state(event.table)
        self._finish_flush(state)
        flushed = set(event.segments)
        state.sealed = [segment for segment in state.sealed if segment.id not in flushed]
        state.failures, state.retry_at, state.last_error = 0, 0.0, ""
        state.requested = state.requested and bool(state.sealed)
        if not state.segments:
            del self.tables[event.table]

    def _failed(self, event: Failed, at: float) -> None:
        state = self._state(event.table)
        self._finish_flush(state)
        state.failures += 1
        state.last_error = event.error
        state.retry_at = at + backoff(
            state.failures,
            self._jitter.random,
            first=self._limits.first_retry_seconds,
            longest=self._limits.longest_retry_seconds,
        )
        state.requested = False

    def _finish_flush(self, state: TableState) -> None:
        if state.flushing:
            self._running -= 1
            state.flushing = ()

    def _requested(self, event: FlushRequested, at: float) -> Iterator[Seal]:
        for table in sorted(event.tables & self.tables.keys()):
            state = self.tables[table]
            state.requested, state.retry_at = True, at
            yield from self._seal(table)

    def _sweep(self, now: float) -> Iterator[Seal]:
        if now - self._swept_at < self._limits.sweep_seconds:
            return
        self._swept_at = now
        for table, state in self.tables.items():
            if state.open and now - state.open.oldest_at >= self._limits.max_age_seconds:
                yield from self._seal(table)

    def _seal(self, table: TableRef) -> Iterator[Seal]:
        open = self.tables[table].open
        if open is not None and not open.sealing:
            open.sealing = True
            yield Seal(table, open.id)

    def _flushes(self, now: float) -> Iterator[Flush]:
        free = self._limits.max_parallel_flushes - self._running
        if self.paused or free <= 0:
            return
        due = [table for table, state in self.tables.items() if _is_due(state, now)]
        due.sort(key=lambda table: self.tables[table].oldest_at)
        for table in due[:free]:
            state = self.tables[table]
            state.flushing = tuple(segment.id for segment in state.sealed)
            self._running += 1
            yield Flush(table, state.flushing)


def _is_due(state: TableState, now: float) -> bool:
    if state.flushing or not state.sealed or now < state.retry_at:
        return False
    # A requested flush waits for the segment that was open at the request.
    return not (state.requested and state.open is not None and state.open.sealing)

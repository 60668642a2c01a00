"""When segments are sealed and flushed: events in, actions out, no clock of its own, no I/O.

What it remembers grows with the number of tables and segments, never with the rows in them.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

from swanlake.queue.names import QueueTable


@dataclass(frozen=True)
class Limits:
    """When a segment is full, how old rows may get, and how much happens at once."""

    max_rows: int = 50_000
    max_bytes: int = 100_000_000
    max_age_seconds: float = 300.0
    sweep_seconds: float = 60.0
    max_parallel_flushes: int = 2
    first_retry_seconds: float = 1.0
    longest_retry_seconds: float = 60.0


class SealReason(Enum):
    """Why a segment takes no more rows."""

    ROWS = "rows"
    BYTES = "bytes"
    AGE = "age"
    SCHEMA = "schema"
    REQUEST = "request"


# ---- events ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Enqueued:
    """Rows are on disk in the table's open segment, which now holds this much in all."""

    table: QueueTable
    segment: UUID
    rows: int
    bytes: int
    at: float


@dataclass(frozen=True)
class Sealed:
    """A segment takes no more rows; one that was found at the start is sealed too."""

    table: QueueTable
    segment: UUID
    rows: int
    bytes: int
    oldest_at: float
    at: float


@dataclass(frozen=True)
class Flushed:
    """These segments are in the lake, or out of the way among the dead letters."""

    table: QueueTable
    segments: tuple[UUID, ...]
    at: float


@dataclass(frozen=True)
class Failed:
    """A flush did not succeed and left everything as it was."""

    table: QueueTable
    error: str
    at: float


@dataclass(frozen=True)
class FlushRequested:
    """Somebody wants what these tables hold in the lake now."""

    tables: frozenset[QueueTable]
    at: float


@dataclass(frozen=True)
class Paused:
    """No new flush begins until Resumed."""

    at: float


@dataclass(frozen=True)
class Resumed:
    """Flushes go on."""

    at: float


@dataclass(frozen=True)
class Tick:
    """Time has passed."""

    at: float


Event = Enqueued | Sealed | Flushed | Failed | FlushRequested | Paused | Resumed | Tick

# ---- actions -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Seal:
    """Close the table's open segment."""

    table: QueueTable
    segment: UUID
    reason: SealReason


@dataclass(frozen=True)
class Flush:
    """Bring these segments of one table into the lake, in this order."""

    table: QueueTable
    segments: tuple[UUID, ...]


Action = Seal | Flush


@dataclass
class OpenSegment:
    """The segment of a table that takes rows."""

    id: UUID
    rows: int
    bytes: int
    oldest_at: float
    sealing: bool = False


@dataclass(frozen=True)
class SealedSegment:
    """A segment that waits for its flush."""

    id: UUID
    rows: int
    bytes: int
    oldest_at: float


@dataclass
class TableState:
    """One table's part of the queue."""

    open: OpenSegment | None = None
    sealed: list[SealedSegment] = field(default_factory=list)
    flushing: tuple[UUID, ...] = ()
    requested: bool = False
    failures: int = 0
    retry_at: float = 0.0
    last_error: str = ""

    @property
    def segments(self) -> list[OpenSegment | SealedSegment]:
        """All of them, oldest first."""
        return [*self.sealed, *([self.open] if self.open else [])]

    @property
    def oldest_at(self) -> float:
        return min(segment.oldest_at for segment in self.segments)


class Coordinator:
    """All tables of one queue. Feed it what happened; do what it answers."""

    def __init__(self, limits: Limits, jitter: random.Random | None = None) -> None:
        self._limits = limits
        self._jitter = jitter or random.Random()
        self._tables: dict[QueueTable, TableState] = {}
        self._running = 0
        self._swept_at = float("-inf")
        self.paused = False

    @property
    def tables(self) -> dict[QueueTable, TableState]:
        """What each table holds; to look at, not to change."""
        return self._tables

    def handle(self, event: Event) -> list[Action]:
        """What is to be done after an event."""
        seals: Iterable[Seal] = ()
        match event:
            case Enqueued():
                self._enqueued(event)
                return list(self._seal_full(event.table))  # it makes nothing else due
            case Sealed():
                self._sealed(event)
            case Flushed():
                self._flushed(event)
            case Failed():
                self._failed(event)
            case FlushRequested():
                seals = self._requested(event)
            case Paused():
                self.paused = True
            case Resumed():
                self.paused = False
            case Tick():
                seals = self._sweep(event.at)
        return [*seals, *self._flushes(event.at)]

    # ---- what happened -------------------------------------------------------------------------

    def _state(self, table: QueueTable) -> TableState:
        return self._tables.setdefault(table, TableState())

    def _enqueued(self, event: Enqueued) -> None:
        state = self._state(event.table)
        if state.open is None or state.open.id != event.segment:
            state.open = OpenSegment(event.segment, 0, 0, event.at)
        state.open.rows, state.open.bytes = event.rows, event.bytes

    def _sealed(self, event: Sealed) -> None:
        state = self._state(event.table)
        if state.open is not None and state.open.id == event.segment:
            state.open = None
        state.sealed.append(SealedSegment(event.segment, event.rows, event.bytes, event.oldest_at))
        state.sealed.sort(key=lambda segment: segment.oldest_at)

    def _flushed(self, event: Flushed) -> None:
        state = self._state(event.table)
        self._ended(state)
        gone = set(event.segments)
        state.sealed = [segment for segment in state.sealed if segment.id not in gone]
        state.failures, state.retry_at, state.last_error = 0, 0.0, ""
        state.requested = state.requested and bool(state.sealed)
        if not state.segments:
            del self._tables[event.table]

    def _failed(self, event: Failed) -> None:
        state = self._state(event.table)
        self._ended(state)
        state.failures += 1
        state.last_error = event.error
        state.retry_at = event.at + self._pause(state.failures)
        state.requested = False

    def _ended(self, state: TableState) -> None:
        if state.flushing:
            self._running -= 1
            state.flushing = ()

    def _pause(self, failures: int) -> float:
        limits = self._limits
        doubled = limits.first_retry_seconds * 2.0 ** min(failures - 1, 32)
        return min(limits.longest_retry_seconds, doubled) * self._jitter.uniform(0.5, 1.0)

    # ---- what is due ---------------------------------------------------------------------------

    def _requested(self, event: FlushRequested) -> Iterator[Seal]:
        for table in sorted(event.tables & self._tables.keys()):
            state = self._tables[table]
            state.requested, state.retry_at = True, event.at
            yield from self._seal(table, SealReason.REQUEST)

    def _seal_full(self, table: QueueTable) -> Iterator[Seal]:
        open = self._tables[table].open
        assert open is not None
        if open.rows >= self._limits.max_rows:
            yield from self._seal(table, SealReason.ROWS)
        elif open.bytes >= self._limits.max_bytes:
            yield from self._seal(table, SealReason.BYTES)

    def _sweep(self, now: float) -> Iterator[Seal]:
        if now - self._swept_at < self._limits.sweep_seconds:
            return
        self._swept_at = now
        for table, state in self._tables.items():
            if state.open and now - state.open.oldest_at >= self._limits.max_age_seconds:
                yield from self._seal(table, SealReason.AGE)

    def _seal(self, table: QueueTable, reason: SealReason) -> Iterator[Seal]:
        open = self._tables[table].open
        if open is not None and not open.sealing:
            open.sealing = True
            yield Seal(table, open.id, reason)

    def _flushes(self, now: float) -> Iterator[Flush]:
        free = self._limits.max_parallel_flushes - self._running
        if self.paused or free <= 0:
            return
        due = [table for table, state in self._tables.items() if _is_due(state, now)]
        due.sort(key=lambda table: self._tables[table].oldest_at)
        for table in due[:free]:
            state = self._tables[table]
            state.flushing = tuple(segment.id for segment in state.sealed)
            self._running += 1
            yield Flush(table, state.flushing)


def _is_due(state: TableState, now: float) -> bool:
    if state.flushing or not state.sealed or now < state.retry_at:
        return False
    # What was open when the flush was asked for goes with it.
    return not (state.requested and state.open is not None and state.open.sealing)

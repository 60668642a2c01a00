"""What a writer does with rows, as decisions without a clock, a thread or a network.

Rows are collected, cut into batches and numbered; the batches are sent one after the other in the
order of their numbers. A batch stays until it is acknowledged or given up, and is the same whenever
it is sent: the server knows it by its number, and would take other rows under it for the old ones.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from swanlake.client.backoff import backoff
from swanlake.client.options import WriterOptions
from swanlake.errors import Code, SessionLost, SwanLakeError

#: What is wrong is the request, and would be so the next time.
_ABOUT_THE_REQUEST = (
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.UNIMPLEMENTED,
    Code.UNAUTHENTICATED,
    Code.PERMISSION_DENIED,
)
#: Somebody stopped, or something broke, at a moment that nobody knows.
_LEAVES_DOUBT = (Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.INTERNAL)


def may_repeat(error: SwanLakeError, *, named: bool) -> bool:
    """True if a batch can be sent again after the error: it may succeed, and is not doubled.

    A batch with a name is not taken twice, so all that could pass is waited for. One without is
    sent again only if the server certainly did nothing.
    """
    if isinstance(error, SessionLost):
        return True  # a batch needs nothing of the session: the next one is as good
    if named:
        return error.code not in _ABOUT_THE_REQUEST
    return error.retryable and not leaves_doubt(error)


def leaves_doubt(error: SwanLakeError) -> bool:
    """True if the batch may have been taken all the same."""
    return error.in_doubt or error.code in _LEAVES_DOUBT


class Shape(Protocol):
    """What rows have in common that can travel together: their columns."""

    def encode(self, pieces: list[Any]) -> Any:
        """The pieces as one table of Arrow."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A row, or rows of Arrow, on the way into a batch."""

    shape: Shape
    content: Any
    rows: int
    bytes: int


@dataclass(slots=True)
class _Collection:
    """Rows of one shape that are not a batch yet."""

    since: float
    pieces: list[Any] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


@dataclass(eq=False, slots=True)
class Batch:
    """Rows under a number, to be sent until they are acknowledged."""

    sequence: int
    shape: Shape
    pieces: list[Any]
    rows: int
    bytes: int
    #: The moment until which it is tried; None is no limit.
    deadline: float | None
    attempts: int = 0
    not_before: float = 0.0
    in_doubt: bool = False
    _table: Any = None

    @property
    def table(self) -> Any:
        """Its rows as a table of Arrow, made once."""
        if self._table is None:
            self._table = self.shape.encode(self.pieces)
            self.pieces = []
        return self._table


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A batch that the server has: in the queue on its disk, or in the lake."""

    producer: str
    sequence: int
    rows: int
    #: How often it was sent.
    attempts: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A batch that was given up."""

    producer: str
    sequence: int
    rows: int
    attempts: int
    error: SwanLakeError
    #: True if the server may have taken it all the same. Sent to the queue under its producer and
    #: sequence (``client.ingest(…, batch_name=…)``), it is not taken twice.
    in_doubt: bool
    _batch: Batch = field(repr=False)

    @property
    def table(self) -> Any:
        """The rows, as a table of Arrow."""
        return self._batch.table


@dataclass(frozen=True, slots=True)
class WriterReport:
    """What became of the rows that a writer has taken."""

    producer: str
    #: The number of the next batch: where a producer of the same name goes on.
    next_sequence: int
    rows_written: int
    rows_acknowledged: int
    rows_failed: int
    rows_pending: int
    #: About how much memory they take.
    bytes_pending: int
    batches_acknowledged: int
    batches_failed: int
    retries: int


class Batcher:
    """The rows of one producer on their way to one table."""

    def __init__(
        self,
        options: WriterOptions,
        producer: str,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._options = options
        self.producer = producer
        self._chance = chance
        self._next_sequence = options.first_sequence
        self._collected: dict[Shape, _Collection] = {}
        self._batches: deque[Batch] = deque()
        self._sending = False
        self._rows_pending = self._bytes_pending = 0
        self._rows_written = self._rows_acknowledged = self._rows_failed = 0
        self._batches_acknowledged = self._batches_failed = self._retries = 0

    # ---- rows in ---------------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """False while so much waits for the server that writers have to wait too.

        Asked before a piece is added and not for its size, so that a large one does not wait for
        ever behind small ones; what is pending exceeds the limit by one piece at most.
        """
        return (
            self._rows_pending < self._options.max_pending_rows
            and self._bytes_pending < self._options.max_pending_bytes
        )

    def add(self, piece: Piece, now: float) -> bool:
        """Takes a piece; True if the one who sends should look, for the time to do so changed."""
        options = self._options
        into = self._collected.get(piece.shape)
        look = False
        if into is not None and (
            into.rows + piece.rows > options.max_rows
            or into.bytes + piece.bytes > options.max_bytes
        ):
            self._cut(piece.shape, now)
            into, look = None, True
        if into is None:
            into = self._collected[piece.shape] = _Collection(now)
            look = True
        into.pieces.append(piece.content)
        into.rows += piece.rows
        into.bytes += piece.bytes
        self._rows_written += piece.rows
        self._rows_pending += piece.rows
        self._bytes_pending += piece.bytes
        if into.rows >= options.max_rows or into.bytes >= options.max_bytes:
            self._cut(piece.shape, now)
            look = True
        return look

    def cut_all(self, now: float) -> int:
        """Makes batches of all there is; the number before which all numbers are theirs."""
        for shape in list(self._collected):
            self._cut(shape, now)
        return self._next_sequence

    def _cut(self, shape: Shape, now: float) -> None:
        found = self._collected.pop(shape)
        limit = self._options.retry_timeout
        deadline = None if limit is None else now + limit
        self._batches.append(
            Batch(self._next_sequence, shape, found.pieces, found.rows, found.bytes, deadline)
        )
        self._next_sequence += 1

    # ---- batches out -----------------------------------------------------------------------------

    def take(self, now: float) -> Batch | None:
        """The batch to send now; one at a time, and the next only when it is settled."""
        delay = self._options.max_delay
        for shape, found in list(self._collected.items()):
            if found.since + delay <= now:
                self._cut(shape, now)
        if self._sending or not self._batches or self._batches[0].not_before > now:
            return None
        self._sending = True
        batch = self._batches[0]
        batch.attempts += 1
        return batch

    def wake_at(self) -> float | None:
        """When ``take`` has something next, if nothing but time passes; None for never."""
        if self._batches:
            return None if self._sending else self._batches[0].not_before
        due = [found.since + self._options.max_delay for found in self._collected.values()]
        return min(due, default=None)

    def acknowledge(self, batch: Batch) -> Acknowledged:
        """The server has the batch."""
        self._settle(batch)
        self._rows_acknowledged += batch.rows
        self._batches_acknowledged += 1
        return Acknowledged(self.producer, batch.sequence, batch.rows, batch.attempts)

    def fail(self, batch: Batch, error: SwanLakeError, now: float) -> Failure | None:
        """An attempt failed: the end of the batch, or None if it will be sent again."""
        batch.in_doubt = batch.in_doubt or leaves_doubt(error)
        in_time = batch.deadline is None or now < batch.deadline
        if not (in_time and may_repeat(error, named=self._options.queue)):
            return self._give_up(batch, error)
        self._sending = False
        self._retries += 1
        batch.not_before = now + backoff(batch.attempts, self._chance)
        if batch.deadline is not None:
            batch.not_before = min(batch.not_before, batch.deadline)
        return None

    def give_up_all(self, error: SwanLakeError, now: float) -> list[Failure]:
        """The end of all that is not settled; of what is being sent nobody will know."""
        self.cut_all(now)
        if self._sending:
            self._batches[0].in_doubt = True
        return [self._give_up(batch, error) for batch in list(self._batches)]

    def _give_up(self, batch: Batch, error: SwanLakeError) -> Failure:
        self._settle(batch)
        self._rows_failed += batch.rows
        self._batches_failed += 1
        return Failure(
            self.producer, batch.sequence, batch.rows, batch.attempts, error, batch.in_doubt, batch
        )

    def _settle(self, batch: Batch) -> None:
        assert self._batches[0] is batch
        self._batches.popleft()
        self._sending = False
        self._rows_pending -= batch.rows
        self._bytes_pending -= batch.bytes

    # ---- what there is ---------------------------------------------------------------------------

    def holds(self, batch: Batch) -> bool:
        """False if the batch is settled, whoever still sends it."""
        return bool(self._batches) and self._batches[0] is batch

    def is_settled(self, before: int) -> bool:
        """True if every batch before a number is acknowledged or given up."""
        return not self._batches or self._batches[0].sequence >= before

    @property
    def is_empty(self) -> bool:
        return not self._batches and not self._collected

    def report(self) -> WriterReport:
        return WriterReport(
            producer=self.producer,
            next_sequence=self._next_sequence,
            rows_written=self._rows_written,
            rows_acknowledged=self._rows_acknowledged,
            rows_failed=self._rows_failed,
            rows_pending=self._rows_pending,
            bytes_pending=self._bytes_pending,
            batches_acknowledged=self._batches_acknowledged,
            batches_failed=self._batches_failed,
            retries=self._retries,
        )

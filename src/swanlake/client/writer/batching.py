"""The decisions of a writer: when a batch is sent, retried or failed.

Nothing here reads a clock, starts a thread or uses the network. Rows are collected into numbered
batches, which are sent one at a time in the order of their numbers. A batch never changes its rows
until it is acknowledged or fails: the server recognizes a repeated batch by its number alone.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from swanlake._internal.backoff import backoff
from swanlake.client.api.options import WriterOptions
from swanlake.errors import Code, SessionLost, SwanLakeError

#: Errors of the request itself, which a retry does not help.
_PERMANENT = (
    Code.INVALID_ARGUMENT,
    Code.NOT_FOUND,
    Code.UNIMPLEMENTED,
    Code.UNAUTHENTICATED,
    Code.PERMISSION_DENIED,
)
#: Errors after which the server may have taken the batch.
_OUTCOME_UNKNOWN = (Code.DEADLINE_EXCEEDED, Code.CANCELLED, Code.INTERNAL)


def may_retry(error: SwanLakeError, *, named: bool) -> bool:
    """True if a batch may succeed when sent again, and cannot be written twice.

    The server takes a named batch once, so every error that may pass is retried. A batch without a
    name is retried only if the server certainly did nothing.
    """
    if isinstance(error, SessionLost):
        return True  # a batch needs no state of its session
    if named:
        return error.code not in _PERMANENT
    return error.retryable and not outcome_unknown(error)


def outcome_unknown(error: SwanLakeError) -> bool:
    """True if the server may have taken the batch despite the error."""
    return error.in_doubt or error.code in _OUTCOME_UNKNOWN


class BatchShape(Protocol):
    """The columns of rows that can be sent in one batch."""

    def encode(self, pieces: list[Any]) -> Any:
        """The contents of chunks as one Arrow table."""


class RowChunk(NamedTuple):
    """A row, or Arrow rows, that are added to a batch together."""

    shape: BatchShape
    content: Any
    rows: int
    bytes: int


@dataclass(slots=True)
class _OpenBatch:
    """Rows of one shape that are still collected."""

    since: float
    chunks: list[Any] = field(default_factory=list)
    rows: int = 0
    bytes: int = 0


@dataclass(eq=False, slots=True)
class WriteBatch:
    """Numbered rows, sent until they are acknowledged or fail."""

    sequence: int
    shape: BatchShape
    chunks: list[Any]
    rows: int
    bytes: int
    #: When retries end; None is no limit.
    deadline: float | None
    attempts: int = 0
    not_before: float = 0.0
    in_doubt: bool = False
    _table: Any = None

    @property
    def table(self) -> Any:
        """Its rows as an Arrow table, made once."""
        if self._table is None:
            self._table = self.shape.encode(self.chunks)
            self.chunks = []
        return self._table


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A batch that the server has on disk, in the queue or in the lake."""

    producer: str
    sequence: int
    rows: int
    #: How many times it was sent.
    attempts: int


@dataclass(frozen=True, slots=True)
class Failure:
    """A batch that was not acknowledged."""

    producer: str
    sequence: int
    rows: int
    attempts: int
    error: SwanLakeError
    #: True if the server may have taken the batch. To send it again safely, use the queue and the
    #: same name: ``client.ingest(…, queue=True, batch_name=(producer, sequence))``.
    in_doubt: bool
    _batch: WriteBatch = field(repr=False)

    @property
    def table(self) -> Any:
        """The rows, as an Arrow table."""
        return self._batch.table


@dataclass(frozen=True, slots=True)
class WriterReport:
    """The counts of a writer's rows and batches."""

    producer: str
    #: The number of the next batch: ``first_sequence`` of a writer that continues this producer.
    next_sequence: int
    rows_written: int
    rows_acknowledged: int
    rows_failed: int
    rows_pending: int
    #: The approximate memory of the pending rows.
    bytes_pending: int
    batches_acknowledged: int
    batches_failed: int
    retries: int


class Batcher:
    """The open and unsettled batches of one producer for one table."""

    def __init__(
        self, options: WriterOptions, producer: str, random: Callable[[], float] = random.random
    ) -> None:
        self._options = options
        self.producer = producer
        self._random = random
        self._next_sequence = options.first_sequence
        self._open: dict[BatchShape, _OpenBatch] = {}
        self._batches: deque[WriteBatch] = deque()
        self._sending = False
        self._rows_pending = self._bytes_pending = 0
        self._rows_written = self._rows_acknowledged = self._rows_failed = 0
        self._batches_acknowledged = self._batches_failed = self._retries = 0

    @property
    def has_room(self) -> bool:
        """False while too much is pending.

        The size of the next chunk does not count, so that a large chunk is not overtaken for ever
        by small ones. Pending rows exceed the limit by at most one chunk.
        """
        return (
            self._rows_pending < self._options.max_pending_rows
            and self._bytes_pending < self._options.max_pending_bytes
        )

    def add(self, chunk: RowChunk, now: float) -> bool:
        """Adds a chunk; True if ``next_batch_at`` may have changed."""
        options = self._options
        batch = self._open.get(chunk.shape)
        changed = False
        if batch is not None and (
            batch.rows + chunk.rows > options.max_rows
            or batch.bytes + chunk.bytes > options.max_bytes
        ):
            self._finish(chunk.shape, now)
            batch = None
        if batch is None:
            batch = self._open[chunk.shape] = _OpenBatch(now)
            changed = True
        batch.chunks.append(chunk.content)
        batch.rows += chunk.rows
        batch.bytes += chunk.bytes
        self._rows_written += chunk.rows
        self._rows_pending += chunk.rows
        self._bytes_pending += chunk.bytes
        if batch.rows >= options.max_rows or batch.bytes >= options.max_bytes:
            self._finish(chunk.shape, now)
            changed = True
        return changed

    def finish_all(self, now: float) -> int:
        """Finishes all open batches; returns the next sequence number, above all of theirs."""
        for shape in list(self._open):
            self._finish(shape, now)
        return self._next_sequence

    def _finish(self, shape: BatchShape, now: float) -> None:
        batch = self._open.pop(shape)
        limit = self._options.retry_timeout
        deadline = None if limit is None else now + limit
        self._batches.append(
            WriteBatch(self._next_sequence, shape, batch.chunks, batch.rows, batch.bytes, deadline)
        )
        self._next_sequence += 1

    def next_batch(self, now: float) -> WriteBatch | None:
        """The batch to send now, if any; the next one only after this one is settled."""
        delay = self._options.max_delay
        for shape, open_batch in list(self._open.items()):
            if open_batch.since + delay <= now:
                self._finish(shape, now)
        if self._sending or not self._batches or self._batches[0].not_before > now:
            return None
        self._sending = True
        batch = self._batches[0]
        batch.attempts += 1
        return batch

    def next_batch_at(self) -> float | None:
        """When ``next_batch`` has a batch if only time passes; None for never."""
        if self._batches:
            return None if self._sending else self._batches[0].not_before
        due = [batch.since + self._options.max_delay for batch in self._open.values()]
        return min(due, default=None)

    def acknowledge(self, batch: WriteBatch) -> Acknowledged:
        """Settles a batch that the server has."""
        self._settle(batch)
        self._rows_acknowledged += batch.rows
        self._batches_acknowledged += 1
        return Acknowledged(self.producer, batch.sequence, batch.rows, batch.attempts)

    def fail(self, batch: WriteBatch, error: SwanLakeError, now: float) -> Failure | None:
        """Handles a failed attempt; None if the batch will be sent again."""
        batch.in_doubt = batch.in_doubt or outcome_unknown(error)
        in_time = batch.deadline is None or now < batch.deadline
        if not (in_time and may_retry(error, named=self._options.queue)):
            return self._fail(batch, error)
        self._sending = False
        self._retries += 1
        batch.not_before = now + backoff(batch.attempts, self._random)
        if batch.deadline is not None:
            batch.not_before = min(batch.not_before, batch.deadline)
        return None

    def fail_all(self, error: SwanLakeError, now: float) -> list[Failure]:
        """Fails all batches; the outcome of the one being sent is unknown."""
        self.finish_all(now)
        if self._sending:
            self._batches[0].in_doubt = True
        return [self._fail(batch, error) for batch in list(self._batches)]

    def _fail(self, batch: WriteBatch, error: SwanLakeError) -> Failure:
        self._settle(batch)
        self._rows_failed += batch.rows
        self._batches_failed += 1
        return Failure(
            self.producer, batch.sequence, batch.rows, batch.attempts, error, batch.in_doubt, batch
        )

    def _settle(self, batch: WriteBatch) -> None:
        assert self._batches[0] is batch
        self._batches.popleft()
        self._sending = False
        self._rows_pending -= batch.rows
        self._bytes_pending -= batch.bytes

    def is_pending(self, batch: WriteBatch) -> bool:
        """False if the batch is settled, even while a call still sends it."""
        return bool(self._batches) and self._batches[0] is batch

    def is_settled(self, before: int) -> bool:
        """True if every batch before a number is acknowledged or failed."""
        return not self._batches or self._batches[0].sequence >= before

    @property
    def is_empty(self) -> bool:
        return not self._batches and not self._open

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

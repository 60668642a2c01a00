"""Batching, numbering and retries of a writer, with a fake clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake._internal.backoff import backoff
from swanlake.client.api.options import WriterOptions
from swanlake.client.writer.batching import (
    Batcher,
    RowChunk,
    WriteBatch,
    may_retry,
    outcome_unknown,
)
from swanlake.errors import (
    CommitConflict,
    CommitStateUnknown,
    ConfigError,
    ConnectionLost,
    InvalidRequest,
    NotFound,
    QueryCancelled,
    QueryError,
    QueryTimeout,
    QueueStateUnknown,
    QueueUnavailable,
    ServerUnavailable,
    ServerUnreachable,
    SessionLost,
    SwanLakeError,
)

BAD_ROWS = InvalidRequest("A value does not fit.")
LOST = ConnectionLost("gone")


@dataclass(frozen=True)
class Named:
    """A shape that encodes contents as a list."""

    name: str

    def encode(self, contents: list[Any]) -> Any:
        return list(contents)


A, B = Named("a"), Named("b")


def batcher(**options: Any) -> Batcher:
    return Batcher(WriterOptions(**options), "p", random=lambda: 0.5)


def row(number: int, shape: Named = A, size: int = 1) -> RowChunk:
    return RowChunk(shape, number, 1, size)


def sent(batch: WriteBatch | None) -> WriteBatch:
    assert batch is not None
    return batch


# ---- when a batch is due -------------------------------------------------------------------------


def test_batch_is_due_at_max_rows() -> None:
    core = batcher(max_rows=3, max_delay=10)
    changes = [core.add(row(number), now=0) for number in range(4)]
    assert changes == [True, False, True, True]  # new batch, unchanged, full batch, new batch
    assert sent(core.next_batch(0)).table == [0, 1, 2]


def test_batch_is_due_at_max_bytes_and_not_larger() -> None:
    core = batcher(max_bytes=10, max_delay=10)
    core.add(row(1, size=6), now=0)
    core.add(row(2, size=6), now=0)
    batch = sent(core.next_batch(0))
    assert (batch.table, batch.bytes) == ([1], 6)
    core.add(row(3, size=100), now=0)  # larger than max_bytes: alone in its batch
    core.acknowledge(batch)
    assert [sent(core.next_batch(0)).table] == [[2]]


def test_batch_is_due_when_its_size_is_exactly_max_bytes() -> None:
    core = batcher(max_bytes=10, max_delay=10)
    core.add(row(1, size=6), now=0)
    assert core.next_batch(0) is None
    assert core.add(row(2, size=4), now=0)
    batch = sent(core.next_batch(0))
    assert (batch.table, batch.bytes) == ([1, 2], 10)


def test_chunk_that_exceeds_max_rows_begins_a_batch() -> None:
    core = batcher(max_rows=3, max_delay=10)
    core.add(RowChunk(A, "two", 2, 1), now=0)
    core.add(RowChunk(A, "two more", 2, 1), now=0)
    batch = sent(core.next_batch(0))
    assert (batch.table, batch.rows) == (["two"], 2)


def test_next_batch_is_due_with_the_oldest_rows_of_any_shape() -> None:
    core = batcher(max_delay=10)
    core.add(row(1, A), now=1)
    core.add(row(2, B), now=2)
    assert core.next_batch_at() == 11


def test_rows_are_not_kept_twice() -> None:
    core = batcher(max_rows=1)
    core.add(row(1), now=0)
    batch = sent(core.next_batch(0))
    assert batch.table is batch.table
    assert batch.chunks == []


@pytest.mark.parametrize("limit", [{"max_pending_rows": 2}, {"max_pending_bytes": 2}])
def test_room_ends_at_the_limit_of_rows_or_bytes(limit: dict[str, int]) -> None:
    core = batcher(max_rows=1, **limit)
    core.add(row(1), now=0)
    assert core.has_room
    core.add(row(2), now=0)
    assert not core.has_room
    core.acknowledge(sent(core.next_batch(0)))
    assert core.has_room


def test_only_the_first_batch_is_pending() -> None:
    core = batcher(max_rows=1)
    for number in range(3):
        core.add(row(number), now=0)
    assert not core.is_settled(before=1)
    assert core.is_settled(before=0)
    first = sent(core.next_batch(0))
    assert core.is_pending(first)
    core.acknowledge(first)
    assert not core.is_pending(first)
    assert core.is_settled(before=1)
    assert not core.is_settled(before=2)


def test_batch_is_due_after_max_delay() -> None:
    core = batcher(max_delay=0.5)
    core.add(row(1), now=7.0)
    core.add(row(2), now=7.4)
    assert core.next_batch_at() == 7.5
    assert core.next_batch(7.49) is None
    assert sent(core.next_batch(7.5)).table == [1, 2]
    assert core.next_batch_at() is None  # until the batch is settled


def test_rows_of_different_shapes_get_separate_batches() -> None:
    core = batcher(max_rows=2, max_delay=10)
    for number, shape in enumerate([A, B, A, B]):
        core.add(row(number, shape), now=0)
    first = sent(core.next_batch(0))
    core.acknowledge(first)
    assert (first.sequence, first.table) == (0, [0, 2])
    second = sent(core.next_batch(0))
    assert (second.sequence, second.table) == (1, [1, 3])


def test_one_batch_is_sent_at_a_time() -> None:
    core = batcher(max_rows=1)
    core.add(row(1), now=0)
    core.add(row(2), now=0)
    batch = sent(core.next_batch(0))
    assert core.next_batch(0) is None
    core.acknowledge(batch)
    assert sent(core.next_batch(0)).sequence == 1


def test_first_sequence_continues_the_numbers() -> None:
    core = batcher(producer="p", first_sequence=41, max_rows=1)
    core.add(row(1), now=0)
    assert sent(core.next_batch(0)).sequence == 41
    assert core.report().next_sequence == 42


# ---- failures ------------------------------------------------------------------------------------


def test_failed_batch_is_resent_unchanged_after_backoff() -> None:
    core = batcher(max_rows=1)
    core.add(row(1), now=0)
    first = sent(core.next_batch(0))
    assert core.fail(first, LOST, now=1.0) is None
    core.add(row(2), now=1.0)
    assert core.next_batch_at() == pytest.approx(1.1)
    assert core.next_batch(1.05) is None
    again = sent(core.next_batch(1.1))
    assert again is first
    assert (again.sequence, again.table, again.attempts) == (0, [1], 2)
    assert core.acknowledge(again).attempts == 2
    assert core.report().retries == 1


def test_batch_with_wrong_rows_fails_without_blocking_others() -> None:
    core = batcher(max_rows=1)
    core.add(row(1), now=0)
    core.add(row(2), now=0)
    failure = core.fail(sent(core.next_batch(0)), BAD_ROWS, now=0)
    assert failure is not None
    assert (failure.sequence, failure.rows, failure.table) == (0, 1, [1])
    assert failure.error is BAD_ROWS
    assert not failure.in_doubt
    core.acknowledge(sent(core.next_batch(0)))
    report = core.report()
    assert (report.rows_acknowledged, report.rows_failed, report.rows_pending) == (1, 1, 0)
    assert (report.batches_acknowledged, report.batches_failed) == (1, 1)


def test_batch_fails_at_retry_timeout_after_last_attempt() -> None:
    core = batcher(max_rows=1, retry_timeout=1.0)
    core.add(row(1), now=0)
    now, attempts = 0.0, 0
    while True:
        batch = sent(core.next_batch(now))
        attempts += 1
        failure = core.fail(batch, ServerUnreachable("no server"), now)
        if failure is not None:
            break
        wake = core.next_batch_at()
        assert wake is not None
        now = wake
    assert now == 1.0
    assert failure.attempts == attempts == 5  # at 0, 0.1, 0.3, 0.7 and 1.0
    assert not failure.in_doubt  # it was never sent


def test_in_doubt_survives_later_attempts() -> None:
    core = batcher(max_rows=1)
    core.add(row(1), now=0)
    core.fail(sent(core.next_batch(0)), LOST, now=0)
    failure = core.fail(sent(core.next_batch(1)), BAD_ROWS, now=1)
    assert failure is not None
    assert failure.in_doubt


def test_fail_all_fails_pending_batches() -> None:
    core = batcher(max_rows=2)
    for number in range(5):
        core.add(row(number), now=0)
    batch = sent(core.next_batch(0))
    failures = core.fail_all(LOST, now=0)
    assert [failure.table for failure in failures] == [[0, 1], [2, 3], [4]]
    assert [failure.in_doubt for failure in failures] == [True, False, False]
    assert not core.is_pending(batch)
    assert core.is_empty
    assert core.is_settled(core.report().next_sequence)


@pytest.mark.parametrize(
    ("error", "named", "unnamed", "doubt"),
    [
        (ServerUnreachable("x"), True, True, False),
        (ServerUnavailable("x", identifier="SERVER_DRAINING"), True, True, False),
        (QueueUnavailable("x"), True, True, False),
        (CommitConflict("x"), True, True, False),
        (SessionLost("x"), True, True, False),
        (ConnectionLost("x"), True, False, True),
        (QueueStateUnknown("x"), True, False, True),
        (CommitStateUnknown("x"), True, False, True),
        (QueryTimeout("x"), True, False, True),
        (QueryCancelled("x"), True, False, True),
        (QueryError("x", identifier="IO_ERROR"), True, False, True),
        (InvalidRequest("x"), False, False, False),
        (NotFound("x", identifier="TABLE_NOT_FOUND"), False, False, False),
    ],
    ids=lambda value: value.identifier if isinstance(value, SwanLakeError) else "",
)
def test_may_retry_by_error(error: SwanLakeError, named: bool, unnamed: bool, doubt: bool) -> None:
    assert may_retry(error, named=True) is named
    assert may_retry(error, named=False) is unnamed
    assert outcome_unknown(error) is doubt


def test_backoff_grows_with_jitter() -> None:
    assert [backoff(n, lambda: 0.5) for n in range(1, 8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert backoff(1, lambda: 0.0) == pytest.approx(0.075)
    assert backoff(10_000, lambda: 1.0) == pytest.approx(6.25)


# ---- room ----------------------------------------------------------------------------------------


def test_has_room_until_pending_limit() -> None:
    core = batcher(max_rows=1, max_pending_rows=2, max_pending_bytes=100)
    core.add(row(1), now=0)
    assert core.has_room
    core.add(row(2), now=0)
    assert not core.has_room
    core.acknowledge(sent(core.next_batch(0)))
    assert core.has_room
    core.add(row(3, size=100), now=0)
    assert not core.has_room


def test_is_settled_covers_earlier_batches_only() -> None:
    core = batcher(max_delay=10)
    core.add(row(1), now=0)
    before = core.finish_all(now=0)
    core.add(row(2), now=0)
    assert not core.is_settled(before)
    core.acknowledge(sent(core.next_batch(0)))
    assert core.is_settled(before)
    assert not core.is_empty


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_rows": 0},
        {"max_pending_bytes": 0},
        {"max_delay": -1},
        {"first_sequence": -1, "producer": "p"},
        {"first_sequence": 3},
    ],
)
def test_invalid_options_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        WriterOptions(**wrong)


# ---- random sequences ----------------------------------------------------------------------------


@dataclass
class Server:
    """Takes each numbered batch once, as the queue does, even if its answer is lost."""

    taken: dict[int, list[int]] = field(default_factory=dict)

    def receive(self, batch: WriteBatch) -> None:
        known = self.taken.setdefault(batch.sequence, batch.table)
        assert known == batch.table, "other rows under a number that was used"


STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from([A, B]), st.integers(1, 7)),
    st.tuples(st.just("pass"), st.floats(0.0, 2.0)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("send"), st.sampled_from(["ok", "lost", "unheard", "unreachable", "refuse"])),
)


@given(st.lists(STEPS, max_size=60), st.integers(1, 5), st.integers(1, 12))
def test_rows_are_neither_lost_nor_duplicated_nor_reordered(
    steps: list[Any], max_rows: int, max_bytes: int
) -> None:
    core = batcher(max_rows=max_rows, max_bytes=max_bytes, max_delay=0.5, retry_timeout=None)
    server, now, number = Server(), 0.0, 0
    added: dict[int, Named] = {}
    refused: list[int] = []

    def send(outcome: str) -> None:
        batch = core.next_batch(now)
        if batch is None:
            return
        assert batch.rows <= max_rows
        assert batch.rows == 1 or batch.bytes <= max_bytes
        if outcome in ("ok", "unheard"):
            server.receive(batch)
        if outcome == "ok":
            core.acknowledge(batch)
            return
        error = {"refuse": BAD_ROWS, "unreachable": ServerUnreachable("x")}.get(outcome, LOST)
        failure = core.fail(batch, error, now)
        if failure is not None:
            refused.extend(failure.table)

    for step in steps:
        match step:
            case ("add", shape, size):
                core.add(row(number, shape, size), now)
                added[number] = shape
                number += 1
            case ("pass", seconds):
                now += seconds
            case ("flush",):
                core.finish_all(now)
            case ("send", outcome):
                send(outcome)
    core.finish_all(now)
    while not core.is_empty:
        now += 10
        send("ok")

    arrived = [row for sequence in sorted(server.taken) for row in server.taken[sequence]]
    assert len(arrived) == len(set(arrived))
    # A refused batch may have been taken before its answer was lost; no other row is missing.
    assert set(arrived) | set(refused) == set(added)
    for shape in (A, B):
        of_shape = [row for row in arrived if added[row] is shape]
        assert of_shape == sorted(of_shape)
    report = core.report()
    assert report.rows_written == number == report.rows_acknowledged + report.rows_failed
    assert (report.rows_pending, report.bytes_pending) == (0, 0)

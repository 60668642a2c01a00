"""How a writer batches, numbers and repeats, on a clock of the test's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.client.backoff import backoff
from swanlake.client.batching import Batch, Batcher, Piece, leaves_doubt, may_repeat
from swanlake.client.options import WriterOptions
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
    """A shape that encodes pieces as a list of them."""

    name: str

    def encode(self, pieces: list[Any]) -> Any:
        return list(pieces)


A, B = Named("a"), Named("b")


def batcher(**options: Any) -> Batcher:
    return Batcher(WriterOptions(**options), "p", chance=lambda: 0.5)


def row(number: int, shape: Named = A, size: int = 1) -> Piece:
    return Piece(shape, number, 1, size)


def taken(found: Batch | None) -> Batch:
    assert found is not None
    return found


# ---- when a batch is due -------------------------------------------------------------------------


def test_a_batch_is_due_by_its_rows() -> None:
    core = batcher(max_rows=3, max_delay=10)
    looks = [core.add(row(number), now=0) for number in range(4)]
    assert looks == [True, False, True, True]  # a new one, nothing, a full one, a new one
    assert taken(core.take(0)).table == [0, 1, 2]


def test_a_batch_is_due_by_its_bytes_and_keeps_within_them() -> None:
    core = batcher(max_bytes=10, max_delay=10)
    core.add(row(1, size=6), now=0)
    core.add(row(2, size=6), now=0)
    batch = taken(core.take(0))
    assert (batch.table, batch.bytes) == ([1], 6)
    core.add(row(3, size=100), now=0)  # larger than a batch may be: alone in one
    core.acknowledge(batch)
    assert [taken(core.take(0)).table] == [[2]]


def test_a_batch_is_due_by_its_age() -> None:
    core = batcher(max_delay=0.5)
    core.add(row(1), now=7.0)
    core.add(row(2), now=7.4)
    assert core.wake_at() == 7.5
    assert core.take(7.49) is None
    assert taken(core.take(7.5)).table == [1, 2]
    assert core.wake_at() is None  # nothing to do until the answer is there


def test_rows_of_different_shapes_go_apart() -> None:
    core = batcher(max_rows=2, max_delay=10)
    for number, shape in enumerate([A, B, A, B]):
        core.add(row(number, shape), now=0)
    first = taken(core.take(0))
    core.acknowledge(first)
    assert (first.sequence, first.table) == (0, [0, 2])
    second = taken(core.take(0))
    assert (second.sequence, second.table) == (1, [1, 3])


def test_one_batch_is_under_way_at_a_time() -> None:
    core = batcher(max_rows=1)
    core.add(row(1), now=0)
    core.add(row(2), now=0)
    batch = taken(core.take(0))
    assert core.take(0) is None
    core.acknowledge(batch)
    assert taken(core.take(0)).sequence == 1


def test_numbers_go_on_where_the_producer_ended() -> None:
    core = batcher(producer="p", first_sequence=41, max_rows=1)
    core.add(row(1), now=0)
    assert taken(core.take(0)).sequence == 41
    assert core.report().next_sequence == 42


# ---- what fails ----------------------------------------------------------------------------------


def test_a_batch_is_sent_again_unchanged_after_a_while() -> None:
    core = batcher(max_rows=1)
    core.add(row(1), now=0)
    first = taken(core.take(0))
    assert core.fail(first, LOST, now=1.0) is None
    core.add(row(2), now=1.0)
    assert core.wake_at() == pytest.approx(1.1)
    assert core.take(1.05) is None
    again = taken(core.take(1.1))
    assert again is first
    assert (again.sequence, again.table, again.attempts) == (0, [1], 2)
    assert core.acknowledge(again).attempts == 2
    assert core.report().retries == 1


def test_a_batch_whose_rows_are_wrong_is_given_up_and_others_go_on() -> None:
    core = batcher(max_rows=1)
    core.add(row(1), now=0)
    core.add(row(2), now=0)
    failure = core.fail(taken(core.take(0)), BAD_ROWS, now=0)
    assert failure is not None
    assert (failure.sequence, failure.rows, failure.table) == (0, 1, [1])
    assert failure.error is BAD_ROWS
    assert not failure.in_doubt
    core.acknowledge(taken(core.take(0)))
    report = core.report()
    assert (report.rows_acknowledged, report.rows_failed, report.rows_pending) == (1, 1, 0)


def test_a_batch_is_given_up_when_its_time_is_over_after_a_last_attempt() -> None:
    core = batcher(max_rows=1, retry_timeout=1.0)
    core.add(row(1), now=0)
    now, attempts = 0.0, 0
    while True:
        batch = taken(core.take(now))
        attempts += 1
        failure = core.fail(batch, ServerUnreachable("nobody"), now)
        if failure is not None:
            break
        wake = core.wake_at()
        assert wake is not None
        now = wake
    assert now == 1.0
    assert failure.attempts == attempts == 5  # at 0, 0.1, 0.3, 0.7 and 1.0
    assert not failure.in_doubt  # it was never sent


def test_a_doubt_is_not_forgotten() -> None:
    core = batcher(max_rows=1)
    core.add(row(1), now=0)
    core.fail(taken(core.take(0)), LOST, now=0)
    failure = core.fail(taken(core.take(1)), BAD_ROWS, now=1)
    assert failure is not None
    assert failure.in_doubt


def test_all_that_is_left_is_given_up_at_the_end() -> None:
    core = batcher(max_rows=2)
    for number in range(5):
        core.add(row(number), now=0)
    batch = taken(core.take(0))
    failures = core.give_up_all(LOST, now=0)
    assert [failure.table for failure in failures] == [[0, 1], [2, 3], [4]]
    assert [failure.in_doubt for failure in failures] == [True, False, False]
    assert not core.holds(batch)
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
def test_what_is_sent_again(error: SwanLakeError, named: bool, unnamed: bool, doubt: bool) -> None:
    assert may_repeat(error, named=True) is named
    assert may_repeat(error, named=False) is unnamed
    assert leaves_doubt(error) is doubt


def test_waits_grow_and_differ() -> None:
    assert [backoff(n, lambda: 0.5) for n in range(1, 8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert backoff(1, lambda: 0.0) == pytest.approx(0.075)
    assert backoff(10_000, lambda: 1.0) == pytest.approx(6.25)


# ---- room ----------------------------------------------------------------------------------------


def test_there_is_room_until_too_much_is_pending() -> None:
    core = batcher(max_rows=1, max_pending_rows=2, max_pending_bytes=100)
    core.add(row(1), now=0)
    assert core.has_room
    core.add(row(2), now=0)
    assert not core.has_room
    core.acknowledge(taken(core.take(0)))
    assert core.has_room
    core.add(row(3, size=100), now=0)
    assert not core.has_room


def test_a_flush_waits_for_what_was_before_it() -> None:
    core = batcher(max_delay=10)
    core.add(row(1), now=0)
    before = core.cut_all(now=0)
    core.add(row(2), now=0)
    assert not core.is_settled(before)
    core.acknowledge(taken(core.take(0)))
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
def test_options_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        WriterOptions(**wrong)


# ---- all of it together --------------------------------------------------------------------------


@dataclass
class Server:
    """Takes batches as the queue does: each number once, whatever the client got to hear."""

    taken: dict[int, list[int]] = field(default_factory=dict)

    def receive(self, batch: Batch) -> None:
        known = self.taken.setdefault(batch.sequence, batch.table)
        assert known == batch.table, "other rows under a number that was used"


STEPS = st.one_of(
    st.tuples(st.just("add"), st.sampled_from([A, B]), st.integers(1, 7)),
    st.tuples(st.just("pass"), st.floats(0.0, 2.0)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("send"), st.sampled_from(["ok", "lost", "unheard", "unreachable", "refuse"])),
)


@given(st.lists(STEPS, max_size=60), st.integers(1, 5), st.integers(1, 12))
def test_no_row_is_lost_doubled_or_reordered(
    steps: list[Any], max_rows: int, max_bytes: int
) -> None:
    core = batcher(max_rows=max_rows, max_bytes=max_bytes, max_delay=0.5, retry_timeout=None)
    server, now, number = Server(), 0.0, 0
    added: dict[int, Named] = {}
    refused: list[int] = []

    def send(outcome: str) -> None:
        batch = core.take(now)
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
                core.cut_all(now)
            case ("send", outcome):
                send(outcome)
    core.cut_all(now)
    while not core.is_empty:
        now += 10
        send("ok")

    arrived = [one for sequence in sorted(server.taken) for one in server.taken[sequence]]
    assert len(arrived) == len(set(arrived))
    # What was refused may have arrived before the answer that was lost; nothing else is missing.
    assert set(arrived) | set(refused) == set(added)
    for shape in (A, B):
        of_shape = [one for one in arrived if added[one] is shape]
        assert of_shape == sorted(of_shape)
    report = core.report()
    assert report.rows_written == number == report.rows_acknowledged + report.rows_failed
    assert (report.rows_pending, report.bytes_pending) == (0, 0)

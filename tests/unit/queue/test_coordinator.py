"""The coordinator's decisions, with a fake clock and no I/O."""

from __future__ import annotations

import random
from collections.abc import Iterator
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from swanlake.config import Settings
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.coordinator import (
    Coordinator,
    Enqueued,
    Event,
    Failed,
    Flush,
    Flushed,
    FlushRequested,
    Limits,
    Seal,
    Sealed,
    Tick,
)
from swanlake.queue.settings import QueueSettings
from tests.unit.queue.samples import queue_table

LIMITS = Limits(max_rows=10, max_bytes=1_000, max_age_seconds=30.0, sweep_seconds=5.0)
TABLES = [queue_table(name, number) for number, name in enumerate("abcd")]


class Simulation:
    """A queue without disk or lake: performs the coordinator's actions when a test lets it.

    Whatever the coordinator answers is held against what this queue knows itself.
    """

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.coordinator = Coordinator(limits, random.Random(1))
        self.now = 0.0
        self.open: dict[TableRef, UUID] = {}
        self.sealed: dict[TableRef, list[UUID]] = {}
        self.rows: dict[UUID, int] = {}
        self.oldest_at: dict[UUID, float] = {}
        self.seals: list[Seal] = []
        self.running: dict[TableRef, Flush] = {}
        self.in_lake: list[UUID] = []
        self.flushes: list[Flush] = []
        self.retry_at: dict[TableRef, float] = {}
        self.paused = False
        #: The segments that the next flush must include.
        self.wanted: dict[TableRef, set[UUID]] = {}

    # ---- what happens --------------------------------------------------------------------------

    def enqueue(self, table: TableRef, rows: int = 1, bytes: int = 10) -> None:
        segment = self.open.get(table)
        if segment is None:
            segment = self.open[table] = self._new_segment()
        self.rows[segment] += rows
        size = self.rows[segment] * bytes
        self.tell(Enqueued(table, segment, self.rows[segment], size))

    def enqueue_large(self, table: TableRef, rows: int) -> None:
        """Rows in their own segment."""
        segment = self._new_segment()
        self.rows[segment] = rows
        self._seal(table, segment)

    def seal_open(self, table: TableRef) -> None:
        """The writer seals, as it does when the columns of a table change."""
        if table in self.open:
            self._seal(table, self.open.pop(table))

    def carry_out(self, seal: Seal) -> None:
        self.seals.remove(seal)
        if self.open.get(seal.table) == seal.segment:
            self.seal_open(seal.table)

    def finish(self, table: TableRef) -> None:
        flush = self.running.pop(table)
        assert not set(flush.segments) & set(self.in_lake), "a segment is flushed once"
        self.in_lake += flush.segments
        self.sealed[table] = [one for one in self.sealed[table] if one not in flush.segments]
        self.retry_at.pop(table, None)
        self.tell(Flushed(table, flush.segments))

    def fail(self, table: TableRef) -> None:
        del self.running[table]
        self.wanted.pop(table, None)
        self.retry_at[table] = self.now + self.limits.first_retry_seconds / 2
        self.tell(Failed(table, "no disk"))

    def request(self, tables: set[TableRef]) -> None:
        for table in tables:
            self.retry_at.pop(table, None)
            if table not in self.running:
                self.wanted[table] = self.held(table)
        self.tell(FlushRequested(frozenset(tables)))

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.tell(Tick())

    def pause(self) -> None:
        self.paused = self.coordinator.paused = True
        self.tick(0.0)

    def resume(self) -> None:
        self.paused = self.coordinator.paused = False
        self.tick(0.0)

    def drain(self) -> None:
        """Performs all actions until none is left."""
        self.resume()
        self.request(self.tables)
        while self.seals or self.running:
            for seal in list(self.seals):
                self.carry_out(seal)
            for table in list(self.running):
                self.finish(table)
            self.tick()

    # ---- what is so ----------------------------------------------------------------------------

    @property
    def tables(self) -> set[TableRef]:
        return set(self.open) | set(self.sealed)

    def held(self, table: TableRef) -> set[UUID]:
        """The segments of a table that are not in the lake."""
        return {*self.sealed.get(table, []), *([self.open[table]] if table in self.open else [])}

    def tell(self, event: Event) -> None:
        for action in self.coordinator.handle(event, self.now):
            if isinstance(action, Seal):
                assert self.open.get(action.table) == action.segment, "only what is open is sealed"
                assert action not in self.seals
                self.seals.append(action)
            else:
                self._begin(action)

    def _begin(self, flush: Flush) -> None:
        table = flush.table
        assert not self.paused, "nothing begins while the queue is paused"
        assert table not in self.running, "a table has one flush at a time"
        assert self.now >= self.retry_at.get(table, 0.0), "a retry waits"
        oldest_first = sorted(self.sealed[table], key=lambda one: self.oldest_at[one])
        assert list(flush.segments) == oldest_first, "all that is sealed, oldest first"
        assert self.wanted.pop(table, set()) <= set(flush.segments), "what was open comes along"
        self.running[table] = flush
        self.flushes.append(flush)
        assert len(self.running) <= self.limits.max_parallel_flushes

    def _new_segment(self) -> UUID:
        segment = UUID(int=len(self.rows) + 1)
        self.rows[segment] = 0
        self.oldest_at[segment] = self.now
        return segment

    def _seal(self, table: TableRef, segment: UUID) -> None:
        self.sealed.setdefault(table, []).append(segment)
        size = self.rows[segment] * 10
        oldest_at = self.oldest_at[segment]
        self.tell(Sealed(table, segment, self.rows[segment], size, oldest_at))


class AnyInterleaving(RuleBasedStateMachine):
    """Events in any order; the simulation asserts the invariants of every answer."""

    @initialize(parallel=st.integers(1, 3))
    def start(self, parallel: int) -> None:
        self.queue = Simulation(Limits(10, 1_000, 30.0, 5.0, parallel))

    @rule(table=st.sampled_from(TABLES), rows=st.integers(1, 12))
    def rows_come(self, table: TableRef, rows: int) -> None:
        self.queue.enqueue(table, rows)

    @rule(table=st.sampled_from(TABLES), rows=st.integers(1, 100))
    def many_rows_come(self, table: TableRef, rows: int) -> None:
        self.queue.enqueue_large(table, rows)

    @rule(table=st.sampled_from(TABLES))
    def columns_change(self, table: TableRef) -> None:
        self.queue.seal_open(table)

    @precondition(lambda self: self.queue.seals)
    @rule(data=st.data())
    def a_seal_is_carried_out(self, data: st.DataObject) -> None:
        self.queue.carry_out(data.draw(st.sampled_from(self.queue.seals)))

    @precondition(lambda self: self.queue.running)
    @rule(data=st.data())
    def a_flush_succeeds(self, data: st.DataObject) -> None:
        self.queue.finish(data.draw(st.sampled_from(sorted(self.queue.running))))

    @precondition(lambda self: self.queue.running)
    @rule(data=st.data())
    def a_flush_fails(self, data: st.DataObject) -> None:
        self.queue.fail(data.draw(st.sampled_from(sorted(self.queue.running))))

    @rule(tables=st.sets(st.sampled_from(TABLES)))
    def a_flush_is_asked_for(self, tables: set[TableRef]) -> None:
        self.queue.request(tables)

    @rule()
    def the_queue_is_paused(self) -> None:
        self.queue.pause()

    @rule()
    def the_queue_is_resumed(self) -> None:
        self.queue.resume()

    @rule(seconds=st.floats(0.0, 40.0))
    def time_passes(self, seconds: float) -> None:
        self.queue.tick(seconds)

    @invariant()
    def no_segment_is_forgotten(self) -> None:
        known = {
            segment.id
            for state in self.queue.coordinator.tables.values()
            for segment in state.segments
        }
        assert known == set(self.queue.rows) - set(self.queue.in_lake)

    @invariant()
    def what_is_shown_is_what_is_there(self) -> None:
        for table, state in self.queue.coordinator.tables.items():
            assert {segment.id for segment in state.segments} == self.queue.held(table)
            assert all(one.rows == self.queue.rows[one.id] for one in state.segments)
            assert bool(state.flushing) == (table in self.queue.running)

    def teardown(self) -> None:
        self.queue.drain()
        assert sorted(self.queue.in_lake) == sorted(self.queue.rows)
        assert not self.queue.coordinator.tables


AnyInterleaving.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestAnyInterleaving = AnyInterleaving.TestCase


@pytest.fixture
def queue() -> Simulation:
    return Simulation()


def test_segment_is_sealed_and_flushed_at_max_rows(queue: Simulation) -> None:
    queue.enqueue(TABLES[0], rows=9)
    assert not queue.seals
    queue.enqueue(TABLES[0])
    [seal] = queue.seals
    queue.carry_out(seal)
    assert queue.running


def test_segment_is_sealed_at_max_bytes(queue: Simulation) -> None:
    queue.enqueue(TABLES[0], rows=1, bytes=1_000)
    assert queue.seals


def test_segment_is_sealed_once(queue: Simulation) -> None:
    for _ in range(5):
        queue.enqueue(TABLES[0], rows=10)
        queue.request({TABLES[0]})
        queue.tick(100.0)
    assert len(queue.seals) == 1


@settings(deadline=None, max_examples=25)
@given(age=st.integers(1, 400), sweep=st.integers(1, 90))
def test_segment_is_sealed_by_age_of_its_oldest_row(age: int, sweep: int) -> None:
    limits = Limits(max_age_seconds=age, sweep_seconds=sweep)
    queue = Simulation(limits)
    while not queue.seals:
        queue.enqueue(TABLES[0])
        queue.tick()
        assert queue.now <= age + sweep, "its oldest row has waited for too long"
    assert queue.now >= age


def test_empty_table_is_not_tracked(queue: Simulation) -> None:
    queue.enqueue(TABLES[0])
    queue.request({TABLES[0], TABLES[1]})
    queue.drain()
    assert not queue.coordinator.tables


def test_requested_flush_covers_the_open_segment_but_not_later_rows(queue: Simulation) -> None:
    queue.enqueue(TABLES[0])
    held = queue.held(TABLES[0])
    queue.request({TABLES[0]})
    assert not queue.running, "it waits until the open segment is sealed"
    queue.carry_out(queue.seals[0])
    queue.enqueue(TABLES[0])
    assert set(queue.running[TABLES[0]].segments) == held


def test_requested_flush_ignores_the_back_off(queue: Simulation) -> None:
    queue.enqueue_large(TABLES[0], 5)
    queue.fail(TABLES[0])
    assert not queue.running
    queue.request({TABLES[0]})
    assert queue.running


def test_requested_flush_does_not_wait_for_a_segment_that_stays_open(queue: Simulation) -> None:
    queue.pause()
    queue.enqueue(TABLES[0])
    queue.request({TABLES[0]})
    queue.carry_out(queue.seals[0])
    queue.enqueue(TABLES[0])  # after the request
    queue.resume()
    assert queue.running


def fill_open_segment(queue: Simulation, table: TableRef) -> None:
    """Makes the open segment full; its seal is not carried out."""
    queue.enqueue(table, rows=LIMITS.max_rows)
    assert queue.seals


def test_flush_that_was_not_requested_does_not_wait_for_a_seal(queue: Simulation) -> None:
    fill_open_segment(queue, TABLES[0])
    queue.enqueue_large(TABLES[0], 100)
    assert queue.running


def test_request_ends_with_its_flush(queue: Simulation) -> None:
    queue.enqueue_large(TABLES[0], 100)
    queue.enqueue(TABLES[0])
    queue.request({TABLES[0]})
    queue.finish(TABLES[0])  # the open segment is still being sealed
    queue.enqueue_large(TABLES[0], 100)
    assert queue.running
    queue.finish(TABLES[0])
    queue.enqueue_large(TABLES[0], 100)
    assert queue.running


def test_request_during_a_flush_counts_for_the_next_one(queue: Simulation) -> None:
    queue.enqueue_large(TABLES[0], 100)
    queue.enqueue_large(TABLES[0], 100)
    queue.enqueue(TABLES[0])
    queue.request({TABLES[0]})
    queue.finish(TABLES[0])
    assert not queue.running, "it waits until the open segment is sealed"
    queue.carry_out(queue.seals[0])
    assert len(queue.running[TABLES[0]].segments) == 2


def test_flush_without_a_request_leaves_none_behind(queue: Simulation) -> None:
    queue.enqueue_large(TABLES[0], 100)
    queue.enqueue_large(TABLES[0], 100)
    fill_open_segment(queue, TABLES[0])
    queue.finish(TABLES[0])
    assert queue.running, "the second segment does not wait for a seal"


def test_failure_ends_a_request(queue: Simulation) -> None:
    queue.enqueue_large(TABLES[0], 100)
    queue.request({TABLES[0]})
    queue.fail(TABLES[0])
    fill_open_segment(queue, TABLES[0])
    queue.tick(1.25 * LIMITS.first_retry_seconds)
    assert queue.running, "the retry does not wait for a seal"


def test_flush_requested_during_pause_starts_on_resume(queue: Simulation) -> None:
    queue.pause()
    queue.enqueue_large(TABLES[0], 5)
    queue.request({TABLES[0]})
    assert not queue.running
    queue.resume()
    assert queue.running


def test_table_with_oldest_rows_is_flushed_first() -> None:
    queue = Simulation(Limits(max_parallel_flushes=1))
    queue.pause()
    for table in (TABLES[2], TABLES[0], TABLES[1]):
        queue.enqueue_large(table, 1)
        queue.tick()
    queue.drain()
    assert [flush.table for flush in queue.flushes] == [TABLES[2], TABLES[0], TABLES[1]]


def test_order_of_flushes_is_that_of_the_oldest_segments() -> None:
    coordinator = Coordinator(Limits(max_parallel_flushes=1))
    coordinator.paused = True
    oldest_at = [(TABLES[1], 5.0), (TABLES[0], 9.0), (TABLES[0], 3.0), (TABLES[2], 4.0)]
    for number, (table, oldest) in enumerate(oldest_at):
        assert not coordinator.handle(Sealed(table, UUID(int=number), 1, 1, oldest), 10.0)
    coordinator.paused = False
    order = []
    flushes = coordinator.handle(Tick(), 10.0)
    while flushes:
        [flush] = flushes
        assert isinstance(flush, Flush)
        order.append(flush.table)
        flushes = coordinator.handle(Flushed(flush.table, flush.segments), 10.0)
    assert order == [TABLES[0], TABLES[2], TABLES[1]]


def test_rows_of_a_new_segment_may_be_reported_before_the_old_one_is_sealed() -> None:
    coordinator = Coordinator(LIMITS)
    old, new = UUID(int=1), UUID(int=2)
    coordinator.handle(Enqueued(TABLES[0], old, 9, 9), 1.0)
    coordinator.handle(Enqueued(TABLES[0], new, 3, 3), 2.0)
    coordinator.handle(Sealed(TABLES[0], old, 9, 9, 1.0), 3.0)
    opened = coordinator.tables[TABLES[0]].open
    assert opened is not None
    assert (opened.id, opened.rows, opened.oldest_at) == (new, 3, 2.0)


def test_age_is_checked_once_per_sweep() -> None:
    queue = Simulation(Limits(max_age_seconds=30.0, sweep_seconds=60.0))
    queue.tick(0.0)  # the first sweep
    queue.enqueue(TABLES[0])
    queue.tick(59.0)
    assert not queue.seals
    queue.tick(1.0)
    assert queue.seals


def test_age_of_a_segment_counts_from_its_first_row(queue: Simulation) -> None:
    queue.tick(100.0)
    queue.enqueue(TABLES[0])
    queue.tick(29.0)
    assert not queue.seals
    queue.tick(6.0)
    assert queue.seals


def test_default_limits_are_those_of_the_settings() -> None:
    assert QueueSettings.from_settings(Settings()).limits == Limits()


def failures(coordinator: Coordinator, table: TableRef, count: int) -> Iterator[float]:
    """The delays after each of a number of failures."""
    now = 0.0
    for _ in range(count):
        coordinator.handle(Failed(table, "no"), now)
        due = coordinator.tables[table].retry_at
        assert not coordinator.handle(Tick(), now + (due - now) * 0.99)
        [action] = coordinator.handle(Tick(), due)
        assert isinstance(action, Flush)
        yield due - now
        now = due


@given(seed=st.integers(), count=st.integers(1, 80))
def test_retries_back_off_and_are_bounded(seed: int, count: int) -> None:
    coordinator = Coordinator(Limits(), random.Random(seed))
    [first] = coordinator.handle(Sealed(TABLES[0], UUID(int=1), 1, 1, 0.0), 0.0)
    assert isinstance(first, Flush)
    for number, waited in enumerate(failures(coordinator, TABLES[0], count)):
        delay = min(60.0, 2.0**number)
        assert 0.75 * delay - 1e-6 <= waited <= 1.25 * delay + 1e-6


def test_success_resets_the_back_off(queue: Simulation) -> None:
    queue.enqueue_large(TABLES[0], 1)
    for _ in range(8):
        queue.fail(TABLES[0])
        queue.tick(75.0)
    queue.finish(TABLES[0])
    queue.enqueue_large(TABLES[0], 1)
    queue.fail(TABLES[0])
    queue.tick(1.25)
    assert queue.running


def test_success_resets_the_back_off_of_a_table_with_more_segments(queue: Simulation) -> None:
    queue.enqueue_large(TABLES[0], 1)
    for _ in range(3):
        queue.fail(TABLES[0])
        queue.tick(75.0)
    state = queue.coordinator.tables[TABLES[0]]
    assert (state.failures, state.last_error) == (3, "no disk")
    queue.enqueue_large(TABLES[0], 1)
    queue.finish(TABLES[0])
    assert (state.failures, state.last_error) == (0, "")
    assert queue.running, "the next flush starts at once"
    queue.fail(TABLES[0])
    assert 0.75 <= state.retry_at - queue.now <= 1.25


def test_flush_after_a_success_starts_at_once_at_any_time(queue: Simulation) -> None:
    queue.enqueue_large(TABLES[0], 1)
    queue.enqueue_large(TABLES[0], 1)
    assert queue.now == 0.0
    queue.finish(TABLES[0])
    assert queue.running


def test_jitter_is_that_of_the_given_source() -> None:
    def retry_at(jitter: random.Random | None) -> float:
        coordinator = Coordinator(Limits(), jitter)
        coordinator.handle(Sealed(TABLES[0], UUID(int=1), 1, 1, 0.0), 0.0)
        coordinator.handle(Failed(TABLES[0], "no disk"), 0.0)
        return coordinator.tables[TABLES[0]].retry_at

    assert retry_at(random.Random(7)) == retry_at(random.Random(7))
    assert 0.75 <= retry_at(None) <= 1.25


def test_failing_table_does_not_delay_others() -> None:
    queue = Simulation(Limits(max_parallel_flushes=1))
    queue.enqueue_large(TABLES[0], 1)
    queue.enqueue_large(TABLES[1], 1)
    queue.fail(TABLES[0])
    assert list(queue.running) == [TABLES[1]]


def test_parallel_flushes_are_limited() -> None:
    queue = Simulation()
    tables = [queue_table(f"t{number}", number) for number in range(1_000)]
    for table in tables:
        queue.enqueue(table)
    queue.tick(LIMITS.max_age_seconds)
    assert len(queue.seals) == 1_000
    queue.drain()
    assert sorted(flush.table for flush in queue.flushes) == sorted(tables)
    assert not queue.coordinator.tables

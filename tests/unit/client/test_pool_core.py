"""The decisions of a pool, with a fake clock."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any, ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from swanlake.client.api.options import PoolConfig
from swanlake.client.pool.core import (
    PENDING_TIMEOUT,
    RECONNECT_FIRST_DELAY,
    RECONNECT_MAX_DELAY,
    Action,
    Assign,
    CheckSlot,
    CloseSlot,
    FailWaiter,
    OpenSlot,
    PoolCore,
    PoolStats,
    ReconnectFailed,
    Slot,
    State,
    Waiter,
)
from swanlake.errors import (
    NotAuthenticated,
    PoolClosed,
    QueryTimeout,
    ServerUnreachable,
    SessionLimitReached,
    TooManyRequests,
)

DOWN = ServerUnreachable("down")


class Script:
    """A pool core, a fake clock, and the actions it returned."""

    def __init__(self, random: float = 0.5, **config: Any) -> None:
        config = {"min_idle": 0, "max_size": 2, "name": "test", **config}
        self.core: PoolCore[str] = PoolCore(PoolConfig(**config), lambda: random)
        self.now = 100.0
        #: Every slot, in the order of their opening.
        self.opened: list[Slot[str]] = []
        self.opening: list[Slot[str]] = []
        self.checking: list[Slot[str]] = []
        self.closing: list[Slot[str]] = []
        self.assigned: list[Waiter[str]] = []
        self.failed: dict[Waiter[str], Exception] = {}
        self.reconnect_failures = 0

    def do(self, actions: Sequence[Action[str]]) -> None:
        for action in actions:
            match action:
                case OpenSlot(slot=slot):
                    self.opened.append(slot)
                    self.opening.append(slot)
                case CheckSlot(slot=slot):
                    self.checking.append(slot)
                case CloseSlot(slot=slot):
                    self.closing.append(slot)
                case Assign(waiter=waiter):
                    self.assigned.append(waiter)
                case FailWaiter(waiter=waiter, error=error):
                    self.failed[waiter] = error
                case ReconnectFailed():
                    self.reconnect_failures += 1

    def pass_time(self, seconds: float) -> None:
        """Advances the clock, with maintenance whenever it is due."""
        end = self.now + seconds
        while (due := self.core.next_maintenance_at(self.now)) <= end:
            self.now = due
            self.do(self.core.maintain(self.now))
        self.now = end

    def acquire(self) -> Waiter[str]:
        waiter: Waiter[str] = Waiter(self.now)
        self.do(self.core.acquire(waiter, self.now))
        return waiter

    def connect(self) -> Slot[str]:
        slot = self.opening.pop(0)
        self.do(self.core.connected(slot, "connection", self.now))
        return slot

    def fail_to_connect(self, error: Exception = DOWN) -> None:
        self.do(self.core.connect_failed(self.opening.pop(0), error, self.now))

    def take(self) -> Slot[str]:
        """Acquires, and connects if needed."""
        waiter = self.acquire()
        if waiter.slot is None:
            self.connect()
        assert waiter.slot is not None
        return waiter.slot

    def take_and_release(self, count: int) -> list[Slot[str]]:
        """Idle slots, the least recently used first."""
        slots = [self.take() for _ in range(count)]
        for slot in slots:
            self.release(slot)
        return slots

    def try_acquire(self) -> Slot[str] | None:
        return self.core.try_acquire(self.now)

    def try_release(self, slot: Slot[str]) -> bool:
        return self.core.try_release(slot, self.now)

    def finish_check(self, *, healthy: bool = True) -> None:
        self.do(self.core.checked(self.checking.pop(0), self.now, healthy=healthy))

    def release(self, slot: Slot[str], *, reusable: bool = True, lost: bool = False) -> None:
        self.do(self.core.release(slot, self.now, reusable=reusable, lost=lost))

    def finish_closing(self) -> None:
        while self.closing:
            self.do(self.core.closed(self.closing.pop(), self.now))


# ---- waiting -------------------------------------------------------------------------------------


def test_fifo_no_barging() -> None:
    script = Script(max_size=1)
    slot = script.take()
    first, second = script.acquire(), script.acquire()
    script.release(slot)
    newcomer = script.acquire()
    assert first.slot is slot
    assert second.slot is None
    assert newcomer.slot is None
    script.release(slot)
    assert second.slot is slot
    assert newcomer.slot is None


def test_dropped_connection_wakes_waiter() -> None:
    script = Script(max_size=1)
    slot = script.take()
    waiter = script.acquire()
    script.release(slot, reusable=False)
    script.finish_closing()
    script.connect()
    assert waiter.slot is not None
    assert waiter.slot is not slot


def test_timed_out_waiter_never_receives_connection() -> None:
    script = Script(max_size=1)
    slot = script.take()
    gone, stays = script.acquire(), script.acquire()
    script.do(script.core.cancel_wait(gone, script.now, timed_out=True))
    script.release(slot)
    assert gone.slot is None
    assert stays.slot is slot
    assert script.core.stats().acquire_timeouts == 1
    script.do(script.core.cancel_wait(stays, script.now))  # cancelled, not timed out
    assert script.core.stats().acquire_timeouts == 1


def test_late_connection_goes_to_next_waiter() -> None:
    script = Script(max_size=1)
    slot = script.take()
    gone, stays = script.acquire(), script.acquire()
    script.release(slot)
    script.do(script.core.cancel_wait(gone, script.now, timed_out=True))
    assert stays.slot is slot


def test_max_waiting_counts_only_callers_that_must_wait() -> None:
    script = Script(max_size=1, max_waiting=1)
    script.acquire()  # its connection is pending
    script.acquire()
    with pytest.raises(TooManyRequests, match="test has 1 connections"):
        script.acquire()
    assert script.core.stats().waiting == 2
    assert script.core.stats().requests == 2


def test_caller_is_accepted_while_the_pool_may_grow() -> None:
    script = Script(max_size=2, max_waiting=1)
    script.acquire()
    script.now += PENDING_TIMEOUT  # its connection may hang
    script.acquire()
    assert len(script.opening) == 2
    script.now += PENDING_TIMEOUT
    with pytest.raises(TooManyRequests):
        script.acquire()


def test_caller_is_refused_when_a_lost_server_prevents_growth() -> None:
    script = Script(max_size=2, max_waiting=1)
    script.acquire()
    script.fail_to_connect()
    with pytest.raises(TooManyRequests):
        script.acquire()
    assert script.core.stats().requests == 1


def test_caller_is_accepted_while_an_idle_connection_can_be_checked() -> None:
    script = Script(max_size=2, max_waiting=1, healthcheck_after_idle=5)
    script.take_and_release(2)
    script.now += 5
    script.acquire()
    script.now += PENDING_TIMEOUT  # its check may hang
    script.acquire()
    assert len(script.checking) == 2


def test_growth_counts_pending_connects() -> None:
    script = Script(max_size=3)
    for _ in range(5):
        script.acquire()
    assert len(script.opening) == 3
    assert script.core.size == 3


def test_most_recently_used_is_assigned_first() -> None:
    script = Script(max_size=2)
    first, second = script.take(), script.take()
    script.release(second)
    script.release(first)
    assert script.take() is first


def test_connection_and_waiter_belong_together() -> None:
    script = Script(max_size=1)
    waiter = script.acquire()
    slot = script.connect()
    assert waiter.slot is slot
    assert slot.connection == "connection"
    script.do(script.core.release(slot, script.now, reusable=True))
    assert script.core.stats().conn_lost == 0


# ---- the fast path -------------------------------------------------------------------------------


def test_fast_path_takes_the_most_recently_used() -> None:
    script = Script(max_size=2)
    _, second = script.take_and_release(2)
    assert script.try_acquire() is second
    assert second.state is State.IN_USE
    assert script.core.stats().conn_idle == 1
    assert script.core.stats().requests == 3


def test_fast_path_takes_nothing_from_an_empty_or_closed_pool() -> None:
    script = Script(max_size=1)
    assert script.try_acquire() is None
    script.take_and_release(1)
    script.do(script.core.close(script.now))
    assert script.try_acquire() is None


def test_fast_path_takes_no_connection_that_needs_a_check() -> None:
    script = Script(max_size=2, healthcheck_after_idle=30)
    script.take_and_release(1)
    script.now += 29.9
    slot = script.try_acquire()
    assert slot is not None
    assert script.try_release(slot)
    script.now += 30
    assert script.try_acquire() is None
    assert slot.state is State.IDLE


def test_fast_path_takes_no_connection_that_was_idle_at_a_loss() -> None:
    script = Script(max_size=2)
    lost, other = script.take(), script.take()
    script.release(other)
    script.release(lost, reusable=False, lost=True)
    assert script.try_acquire() is None
    assert script.core.stats().conn_lost == 1


def test_fast_path_takes_no_expired_connection() -> None:
    script = Script(0.0, max_lifetime=10, healthcheck_after_idle=99)
    slot = script.take()
    script.now += 9.9
    assert script.try_release(slot)
    assert script.try_acquire() is slot
    assert script.try_release(slot)
    script.now += 0.1
    assert script.try_acquire() is None


def test_fast_path_releases_to_the_idle() -> None:
    script = Script(max_size=1)
    slot = script.take()
    script.now += 3
    assert script.try_release(slot)
    assert (slot.state, slot.since) == (State.IDLE, script.now)
    assert script.core.stats().usage_seconds == 3
    assert script.core.stats().conn_idle == 1


def test_fast_path_releases_nothing_past_a_waiter() -> None:
    script = Script(max_size=1)
    slot = script.take()
    waiter = script.acquire()
    assert not script.try_release(slot)
    assert slot.state is State.IN_USE
    script.release(slot)
    assert waiter.slot is slot


def test_fast_path_releases_no_outdated_connection() -> None:
    script = Script(0.0, max_lifetime=10)
    drained, expired = script.take(), script.take()
    script.do(script.core.drain(script.now))
    assert not script.try_release(drained)
    assert drained.state is State.IN_USE
    script.release(drained)
    script.release(expired)
    script.finish_closing()
    expired = script.take()
    script.now += 10
    assert not script.try_release(expired)
    assert script.core.stats().conn_idle == 0


def test_fast_path_releases_no_surplus_connection() -> None:
    script = Script(max_size=2)
    first, second = script.take(), script.take()
    script.do(script.core.resize(script.now, min_idle=0, max_size=1))
    assert not script.try_release(first)
    script.release(first)
    assert script.closing == [first]
    script.finish_closing()
    assert script.try_release(second)


def test_fast_path_releases_no_slot_that_was_closed() -> None:
    script = Script()
    slot = script.take()
    script.do(script.core.close_in_use(script.now))
    assert not script.try_release(slot)
    assert slot.state is State.CLOSING
    assert script.core.stats().conn_idle == 0


def test_next_check_of_a_released_slot() -> None:
    script = Script(0.0, min_idle=1, max_size=2, max_lifetime=1000, idle_ttl=10)
    first = script.take()
    script.now += 5
    assert script.core.next_check_of(first, script.now) == first.expires_at == 1100
    script.take()
    assert script.core.next_check_of(first, script.now) == script.now + 10
    script.now = 1095.0
    assert script.core.next_check_of(first, script.now) == 1100


# ---- hangs and checks ----------------------------------------------------------------------------


def test_hanging_connect_holds_one_slot() -> None:
    script = Script(max_size=3)
    waiters = [script.acquire(), script.acquire()]
    hanging = script.opening.pop(0)
    script.connect()
    assert waiters[0].slot is not None
    script.pass_time(2)
    script.connect()
    assert waiters[1].slot is not None
    assert hanging.state is State.CONNECTING


def test_connection_idle_for_long_is_checked() -> None:
    script = Script(healthcheck_after_idle=30)
    slot = script.take()
    script.release(slot)
    script.pass_time(29)
    assert script.take() is slot
    script.release(slot)
    script.pass_time(30)
    waiter = script.acquire()
    assert waiter.slot is None
    script.do(script.core.checked(script.checking.pop(), script.now, healthy=True))
    assert waiter.slot is slot


def test_cancel_during_check() -> None:
    script = Script(max_size=1, healthcheck_after_idle=0)
    slot = script.take()
    script.release(slot)
    gone = script.acquire()
    script.do(script.core.cancel_wait(gone, script.now))
    script.do(script.core.checked(script.checking.pop(), script.now, healthy=True))
    assert gone.slot is None
    assert slot.state is State.IDLE


def test_failed_check_opens_new_connection() -> None:
    script = Script(max_size=1, healthcheck_after_idle=0)
    slot = script.take()
    script.release(slot)
    waiter = script.acquire()
    script.do(script.core.checked(script.checking.pop(), script.now, healthy=False))
    script.finish_closing()
    script.connect()
    assert waiter.slot is not None
    assert waiter.slot is not slot
    assert script.core.stats().conn_lost == 1


def test_lost_connection_makes_others_be_checked() -> None:
    script = Script(max_size=2)
    lost, other = script.take(), script.take()
    script.release(other)
    script.release(lost, reusable=False, lost=True)
    waiter = script.acquire()
    assert waiter.slot is None
    assert script.checking == [other]
    script.now += 1
    script.finish_check()
    assert waiter.slot is other
    script.release(other)
    assert script.take() is other  # checked since the loss


def test_one_waiter_needs_one_check() -> None:
    script = Script(max_size=2, healthcheck_after_idle=5)
    _, second = script.take_and_release(2)
    script.now += 5
    script.acquire()
    assert script.checking == [second]
    script.do(script.core.maintain(script.now))
    assert script.checking == [second]
    script.acquire()
    assert len(script.checking) == 2


def test_connection_that_needs_no_check_is_assigned_before_one_that_does() -> None:
    script = Script(max_size=2, healthcheck_after_idle=5)
    first, second = script.take(), script.take()
    script.release(first)
    script.now += 5
    script.release(second)
    waiter = script.acquire()
    assert waiter.slot is second
    assert not script.checking


def test_check_of_all_idle_connections() -> None:
    script = Script(max_size=3)
    script.take()
    assert not script.core.is_checking
    idle = script.take_and_release(2)
    script.do(script.core.check(script.now))
    assert script.checking == idle
    assert script.core.is_checking
    script.finish_check()
    assert script.core.is_checking
    script.finish_check()
    assert not script.core.is_checking
    assert script.core.stats().conn_idle == 2


# ---- lifetime ------------------------------------------------------------------------------------


def test_idle_connections_shrink_to_min_idle() -> None:
    script = Script(min_idle=1, max_size=3, idle_ttl=10)
    slots = [script.take() for _ in range(3)]
    for slot in slots:
        script.release(slot)
    script.pass_time(9.9)
    assert not script.closing
    script.pass_time(0.2)
    assert len(script.closing) == 2
    assert script.core.stats().conn_idle == 1
    script.finish_closing()
    assert script.core.next_maintenance_at(script.now) < math.inf  # its lifetime


@pytest.mark.parametrize(("random", "lifetime"), [(0.0, 1000), (0.5, 975), (1.0, 950)])
def test_max_lifetime_jitter(random: float, lifetime: float) -> None:
    script = Script(random, min_idle=1, max_lifetime=1000, idle_ttl=9999)
    script.do(script.core.maintain(script.now))
    slot = script.connect()
    script.pass_time(lifetime - 1)
    assert slot.state is State.IDLE
    script.pass_time(2)
    assert script.closing == [slot]
    script.finish_closing()
    assert len(script.opening) == 1  # its successor


def test_connection_in_use_is_not_expired() -> None:
    script = Script(max_lifetime=10)
    slot = script.take()
    script.pass_time(100)
    assert slot.state is State.IN_USE
    script.release(slot)
    assert script.closing == [slot]


def test_drain_replaces_all_connections() -> None:
    script = Script(max_size=3)
    used, idle = script.take(), script.take()
    script.release(idle)
    waiters = [script.acquire(), script.acquire()]
    script.release(idle)
    assert waiters[1].slot is idle
    connecting = script.opening[0]
    script.release(idle)
    script.do(script.core.drain(script.now))
    assert script.closing == [idle]
    script.connect()
    assert script.closing == [idle, connecting]
    script.release(used)
    assert script.closing == [idle, connecting, used]


def test_drained_connection_is_not_assigned() -> None:
    script = Script(max_size=1)
    waiter = script.acquire()
    script.do(script.core.drain(script.now))
    slot = script.connect()
    assert waiter.slot is None
    assert script.closing == [slot]
    script.finish_closing()
    assert script.connect() is waiter.slot


def test_surplus_connection_is_not_assigned() -> None:
    script = Script(max_size=3)
    slots = [script.take() for _ in range(3)]
    script.do(script.core.resize(script.now, min_idle=0, max_size=1))
    waiter = script.acquire()
    for slot in slots[:2]:
        script.release(slot)
    assert waiter.slot is None
    assert script.closing == slots[:2]
    script.release(slots[2])
    assert waiter.slot is slots[2]


def test_surplus_idle_connections_are_closed_at_once() -> None:
    script = Script(max_size=3)
    slots = script.take_and_release(3)
    script.do(script.core.resize(script.now, min_idle=0, max_size=1))
    assert script.closing == slots[:2]


def test_resize() -> None:
    script = Script(max_size=3)
    slots = [script.take() for _ in range(3)]
    script.do(script.core.resize(script.now, min_idle=0, max_size=1))
    for slot in slots:
        script.release(slot)
    assert len(script.closing) == 2
    script.finish_closing()
    script.do(script.core.resize(script.now, min_idle=2, max_size=2))
    assert len(script.opening) == 1


def test_pool_is_filled_with_min_idle_connections_in_any_use() -> None:
    script = Script(min_idle=2, max_size=3)
    script.do(script.core.maintain(script.now))
    assert not script.core.is_filled
    script.connect()
    assert not script.core.is_filled
    script.connect()
    assert script.core.is_filled
    script.take()
    assert script.core.is_filled


def test_maintenance_is_due_when_a_rule_may_apply() -> None:
    script = Script(0.0, min_idle=1, max_size=2, max_lifetime=1000, idle_ttl=10)
    script.do(script.core.maintain(script.now))
    assert script.core.next_maintenance_at(script.now) == math.inf  # a connect without a waiter
    slot = script.connect()
    assert script.core.next_maintenance_at(script.now) == slot.expires_at  # one of min_idle
    script.take()
    assert script.core.next_maintenance_at(script.now) == math.inf
    script.acquire()
    assert script.core.next_maintenance_at(script.now) == script.now + PENDING_TIMEOUT
    script.acquire()
    second = script.connect()
    assert script.core.next_maintenance_at(script.now) == math.inf  # all in use, one waits
    script.release(second)
    script.release(second)
    assert script.core.next_maintenance_at(script.now) == script.now + 10


# ---- figures -------------------------------------------------------------------------------------


def test_figures_of_a_new_pool_are_zero() -> None:
    assert set(asdict(Script().core.stats()).values()) == {0}


def test_figures() -> None:
    script = Script(max_size=2)
    script.acquire()
    script.now += 2
    slot = script.connect()
    script.acquire()
    script.acquire()
    script.fail_to_connect()
    script.now += 3
    script.release(slot)
    assert script.core.stats() == PoolStats(
        requests=3,
        acquire_wait_seconds=5,
        acquire_timeouts=0,
        conn_created=1,
        conn_dropped=0,
        conn_lost=0,
        connect_errors=1,
        usage_seconds=3,
        conn_in_use=1,
        conn_idle=0,
        waiting=1,
    )


def test_popped_figures_count_anew() -> None:
    script = Script(max_size=1)
    script.take()
    assert script.core.stats().conn_created == 1
    assert script.core.stats(pop=True).conn_created == 1
    stats = script.core.stats()
    assert (stats.requests, stats.conn_created, stats.conn_in_use) == (0, 0, 1)


# ---- lost servers --------------------------------------------------------------------------------


@pytest.mark.parametrize("random", [0.0, 0.5, 1.0])
def test_backoff_schedule(random: float) -> None:
    script = Script(random, min_idle=1, reconnect_timeout=60)
    script.do(script.core.maintain(script.now))
    waiter = script.acquire()
    began, moments = script.now, []
    while not script.reconnect_failures:
        moments.append(script.now)
        script.fail_to_connect()
        if script.core.next_maintenance_at(script.now) < math.inf:
            script.pass_time(script.core.next_maintenance_at(script.now) - script.now)
    jitter = 0.9 + 0.2 * random
    delays = [later - earlier for earlier, later in pairwise(moments)]
    assert delays[:6] == pytest.approx([jitter * delay for delay in (0.5, 1, 2, 4, 8, 8)])
    assert moments[-1] == pytest.approx(began + 60)
    assert script.failed[waiter] is DOWN
    script.pass_time(1000)
    assert not script.opening  # until a caller asks
    script.acquire()
    assert len(script.opening) == 1


def test_one_attempt_at_a_time_probes_a_lost_server() -> None:
    script = Script(max_size=4)
    waiters = [script.acquire() for _ in range(4)]
    for _ in range(4):
        script.fail_to_connect()
    script.pass_time(0.6)
    assert len(script.opening) == 1
    script.connect()
    assert len(script.opening) == 3
    for _ in range(3):
        script.connect()
    assert all(waiter.slot for waiter in waiters)


def test_probe_of_a_lost_server_is_the_only_attempt() -> None:
    script = Script(max_size=4)
    script.acquire()
    script.fail_to_connect()
    script.pass_time(0.6)
    script.acquire()
    script.acquire()
    assert len(script.opening) == 1
    script.pass_time(PENDING_TIMEOUT)  # the probe may hang
    assert len(script.opening) == 2


def test_no_attempt_is_made_before_the_retry_is_due() -> None:
    script = Script(max_size=4)
    script.acquire()
    script.fail_to_connect()
    script.acquire()
    script.do(script.core.maintain(script.now))
    assert not script.opening
    assert script.core.next_maintenance_at(script.now) == script.now + RECONNECT_FIRST_DELAY


def test_first_attempt_of_a_young_clock_is_followed_by_a_retry() -> None:
    script = Script(max_size=1)
    script.now = 0.0
    script.acquire()
    script.fail_to_connect()
    assert script.core.next_maintenance_at(script.now) == RECONNECT_FIRST_DELAY


@pytest.mark.parametrize("error", [DOWN, QueryTimeout("slow"), SessionLimitReached("full")])
def test_transient_connect_error_keeps_callers_waiting(error: Exception) -> None:
    script = Script(max_size=1)
    waiter = script.acquire()
    script.fail_to_connect(error)
    assert not script.failed
    script.pass_time(RECONNECT_FIRST_DELAY)
    script.connect()
    assert waiter.slot is not None


def test_outage_after_a_reported_one_has_its_own_timeout() -> None:
    script = Script(max_size=1, reconnect_timeout=10)
    script.acquire()
    while not script.reconnect_failures:
        script.fail_to_connect()
        script.pass_time(10)
    script.pass_time(100)
    waiter = script.acquire()
    script.fail_to_connect()
    assert waiter not in script.failed
    assert script.reconnect_failures == 1
    assert script.core.next_maintenance_at(script.now) == script.now + RECONNECT_FIRST_DELAY


def test_permanent_connect_error_ends_an_outage() -> None:
    script = Script(max_size=2)
    script.acquire()
    script.acquire()
    script.fail_to_connect()
    script.fail_to_connect(NotAuthenticated("who are you?"))
    script.acquire()
    assert len(script.opening) == 1  # at once, not after the delay of the outage


def test_permanent_connect_error_fails_waiters_at_once() -> None:
    script = Script(min_idle=1)
    waiter = script.acquire()
    refused = NotAuthenticated("who are you?")
    script.fail_to_connect(refused)
    assert script.failed[waiter] is refused
    assert not script.opening
    assert script.reconnect_failures == 0


def test_new_caller_restarts_reconnecting() -> None:
    script = Script(min_idle=2)
    script.do(script.core.maintain(script.now))
    for _ in range(2):
        script.fail_to_connect(NotAuthenticated("who are you?"))
    assert not script.opening
    script.acquire()
    script.connect()
    assert len(script.opening) == 1  # the second of min_idle connections


def test_close_fails_waiters() -> None:
    script = Script(max_size=1)
    slot = script.take()
    waiter = script.acquire()
    script.do(script.core.close(script.now))
    assert isinstance(script.failed[waiter], PoolClosed)
    with pytest.raises(PoolClosed):
        script.acquire()
    script.release(slot)
    assert script.closing == [slot]
    script.finish_closing()
    assert script.core.size == 0


def test_slot_closed_in_use_is_not_reused() -> None:
    script = Script()
    slot = script.take()
    script.do(script.core.close(script.now))
    script.do(script.core.close_in_use(script.now))
    assert script.closing == [slot]
    script.release(slot)
    assert slot.state is State.CLOSING
    assert script.closing == [slot]


def test_check_result_after_close_is_ignored() -> None:
    script = Script(healthcheck_after_idle=0)
    slot = script.take()
    script.release(slot)
    script.acquire()
    script.do(script.core.close(script.now))
    script.do(script.core.close_in_use(script.now))
    assert script.closing == [slot]
    script.do(script.core.checked(slot, script.now, healthy=False))
    assert script.closing == [slot]
    assert script.core.stats().conn_dropped == 1


# ---- any order of events -------------------------------------------------------------------------

MIN_IDLE, IDLE_TTL, LIFETIME, CHECK_AFTER = 1, 20.0, 100.0, 5.0


class AnyOrder(RuleBasedStateMachine):
    """Any order of events; what the pool does is held against a model of its own.

    ``reached`` counts situations over all examples: a model that reaches none of them proves
    nothing.
    """

    reached: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.script = Script(
            min_idle=MIN_IDLE,
            max_size=3,
            idle_ttl=IDLE_TTL,
            max_lifetime=LIFETIME,
            healthcheck_after_idle=CHECK_AFTER,
            reconnect_timeout=10,
        )
        self.core = self.script.core
        #: Callers in the order of their arrival; a number each.
        self.numbers: dict[Waiter[str], int] = {}
        #: Callers that wait for a slot, or hold one.
        self.waiting: list[Waiter[str]] = []
        self.holding: list[Waiter[str]] = []
        #: The idle slots after the last step, and since when they are idle.
        self.idle: dict[Slot[str], float] = {}
        #: The slots that passed a check in the last step.
        self.checked: set[Slot[str]] = set()
        self.drained: set[Slot[str]] = set()
        self.lost_at = -math.inf
        self.size = 0
        self.closed = 0
        self.script.do(self.core.maintain(self.script.now))

    # ---- what may happen ---------------------------------------------------------------------

    # Arrivals, releases and successes are more likely than the rest: otherwise all slots are in use
    # or lost in most examples, and no slot is ever idle.

    @precondition(lambda self: len(self.waiting) < 4)
    @rule(fast=st.sampled_from([True, True, False]))
    def acquire(self, fast: bool) -> None:
        self.reached["idle slots at an arrival"] += bool(self.idle)
        waiter: Waiter[str] = Waiter(self.script.now)
        self.numbers[waiter] = len(self.numbers)
        slot = self.core.try_acquire(self.script.now) if fast else None
        if slot is None:
            self.waiting.append(waiter)
            self.script.do(self.core.acquire(waiter, self.script.now))
        else:
            self.reached["fast path taken"] += 1
            assert not self.waiting, "the fast path overtakes no waiter"
            waiter.slot = slot
            self.script.assigned.append(waiter)

    @precondition(lambda self: self.holding)
    @rule(index=st.integers(0, 3))
    def try_release(self, index: int) -> None:
        slot = self.leave(self.holding, index).slot
        assert slot is not None
        if self.core.try_release(slot, self.script.now):
            self.reached["fast path released"] += 1
            assert not self.waiting, "the fast path passes no waiter by"
        else:
            self.script.release(slot)

    @precondition(lambda self: self.holding)
    @rule(index=st.integers(0, 3), how=st.sampled_from(["reuse", "drop", "lose"]))
    def release(self, index: int, how: str) -> None:
        slot = self.leave(self.holding, index).slot
        assert slot is not None
        self.lost_at = self.script.now if how == "lose" else self.lost_at
        self.script.release(slot, reusable=how == "reuse", lost=how == "lose")

    @precondition(lambda self: self.waiting or self.holding)
    @rule(index=st.integers(0, 5), timed_out=st.booleans())
    def cancel_wait(self, index: int, timed_out: bool) -> None:
        """Also of a caller that was assigned a slot at the same moment."""
        waiter = self.leave(self.waiting or self.holding, index)
        self.script.do(self.core.cancel_wait(waiter, self.script.now, timed_out=timed_out))

    def leave(self, callers: list[Waiter[str]], index: int) -> Waiter[str]:
        return callers.pop(index % len(callers))

    @precondition(lambda self: self.script.opening)
    @rule(index=st.integers(0, 3))
    def connect(self, index: int) -> None:
        slot = self.script.opening.pop(index % len(self.script.opening))
        self.script.do(self.core.connected(slot, "connection", self.script.now))

    @precondition(lambda self: self.script.opening)
    @rule(index=st.integers(0, 3), error=st.sampled_from([DOWN, DOWN, NotAuthenticated("no")]))
    def fail_to_connect(self, index: int, error: Exception) -> None:
        slot = self.script.opening.pop(index % len(self.script.opening))
        self.script.do(self.core.connect_failed(slot, error, self.script.now))

    @precondition(lambda self: self.script.checking)
    @rule(index=st.integers(0, 3), healthy=st.booleans())
    def finish_check(self, index: int, healthy: bool) -> None:
        slot = self.script.checking.pop(index % len(self.script.checking))
        if healthy:
            self.checked.add(slot)
        else:
            self.lost_at = self.script.now
        self.script.do(self.core.checked(slot, self.script.now, healthy=healthy))

    @precondition(lambda self: self.script.closing)
    @rule(index=st.integers(0, 3))
    def finish_close(self, index: int) -> None:
        slot = self.script.closing.pop(index % len(self.script.closing))
        self.closed += 1
        self.script.do(self.core.closed(slot, self.script.now))

    @precondition(lambda self: self.script.opening or self.script.checking or self.script.closing)
    @rule()
    def settle(self) -> None:
        """Everything that is under way succeeds."""
        while self.script.opening or self.script.checking or self.script.closing:
            if self.script.opening:
                self.connect(0)
            elif self.script.checking:
                self.finish_check(0, healthy=True)
            else:
                self.finish_close(0)

    @precondition(lambda self: self.waiting)
    @rule()
    def serve_all(self) -> None:
        """Every caller gets its slot and releases it."""
        while self.waiting or self.holding:
            self.settle()
            self.slots_are_where_the_model_has_them()
            if self.holding:
                self.try_release(0)
                self.slots_are_where_the_model_has_them()
            elif not self.script.opening:
                self.script.pass_time(1.0)  # until the next attempt to reconnect

    @rule(seconds=st.sampled_from([0.1, 0.5, 0.9, 1.0, CHECK_AFTER, IDLE_TTL, LIFETIME]))
    def pass_time(self, seconds: float) -> None:
        self.script.pass_time(seconds)

    @rule(change=st.sampled_from(["check", "drain", "resize"]), max_size=st.integers(1, 4))
    def administer(self, change: str, max_size: int) -> None:
        now = self.script.now
        if change == "check":
            self.script.do(self.core.check(now))
        elif change == "drain":
            self.drained = set(self.script.opened)
            self.script.do(self.core.drain(now))
        else:
            self.script.do(self.core.resize(now, min_idle=MIN_IDLE, max_size=max_size))

    # ---- what holds after every step ---------------------------------------------------------

    @invariant()
    def slots_are_where_the_model_has_them(self) -> None:
        script, stats = self.script, self.core.stats()
        self.move_callers()
        in_use = [waiter.slot for waiter in self.holding if waiter.slot is not None]
        under_way = [*script.opening, *script.checking, *script.closing, *in_use]
        idle = [slot for slot in script.opened if slot.state is State.IDLE]
        assert len(under_way) == len(set(under_way)), "no slot has two users"
        assert self.core.size == len(under_way) + len(idle)
        assert (stats.conn_in_use, stats.conn_idle) == (len(in_use), len(idle))
        assert stats.waiting == len(self.waiting), "a caller that left receives nothing"
        assert stats.conn_dropped == self.closed + len(script.closing)
        assert self.core.size <= max(self.core.max_size, self.size), "only a resize exceeds it"
        self.size = self.core.size
        self.check_idle(idle)
        self.check_waiting(idle)
        self.idle = {slot: slot.since for slot in idle}
        self.checked.clear()

    def move_callers(self) -> None:
        """Callers that were assigned a slot, or failed, since the last step."""
        order = [self.numbers[waiter] for waiter in self.script.assigned]
        assert order == sorted(order), "first come, first served"
        for waiter in self.script.assigned:
            slot = waiter.slot
            assert slot is not None
            if waiter in self.waiting:
                self.waiting.remove(waiter)
            if slot.state is State.IN_USE:
                self.check_assigned(slot)
                self.holding.append(waiter)
        assert not any(waiter.slot for waiter in self.waiting)
        self.script.assigned.clear()
        self.waiting = [waiter for waiter in self.waiting if waiter not in self.script.failed]

    def check_assigned(self, slot: Slot[str]) -> None:
        assert slot.connection == "connection"
        assert slot not in self.drained
        assert slot.since < slot.expires_at
        if slot in self.idle:
            self.reached["idle slot assigned"] += 1
            idle_since = self.idle[slot]
            if slot not in self.checked:
                assert slot.since < idle_since + CHECK_AFTER, "it is checked after so long"
                assert idle_since > self.lost_at, "it is checked after a loss"

    def check_idle(self, idle: list[Slot[str]]) -> None:
        now = self.script.now
        live = self.core.size - len(self.script.closing)
        for slot in idle:
            assert slot not in self.drained
            assert now < slot.expires_at
            assert live <= self.core.max_size
            assert live <= MIN_IDLE or now < slot.since + IDLE_TTL
        assert self.core.next_maintenance_at(now) > now
        if self.core.connect_error is None and self.core.size < self.core.max_size:
            assert live >= MIN_IDLE

    def check_waiting(self, idle: list[Slot[str]]) -> None:
        """While a caller waits, the pool does all that it may do."""
        if not self.waiting:
            return
        now, script = self.script.now, self.script
        on_time = [
            slot for slot in script.opening + script.checking if now < slot.since + PENDING_TIMEOUT
        ]
        if len(on_time) >= len(self.waiting):
            return
        self.reached["more waiters than pending connections"] += 1
        assert not idle, "an idle connection is assigned or checked"
        if self.core.size < self.core.max_size:
            assert self.core.connect_error is not None, "there is room for another connection"
            is_probing = any(slot in on_time for slot in script.opening)
            assert is_probing or self.core.next_maintenance_at(now) < now + RECONNECT_MAX_DELAY * 2

    def teardown(self) -> None:
        """After everything is closed, no slot is left."""
        script = self.script
        script.do(script.core.close(script.now))
        script.do(script.core.close_in_use(script.now))
        assert not script.core.stats().conn_idle
        while script.opening:
            script.connect()
        script.checking.clear()
        script.finish_closing()
        assert script.core.size == 0
        assert script.core.stats().waiting == 0


@pytest.mark.parametrize("times", [10, pytest.param(100, marks=pytest.mark.slow)])
def test_any_order_of_events(times: int) -> None:
    examples = times * settings().max_examples
    AnyOrder.reached.clear()
    run_state_machine_as_test(
        AnyOrder, settings=settings(max_examples=examples, stateful_step_count=40)
    )
    for situation in (
        "idle slots at an arrival",
        "idle slot assigned",
        "fast path taken",
        "fast path released",
        "more waiters than pending connections",
    ):
        assert AnyOrder.reached[situation] >= examples / 2, situation

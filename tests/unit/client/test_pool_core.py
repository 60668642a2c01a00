"""The decisions of a pool, with a fake clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from swanlake.client.api.options import PoolConfig
from swanlake.client.pool.core import (
    Action,
    Assign,
    CheckSlot,
    CloseSlot,
    FailWaiter,
    OpenSlot,
    PoolCore,
    ReconnectFailed,
    Slot,
    State,
    Waiter,
)
from swanlake.errors import (
    NotAuthenticated,
    PoolClosed,
    ServerUnreachable,
    TooManyRequests,
)

DOWN = ServerUnreachable("down")


class Script:
    """A pool core, a fake clock, and the actions it returned."""

    def __init__(self, random: float = 0.5, **config: Any) -> None:
        config = {"min_idle": 0, "max_size": 2, "name": "test", **config}
        self.core: PoolCore[str] = PoolCore(PoolConfig(**config), lambda: random)
        self.now = 100.0
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
    script.now += 1
    script.release(lost, reusable=False, lost=True)
    waiter = script.acquire()
    assert waiter.slot is None
    assert script.checking == [other]


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


class AnyOrder(RuleBasedStateMachine):
    """Any order of events; the invariants hold after every step."""

    waiters = Bundle("waiters")

    def __init__(self) -> None:
        super().__init__()
        self.script = Script(
            min_idle=1,
            max_size=3,
            idle_ttl=20,
            max_lifetime=100,
            healthcheck_after_idle=5,
            reconnect_timeout=10,
        )
        self.max_size = 3
        self.waited: list[Waiter[str]] = []
        self.gone: set[Waiter[str]] = set()
        self.served = 0

    def pick(self, slots: list[Slot[str]], data: st.DataObject) -> Slot[str] | None:
        if not slots:
            return None
        return slots.pop(data.draw(st.integers(0, len(slots) - 1)))

    @rule(target=waiters)
    def take(self) -> Waiter[str]:
        """The fast path if it applies; counts as a waiter that was served at once."""
        slot = self.script.core.try_acquire(self.script.now)
        if slot is None:
            waiter = self.script.acquire()
        else:
            assert slot.state is State.IN_USE
            waiter = Waiter(self.script.now)
            waiter.slot = slot
            self.script.assigned.append(waiter)
        self.waited.append(waiter)
        return waiter

    @rule(waiter=consumes(waiters))
    def try_release(self, waiter: Waiter[str]) -> None:
        slot = waiter.slot
        if slot is None or not self.script.core.try_release(slot, self.script.now):
            self.release(waiter, reusable=True, lost=False)
        else:
            self.gone.add(waiter)

    @rule(target=waiters)
    def acquire(self) -> Waiter[str]:
        waiter = self.script.acquire()
        self.waited.append(waiter)
        return waiter

    @rule(waiter=consumes(waiters), timed_out=st.booleans())
    def cancel_wait(self, waiter: Waiter[str], timed_out: bool) -> None:
        self.gone.add(waiter)
        self.script.do(self.script.core.cancel_wait(waiter, self.script.now, timed_out=timed_out))

    @rule(waiter=consumes(waiters), reusable=st.booleans(), lost=st.booleans())
    def release(self, waiter: Waiter[str], reusable: bool, lost: bool) -> None:
        self.gone.add(waiter)
        if waiter.slot is None:
            self.script.do(self.script.core.cancel_wait(waiter, self.script.now))
        else:
            self.script.release(waiter.slot, reusable=reusable and not lost, lost=lost)

    @rule(data=st.data())
    def connect(self, data: st.DataObject) -> None:
        slot = self.pick(self.script.opening, data)
        if slot is not None:
            self.script.do(self.script.core.connected(slot, "connection", self.script.now))

    @rule(data=st.data(), transient=st.booleans())
    def fail_to_connect(self, data: st.DataObject, transient: bool) -> None:
        slot = self.pick(self.script.opening, data)
        if slot is not None:
            error = DOWN if transient else NotAuthenticated("no")
            self.script.do(self.script.core.connect_failed(slot, error, self.script.now))

    @rule(data=st.data(), healthy=st.booleans())
    def finish_check(self, data: st.DataObject, healthy: bool) -> None:
        slot = self.pick(self.script.checking, data)
        if slot is not None:
            self.script.do(self.script.core.checked(slot, self.script.now, healthy=healthy))

    @rule(data=st.data())
    def finish_close(self, data: st.DataObject) -> None:
        slot = self.pick(self.script.closing, data)
        if slot is not None:
            self.script.do(self.script.core.closed(slot, self.script.now))

    @rule(seconds=st.floats(0.01, 60))
    def pass_time(self, seconds: float) -> None:
        self.script.pass_time(seconds)

    @rule()
    def check(self) -> None:
        self.script.do(self.script.core.check(self.script.now))

    @rule()
    def drain(self) -> None:
        self.script.do(self.script.core.drain(self.script.now))

    @rule(max_size=st.integers(1, 4))
    def resize(self, max_size: int) -> None:
        self.max_size = max(self.script.core.size, max_size)
        self.script.do(self.script.core.resize(self.script.now, min_idle=1, max_size=max_size))

    @invariant()
    def never_more_than_max_size(self) -> None:
        assert self.script.core.size <= self.max_size

    @invariant()
    def every_slot_is_somewhere(self) -> None:
        """Each slot is idle, in use, or being opened, checked or closed."""
        script = self.script
        held = [waiter.slot for waiter in self.waited if waiter.slot and waiter not in self.gone]
        in_use = [slot for slot in held if slot.state is State.IN_USE]
        known = script.opening + script.checking + script.closing + in_use
        assert len(known) == len(set(known)), "a slot is in two hands"
        assert len(known) + script.core.stats().conn_idle == script.core.size
        assert script.core.stats().conn_in_use == len(in_use)

    @invariant()
    def first_come_first_served(self) -> None:
        order = [self.waited.index(waiter) for waiter in self.script.assigned]
        assert order == sorted(order)

    @invariant()
    def who_has_left_receives_nothing(self) -> None:
        waiting = [waiter for waiter in self.waited if waiter not in self.gone]
        waiting = [
            waiter for waiter in waiting if waiter.slot is None and waiter not in self.script.failed
        ]
        assert self.script.core.stats().waiting == len(waiting)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        """While a caller waits, an action is pending, all slots are in use, or a retry is due."""
        script = self.script
        stats = script.core.stats()
        if stats.waiting:
            under_way = script.opening or script.checking or script.closing
            all_in_use = stats.conn_in_use >= script.core.max_size
            assert under_way or all_in_use or script.core.next_maintenance_at(script.now) < math.inf

    @invariant()
    def the_future_is_ahead(self) -> None:
        assert self.script.core.next_maintenance_at(self.script.now) > self.script.now

    def teardown(self) -> None:
        """After everything is closed, no slot is left."""
        script = self.script
        script.do(script.core.close(script.now))
        script.do(script.core.close_in_use(script.now))
        while script.opening:
            script.connect()
        script.checking.clear()
        script.finish_closing()
        assert script.core.size == 0
        assert script.core.stats().waiting == 0


TestAnyOrder = AnyOrder.TestCase

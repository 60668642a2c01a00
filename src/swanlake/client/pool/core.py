"""The decisions of a pool: which caller gets which connection, what is opened, checked and closed.

Nothing here waits, connects or reads a clock. A method changes the state and returns the actions to
carry out; the runtime reports back how they ended. Pools for threads and for tasks share these
decisions, and tests reproduce any race by the order of their calls.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from swanlake._internal.backoff import backoff
from swanlake.client.api.options import PoolConfig
from swanlake.errors import (
    PoolClosed,
    QueryTimeout,
    ServerUnavailable,
    SessionLimitReached,
    TooManyRequests,
)

C = TypeVar("C")

#: Errors after which the server may become reachable again.
_TRANSIENT = (ServerUnavailable, QueryTimeout, SessionLimitReached)
#: Lifetimes are shortened by up to this fraction, so that connections do not expire together.
LIFETIME_JITTER = 0.05
RECONNECT_FIRST_DELAY = 0.5
RECONNECT_MAX_DELAY = 8.0
RECONNECT_JITTER = 0.1
#: A connect or a check that takes longer may hang: the pool opens another connection for its waiter
#: while there is room.
PENDING_TIMEOUT = 1.0


class State(Enum):
    """What a slot is doing."""

    CONNECTING = "connecting"
    CHECKING = "checking"
    IDLE = "idle"
    IN_USE = "in use"
    CLOSING = "closing"


@dataclass(eq=False, slots=True, kw_only=True)
class Slot(Generic[C]):
    """One connection of the pool, from the decision to open it until it is closed."""

    generation: int
    #: When it entered its state.
    since: float
    state: State = State.CONNECTING
    expires_at: float = math.inf
    #: Set by ``connected``.
    connection: C = field(init=False)


@dataclass(eq=False, slots=True)
class Waiter(Generic[C]):
    """A caller that waits for a connection."""

    since: float
    #: The slot it was assigned, until it is released or the wait is cancelled.
    slot: Slot[C] | None = field(default=None, init=False)
    #: What the caller waits for; the runtime completes it.
    future: Future[Slot[C]] = field(default_factory=Future, init=False)


@dataclass(frozen=True, slots=True)
class OpenSlot(Generic[C]):
    """Connect; then ``connected`` or ``connect_failed``."""

    slot: Slot[C]


@dataclass(frozen=True, slots=True)
class CheckSlot(Generic[C]):
    """Check the connection; then ``checked``."""

    slot: Slot[C]


@dataclass(frozen=True, slots=True)
class CloseSlot(Generic[C]):
    """Close the connection; then ``closed``."""

    slot: Slot[C]


@dataclass(frozen=True, slots=True)
class Assign(Generic[C]):
    """Wake the waiter with its slot."""

    waiter: Waiter[C]
    slot: Slot[C]


@dataclass(frozen=True, slots=True)
class FailWaiter(Generic[C]):
    """Wake the waiter with an error."""

    waiter: Waiter[C]
    error: Exception


@dataclass(frozen=True, slots=True)
class ReconnectFailed:
    """Report that the server was unreachable for ``reconnect_timeout``."""

    error: Exception


Action: TypeAlias = (
    OpenSlot[C] | CheckSlot[C] | CloseSlot[C] | Assign[C] | FailWaiter[C] | ReconnectFailed
)


@dataclass(slots=True)
class _Counts:
    """Counters, reset by ``stats(pop=True)``."""

    requests: int = 0
    acquire_wait_seconds: float = 0.0
    acquire_timeouts: int = 0
    conn_created: int = 0
    conn_dropped: int = 0
    conn_lost: int = 0
    connect_errors: int = 0
    usage_seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolStats:
    """The figures of a pool: counts since its start or the last ``pop_stats``, and gauges."""

    #: Connections requested, and the total time that callers waited for them.
    requests: int
    acquire_wait_seconds: float
    #: Callers that got no connection in time.
    acquire_timeouts: int
    conn_created: int
    #: Connections closed for any reason.
    conn_dropped: int
    #: Connections closed because they were lost or failed a check.
    conn_lost: int
    connect_errors: int
    #: The total time that connections were in use.
    usage_seconds: float
    #: Gauges from here on.
    conn_in_use: int
    conn_idle: int
    waiting: int


@dataclass(slots=True)
class _Outage:
    """When the server became unreachable, and when to retry."""

    since: float
    attempts: int = 0
    retry_at: float = 0.0

    def schedule_retry(self, now: float, gives_up_at: float, random: Callable[[], float]) -> None:
        """Schedules the next attempt with exponential back-off."""
        self.attempts += 1
        delay = backoff(
            self.attempts,
            random,
            first=RECONNECT_FIRST_DELAY,
            longest=RECONNECT_MAX_DELAY,
            jitter=RECONNECT_JITTER,
        )
        self.retry_at = min(now + delay, gives_up_at)


class PoolCore(Generic[C]):
    """Slots, waiters, and the rules between them; ``random`` returns numbers from 0 to 1."""

    def __init__(self, config: PoolConfig, random: Callable[[], float]) -> None:
        self._config = config
        self._random = random
        self.min_idle = config.min_idle
        self.max_size = config.max_size
        self.is_closed = False
        #: Why the last attempt to connect failed; None after a success.
        self.connect_error: Exception | None = None
        #: True if the pool does not connect until a caller asks for a connection.
        self.stopped_reconnecting = False
        self._slots: set[Slot[C]] = set()
        #: Least recently used first. The last is assigned first, so that the others can expire.
        self._idle: list[Slot[C]] = []
        self._waiters: deque[Waiter[C]] = deque()
        self._generation = 0
        #: When a connection was last found broken: those idle since before are checked.
        self._lost_at = -math.inf
        self._outage: _Outage | None = None
        self._counts = _Counts()

    def acquire(self, waiter: Waiter[C], now: float) -> list[Action[C]]:
        """Queues a waiter for a connection; raises PoolClosed or TooManyRequests."""
        self.check_open()
        if self._queue_is_full(now):
            raise TooManyRequests(
                f"The pool {self._config.name} has {self.max_size} connections, and "
                f"{len(self._waiters)} callers wait for one; max_waiting allows no more."
            )
        self._counts.requests += 1
        self._waiters.append(waiter)
        return self._rebalance(now)

    def cancel_wait(
        self, waiter: Waiter[C], now: float, *, timed_out: bool = False
    ) -> list[Action[C]]:
        """Removes a waiter; a slot that it was assigned goes to the next one."""
        self._counts.acquire_timeouts += timed_out
        if waiter.slot is not None:
            return self.release(waiter.slot, now, reusable=True)
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        return self._rebalance(now)

    def release(
        self, slot: Slot[C], now: float, *, reusable: bool, lost: bool = False
    ) -> list[Action[C]]:
        """Takes back the slot of a caller; ``lost`` if its connection was found broken."""
        if slot.state is not State.IN_USE:
            return []  # already closed by `close_in_use`
        self._counts.usage_seconds += now - slot.since
        if lost:
            self._record_loss(now)
        actions = self._make_available(slot, now) if reusable else [self._drop(slot, now)]
        return actions + self._rebalance(now)

    def try_acquire(self, now: float) -> Slot[C] | None:
        """An idle connection, if one is ready and no caller waits."""
        if self._waiters or not self._idle:
            return None
        slot = self._idle[-1]
        if self._needs_check(slot, now) or self._is_outdated(slot, now):
            return None
        self._idle.pop()
        self._set_state(slot, State.IN_USE, now)
        self._counts.requests += 1
        return slot

    def try_release(self, slot: Slot[C], now: float) -> bool:
        """Makes a reusable slot idle, if no caller waits; False if it needs ``release``.

        No rule applies to the slot before ``next_check_of``.
        """
        if slot.state is not State.IN_USE or self._waiters or self.size > self.max_size:
            return False
        if self._is_outdated(slot, now):
            return False
        self._counts.usage_seconds += now - slot.since
        self._set_state(slot, State.IDLE, now)
        self._idle.append(slot)
        return True

    def next_check_of(self, slot: Slot[C], now: float) -> float:
        """When the rules apply next to a slot that becomes idle now."""
        if self.size <= self.min_idle:
            return slot.expires_at
        return min(slot.expires_at, now + self._config.idle_ttl)

    def connected(self, slot: Slot[C], connection: C, now: float) -> list[Action[C]]:
        """Reports a new connection."""
        slot.connection = connection
        slot.expires_at = now + self._config.max_lifetime * (1 - LIFETIME_JITTER * self._random())
        self._counts.conn_created += 1
        self._outage, self.connect_error, self.stopped_reconnecting = None, None, False
        return self._make_available(slot, now) + self._rebalance(now)

    def connect_failed(self, slot: Slot[C], error: Exception, now: float) -> list[Action[C]]:
        """Reports a failed attempt; waiters fail too, unless the error is transient."""
        self._slots.discard(slot)
        self._counts.connect_errors += 1
        self.connect_error = error
        if not isinstance(error, _TRANSIENT):
            self._outage = None
            return self._stop_reconnecting(error) + self._rebalance(now)
        if self._outage is None:
            self._outage = _Outage(now)
        gives_up_at = self._outage.since + self._config.reconnect_timeout
        if now < gives_up_at:
            # Of attempts made at the same time, only one lengthens the delay.
            if slot.since >= self._outage.retry_at:
                self._outage.schedule_retry(now, gives_up_at, self._random)
            return self._rebalance(now)
        self._outage = None
        return [*self._stop_reconnecting(error), ReconnectFailed(error), *self._rebalance(now)]

    def checked(self, slot: Slot[C], now: float, *, healthy: bool) -> list[Action[C]]:
        """Reports the result of a check."""
        if slot.state is not State.CHECKING:
            return []
        if healthy:
            return self._make_available(slot, now) + self._rebalance(now)
        self._record_loss(now)
        return [self._drop(slot, now), *self._rebalance(now)]

    def closed(self, slot: Slot[C], now: float) -> list[Action[C]]:
        """Reports a closed connection, which frees its slot; may be reported twice."""
        self._slots.discard(slot)
        return self._rebalance(now)

    def maintain(self, now: float) -> list[Action[C]]:
        """Retires, replaces and reconnects what is due."""
        return self._rebalance(now)

    def next_maintenance_at(self, now: float) -> float:
        """When to call ``maintain`` next; infinity if only events can change anything."""
        return min(
            (moment for moment in self._maintenance_times() if moment > now), default=math.inf
        )

    def check(self, now: float) -> list[Action[C]]:
        """Checks every idle connection."""
        idle, self._idle = self._idle, []
        return [self._begin_check(slot, now) for slot in idle] + self._rebalance(now)

    def drain(self, now: float) -> list[Action[C]]:
        """Retires all connections that exist now."""
        self._generation += 1
        return self._rebalance(now)

    def resize(self, now: float, *, min_idle: int, max_size: int) -> list[Action[C]]:
        """Changes the bounds; surplus connections are closed when they are idle."""
        self.min_idle, self.max_size = min_idle, max_size
        return self._rebalance(now)

    def close(self, now: float) -> list[Action[C]]:
        """Fails all waiters; connections in use are closed when they are released."""
        self.is_closed = True
        return self._fail_waiters(self._closed_error()) + self._rebalance(now)

    def close_in_use(self, now: float) -> list[Action[C]]:
        """Closes the connections in use too."""
        return [
            self._drop(slot, now) for slot in list(self._slots_in(State.IN_USE, State.CHECKING))
        ]

    def check_open(self) -> None:
        """Raises PoolClosed if the pool is closed."""
        if self.is_closed:
            raise self._closed_error()

    @property
    def size(self) -> int:
        """Slots in any state."""
        return len(self._slots)

    @property
    def is_filled(self) -> bool:
        """True if at least ``min_idle`` connections are idle or in use."""
        return sum(1 for _ in self._slots_in(State.IDLE, State.IN_USE)) >= self.min_idle

    @property
    def is_checking(self) -> bool:
        return any(self._slots_in(State.CHECKING))

    def stats(self, *, pop: bool = False) -> PoolStats:
        """The pool's figures; ``pop`` resets the counts."""
        counts = {count.name: getattr(self._counts, count.name) for count in fields(_Counts)}
        if pop:
            self._counts = _Counts()
        return PoolStats(
            **counts,
            conn_in_use=sum(1 for _ in self._slots_in(State.IN_USE)),
            conn_idle=len(self._idle),
            waiting=len(self._waiters),
        )

    def _rebalance(self, now: float) -> list[Action[C]]:
        """Applies all rules. Every event ends here, so that none is forgotten."""
        return [*self._retire(now), *self._assign_idle(now), *self._grow(now)]

    def _retire(self, now: float) -> Iterator[Action[C]]:
        """Closes idle connections that are outdated, surplus, or idle for too long."""
        live = self._live_count()
        for slot in list(self._idle):
            too_idle = now >= slot.since + self._config.idle_ttl and live > self.min_idle
            if too_idle or live > self.max_size or self._is_outdated(slot, now):
                live -= 1
                self._idle.remove(slot)
                yield self._drop(slot, now)

    def _assign_idle(self, now: float) -> Iterator[Action[C]]:
        """Assigns idle connections to waiters."""
        while self._waiters and self._idle:
            if not self._needs_check(self._idle[-1], now):
                yield self._assign(self._idle.pop(), now)
            elif len(self._waiters) > self._pending(now):
                yield self._begin_check(self._idle.pop(), now)
            else:
                break

    def _grow(self, now: float) -> Iterator[Action[C]]:
        """Opens connections for waiters without a pending one, and up to ``min_idle``."""
        if self.is_closed:
            return
        wanted = len(self._waiters) - self._pending(now)
        if not self.stopped_reconnecting:
            wanted = max(wanted, self.min_idle - self._live_count())
        room = self.max_size - self.size
        if self._outage is not None and now < self._outage.retry_at:
            room = 0
        elif self.connect_error is not None:
            # One attempt at a time probes whether the server is back.
            room = min(room, 1 - sum(1 for _ in self._on_time(State.CONNECTING, now)))
        for _ in range(min(wanted, room)):
            slot: Slot[C] = Slot(generation=self._generation, since=now)
            self._slots.add(slot)
            yield OpenSlot(slot)

    def _make_available(self, slot: Slot[C], now: float) -> list[Action[C]]:
        """Assigns a working connection to the first waiter, so that no newcomer overtakes it."""
        if self._is_outdated(slot, now) or self._live_count() > self.max_size:
            return [self._drop(slot, now)]
        if self._waiters:
            return [self._assign(slot, now)]
        self._set_state(slot, State.IDLE, now)
        self._idle.append(slot)
        return []

    def _assign(self, slot: Slot[C], now: float) -> Action[C]:
        waiter = self._waiters.popleft()
        waiter.slot = slot
        self._set_state(slot, State.IN_USE, now)
        self._counts.acquire_wait_seconds += now - waiter.since
        return Assign(waiter, slot)

    def _begin_check(self, slot: Slot[C], now: float) -> Action[C]:
        self._set_state(slot, State.CHECKING, now)
        return CheckSlot(slot)

    def _drop(self, slot: Slot[C], now: float) -> Action[C]:
        # It keeps its slot until it is closed: the server may be at its session limit.
        self._set_state(slot, State.CLOSING, now)
        self._counts.conn_dropped += 1
        return CloseSlot(slot)

    def _stop_reconnecting(self, error: Exception) -> list[Action[C]]:
        """Fails all waiters; the next caller starts a new attempt."""
        self.stopped_reconnecting = True
        return self._fail_waiters(error)

    def _fail_waiters(self, error: Exception) -> list[Action[C]]:
        waiters, self._waiters = self._waiters, deque()
        return [FailWaiter(waiter, error) for waiter in waiters]

    def _record_loss(self, now: float) -> None:
        self._counts.conn_lost += 1
        self._lost_at = now

    def _needs_check(self, slot: Slot[C], now: float) -> bool:
        idle_for_long = now >= slot.since + self._config.healthcheck_after_idle
        return idle_for_long or slot.since <= self._lost_at

    def _is_outdated(self, slot: Slot[C], now: float) -> bool:
        return self.is_closed or slot.generation < self._generation or now >= slot.expires_at

    def _queue_is_full(self, now: float) -> bool:
        """True if a new caller would have to wait and the wait queue is full."""
        limit = self._config.max_waiting
        may_grow = self.size < self.max_size and self._outage is None
        if not limit or self._idle or may_grow:
            return False
        return len(self._waiters) - self._pending(now) >= limit

    def _live_count(self) -> int:
        return sum(1 for slot in self._slots if slot.state is not State.CLOSING)

    def _pending(self, now: float) -> int:
        """The number of connections that will be ready soon."""
        return sum(1 for state in _PENDING_STATES for _ in self._on_time(state, now))

    def _on_time(self, state: State, now: float) -> Iterator[Slot[C]]:
        return (slot for slot in self._slots_in(state) if now < slot.since + PENDING_TIMEOUT)

    def _slots_in(self, *states: State) -> Iterator[Slot[C]]:
        return (slot for slot in self._slots if slot.state in states)

    def _maintenance_times(self) -> Iterator[float]:
        """The times at which a rule may apply although no event happened."""
        may_shrink = self._live_count() > self.min_idle
        for slot in self._slots:
            if slot.state is State.IDLE:
                yield slot.expires_at
                if may_shrink:
                    yield slot.since + self._config.idle_ttl
            elif slot.state in _PENDING_STATES and self._waiters:
                yield slot.since + PENDING_TIMEOUT
        if self._outage is not None:
            yield self._outage.retry_at

    def _set_state(self, slot: Slot[C], state: State, now: float) -> None:
        slot.state, slot.since = state, now

    def _closed_error(self) -> PoolClosed:
        return PoolClosed(f"The pool {self._config.name} is closed.")


_PENDING_STATES = (State.CONNECTING, State.CHECKING)

"""The decisions of a pool: who gets which connection, and what is opened, checked and closed.

Nothing here waits, connects or looks at a clock. Every method changes the state and returns what is
to be done about it; whoever does it reports back. That makes a pool of threads and a pool of
tasks out of the same decisions, and every race a matter of the order of calls.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Generic, TypeAlias, TypeVar

from swanlake.client.backoff import backoff
from swanlake.client.options import PoolConfig
from swanlake.errors import (
    PoolClosed,
    QueryTimeout,
    ServerUnavailable,
    SessionLimitReached,
    TooManyRequests,
)

C = TypeVar("C")

#: A connection is replaced up to so much of its lifetime earlier, so that not all are at once.
LIFETIME_JITTER = 0.05
FIRST_DELAY = 0.5
#: A server that comes back is not left waiting for longer than this.
LONGEST_DELAY = 8.0
DELAY_JITTER = 0.1
#: A connect or a check that takes longer may be hanging: nobody counts on it any more, and another
#: connection is opened for who waits, as long as there is room.
PROMPT = 1.0


class State(Enum):
    """What a slot is for at the moment."""

    CONNECTING = "connecting"
    CHECKING = "checking"
    IDLE = "idle"
    IN_USE = "in use"
    CLOSING = "closing"


@dataclass(eq=False, slots=True, kw_only=True)
class Slot(Generic[C]):
    """A place in the pool, from the decision to connect until its connection is closed."""

    generation: int
    #: Since when it has been in its state.
    since: float
    state: State = State.CONNECTING
    expires_at: float = math.inf
    #: Set as soon as there is one.
    connection: C = field(init=False)


@dataclass(eq=False, slots=True)
class Waiter(Generic[C]):
    """A caller who wants a connection."""

    since: float
    #: What was handed over; it is the waiter's until it is released or the waiter withdraws.
    slot: Slot[C] | None = field(default=None, init=False)


@dataclass(frozen=True, slots=True)
class Open(Generic[C]):
    """Connect; then ``connected`` or ``connect_failed``."""

    slot: Slot[C]


@dataclass(frozen=True, slots=True)
class Check(Generic[C]):
    """Find out whether the connection works; then ``checked``."""

    slot: Slot[C]


@dataclass(frozen=True, slots=True)
class Close(Generic[C]):
    """Close the connection; then ``closed``."""

    slot: Slot[C]


@dataclass(frozen=True, slots=True)
class HandOver(Generic[C]):
    """Wake the waiter: the slot is his."""

    waiter: Waiter[C]
    slot: Slot[C]


@dataclass(frozen=True, slots=True)
class Fail(Generic[C]):
    """Wake the waiter with an error: he gets nothing."""

    waiter: Waiter[C]
    error: Exception


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The server could not be reached for as long as the pool tries; tell whoever wants to know."""

    error: Exception


Action: TypeAlias = Open[C] | Check[C] | Close[C] | HandOver[C] | Fail[C] | GaveUp


@dataclass(slots=True)
class _Counts:
    """What only ever grows, until somebody takes it away."""

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
    """The figures of a pool: counts since its start, or since they were popped, and the present."""

    #: Connections asked for, and how long callers waited for them in all.
    requests: int
    acquire_wait_seconds: float
    #: Callers who waited in vain.
    acquire_timeouts: int
    conn_created: int
    #: Connections closed for whatever reason; of them were lost or failed a check:
    conn_dropped: int
    conn_lost: int
    connect_errors: int
    #: How long connections were in use, in all.
    usage_seconds: float
    #: At the moment.
    conn_in_use: int
    conn_idle: int
    waiting: int


@dataclass(slots=True)
class _Outage:
    """The time since a server was last reached, and the plan for reaching it again."""

    since: float
    attempts: int = 0
    retry_at: float = 0.0

    def plan(self, now: float, gives_up_at: float, random: Callable[[], float]) -> None:
        """Puts the next attempt off, twice as long as the last time."""
        self.attempts += 1
        delay = backoff(
            self.attempts, random, first=FIRST_DELAY, longest=LONGEST_DELAY, jitter=DELAY_JITTER
        )
        self.retry_at = min(now + delay, gives_up_at)


class PoolCore(Generic[C]):
    """Slots, waiters, and the rules between them; ``random`` gives numbers from 0 to 1."""

    def __init__(self, config: PoolConfig, random: Callable[[], float]) -> None:
        self._config = config
        self._random = random
        self.min_idle = config.min_idle
        self.max_size = config.max_size
        self.is_closed = False
        #: Why the last attempt to connect failed; None after one that did not.
        self.failure: Exception | None = None
        #: True if nobody tries to connect until somebody asks for a connection.
        self.is_resting = False
        self._slots: set[Slot[C]] = set()
        #: Least recently used first. The last is given out first: the others may grow old.
        self._idle: list[Slot[C]] = []
        self._waiters: deque[Waiter[C]] = deque()
        self._generation = 0
        #: When a connection was last found broken. Those idle since before may be too.
        self._lost_at = -math.inf
        self._outage: _Outage | None = None
        self._counts = _Counts()

    # ---- callers ---------------------------------------------------------------------------------

    def acquire(self, waiter: Waiter[C], now: float) -> list[Action[C]]:
        """Somebody wants a connection; raises PoolClosed or TooManyRequests."""
        self.check_open()
        if self._queue_is_full(now):
            raise TooManyRequests(
                f"The pool {self._config.name} has {self.max_size} connections, and "
                f"{len(self._waiters)} callers wait for one; max_waiting allows no more."
            )
        self._counts.requests += 1
        self._waiters.append(waiter)
        return self._settle(now)

    def withdraw(
        self, waiter: Waiter[C], now: float, *, timed_out: bool = False
    ) -> list[Action[C]]:
        """A waiter has left; what was handed over to him goes to the next."""
        self._counts.acquire_timeouts += timed_out
        if waiter.slot is not None:
            return self.release(waiter.slot, now, reusable=True)
        if waiter in self._waiters:
            self._waiters.remove(waiter)
        return self._settle(now)

    def release(
        self, slot: Slot[C], now: float, *, reusable: bool, lost: bool = False
    ) -> list[Action[C]]:
        """A caller needs his connection no more; ``lost`` if it was found broken."""
        if slot.state is not State.IN_USE:
            return []  # it was closed over his head
        self._counts.usage_seconds += now - slot.since
        if lost:
            self._note_loss(now)
        actions = self._offer(slot, now) if reusable else [self._drop(slot, now)]
        return actions + self._settle(now)

    # ---- what needs no decision ------------------------------------------------------------------

    def take(self, now: float) -> Slot[C] | None:
        """An idle connection at once, if one is ready and nobody is before the caller."""
        if self._waiters or not self._idle or self.is_closed or self.size > self.max_size:
            return None
        slot = self._idle[-1]
        if self._needs_check(slot, now) or self._is_outdated(slot, now):
            return None
        self._idle.pop()
        self._turn(slot, State.IN_USE, now)
        self._counts.requests += 1
        return slot

    def put_back(self, slot: Slot[C], now: float) -> bool:
        """A connection that can be used again, if nobody waits for it; False if that is to decide.

        The rules have nothing to say to it before its time has come.
        """
        if slot.state is not State.IN_USE or self._waiters or self.size > self.max_size:
            return False
        if self._is_outdated(slot, now):
            return False
        self._counts.usage_seconds += now - slot.since
        self._turn(slot, State.IDLE, now)
        self._idle.append(slot)
        return True

    def retires_at(self, slot: Slot[C], now: float) -> float:
        """When the rules will look at a connection that is idle from now on."""
        if self.size <= self.min_idle:
            return slot.expires_at
        return min(slot.expires_at, now + self._config.idle_ttl)

    # ---- reports ---------------------------------------------------------------------------------

    def connected(self, slot: Slot[C], connection: C, now: float) -> list[Action[C]]:
        """A connection is there."""
        slot.connection = connection
        slot.expires_at = now + self._config.max_lifetime * (1 - LIFETIME_JITTER * self._random())
        self._counts.conn_created += 1
        self._outage, self.failure, self.is_resting = None, None, False
        return self._offer(slot, now) + self._settle(now)

    def connect_failed(self, slot: Slot[C], error: Exception, now: float) -> list[Action[C]]:
        """There is none. Callers wait on if waiting can help."""
        self._slots.discard(slot)
        self._counts.connect_errors += 1
        self.failure = error
        if not is_passing(error):
            self._outage = None
            return self._rest(error) + self._settle(now)
        if self._outage is None:
            self._outage = _Outage(now)
        gives_up_at = self._outage.since + self._config.reconnect_timeout
        if now < gives_up_at:
            # Of attempts that were made at the same time, one puts off the next.
            if slot.since >= self._outage.retry_at:
                self._outage.plan(now, gives_up_at, self._random)
            return self._settle(now)
        self._outage = None
        return [*self._rest(error), GaveUp(error), *self._settle(now)]

    def checked(self, slot: Slot[C], now: float, *, healthy: bool) -> list[Action[C]]:
        """A connection works, or does not."""
        if slot.state is not State.CHECKING:
            return []
        if healthy:
            return self._offer(slot, now) + self._settle(now)
        self._note_loss(now)
        return [self._drop(slot, now), *self._settle(now)]

    def closed(self, slot: Slot[C], now: float) -> list[Action[C]]:
        """A connection is gone, and its place is free; can be reported twice."""
        self._slots.discard(slot)
        return self._settle(now)

    # ---- care ------------------------------------------------------------------------------------

    def tend(self, now: float) -> list[Action[C]]:
        """Does what the time asks for: retires, replaces, tries again."""
        return self._settle(now)

    def due(self, now: float) -> float:
        """The moment of the next ``tend``; infinity if only events can change anything."""
        return min((moment for moment in self._moments() if moment > now), default=math.inf)

    def check(self, now: float) -> list[Action[C]]:
        """Has every idle connection checked."""
        idle, self._idle = self._idle, []
        return [self._begin_check(slot, now) for slot in idle] + self._settle(now)

    def drain(self, now: float) -> list[Action[C]]:
        """From now on only connections made after this are given out."""
        self._generation += 1
        return self._settle(now)

    def resize(self, now: float, *, min_idle: int, max_size: int) -> list[Action[C]]:
        """Changes the bounds; what is too much goes as it becomes idle."""
        self.min_idle, self.max_size = min_idle, max_size
        return self._settle(now)

    def close(self, now: float) -> list[Action[C]]:
        """Nobody gets a connection any more; those in use are closed as they come back."""
        self.is_closed = True
        error = self._closed_error()
        waiters, self._waiters = self._waiters, deque()
        return [Fail(waiter, error) for waiter in waiters] + self._settle(now)

    def abandon(self, now: float) -> list[Action[C]]:
        """Closes also what is in use, over its users' heads."""
        return [self._drop(slot, now) for slot in list(self._in(State.IN_USE, State.CHECKING))]

    # ---- the present -----------------------------------------------------------------------------

    def check_open(self) -> None:
        """Raises PoolClosed if the pool is."""
        if self.is_closed:
            raise self._closed_error()

    @property
    def size(self) -> int:
        """Places that are taken, by whatever."""
        return len(self._slots)

    @property
    def is_filled(self) -> bool:
        """True if as many connections are ready or in use as there shall be at least."""
        return sum(1 for _ in self._in(State.IDLE, State.IN_USE)) >= self.min_idle

    @property
    def is_checking(self) -> bool:
        return any(self._in(State.CHECKING))

    def stats(self, *, pop: bool = False) -> PoolStats:
        """The figures; ``pop`` has the counts begin anew."""
        counts = {one.name: getattr(self._counts, one.name) for one in fields(_Counts)}
        if pop:
            self._counts = _Counts()
        return PoolStats(
            **counts,
            conn_in_use=sum(1 for _ in self._in(State.IN_USE)),
            conn_idle=len(self._idle),
            waiting=len(self._waiters),
        )

    # ---- the rules -------------------------------------------------------------------------------

    def _settle(self, now: float) -> list[Action[C]]:
        """Brings everything in order; all events end here, and so no rule can be forgotten."""
        return [*self._retire(now), *self._serve(now), *self._grow(now)]

    def _retire(self, now: float) -> Iterator[Action[C]]:
        """Idle connections that are outdated, too many, or needed by nobody for long."""
        live = self._live()
        for slot in list(self._idle):
            too_idle = now >= slot.since + self._config.idle_ttl and live > self.min_idle
            if too_idle or live > self.max_size or self._is_outdated(slot, now):
                live -= 1
                self._idle.remove(slot)
                yield self._drop(slot, now)

    def _serve(self, now: float) -> Iterator[Action[C]]:
        """Idle connections for those who wait."""
        while self._waiters and self._idle:
            if not self._needs_check(self._idle[-1], now):
                yield self._hand_over(self._idle.pop(), now)
            elif len(self._waiters) > self._coming(now):
                yield self._begin_check(self._idle.pop(), now)
            else:
                break

    def _grow(self, now: float) -> Iterator[Action[C]]:
        """New connections: one for each who waits with none on its way, and for the minimum."""
        if self.is_closed:
            return
        wanted = len(self._waiters) - self._coming(now)
        if not self.is_resting:
            wanted = max(wanted, self.min_idle - self._live())
        room = self.max_size - self.size
        if self._outage is not None and now < self._outage.retry_at:
            room = 0
        elif self.failure is not None:
            # One at a time finds out whether the server is back.
            room = min(room, 1 - sum(1 for _ in self._prompt(State.CONNECTING, now)))
        for _ in range(min(wanted, room)):
            slot: Slot[C] = Slot(generation=self._generation, since=now)
            self._slots.add(slot)
            yield Open(slot)

    def _offer(self, slot: Slot[C], now: float) -> list[Action[C]]:
        """A connection that works goes straight to the first who waits, so that none barges in."""
        if self._is_outdated(slot, now) or self._live() > self.max_size:
            return [self._drop(slot, now)]
        if self._waiters:
            return [self._hand_over(slot, now)]
        self._turn(slot, State.IDLE, now)
        self._idle.append(slot)
        return []

    def _hand_over(self, slot: Slot[C], now: float) -> Action[C]:
        waiter = self._waiters.popleft()
        waiter.slot = slot
        self._turn(slot, State.IN_USE, now)
        self._counts.acquire_wait_seconds += now - waiter.since
        return HandOver(waiter, slot)

    def _begin_check(self, slot: Slot[C], now: float) -> Action[C]:
        self._turn(slot, State.CHECKING, now)
        return Check(slot)

    def _drop(self, slot: Slot[C], now: float) -> Action[C]:
        # It keeps its place until it is closed: the server may have no room for one more session.
        self._turn(slot, State.CLOSING, now)
        self._counts.conn_dropped += 1
        return Close(slot)

    def _rest(self, error: Exception) -> list[Action[C]]:
        """Nobody can be helped by waiting; the next who asks begins anew."""
        self.is_resting = True
        waiters, self._waiters = self._waiters, deque()
        return [Fail(waiter, error) for waiter in waiters]

    def _note_loss(self, now: float) -> None:
        self._counts.conn_lost += 1
        self._lost_at = now

    def _needs_check(self, slot: Slot[C], now: float) -> bool:
        idle_for_long = now >= slot.since + self._config.healthcheck_after_idle
        return idle_for_long or slot.since <= self._lost_at

    def _is_outdated(self, slot: Slot[C], now: float) -> bool:
        return self.is_closed or slot.generation < self._generation or now >= slot.expires_at

    def _queue_is_full(self, now: float) -> bool:
        """True if one more could only wait, with as many before him as may."""
        limit = self._config.max_waiting
        may_grow = self.size < self.max_size and self._outage is None
        if not limit or self._idle or may_grow:
            return False
        return len(self._waiters) - self._coming(now) >= limit

    def _live(self) -> int:
        return sum(1 for slot in self._slots if slot.state is not State.CLOSING)

    def _coming(self, now: float) -> int:
        """Connections that will be there any moment."""
        return sum(1 for state in _COMING for _ in self._prompt(state, now))

    def _prompt(self, state: State, now: float) -> Iterator[Slot[C]]:
        return (slot for slot in self._in(state) if now < slot.since + PROMPT)

    def _in(self, *states: State) -> Iterator[Slot[C]]:
        return (slot for slot in self._slots if slot.state in states)

    def _moments(self) -> Iterator[float]:
        """When the rules may come to another result though nothing has happened."""
        may_shrink = self._live() > self.min_idle
        for slot in self._slots:
            if slot.state is State.IDLE:
                yield slot.expires_at
                if may_shrink:
                    yield slot.since + self._config.idle_ttl
            elif slot.state in _COMING and self._waiters:
                yield slot.since + PROMPT
        if self._outage is not None:
            yield self._outage.retry_at

    def _turn(self, slot: Slot[C], state: State, now: float) -> None:
        slot.state, slot.since = state, now

    def _closed_error(self) -> PoolClosed:
        return PoolClosed(f"The pool {self._config.name} is closed.")


_COMING = (State.CONNECTING, State.CHECKING)


def is_passing(error: Exception) -> bool:
    """True if a server that could not be reached now may be reached later."""
    return isinstance(error, ServerUnavailable | QueryTimeout | SessionLimitReached)

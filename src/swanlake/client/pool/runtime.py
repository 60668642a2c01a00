"""Who carries out what a pool decides: connects, checks, closes, hands over.

A keeper never blocks who calls it. What takes time is done by threads of its own, and callers get
futures: one for a connection, one for a state of the pool. Threads wait for them, tasks await them.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

from swanlake.client import requests
from swanlake.client.address import Address
from swanlake.client.client import SessionStatements
from swanlake.client.connection import Connection, Statement
from swanlake.client.deadline import Deadline
from swanlake.client.driver import Call, Rows
from swanlake.client.forks import check_fork, is_cut_off
from swanlake.client.line import Line
from swanlake.client.options import PoolConfig
from swanlake.client.pool_core import (
    Action,
    Check,
    Close,
    Fail,
    GaveUp,
    HandOver,
    Open,
    PoolCore,
    PoolStats,
    Slot,
    Waiter,
)
from swanlake.client.stream import ResultStream, end_unread
from swanlake.client.telemetry import Telemetry, log
from swanlake.errors import PoolTimeout, SwanLakeError

T = TypeVar("T")

Core: TypeAlias = PoolCore[Connection]
ConnectionSlot: TypeAlias = Slot[Connection]
Configure: TypeAlias = Callable[[SessionStatements], object]

_numbers = itertools.count(1)


class Caller(Waiter[Connection]):
    """A waiter, and the future that he waits for."""

    __slots__ = ("future",)

    def __init__(self, since: float) -> None:
        super().__init__(since)
        self.future: Future[ConnectionSlot] = Future()
        # From here on it cannot be cancelled: who does not want to wait any more withdraws, and
        # the core alone knows whether that came before the hand-over or after it.
        self.future.set_running_or_notify_cancel()


class NewConnection(SessionStatements):
    """A connection before its first use, for whoever configures it."""

    def __init__(self, connection: Connection, default_timeout: float | None) -> None:
        self._new = connection
        self._default_timeout = default_timeout

    @property
    def _connection(self) -> Connection:
        return self._new


class Keeper:
    """The connections of a pool; can be used from any thread and any event loop."""

    def __init__(
        self,
        address: Address,
        config: PoolConfig,
        configure: Configure | None,
        gave_up: Callable[[], object],
    ) -> None:
        self.config = replace(config, name=config.name or f"pool-{next(_numbers)}")
        self._address = address
        self._configure = configure
        self._gave_up = gave_up
        self._core: Core = PoolCore(self.config, random.random)
        self.telemetry = Telemetry(str(self.config.name), self.stats)
        self._lock = threading.Lock()
        self._plan_changed = threading.Condition(self._lock)
        self._tends_at = math.inf
        self._started = False
        self._expectations: list[tuple[Callable[[Core], bool], Future[None]]] = []

    # ---- for callers -----------------------------------------------------------------------------

    def start(self) -> None:
        """Opens the first connections, if that has not been done; raises PoolClosed."""
        check_fork()
        with self._lock:
            self._core.check_open()
            if self._started:
                return
            self._started = True
        self.telemetry.event("opened for %s", self._address.url)
        # Idle connections grow old and servers come back while nobody calls; without a thread that
        # watches the time a quiet program would keep sixteen sessions for ever.
        in_background("swanlake-pool", self._tend)
        self._do(self._core.tend)

    def ask(self) -> Caller:
        """Asks for a connection; raises PoolClosed, TooManyRequests or ForkedProcess."""
        check_fork()  # before the lock: in a child it may be held for ever
        if not self._started:
            self.start()
        caller = Caller(time.monotonic())
        self._do(lambda now: self._core.acquire(caller, now))
        return caller

    def take(self) -> ConnectionSlot | None:
        """A connection that is ready, if nobody waits for one: most callers need no more."""
        if not self._started:
            return None
        check_fork()
        with self._lock:
            slot = self._core.take(time.monotonic())
        if slot is not None:
            self.telemetry.acquired(0.0)
        return slot

    def withdraw(self, caller: Caller, *, timed_out: bool = False) -> None:
        """The caller waits no more, and gets nothing; what he was given goes to the next."""
        if timed_out:
            self.telemetry.timed_out()
        self._do(lambda now: self._core.withdraw(caller, now, timed_out=timed_out))

    def release(
        self,
        slot: ConnectionSlot,
        *,
        after: Statement[Any] | None = None,
        keep: bool = True,
    ) -> None:
        """Gives a connection back, ``after`` a statement that may have to be stopped first.

        It goes to the next caller only if it works, nothing runs on it, and nobody can find in its
        session what the last one left there. Else it is closed.
        """
        if after is not None and not after.future.done():
            in_background("swanlake-stop", lambda: self.release(slot, keep=after.stop() and keep))
            return
        connection = slot.connection
        lost = connection.broken is not None or connection.suspect
        clean = not (connection.has_traces or connection.transaction or connection.busy)
        if keep and clean and not lost and self._put_back(slot):
            return
        self._do(
            lambda now: self._core.release(
                slot, now, reusable=keep and clean and not lost, lost=lost
            )
        )

    def _put_back(self, slot: ConnectionSlot) -> bool:
        if is_cut_off():
            return False
        with self._lock:
            now = time.monotonic()
            is_in_plan = self._tends_at <= self._core.retires_at(slot, now)
            return is_in_plan and not self._expectations and self._core.put_back(slot, now)

    def release_unread(self, slot: ConnectionSlot, statement: Statement[Rows] | None) -> None:
        """Gives a connection back after a stream that failed, or whose reader left too early."""
        if statement is None or (statement.future.done() and statement.call.rows is None):
            self.release(slot)
        else:
            in_background("swanlake-stop", lambda: self.release(slot, keep=end_unread(statement)))

    def lend_stream(self, slot: ConnectionSlot, rows: Rows, call: Call) -> ResultStream:
        """A stream that gives its connection back at its end, or when it is forgotten."""

        def released() -> None:
            if forgotten.detach() is not None:
                self.release(slot)

        stream = ResultStream(slot.connection, rows, call, released)
        forgotten = weakref.finalize(stream, self.reclaim, slot)
        forgotten.atexit = False
        return stream

    def reclaim(self, slot: ConnectionSlot) -> None:
        """Takes a connection back from who has forgotten it, and closes it."""
        if is_cut_off():
            return
        # The garbage collector calls this in the midst of anything, also where the lock is held.
        in_background("swanlake-reclaim", lambda: self.release(slot, keep=False))

    def timeout_error(self, timeout: float) -> PoolTimeout:
        """What is raised for a caller who waited in vain."""
        stats = self.stats()
        failure = self._core.failure
        return PoolTimeout(
            f"The pool {self.config.name} had no connection to give within "
            f"{round(timeout, 2):g} s: "
            f"{stats.conn_in_use} of {self._core.max_size} are in use and {stats.waiting} other "
            f"callers wait."
            + (f" The last attempt to connect failed: {failure}" if failure is not None else "")
        )

    # ---- for owners ------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        return self._core.is_closed

    @property
    def started(self) -> bool:
        return self._started

    @property
    def connect_failure(self) -> Exception | None:
        """Why the last attempt to connect failed, if it did."""
        return self._core.failure

    @property
    def hopeless(self) -> Exception | None:
        """Why nobody tries to connect any more, if so."""
        return self._core.failure if self._core.is_resting else None

    def when_filled(self) -> Future[None]:
        """Done when the first connections are there, or certainly will not be."""
        return self._when(lambda core: core.is_filled or core.is_resting or core.is_closed)

    def check(self) -> Future[None]:
        """Has idle connections checked; done when they are."""
        check_fork()
        self._do(self._core.check)
        return self._when(lambda core: not core.is_checking)

    def drain(self) -> None:
        check_fork()
        self.telemetry.event("drained")
        self._do(self._core.drain)

    def resize(self, *, min_idle: int, max_size: int) -> None:
        check_fork()
        self.config = replace(self.config, min_idle=min_idle, max_size=max_size)
        self.telemetry.event("resized to %d..%d connections", min_idle, max_size)
        self._do(lambda now: self._core.resize(now, min_idle=min_idle, max_size=max_size))

    def close(self) -> Future[None]:
        """Gives out no connection any more; done when all have come back and are closed."""
        if is_cut_off():
            nothing: Future[None] = Future()
            nothing.set_result(None)  # in a child they are the parent's, and so is the lock
            return nothing
        if not self.closed:
            self.telemetry.event("closed")
            self._do(self._core.close)
        return self._when(lambda core: core.size == 0)

    def abandon(self) -> None:
        """Closes also the connections that are in use, and stops what runs on them."""
        self._do(self._core.abandon)

    def close_forgotten(self) -> None:
        """Closes everything without waiting for anybody; for the garbage collector, as above."""
        in_background("swanlake-close", self._close_at_once)

    def stats(self, *, pop: bool = False) -> PoolStats:
        check_fork()
        with self._lock:
            return self._core.stats(pop=pop)

    # ---- inside ----------------------------------------------------------------------------------

    def _do(self, decide: Callable[[float], list[Action[Connection]]]) -> None:
        """Decides under the lock, and acts outside of it."""
        if is_cut_off():
            return  # the lock may be held for ever, and the connections are not ours
        with self._lock:
            actions = decide(time.monotonic())
            fulfilled = [future for expected, future in self._expectations if expected(self._core)]
            if fulfilled:
                self._expectations = [one for one in self._expectations if one[1] not in fulfilled]
            if self._next_tending() < self._tends_at or self._core.is_closed:
                self._plan_changed.notify()
        for action in actions:
            self._perform(action)
        for future in fulfilled:
            future.set_result(None)

    def _perform(self, action: Action[Connection]) -> None:
        match action:
            case HandOver(waiter=Caller() as caller, slot=slot):
                self.telemetry.acquired(slot.since - caller.since)
                caller.future.set_result(slot)
            case Fail(waiter=Caller() as caller, error=error):
                caller.future.set_exception(error)
            case Open(slot=slot):
                in_background("swanlake-connect", lambda: self._connect(slot))
            case Check(slot=slot):
                in_background("swanlake-check", lambda: self._check(slot))
            case Close(slot=slot):
                in_background("swanlake-close", lambda: self._close(slot))
            case GaveUp(error=error):
                self.telemetry.event("gave up to reconnect: %s", error, level=logging.ERROR)
                in_background("swanlake-gave-up", self._gave_up)

    def _connect(self, slot: ConnectionSlot) -> None:
        try:
            connection = self._connected()
        except Exception as failure:  # noqa: BLE001 - `configure` may raise anything
            error = failure  # the name of an except clause is gone before the lambda is called
            self.telemetry.event("no connection: %s", error, level=logging.WARNING)
            self._do(lambda now: self._core.connect_failed(slot, error, now))
        else:
            self.telemetry.of_connection(connection.session_id, "opened")
            self._do(lambda now: self._core.connected(slot, connection, now))

    def _connected(self) -> Connection:
        config = self.config
        connection = Connection(
            self._address, connect_timeout=config.connect_timeout, cancel_grace=config.cancel_grace
        )
        try:
            connection.open().wait()
            if self._configure is not None:
                self._configure(NewConnection(connection, config.default_query_timeout))
                connection.has_traces = False  # these are meant to stay
        except BaseException:
            connection.close(timeout=0.1)
            raise
        return connection

    def _check(self, slot: ConnectionSlot) -> None:
        call = Call(Deadline(self.config.connect_timeout))
        try:
            # Whatever it is, it was chosen to be run on every connection.
            request = replace(requests.query(self.config.healthcheck_sql), traceless=True)
            slot.connection.begin(request, call).wait()
            healthy = True
        except Exception as failure:  # noqa: BLE001 - a slot must not be lost, whatever it is
            healthy = False
            self.telemetry.of_connection(
                slot.connection.session_id, "failed its check: %s", failure, level=logging.WARNING
            )
        self._do(lambda now: self._core.checked(slot, now, healthy=healthy))

    def _close(self, slot: ConnectionSlot) -> None:
        connection = slot.connection
        if connection.broken is not None or connection.suspect:
            # It may take long to find out that nobody hears its goodbye, and no session is left
            # whose place would have to be waited for.
            self._do(lambda now: self._core.closed(slot, now))
        connection.close(self.config.cancel_grace)
        self.telemetry.of_connection(connection.session_id, "closed")
        self._do(lambda now: self._core.closed(slot, now))

    def _close_at_once(self) -> None:
        self.close()
        self.abandon()

    def _when(self, expected: Callable[[Core], bool]) -> Future[None]:
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if not expected(self._core):
                self._expectations.append((expected, future))
                return future
        future.set_result(None)
        return future

    def _tend(self) -> None:
        while True:
            with self._plan_changed:
                if self._core.is_closed:
                    return
                self._tends_at = self._next_tending()
                left = self._tends_at - time.monotonic()
                self._plan_changed.wait(None if left == math.inf else left)
            self._do(self._core.tend)

    def _next_tending(self) -> float:
        return self._core.due(time.monotonic())


def in_background(name: str, work: Callable[[], T]) -> Future[T]:
    """Has something done by a thread of its own."""
    line = Line(name)
    future = line.submit(work)
    line.close()
    future.add_done_callback(_report)
    return future


def _report(future: Future[Any]) -> None:
    error = future.exception()
    if error is not None and not isinstance(error, SwanLakeError):
        log.error("something went wrong in the background", exc_info=error)

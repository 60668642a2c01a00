"""Carries out what the pool core decides: connects, checks, closes, assigns.

The runtime never blocks its callers. Background threads do what takes time, and callers get
futures, which threads wait for and tasks await.
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

from swanlake.client.api import requests
from swanlake.client.api.options import PoolConfig
from swanlake.client.api.stream import StreamBase, discard
from swanlake.client.pool.core import (
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
    Waiter,
)
from swanlake.client.pool.telemetry import Telemetry
from swanlake.client.sync.session import SessionStatements
from swanlake.client.transport.address import Address
from swanlake.client.transport.call_thread import run_in_background
from swanlake.client.transport.condition_futures import ConditionFutures, resolve
from swanlake.client.transport.connection import Connection, PendingRequest
from swanlake.client.transport.deadline import Deadline
from swanlake.client.transport.driver import CallContext, ResultReader
from swanlake.client.transport.fork_guard import check_fork, threads_unavailable
from swanlake.errors import PoolTimeout

Stream = TypeVar("Stream", bound=StreamBase)

Core: TypeAlias = PoolCore[Connection]
ConnectionSlot: TypeAlias = Slot[Connection]
ConnectionWaiter: TypeAlias = Waiter[Connection]
Configure: TypeAlias = Callable[[SessionStatements], object]

_pool_numbers = itertools.count(1)


class PoolRuntime:
    """The connections of a pool; usable from any thread and any event loop."""

    def __init__(
        self,
        address: Address,
        config: PoolConfig,
        configure: Configure | None,
        on_reconnect_failed: Callable[[], object],
    ) -> None:
        self.config = replace(config, name=config.name or f"pool-{next(_pool_numbers)}")
        self._address = address
        self._configure = configure
        self._on_reconnect_failed = on_reconnect_failed
        self._core: Core = PoolCore(self.config, random.random)
        self.telemetry = Telemetry(str(self.config.name), self.stats)
        self._lock = threading.Lock()
        self._maintenance_changed = threading.Condition(self._lock)
        self._maintenance_at = math.inf
        self.started = False
        self._waiters = ConditionFutures()

    def start(self) -> None:
        """Opens the first connections, unless that was done; raises PoolClosed."""
        check_fork()
        with self._lock:
            self._core.check_open()
            if self.started:
                return
            self.started = True
        self.telemetry.event("opened for %s", self._address.url)
        # Connections age and servers come back while no caller is active: only a thread that
        # watches the time closes the idle sessions of a quiet program.
        run_in_background("swanlake-pool", self._run_maintenance)
        self._apply(self._core.maintain)

    def try_acquire(self) -> ConnectionSlot | None:
        """An idle connection, if one is ready and no caller waits; the fast path."""
        if not self.started:
            return None
        check_fork()
        with self._lock:
            slot = self._core.try_acquire(time.monotonic())
        if slot is not None:
            self.telemetry.acquired(0.0)
        return slot

    def enqueue(self) -> ConnectionWaiter:
        """Queues the caller for a connection.

        Raises PoolClosed, TooManyRequests or ForkedProcess.
        """
        check_fork()  # before the lock, which a forked child may have inherited locked
        if not self.started:
            self.start()
        waiter: ConnectionWaiter = Waiter(time.monotonic())
        # A running future cannot be cancelled. Callers use `cancel_wait` instead, because only the
        # core knows whether a slot was assigned before.
        waiter.future.set_running_or_notify_cancel()
        self._apply(lambda now: self._core.acquire(waiter, now))
        return waiter

    def cancel_wait(self, waiter: ConnectionWaiter, *, timed_out: bool = False) -> None:
        """Removes a waiter; a slot that it was assigned goes to the next one."""
        if timed_out:
            self.telemetry.timed_out()
        self._apply(lambda now: self._core.cancel_wait(waiter, now, timed_out=timed_out))

    def release(
        self, slot: ConnectionSlot, *, after: PendingRequest[Any] | None = None, keep: bool = True
    ) -> None:
        """Returns a connection to the pool, ``after`` a request that is stopped if it still runs.

        The connection is reused only if it works, is not busy, and has no state of its last user
        in its session. Otherwise it is closed.
        """
        if after is not None and not after.future.done():
            self._release_when(slot, after.stop_in_background(), keep)
            return
        connection = slot.connection
        lost = connection.broken is not None or connection.suspect
        clean = not (connection.has_session_state or connection.transaction or connection.busy)
        reusable = keep and clean and not lost
        if reusable and self._try_release(slot):
            return
        self._apply(lambda now: self._core.release(slot, now, reusable=reusable, lost=lost))

    def _release_when(self, slot: ConnectionSlot, stopped: Future[bool], keep: bool) -> None:
        def release(stopped: Future[bool]) -> None:
            self.release(slot, keep=keep and stopped.exception() is None and stopped.result())

        stopped.add_done_callback(release)

    def _try_release(self, slot: ConnectionSlot) -> bool:
        if threads_unavailable():
            return False
        with self._lock:
            now = time.monotonic()
            is_scheduled = self._maintenance_at <= self._core.next_check_of(slot, now)
            return is_scheduled and not self._waiters and self._core.try_release(slot, now)

    def release_unread(
        self, slot: ConnectionSlot, pending: PendingRequest[ResultReader] | None
    ) -> None:
        """Returns a connection after a stream that failed or was abandoned before its first row."""
        if pending is None:
            self.release(slot)
        else:
            self._release_when(slot, discard(pending), keep=True)

    def open_stream(
        self, kind: type[Stream], slot: ConnectionSlot, reader: ResultReader, call: CallContext
    ) -> Stream:
        """A stream that releases its connection at its end, or when it is garbage-collected."""

        def release() -> None:
            if finalizer.detach() is not None:
                self.release(slot)

        stream = kind(slot.connection, reader, call, release)
        finalizer = weakref.finalize(stream, self.reclaim, slot)
        finalizer.atexit = False
        return stream

    def reclaim(self, slot: ConnectionSlot) -> None:
        """Closes a connection whose user was garbage-collected without closing it."""
        if threads_unavailable():
            return
        # In a thread: the garbage collector may run while this thread holds the lock.
        run_in_background("swanlake-reclaim", lambda: self.release(slot, keep=False))

    def timeout_error(self, timeout: float) -> PoolTimeout:
        """The error for a caller that waited too long for a connection."""
        stats = self.stats()
        failure = self._core.connect_error
        return PoolTimeout(
            f"The pool {self.config.name} had no connection to give within {timeout:g} s: "
            f"{stats.conn_in_use} of {self._core.max_size} are in use and {stats.waiting} other "
            f"callers wait."
            + (f" The last attempt to connect failed: {failure}" if failure is not None else "")
        )

    @property
    def closed(self) -> bool:
        return self._core.is_closed

    @property
    def connect_error(self) -> Exception | None:
        """Why the last attempt to connect failed, if it did."""
        return self._core.connect_error

    @property
    def reconnect_error(self) -> Exception | None:
        """Why the pool stopped trying to connect, if it did."""
        return self._core.connect_error if self._core.stopped_reconnecting else None

    def when_filled(self) -> Future[None]:
        """Done when the first connections are open, or the pool stopped trying."""
        core = self._core
        return self._when(lambda: core.is_filled or core.stopped_reconnecting or core.is_closed)

    def check(self) -> Future[None]:
        """Checks the idle connections; done when they are checked."""
        check_fork()
        self._apply(self._core.check)
        return self._when(lambda: not self._core.is_checking)

    def drain(self) -> None:
        """Replaces all connections."""
        check_fork()
        self.telemetry.event("drained")
        self._apply(self._core.drain)

    def resize(self, *, min_idle: int, max_size: int) -> None:
        """Changes the bounds."""
        check_fork()
        self.config = replace(self.config, min_idle=min_idle, max_size=max_size)
        self.telemetry.event("resized to %d..%d connections", min_idle, max_size)
        self._apply(lambda now: self._core.resize(now, min_idle=min_idle, max_size=max_size))

    def close(self) -> Future[None]:
        """Refuses new callers; done when all connections are released and closed."""
        if threads_unavailable():
            done: Future[None] = Future()
            done.set_result(None)  # in a forked child, connections and lock are the parent's
            return done
        if not self.closed:
            self.telemetry.event("closed")
            self._apply(self._core.close)
        return self._when(lambda: self._core.size == 0)

    def close_in_use(self) -> None:
        """Closes the connections in use too, and stops what runs on them."""
        self._apply(self._core.close_in_use)

    def close_abandoned(self) -> None:
        """Closes everything without waiting; for the garbage collector, as ``reclaim``."""

        def close() -> None:
            self.close()
            self.close_in_use()

        run_in_background("swanlake-close", close)

    def stats(self, *, pop: bool = False) -> PoolStats:
        """The pool's figures; ``pop`` resets the counts."""
        check_fork()
        with self._lock:
            return self._core.stats(pop=pop)

    def _apply(self, decide: Callable[[float], list[Action[Connection]]]) -> None:
        """Decides under the lock, and acts outside of it."""
        if threads_unavailable():
            return  # a forked child may have inherited the lock locked
        with self._lock:
            actions = decide(time.monotonic())
            ready = self._waiters.pop_ready()
            if self._next_maintenance() < self._maintenance_at or self._core.is_closed:
                self._maintenance_changed.notify()
        for action in actions:
            self._execute(action)
        resolve(ready)

    def _execute(self, action: Action[Connection]) -> None:
        match action:
            case Assign(waiter=waiter, slot=slot):
                self.telemetry.acquired(slot.since - waiter.since)
                waiter.future.set_result(slot)
            case FailWaiter(waiter=waiter, error=error):
                waiter.future.set_exception(error)
            case OpenSlot(slot=slot):
                run_in_background("swanlake-connect", lambda: self._connect(slot))
            case CheckSlot(slot=slot):
                run_in_background("swanlake-check", lambda: self._check(slot))
            case CloseSlot(slot=slot):
                run_in_background("swanlake-close", lambda: self._close(slot))
            case ReconnectFailed(error=error):
                self.telemetry.event("stopped reconnecting: %s", error, level=logging.ERROR)
                run_in_background("swanlake-reconnect-failed", self._on_reconnect_failed)

    def _connect(self, slot: ConnectionSlot) -> None:
        try:
            connection = self._open_connection()
        except Exception as failure:  # noqa: BLE001 - `configure` may raise anything
            error = failure  # the name of an except clause is unbound before the lambda runs
            self.telemetry.event("no connection: %s", error, level=logging.WARNING)
            self._apply(lambda now: self._core.connect_failed(slot, error, now))
        else:
            self.telemetry.connection_event(connection.session_id, "opened")
            self._apply(lambda now: self._core.connected(slot, connection, now))

    def new_connection(self, address: Address) -> Connection:
        """A connection with the limits of the pool; not opened yet."""
        config = self.config
        return Connection(
            address, connect_timeout=config.connect_timeout, cancel_grace=config.cancel_grace
        )

    def _open_connection(self) -> Connection:
        connection = self.new_connection(self._address)
        connection.open()
        if self._configure is not None:
            try:
                self._configure(SessionStatements(connection, self.config.default_query_timeout))
            except BaseException:
                connection.close(timeout=0.1)
                raise
            connection.has_session_state = False  # its state is meant to stay
        return connection

    def _check(self, slot: ConnectionSlot) -> None:
        call = CallContext(Deadline(self.config.connect_timeout))
        try:
            # The health check is the pool's own choice: its effects on the session do not count.
            request = replace(requests.query(self.config.healthcheck_sql), stateless=True)
            slot.connection.begin(request, call).wait()
            healthy = True
        except Exception as failure:  # noqa: BLE001 - a slot must not be lost
            healthy = False
            self.telemetry.connection_event(
                slot.connection.session_id, "failed its check: %s", failure, level=logging.WARNING
            )
        self._apply(lambda now: self._core.checked(slot, now, healthy=healthy))

    def _close(self, slot: ConnectionSlot) -> None:
        connection = slot.connection
        if connection.broken is not None or connection.suspect:
            # Frees the slot at once: closing a lost connection may take long, and the server has
            # no session left that would count against its limit.
            self._apply(lambda now: self._core.closed(slot, now))
        connection.close(self.config.cancel_grace)
        self.telemetry.connection_event(connection.session_id, "closed")
        self._apply(lambda now: self._core.closed(slot, now))

    def _when(self, condition: Callable[[], bool]) -> Future[None]:
        with self._lock:
            return self._waiters.add(condition)

    def _run_maintenance(self) -> None:
        while True:
            with self._maintenance_changed:
                if self._core.is_closed:
                    return
                self._maintenance_at = self._next_maintenance()
                left = self._maintenance_at - time.monotonic()
                self._maintenance_changed.wait(None if left == math.inf else left)
            self._apply(self._core.maintain)

    def _next_maintenance(self) -> float:
        return self._core.next_maintenance_at(time.monotonic())

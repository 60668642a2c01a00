# Generated from aio/pool.py by scripts/generate_sync_client.py. Do not edit.
"""A connection pool for threads."""

from __future__ import annotations

import warnings
from typing import Any, Self, TypeVar

from swanlake.client.api import requests
from swanlake.client.api.options import UNSET, QueryOptions, Timeout, WriterOptions
from swanlake.client.api.stream import ResultStream
from swanlake.client.pool.base import TRANSPORT_ERRORS, PoolBase
from swanlake.client.pool.runtime import ConnectionSlot, PoolRuntime
from swanlake.client.sync.session import SessionStatements
from swanlake.client.sync.statements import Statements
from swanlake.client.sync.waiting import wait_for
from swanlake.client.sync.writer import Writer
from swanlake.client.transport.connection import Connection, Request
from swanlake.client.transport.deadline import Deadline, WaitTimeout
from swanlake.client.transport.parameters import Parameters
from swanlake.errors import ClientClosed

T = TypeVar("T")
Pooled = TypeVar("Pooled", bound="PooledConnection")


class FlightSQLPool(PoolBase, Statements):
    """Connections to a server, shared by the threads of a program; opened at its first use.

    Every statement may run on another connection. Statements that belong together, such as those of
    a transaction, run in a session: ``acquire_session``.

    >>> with swanlake.Pool("grpc://localhost:4214") as pool:  # doctest: +SKIP
    ...     result = pool.query("SELECT 42 AS answer")
    """

    def open(self, *, wait: bool = False, timeout: float = 30.0) -> None:
        """Begins to connect; with ``wait``, returns when ``min_idle`` connections are open."""
        self._runtime.start()
        if wait:
            try:
                wait_for(self._runtime.when_filled(), timeout)
            except WaitTimeout:
                raise self._runtime.timeout_error(timeout) from self._runtime.connect_error
            if self._runtime.reconnect_error is not None:
                raise self._runtime.reconnect_error

    def close(self, *, timeout: float = 5.0) -> None:
        """Closes all connections; idempotent.

        Callers that wait for a connection get PoolClosed. Running statements have ``timeout``
        seconds to end, and are then stopped.
        """
        try:
            wait_for(self._runtime.close(), timeout)
        except WaitTimeout:
            self._runtime.close_in_use()

    def check(self, *, timeout: float | None = None) -> None:
        """Checks the idle connections and closes those that do not work."""
        wait_for(self._runtime.check(), timeout)

    def stream(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> ResultStream:
        """Runs a query whose rows are read as they arrive; use it with ``with``.

        It holds a connection until it is read to its end or closed. ``timeout`` covers all rows.
        """
        call = requests.call_context(options, self._deadline(options, timeout))
        slot = self._acquire(call.deadline)
        pending = None
        try:
            pending = slot.connection.begin(requests.stream(sql, params), call)
            reader = pending.wait()
        except BaseException:
            self._runtime.release_unread(slot, pending)
            raise
        return self._runtime.open_stream(ResultStream, slot, reader, call)

    def connection(self, *, timeout: Timeout = UNSET) -> PooledConnection:
        """A connection for consecutive statements; use it with ``with``.

        It returns to the pool, unless a statement may have left state in its session. For temporary
        tables and settings, use ``acquire_session``.
        """
        return self._checkout(PooledConnection, timeout)

    def acquire_session(self, *, timeout: Timeout = UNSET) -> SessionHandle:
        """A session for transactions and temporary tables; use it with ``with``.

        Its connection is closed with it, and its state is gone. With ``reuse_sessions`` the
        connection returns to the pool if only statements on tables ran, as with ``connection()``.
        """
        return self._checkout(SessionHandle, timeout)

    def writer(self, table: str, options: WriterOptions | None = None, **overrides: Any) -> Writer:
        """Writes rows to a table in batches; a context manager.

        The keywords are those of ``WriterOptions``. Its connection is not one of the pool's.
        """
        return Writer(
            self._address, table, options, connect=self._runtime.new_connection, **overrides
        )

    def _checkout(self, kind: type[Pooled], timeout: Timeout) -> Pooled:
        return kind(self._runtime, self._acquire(Deadline(None), timeout))

    def _run(self, request: Request[T], options: QueryOptions | None, timeout: Timeout) -> T:
        deadline = self._deadline(options, timeout)
        with self._runtime.telemetry.span("swanlake.query"):
            try:
                return self._attempt(request, options, deadline)
            except TRANSPORT_ERRORS as failure:
                if not self._may_retry(request, options):
                    raise
                self._runtime.telemetry.event("retrying a query: %s", failure)
            return self._attempt(request, options, deadline)

    def _attempt(self, request: Request[T], options: QueryOptions | None, deadline: Deadline) -> T:
        slot = self._acquire(deadline)
        pending = None
        try:
            pending = slot.connection.begin(request, requests.call_context(options, deadline))
            return pending.wait()
        finally:
            self._runtime.release(slot, after=pending)

    def _acquire(self, deadline: Deadline, timeout: Timeout = UNSET) -> ConnectionSlot:
        slot = self._runtime.try_acquire()
        if slot is not None:
            return slot
        with self._runtime.telemetry.span("swanlake.acquire"):
            waiter = self._runtime.enqueue()
            acquire = self._acquire_deadline(deadline, timeout)
            try:
                return wait_for(waiter.future, acquire.seconds_left())
            except WaitTimeout:
                self._runtime.cancel_wait(waiter, timed_out=True)
                raise self._runtime.timeout_error(
                    acquire.timeout or 0.0
                ) from self._runtime.connect_error
            except BaseException:
                # Interrupted in the queue or just after the assignment: the pool core knows which.
                self._runtime.cancel_wait(waiter)
                raise

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class PooledConnection(SessionStatements):
    """A connection that belongs to one caller until it is closed; a context manager."""

    def __init__(self, runtime: PoolRuntime, slot: ConnectionSlot) -> None:
        super().__init__(slot.connection, runtime.config.default_query_timeout)
        self._runtime = runtime
        self._slot: ConnectionSlot | None = slot
        self._streams: list[ResultStream] = []

    @property
    def closed(self) -> bool:
        return self._slot is None

    def close(self) -> None:
        """Returns the connection to the pool; rolls an open transaction back. Idempotent."""
        if self._slot is None:
            return
        keep = False
        try:
            for stream in self._streams:
                stream.close()
            if self.in_transaction:
                self._runtime.telemetry.open_transaction(self.session_id)
                self._roll_back_quietly()
            keep = self._may_keep
        finally:
            slot, self._slot = self._slot, None
            self._runtime.release(slot, keep=keep)

    @property
    def _connection(self) -> Connection:
        if self._slot is None:
            raise ClientClosed("The connection was returned to its pool.")
        return self._own

    @property
    def _may_keep(self) -> bool:
        return True

    def _track(self, stream: ResultStream) -> ResultStream:
        self._streams = [*(open for open in self._streams if not open.is_over), stream]
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        slot = getattr(self, "_slot", None)
        if slot is not None:
            self._runtime.reclaim(slot)
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)


class SessionHandle(PooledConnection):
    """A session of a pool, for statements that belong together.

    A transaction that is still open when the session is closed is rolled back: commit it, or use
    ``transaction()``.

    >>> with pool.acquire_session() as session:  # doctest: +SKIP
    ...     with session.transaction():
    ...         session.update("INSERT INTO t VALUES (1)")
    """

    @property
    def _may_keep(self) -> bool:
        return self._runtime.config.reuse_sessions

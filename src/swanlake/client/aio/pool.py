"""A connection pool for tasks."""

from __future__ import annotations

import warnings
from typing import Any, Self, TypeVar

from swanlake.client.aio.session import AsyncSessionStatements
from swanlake.client.aio.statements import AsyncStatements
from swanlake.client.aio.waiting import acquiring, wait_for
from swanlake.client.aio.writer import AsyncWriter
from swanlake.client.api import requests
from swanlake.client.api.options import UNSET, QueryOptions, Timeout, WriterOptions
from swanlake.client.api.stream import AsyncResultStream
from swanlake.client.pool.base import TRANSPORT_ERRORS, PoolBase
from swanlake.client.pool.runtime import ConnectionSlot, PoolRuntime
from swanlake.client.transport.connection import Connection, Request
from swanlake.client.transport.deadline import Deadline, WaitTimeout
from swanlake.client.transport.parameters import Parameters
from swanlake.errors import ClientClosed

T = TypeVar("T")
Pooled = TypeVar("Pooled", bound="AsyncPooledConnection")


class AsyncFlightSQLPool(PoolBase, AsyncStatements):
    """Connections to a server, shared by the tasks of a program; opened at its first use.

    Every statement may run on another connection. Statements that belong together, such as those of
    a transaction, run in a session: ``acquire_session``.

    >>> async with swanlake.AsyncPool("grpc://localhost:4214") as pool:  # doctest: +SKIP
    ...     result = await pool.query("SELECT 42 AS answer")
    """

    async def open(self, *, wait: bool = False, timeout: float = 30.0) -> None:
        """Begins to connect; with ``wait``, returns when ``min_idle`` connections are open."""
        self._runtime.start()
        if wait:
            try:
                await wait_for(self._runtime.when_filled(), timeout)
            except WaitTimeout:
                raise self._runtime.timeout_error(timeout) from self._runtime.connect_error
            if self._runtime.reconnect_error is not None:
                raise self._runtime.reconnect_error

    async def close(self, *, timeout: float = 5.0) -> None:
        """Closes all connections; idempotent.

        Callers that wait for a connection get PoolClosed. Running statements have ``timeout``
        seconds to end, and are then stopped.
        """
        try:
            await wait_for(self._runtime.close(), timeout)
        except WaitTimeout:
            self._runtime.close_in_use()

    async def check(self, *, timeout: float | None = None) -> None:
        """Checks the idle connections and closes those that do not work."""
        await wait_for(self._runtime.check(), timeout)

    @acquiring
    async def stream(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> AsyncResultStream:
        """Runs a query whose rows are read as they arrive; use it with ``async with``.

        It holds a connection until it is read to its end or closed. ``timeout`` covers all rows.
        """
        call = requests.call_context(options, self._deadline(options, timeout))
        slot = await self._acquire(call.deadline)
        pending = None
        try:
            pending = slot.connection.begin(requests.stream(sql, params), call)
            reader = await pending.wait_async()
        except BaseException:
            self._runtime.release_unread(slot, pending)
            raise
        return self._runtime.open_stream(AsyncResultStream, slot, reader, call)

    @acquiring
    async def connection(self, *, timeout: Timeout = UNSET) -> AsyncPooledConnection:
        """A connection for consecutive statements; use it with ``async with``.

        It returns to the pool, unless a statement may have left state in its session. For temporary
        tables and settings, use ``acquire_session``.
        """
        return await self._checkout(AsyncPooledConnection, timeout)

    @acquiring
    async def acquire_session(self, *, timeout: Timeout = UNSET) -> AsyncSessionHandle:
        """A session for transactions and temporary tables; use it with ``async with``.

        Its connection is closed with it, and its state is gone. With ``reuse_sessions`` the
        connection returns to the pool if only statements on tables ran, as with ``connection()``.
        """
        return await self._checkout(AsyncSessionHandle, timeout)

    def writer(
        self, table: str, options: WriterOptions | None = None, **overrides: Any
    ) -> AsyncWriter:
        """Writes rows to a table in batches; an async context manager.

        The keywords are those of ``WriterOptions``. Its connection is not one of the pool's.
        """
        return AsyncWriter(
            self._address, table, options, connect=self._runtime.new_connection, **overrides
        )

    async def _checkout(self, kind: type[Pooled], timeout: Timeout) -> Pooled:
        return kind(self._runtime, await self._acquire(Deadline(None), timeout))

    async def _run(self, request: Request[T], options: QueryOptions | None, timeout: Timeout) -> T:
        deadline = self._deadline(options, timeout)
        with self._runtime.telemetry.span("swanlake.query"):
            try:
                return await self._attempt(request, options, deadline)
            except TRANSPORT_ERRORS as failure:
                if not self._may_retry(request, options):
                    raise
                self._runtime.telemetry.event("retrying a query: %s", failure)
            return await self._attempt(request, options, deadline)

    async def _attempt(
        self, request: Request[T], options: QueryOptions | None, deadline: Deadline
    ) -> T:
        slot = await self._acquire(deadline)
        pending = None
        try:
            pending = slot.connection.begin(request, requests.call_context(options, deadline))
            return await pending.wait_async()
        finally:
            self._runtime.release(slot, after=pending)

    async def _acquire(self, deadline: Deadline, timeout: Timeout = UNSET) -> ConnectionSlot:
        slot = self._runtime.try_acquire()
        if slot is not None:
            return slot
        with self._runtime.telemetry.span("swanlake.acquire"):
            waiter = self._runtime.enqueue()
            acquire = self._acquire_deadline(deadline, timeout)
            try:
                return await wait_for(waiter.future, acquire.seconds_left())
            except WaitTimeout:
                self._runtime.cancel_wait(waiter, timed_out=True)
                raise self._runtime.timeout_error(
                    acquire.timeout or 0.0
                ) from self._runtime.connect_error
            except BaseException:
                # Interrupted in the queue or just after the assignment: the pool core knows which.
                self._runtime.cancel_wait(waiter)
                raise

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class AsyncPooledConnection(AsyncSessionStatements):
    """A connection that belongs to one caller until it is closed; an async context manager."""

    def __init__(self, runtime: PoolRuntime, slot: ConnectionSlot) -> None:
        super().__init__(slot.connection, runtime.config.default_query_timeout)
        self._runtime = runtime
        self._slot: ConnectionSlot | None = slot
        self._streams: list[AsyncResultStream] = []

    @property
    def closed(self) -> bool:
        return self._slot is None

    async def close(self) -> None:
        """Returns the connection to the pool; rolls an open transaction back. Idempotent."""
        if self._slot is None:
            return
        keep = False
        try:
            for stream in self._streams:
                await stream.close()
            if self.in_transaction:
                self._runtime.telemetry.open_transaction(self.session_id)
                await self._roll_back_quietly()
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

    def _track(self, stream: AsyncResultStream) -> AsyncResultStream:
        self._streams = [*(open for open in self._streams if not open.is_over), stream]
        return stream

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __del__(self) -> None:
        slot = getattr(self, "_slot", None)
        if slot is not None:
            self._runtime.reclaim(slot)
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)


class AsyncSessionHandle(AsyncPooledConnection):
    """A session of a pool, for statements that belong together.

    A transaction that is still open when the session is closed is rolled back: commit it, or use
    ``transaction()``.

    >>> async with pool.acquire_session() as session:  # doctest: +SKIP
    ...     async with session.transaction():
    ...         await session.update("INSERT INTO t VALUES (1)")
    """

    @property
    def _may_keep(self) -> bool:
        return self._runtime.config.reuse_sessions

"""A pool of connections for tasks: the same decisions and the same threads, awaited.

The calls of each connection are made by its own thread, so that the event loop is never blocked and
no executor is needed. A task that is cancelled leaves at once; its statement is stopped behind its
back, and the connection is for others only when it is over.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from swanlake.client import requests
from swanlake.client.async_session import AsyncPooledConnection, AsyncSessionHandle, Borrowed
from swanlake.client.async_statements import AsyncStatements, answer_to
from swanlake.client.async_stream import Acquiring, AsyncResultStream
from swanlake.client.connection import Request
from swanlake.client.deadline import Deadline
from swanlake.client.keeper import ConnectionSlot
from swanlake.client.options import UNSET, QueryOptions, WriterOptions
from swanlake.client.parameters import Parameters
from swanlake.client.pool_base import TRANSPORT_ERRORS, PoolBase
from swanlake.client.statements import Timeout, call_for
from swanlake.client.writer import AsyncWriter
from swanlake.errors import SwanLakeError

T = TypeVar("T")


class AsyncFlightSQLPool(PoolBase, AsyncStatements):
    """Connections to a server, shared by the tasks of a program; opened at its first use.

    >>> async with swanlake.AsyncPool("grpc://localhost:4214") as pool:  # doctest: +SKIP
    ...     async with pool.acquire_session() as session:
    ...         async with session.transaction():
    ...             await session.update("INSERT INTO t VALUES (1)")
    """

    async def open(self, *, wait: bool = False, timeout: float = 30.0) -> None:
        """Begins to connect; with ``wait`` returns when ``min_idle`` connections are there."""
        self._keeper.start()
        if wait:
            try:
                async with asyncio.timeout(timeout):
                    await asyncio.wrap_future(self._keeper.when_filled())
            except TimeoutError:
                raise self._keeper.timeout_error(timeout) from self._keeper.connect_failure
            self._check_filled()

    async def close(self, *, timeout: float = 5.0) -> None:
        """Closes all connections; can be called again.

        Who waits for one gets PoolClosed. Statements that run have ``timeout`` seconds to end and
        are stopped then.
        """
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(self._keeper.close())
        except TimeoutError:
            self._keeper.abandon()

    async def check(self, *, timeout: float | None = None) -> None:
        """Checks the idle connections and drops those that do not work."""
        async with asyncio.timeout(timeout):
            await asyncio.wrap_future(self._keeper.check())

    def stream(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> Acquiring[AsyncResultStream]:
        """Runs a query and gives its rows as they arrive: ``async with pool.stream(sql) as rows``.

        It holds a connection until it is read to its end or closed. ``timeout`` covers all rows.
        """
        return Acquiring(lambda: self._begin_stream(sql, params, options, timeout))

    def writer(
        self, table: str, options: WriterOptions | None = None, **overrides: Any
    ) -> AsyncWriter:
        """Brings rows to a table in batches; to be used with ``async with``.

        The keywords are those of ``WriterOptions``. Its connection is none of the pool's.
        """
        return AsyncWriter(self._address, table, options, connect=self._connection_to, **overrides)

    def connection(self, *, timeout: Timeout = UNSET) -> Acquiring[AsyncPooledConnection]:
        """A connection for a while; it goes back to the pool if nothing left its traces on it."""
        return Acquiring(lambda: self._borrow(AsyncPooledConnection, timeout))

    def acquire_session(self, *, timeout: Timeout = UNSET) -> Acquiring[AsyncSessionHandle]:
        """A session of one's own, with ``async with`` or with ``await`` and ``close``."""
        return Acquiring(lambda: self._borrow(AsyncSessionHandle, timeout))

    async def _borrow(self, kind: type[Borrowed], timeout: Timeout) -> Borrowed:
        return kind(self._keeper, await self._acquire(Deadline(None), timeout))

    async def _begin_stream(
        self, sql: str, params: Parameters, options: QueryOptions | None, timeout: Timeout
    ) -> AsyncResultStream:
        call = call_for(options, self._deadline(options, timeout))
        slot = await self._acquire(call.deadline)
        statement = None
        try:
            statement = slot.connection.begin(requests.stream(sql, params), call)
            rows = await answer_to(statement)
        except BaseException:
            self._keeper.release_unread(slot, statement)
            raise
        return AsyncResultStream(self._keeper.lend_stream(slot, rows, call))

    async def _run(self, request: Request[T], options: QueryOptions | None, timeout: Timeout) -> T:
        deadline = self._deadline(options, timeout)
        with self._keeper.telemetry.span("swanlake.query"):
            try:
                return await self._attempt(request, options, deadline)
            except TRANSPORT_ERRORS as failure:
                if not self._may_repeat(request, options):
                    raise
                self._keeper.telemetry.event("a query is run again: %s", failure)
            return await self._attempt(request, options, deadline)

    async def _attempt(
        self, request: Request[T], options: QueryOptions | None, deadline: Deadline
    ) -> T:
        slot = await self._acquire(deadline)
        statement = None
        try:
            statement = slot.connection.begin(request, call_for(options, deadline))
            return await answer_to(statement)
        finally:
            self._keeper.release(slot, after=statement)

    async def _acquire(self, deadline: Deadline, timeout: Timeout = UNSET) -> ConnectionSlot:
        slot = self._keeper.take()
        if slot is not None:
            return slot
        with self._keeper.telemetry.span("swanlake.acquire"):
            caller = self._keeper.ask()
            if caller.future.done():
                return caller.future.result()
            patience = self._patience(deadline, timeout)
            try:
                async with asyncio.timeout(patience):
                    return await asyncio.wrap_future(caller.future)
            except SwanLakeError:
                raise
            except TimeoutError:
                self._keeper.withdraw(caller, timed_out=True)
                raise self._keeper.timeout_error(patience or 0.0) from self._keeper.connect_failure
            except BaseException:
                # Cancelled, in the queue or just after the hand-over: the core knows which.
                self._keeper.withdraw(caller)
                raise

    async def __aenter__(self) -> AsyncFlightSQLPool:
        await self.open()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

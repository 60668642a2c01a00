"""A pool of connections for tasks: the same decisions and the same threads, awaited.

The calls of each connection are made by its own thread, so that the event loop is never blocked and
no executor is needed. A task that is cancelled leaves at once; its statement is stopped behind its
back, and the connection is for others only when it is over.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar

import pyarrow as pa

from swanlake.client import requests
from swanlake.client.async_statements import AsyncStatements, answer_to
from swanlake.client.connection import Connection, Request
from swanlake.client.deadline import Deadline
from swanlake.client.driver import Call, Prepared
from swanlake.client.keeper import ConnectionSlot, Keeper, in_background
from swanlake.client.options import UNSET, QueryOptions
from swanlake.client.parameters import Parameters
from swanlake.client.pool_base import TRANSPORT_ERRORS, PoolBase
from swanlake.client.result import QueryResult, UpdateResult
from swanlake.client.statements import Timeout, call_for, limit
from swanlake.client.stream import ResultStream, end_unread
from swanlake.errors import ClientClosed, SwanLakeError

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


class AsyncSessionStatements(AsyncStatements):
    """Statements that share a session: its transaction, temp tables and settings."""

    def __init__(self, keeper: Keeper, slot: ConnectionSlot) -> None:
        self._keeper = keeper
        self._slot: ConnectionSlot | None = slot
        self._streams: list[ResultStream] = []

    @property
    def session_id(self) -> str:
        """The session's name on the server."""
        return self._connection.session_id

    @property
    def in_transaction(self) -> bool:
        return self._connection.transaction is not None

    @property
    def closed(self) -> bool:
        return self._slot is None

    def stream(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> Acquiring[AsyncResultStream]:
        """Runs a query and gives its rows as they arrive; closed with the session."""
        return Acquiring(lambda: self._begin_stream(sql, params, options, timeout))

    async def prepare_query(self, sql: str, *, timeout: Timeout = UNSET) -> AsyncPreparedQuery:
        """Parses a statement once that will be run often; an async context manager."""
        return AsyncPreparedQuery(self, await self._run(requests.prepare(sql), None, timeout))

    async def begin_transaction(self, *, timeout: Timeout = UNSET) -> None:
        """From here to ``commit`` or ``rollback`` all statements are one."""
        await self._run(requests.begin_transaction(), None, timeout)

    async def commit(self, *, timeout: Timeout = UNSET) -> None:
        """Makes the open transaction's changes lasting."""
        await self._run(requests.end_transaction(commit=True), None, timeout)

    async def rollback(self, *, timeout: Timeout = UNSET) -> None:
        """Undoes the open transaction's changes."""
        await self._run(requests.end_transaction(commit=False), None, timeout)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction that is committed at the end, and rolled back if something is raised."""
        await self.begin_transaction()
        try:
            yield
        except BaseException:
            await self._roll_back_quietly()
            raise
        await self.commit()

    async def cancel(self) -> bool:
        """Stops what runs here, from another task; False if nothing did."""
        return await _apart("swanlake-cancel", self._connection.cancel)

    @property
    def _connection(self) -> Connection:
        if self._slot is None:
            raise ClientClosed("The connection was given back to its pool.")
        return self._slot.connection

    def _call(self, options: QueryOptions | None, timeout: Timeout) -> Call:
        default = self._keeper.config.default_query_timeout
        return call_for(options, Deadline(limit(options, timeout, default)))

    async def _run(self, request: Request[T], options: QueryOptions | None, timeout: Timeout) -> T:
        statement = self._connection.begin(request, self._call(options, timeout))
        try:
            return await answer_to(statement)
        except asyncio.CancelledError:
            # The session's next statement runs after it.
            in_background("swanlake-stop", statement.stop)
            raise

    async def _begin_stream(
        self, sql: str, params: Parameters, options: QueryOptions | None, timeout: Timeout
    ) -> AsyncResultStream:
        call, connection = self._call(options, timeout), self._connection
        statement = connection.begin(requests.stream(sql, params), call)
        try:
            rows = await answer_to(statement)
        except asyncio.CancelledError:
            in_background("swanlake-stop", lambda: end_unread(statement))
            raise
        stream = ResultStream(connection, rows, call)
        self._streams = [*(one for one in self._streams if not one.is_over), stream]
        return AsyncResultStream(stream)

    async def _roll_back_quietly(self) -> None:
        """What failed matters more than that its transaction could not be ended in order."""
        connection = self._connection
        if connection.transaction is not None and connection.broken is None:
            try:
                await self.rollback(timeout=connection.cancel_grace)
            except SwanLakeError:
                connection.transaction = None
                connection.has_traces = True  # what is left of it nobody knows


class AsyncPooledConnection(AsyncSessionStatements):
    """A connection that belongs to one task until it is closed; an async context manager."""

    async def close(self) -> None:
        """Gives the connection back; rolls an open transaction back. Can be called again."""
        if self._slot is None:
            return
        keep = False
        try:
            for stream in self._streams:
                await AsyncResultStream(stream).close()
            if self.in_transaction:
                self._keeper.telemetry.of_connection(
                    self.session_id,
                    "was given back with an open transaction, which is rolled back",
                    level=logging.WARNING,
                )
                await self._roll_back_quietly()
            keep = self._may_keep
        finally:
            slot, self._slot = self._slot, None
            self._keeper.release(slot, keep=keep)

    @property
    def _may_keep(self) -> bool:
        return True

    async def __aenter__(self: Borrowed) -> Borrowed:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __del__(self) -> None:
        slot = getattr(self, "_slot", None)
        if slot is not None:
            self._keeper.reclaim(slot)
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)


Borrowed = TypeVar("Borrowed", bound=AsyncPooledConnection)


class AsyncSessionHandle(AsyncPooledConnection):
    """A session of a pool, for what must stay together; see ``SessionHandle``."""

    @property
    def _may_keep(self) -> bool:
        return self._keeper.config.reuse_sessions


class AsyncPreparedQuery:
    """A statement that the server has parsed, to be run with ever new parameters."""

    def __init__(self, session: AsyncSessionStatements, prepared: Prepared) -> None:
        self._session = session
        self._prepared = prepared

    @property
    def schema(self) -> Any:
        """The columns of its result."""
        return self._prepared.columns

    @property
    def parameter_schema(self) -> Any:
        """Its parameters, as far as the server knows their types."""
        return self._prepared.parameters

    async def query(
        self,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> QueryResult:
        """Runs it; gives all its rows."""
        request = requests.query_prepared(self._prepared, params)
        return await self._session._run(request, options, timeout)

    async def update(
        self,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> UpdateResult:
        """Runs it once for every row of ``params``, as one."""
        request = requests.update_prepared(self._prepared, params)
        return await self._session._run(request, options, timeout)

    async def close(self) -> None:
        """Has the server forget it."""
        if not self._session.closed and self._session._connection.broken is None:
            await self._session._run(requests.close_prepared(self._prepared), None, UNSET)

    async def __aenter__(self) -> AsyncPreparedQuery:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class AsyncResultStream:
    """The batches of a result, in bounded memory: ``async for batch in stream``."""

    def __init__(self, stream: ResultStream) -> None:
        self._stream = stream

    @property
    def schema(self) -> Any:
        """The columns, as an Arrow schema."""
        return self._stream.schema

    @property
    def query_id(self) -> str:
        return self._stream.query_id

    @property
    def affected_rows(self) -> int:
        """Rows that the statement changed; -1 if it does not say."""
        return self._stream.affected_rows

    async def read(self) -> Any | None:
        """The next batch, or None after the last."""
        if self._stream.at_end():
            return None
        statement = self._stream.begin_read()
        try:
            batch = await answer_to(statement)
        except SwanLakeError:
            self._stream.end()
            raise
        except BaseException:
            in_background("swanlake-close-stream", self._stream.close)
            raise
        if batch is None:
            self._stream.end()
        return batch

    async def read_all(self) -> Any:
        """The rest, as one table."""
        return pa.Table.from_batches([batch async for batch in self], self.schema)

    async def close(self) -> None:
        """Lets go of what was not read; can be called again."""
        if not self._stream.is_over:
            await _apart("swanlake-close-stream", self._stream.close)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (batch := await self.read()) is not None:
            yield batch

    async def __aenter__(self) -> AsyncResultStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


class _Closable(Protocol):
    async def close(self) -> None: ...


A = TypeVar("A", bound=_Closable)


class Acquiring(Generic[A]):
    """What is not there yet: ``async with`` it, or ``await`` it and close it yourself."""

    def __init__(self, acquire: Callable[[], Awaitable[A]]) -> None:
        self._acquire = acquire
        self._acquired: A | None = None

    def __await__(self) -> Generator[Any, None, A]:
        return self._acquire().__await__()

    async def __aenter__(self) -> A:
        self._acquired = await self._acquire()
        return self._acquired

    async def __aexit__(self, *exception: object) -> None:
        if self._acquired is not None:
            await self._acquired.close()


async def _apart(name: str, work: Callable[[], T]) -> T:
    """Awaits what blocks. It comes to its end even if the task is cancelled before it began."""
    return await asyncio.shield(asyncio.wrap_future(in_background(name, work)))

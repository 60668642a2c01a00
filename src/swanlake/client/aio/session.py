"""Statements of one session, for tasks: transactions, prepared queries, streams."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from swanlake.client.aio.statements import AsyncStatements
from swanlake.client.aio.waiting import acquiring, run_blocking
from swanlake.client.aio.writer import AsyncWriter
from swanlake.client.api import requests
from swanlake.client.api.options import UNSET, QueryOptions, Timeout, WriterOptions
from swanlake.client.api.result import QueryResult, UpdateResult
from swanlake.client.api.stream import AsyncResultStream, discard
from swanlake.client.transport.connection import Connection, Request
from swanlake.client.transport.driver import CallContext, PreparedHandle
from swanlake.client.transport.parameters import Parameters
from swanlake.errors import SwanLakeError

T = TypeVar("T")


class AsyncSessionStatements(AsyncStatements):
    """Statements that share a session: its transaction, temporary tables and settings."""

    def __init__(self, connection: Connection, default_timeout: float | None) -> None:
        self._own = connection
        self._default_timeout = default_timeout

    @property
    def _connection(self) -> Connection:
        return self._own

    @property
    def closed(self) -> bool:
        return self._connection.closed

    @property
    def session_id(self) -> str:
        """The session's id on the server."""
        return self._connection.session_id

    @property
    def in_transaction(self) -> bool:
        return self._connection.transaction is not None

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

        ``timeout`` covers all rows.
        """
        call, connection = self._call(options, timeout), self._connection
        pending = connection.begin(requests.stream(sql, params), call)
        try:
            reader = await pending.wait_async()
        except BaseException:
            discard(pending)
            raise
        return self._track(AsyncResultStream(connection, reader, call))

    async def prepare_query(self, sql: str, *, timeout: Timeout = UNSET) -> AsyncPreparedQuery:
        """Has the server parse a statement that will run often; an async context manager."""
        return AsyncPreparedQuery(self, await self._run(requests.prepare(sql), None, timeout))

    async def begin_transaction(self, *, timeout: Timeout = UNSET) -> None:
        """Begins a transaction, which ends with ``commit`` or ``rollback``."""
        await self._run(requests.begin_transaction(), None, timeout)

    async def commit(self, *, timeout: Timeout = UNSET) -> None:
        """Commits the open transaction."""
        await self._run(requests.end_transaction(commit=True), None, timeout)

    async def rollback(self, *, timeout: Timeout = UNSET) -> None:
        """Rolls the open transaction back."""
        await self._run(requests.end_transaction(commit=False), None, timeout)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction that commits at the end of the block, and rolls back on an exception."""
        await self.begin_transaction()
        try:
            yield
            await self.commit()
        except BaseException:
            await self._roll_back_quietly()
            raise

    def writer(
        self, table: str, options: WriterOptions | None = None, **overrides: Any
    ) -> AsyncWriter:
        """Writes rows to a table in batches; an async context manager.

        The keywords are those of ``WriterOptions``. The writer has its own connection and session:
        its rows are not part of this session's transaction, and it outlives this session.
        """
        connection = self._connection
        address, connect = connection.driver.address, connection.with_same_limits
        return AsyncWriter(address, table, options, connect=connect, **overrides)

    async def cancel(self) -> bool:
        """Stops the running statements, from any task or thread; False if there were none.

        Their callers get QueryCancelled. Returns when the statements have ended; if one does not
        end in time, the connection is given up.
        """
        return await run_blocking("swanlake-cancel", self._connection.cancel)

    async def _run(self, request: Request[T], options: QueryOptions | None, timeout: Timeout) -> T:
        return await self._connection.begin(request, self._call(options, timeout)).wait_async()

    def _call(self, options: QueryOptions | None, timeout: Timeout) -> CallContext:
        deadline = requests.deadline(options, timeout, self._default_timeout)
        return requests.call_context(options, deadline)

    def _track(self, stream: AsyncResultStream) -> AsyncResultStream:
        return stream

    async def _roll_back_quietly(self) -> None:
        """Rolls back after an error; a failing rollback does not replace that error."""
        connection = self._connection
        if connection.transaction is not None and connection.broken is None:
            try:
                await self.rollback(timeout=connection.cancel_grace)
            except SwanLakeError:
                connection.transaction = None
                connection.has_session_state = True  # the transaction may still be open


class AsyncPreparedQuery:
    """A statement that the server has parsed, to be run with different parameters."""

    def __init__(self, session: AsyncSessionStatements, prepared: PreparedHandle) -> None:
        self._session = session
        self._prepared = prepared

    @property
    def schema(self) -> Any:
        """The columns of its result."""
        return self._prepared.columns

    @property
    def parameter_schema(self) -> Any:
        """Its parameters, with their types as far as the server knows them."""
        return self._prepared.parameters

    async def query(
        self,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> QueryResult:
        """Runs the statement and returns all its rows."""
        request = requests.query_prepared(self._prepared, params)
        return await self._session._run(request, options, timeout)

    async def update(
        self,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> UpdateResult:
        """Runs the statement atomically for every row of ``params``."""
        request = requests.update_prepared(self._prepared, params)
        return await self._session._run(request, options, timeout)

    async def close(self) -> None:
        """Frees the statement on the server."""
        if not self._session.closed and self._session._connection.usable:
            await self._session._run(requests.close_prepared(self._prepared), None, UNSET)

    async def __aenter__(self) -> AsyncPreparedQuery:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

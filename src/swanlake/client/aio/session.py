"""The sessions of a pool, for tasks."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from swanlake.client import requests
from swanlake.client.async_statements import AsyncStatements, answer_to
from swanlake.client.async_stream import Acquiring, AsyncResultStream, apart
from swanlake.client.connection import Connection, Request
from swanlake.client.deadline import Deadline
from swanlake.client.driver import Call, Prepared
from swanlake.client.keeper import ConnectionSlot, Keeper, in_background
from swanlake.client.options import UNSET, QueryOptions
from swanlake.client.parameters import Parameters
from swanlake.client.result import QueryResult, UpdateResult
from swanlake.client.statements import Timeout, call_for, limit
from swanlake.client.stream import ResultStream, end_unread
from swanlake.errors import ClientClosed, SwanLakeError

T = TypeVar("T")


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
            await self.commit()
        except BaseException:
            await self._roll_back_quietly()
            raise

    async def cancel(self) -> bool:
        """Stops what runs here, from another task; False if nothing did."""
        return await apart("swanlake-cancel", self._connection.cancel)

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
                self._keeper.telemetry.open_transaction(self.session_id)
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

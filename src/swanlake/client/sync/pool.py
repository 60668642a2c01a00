"""A pool of connections for threads."""

from __future__ import annotations

import warnings
from types import TracebackType
from typing import Any, TypeVar

from swanlake.client import requests
from swanlake.client.client import SessionStatements
from swanlake.client.connection import Connection, Request
from swanlake.client.deadline import Deadline
from swanlake.client.keeper import ConnectionSlot, Keeper
from swanlake.client.options import UNSET, QueryOptions, WriterOptions
from swanlake.client.parameters import Parameters
from swanlake.client.pool_base import TRANSPORT_ERRORS, PoolBase
from swanlake.client.statements import Statements, Timeout, call_for
from swanlake.client.stream import ResultStream
from swanlake.client.writer import Writer
from swanlake.errors import ClientClosed, SwanLakeError

T = TypeVar("T")
Self = TypeVar("Self", bound="FlightSQLPool")
Borrowed = TypeVar("Borrowed", bound="PooledConnection")


class FlightSQLPool(PoolBase, Statements):
    """Connections to a server, shared by the threads of a program; opened at its first use.

    Every statement may run on another connection. What must stay together, such as a transaction,
    belongs to a session: ``acquire_session``.

    >>> with swanlake.Pool("grpc://localhost:4214", max_size=8) as pool:  # doctest: +SKIP
    ...     pool.query("SELECT 42 AS answer").to_pylist()
    [{'answer': 42}]
    """

    def open(self, *, wait: bool = False, timeout: float = 30.0) -> None:
        """Begins to connect; with ``wait`` returns when ``min_idle`` connections are there."""
        self._keeper.start()
        if wait:
            try:
                self._keeper.when_filled().result(timeout)
            except TimeoutError:
                raise self._keeper.timeout_error(timeout) from self._keeper.connect_failure
            self._check_filled()

    def close(self, *, timeout: float = 5.0) -> None:
        """Closes all connections; can be called again.

        Who waits for one gets PoolClosed. Statements that run have ``timeout`` seconds to end and
        are stopped then.
        """
        try:
            self._keeper.close().result(timeout)
        except TimeoutError:
            self._keeper.abandon()

    def check(self, *, timeout: float | None = None) -> None:
        """Checks the idle connections and drops those that do not work."""
        self._keeper.check().result(timeout)

    def stream(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> ResultStream:
        """Runs a query and gives its rows as they arrive; use it with ``with``.

        It holds a connection until it is read to its end or closed. ``timeout`` covers all rows.
        """
        call = call_for(options, self._deadline(options, timeout))
        slot = self._acquire(call.deadline)
        statement = None
        try:
            statement = slot.connection.begin(requests.stream(sql, params), call)
            rows = statement.wait()
        except BaseException:
            self._keeper.release_unread(slot, statement)
            raise
        return self._keeper.lend_stream(slot, rows, call)

    def connection(self, *, timeout: Timeout = UNSET) -> PooledConnection:
        """A connection for a while, to be used with ``with``; for statements one after the other.

        It goes back to the pool, unless something ran on it that may have left its traces. For
        temporary tables, settings and the like there is ``acquire_session``.
        """
        return self._borrow(PooledConnection, timeout)

    def acquire_session(self, *, timeout: Timeout = UNSET) -> SessionHandle:
        """A session of one's own, to be used with ``with``: for transactions, temporary tables.

        Its connection is closed with it, and nothing of it is left. With ``reuse_sessions`` it goes
        back to the pool if all that ran were statements on tables, as ``connection()`` does.
        """
        return self._borrow(SessionHandle, timeout)

    def writer(self, table: str, options: WriterOptions | None = None, **overrides: Any) -> Writer:
        """Brings rows to a table in batches; a context manager.

        The keywords are those of ``WriterOptions``. Its connection is none of the pool's.
        """
        return Writer(self._address, table, options, connect=self._connection_to, **overrides)

    def _borrow(self, kind: type[Borrowed], timeout: Timeout) -> Borrowed:
        return kind(self._keeper, self._acquire(Deadline(None), timeout))

    def _run(self, request: Request[T], options: QueryOptions | None, timeout: Timeout) -> T:
        deadline = self._deadline(options, timeout)
        with self._keeper.telemetry.span("swanlake.query"):
            try:
                return self._attempt(request, options, deadline)
            except TRANSPORT_ERRORS as failure:
                if not self._may_repeat(request, options):
                    raise
                self._keeper.telemetry.event("a query is run again: %s", failure)
            return self._attempt(request, options, deadline)

    def _attempt(self, request: Request[T], options: QueryOptions | None, deadline: Deadline) -> T:
        slot = self._acquire(deadline)
        statement = None
        try:
            statement = slot.connection.begin(request, call_for(options, deadline))
            return statement.wait()
        finally:
            self._keeper.release(slot, after=statement)

    def _acquire(self, deadline: Deadline, timeout: Timeout = UNSET) -> ConnectionSlot:
        slot = self._keeper.take()
        if slot is not None:
            return slot
        with self._keeper.telemetry.span("swanlake.acquire"):
            caller = self._keeper.ask()
            patience = self._patience(deadline, timeout)
            try:
                return caller.future.result(patience)
            except SwanLakeError:
                raise
            except TimeoutError:
                self._keeper.withdraw(caller, timed_out=True)
                raise self._keeper.timeout_error(patience or 0.0) from self._keeper.connect_failure
            except BaseException:
                self._keeper.withdraw(caller)
                raise

    def __enter__(self: Self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class PooledConnection(SessionStatements):
    """A connection that belongs to one caller until it is closed; a context manager."""

    def __init__(self, keeper: Keeper, slot: ConnectionSlot) -> None:
        self._keeper = keeper
        self._slot: ConnectionSlot | None = slot
        self._default_timeout = keeper.config.default_query_timeout
        self._streams: list[ResultStream] = []

    @property
    def _connection(self) -> Connection:
        if self._slot is None:
            raise ClientClosed("The connection was given back to its pool.")
        return self._slot.connection

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
    ) -> ResultStream:
        """Runs a query and gives its rows as they arrive; closed with the connection."""
        stream = super().stream(sql, params, options=options, timeout=timeout)
        self._streams = [*(one for one in self._streams if not one.is_over), stream]
        return stream

    def close(self) -> None:
        """Gives the connection back; rolls an open transaction back. Can be called again."""
        if self._slot is None:
            return
        keep = False
        try:
            self._end_transaction()
            keep = self._may_keep
        finally:
            slot, self._slot = self._slot, None
            self._keeper.release(slot, keep=keep)

    @property
    def _may_keep(self) -> bool:
        return True

    def _end_transaction(self) -> None:
        for stream in self._streams:
            stream.close()
        if self.in_transaction:
            self._keeper.telemetry.open_transaction(self.session_id)
            self._roll_back_quietly()

    def __enter__(self: Borrowed) -> Borrowed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        slot = getattr(self, "_slot", None)
        if slot is not None:
            self._keeper.reclaim(slot)
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)


class SessionHandle(PooledConnection):
    """A session of a pool, for what must stay together.

    Commit what you have begun, or use ``transaction()``: a transaction that is open at the end is
    rolled back.

    >>> with pool.acquire_session() as session:  # doctest: +SKIP
    ...     with session.transaction():
    ...         session.update("INSERT INTO t VALUES (1)")
    """

    @property
    def _may_keep(self) -> bool:
        return self._keeper.config.reuse_sessions

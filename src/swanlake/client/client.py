"""One connection to a server."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from types import TracebackType
from typing import Any, TypeVar

from swanlake.client import requests
from swanlake.client.address import Address
from swanlake.client.connection import Connection, Request
from swanlake.client.deadline import Deadline
from swanlake.client.driver import Call, Prepared
from swanlake.client.options import (
    CANCEL_GRACE,
    CONNECT_TIMEOUT,
    UNSET,
    QueryOptions,
    WriterOptions,
)
from swanlake.client.parameters import Parameters
from swanlake.client.result import QueryResult, UpdateResult
from swanlake.client.statements import Statements, Timeout, call_for, limit
from swanlake.client.stream import ResultStream
from swanlake.client.writer import Writer
from swanlake.errors import SwanLakeError

T = TypeVar("T")


class SessionStatements(Statements):
    """Statements that share a session: its transaction, temp tables and settings."""

    _default_timeout: float | None

    @property
    @abstractmethod
    def _connection(self) -> Connection:
        """Where the session is; raises ClientClosed when it is ours no more."""

    @property
    def session_id(self) -> str:
        """The session's name on the server."""
        return self._connection.session_id

    def stream(
        self,
        sql: str,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> ResultStream:
        """Runs a query and gives its rows as they arrive; ``timeout`` covers them all."""
        call = self._call(options, timeout)
        rows = self._connection.begin(requests.stream(sql, params), call).wait()
        return ResultStream(self._connection, rows, call)

    def prepare_query(self, sql: str, *, timeout: Timeout = UNSET) -> PreparedQuery:
        """Parses a statement once that will be run often; a context manager."""
        return PreparedQuery(self, self._run(requests.prepare(sql), None, timeout))

    def begin_transaction(self, *, timeout: Timeout = UNSET) -> None:
        """From here to ``commit`` or ``rollback`` all statements are one."""
        self._run(requests.begin_transaction(), None, timeout)

    def commit(self, *, timeout: Timeout = UNSET) -> None:
        """Makes the open transaction's changes lasting."""
        self._run(requests.end_transaction(commit=True), None, timeout)

    def rollback(self, *, timeout: Timeout = UNSET) -> None:
        """Undoes the open transaction's changes."""
        self._run(requests.end_transaction(commit=False), None, timeout)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction that is committed at the end, and rolled back if something is raised."""
        self.begin_transaction()
        try:
            yield
            self.commit()
        except BaseException:
            self._roll_back_quietly()
            raise

    def writer(self, table: str, options: WriterOptions | None = None, **overrides: Any) -> Writer:
        """Brings rows to a table in batches; a context manager.

        The keywords are those of ``WriterOptions``. It has a connection and a session of its own:
        what it writes is no part of a transaction here, and outlives this connection.
        """
        connection = self._connection
        return Writer(
            connection.driver.address, table, options, connect=connection.like, **overrides
        )

    @property
    def in_transaction(self) -> bool:
        return self._connection.transaction is not None

    def cancel(self) -> bool:
        """Stops what runs here, from any thread; False if nothing did.

        The one who waits for it gets QueryCancelled. Returns when the statement is over, or has
        not ended in the time it is given, whereupon the connection is given up.
        """
        return self._connection.cancel()

    def _run(self, request: Request[T], options: QueryOptions | None, timeout: Timeout) -> T:
        return self._connection.begin(request, self._call(options, timeout)).wait()

    def _call(self, options: QueryOptions | None, timeout: Timeout) -> Call:
        return call_for(options, Deadline(limit(options, timeout, self._default_timeout)))

    def _roll_back_quietly(self) -> None:
        """What failed matters more than that its transaction could not be ended in order."""
        if self.in_transaction and self._connection.broken is None:
            try:
                self.rollback(timeout=self._connection.cancel_grace)
            except SwanLakeError:
                self._connection.transaction = None
                self._connection.has_traces = True  # what is left of it nobody knows


class FlightSQLClient(SessionStatements):
    """One session on a server; a context manager, usable from many threads, one at a time.

    >>> with swanlake.connect("grpc://localhost:4214") as client:  # doctest: +SKIP
    ...     client.query("SELECT 42 AS answer").to_pylist()
    [{'answer': 42}]
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        tls_ca: str | PathLike[str] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float | None = None,
        connect_timeout: float = CONNECT_TIMEOUT,
        cancel_grace: float = CANCEL_GRACE,
    ) -> None:
        address = Address.parse(
            url, token=token, user=user, password=password, tls_ca=tls_ca, headers=headers
        )
        self._default_timeout = timeout
        self._own = Connection(address, connect_timeout=connect_timeout, cancel_grace=cancel_grace)
        try:
            self._own.open().wait()
        except BaseException:
            self._own.close(timeout=0.1)
            raise

    @property
    def _connection(self) -> Connection:
        return self._own

    @property
    def closed(self) -> bool:
        return self._connection.closed

    def close(self, *, timeout: float = 5.0) -> None:
        """Ends the session, and what runs in it, in bounded time; can be called again."""
        self._connection.close(timeout)

    def __enter__(self) -> FlightSQLClient:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        connection = getattr(self, "_own", None)
        if connection is not None and not connection.closed:
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"<FlightSQLClient {self._connection.driver.address.url} {state}>"


class PreparedQuery:
    """A statement that the server has parsed, to be run with ever new parameters."""

    def __init__(self, session: SessionStatements, prepared: Prepared) -> None:
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

    def query(
        self,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> QueryResult:
        """Runs it; gives all its rows."""
        return self._session._run(requests.query_prepared(self._prepared, params), options, timeout)

    def update(
        self,
        params: Parameters = None,
        *,
        options: QueryOptions | None = None,
        timeout: Timeout = UNSET,
    ) -> UpdateResult:
        """Runs it once for every row of ``params``, as one."""
        return self._session._run(
            requests.update_prepared(self._prepared, params), options, timeout
        )

    def close(self) -> None:
        """Has the server forget it."""
        if not self._session._connection.closed and self._session._connection.broken is None:
            self._session._run(requests.close_prepared(self._prepared), None, UNSET)

    def __enter__(self) -> PreparedQuery:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def connect(url: str = "grpc://127.0.0.1:4214", **options: Any) -> FlightSQLClient:
    """Connects to a server; the options are those of ``FlightSQLClient``."""
    return FlightSQLClient(url, **options)

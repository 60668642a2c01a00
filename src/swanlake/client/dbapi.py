"""PEP 249, the Python database API, over Flight SQL.

    >>> with dbapi.connect("grpc://localhost:4214") as connection:  # doctest: +SKIP
    ...     cursor = connection.cursor()
    ...     cursor.execute("SELECT city FROM places WHERE height > ?", [1000])
    ...     cursor.fetchall()
    [('Bern',)]

A transaction begins with the first statement and ends with ``commit`` or ``rollback``, unless the
connection is in ``autocommit``. Rows are fetched while they arrive, so that ``fetchmany`` holds a
batch of a result and not all of it. The exceptions are SwanLake's own, which are PEP 249's too.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Any

import pyarrow as pa

from swanlake.client.client import FlightSQLClient
from swanlake.client.parameters import Parameters, Row, table_of
from swanlake.client.result import tuples_of
from swanlake.client.stream import ResultStream
from swanlake.errors import (
    ClientClosed,
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    InvalidRequest,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    ResourceFailed,
)
from swanlake.errors import SwanLakeError as Error

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

apilevel = "2.0"
#: Threads share the module, not a connection: its transaction is one. Only ``cancel`` is for all.
threadsafety = 1
paramstyle = "qmark"

#: Rows that become Python objects at a time: few enough that one fetch is quick.
_ROWS_AT_A_TIME = 1024
#: What may open a transaction that only the server knows of; whoever has the connection next, from
#: a pool, must not find himself in it.
_BEGINS = re.compile(r"\b(?:BEGIN|START)\b", re.IGNORECASE)


class Warning(Exception):
    """PEP 249 asks for it; SwanLake raises none."""


def connect(
    url: str = "grpc://127.0.0.1:4214", *, autocommit: bool = False, **options: Any
) -> Connection:
    """Connects to a server; the options are those of ``FlightSQLClient``."""
    return Connection(FlightSQLClient(url, **options), autocommit=autocommit)


class Connection:
    """A session on a server; as a context manager it commits, or rolls back, and closes."""

    def __init__(self, client: FlightSQLClient, *, autocommit: bool = False) -> None:
        #: The client beneath, for what PEP 249 has no words for: ``ingest``, ``status``, …
        self.client = client
        self._autocommit = autocommit
        self._may_have_begun = False

    @property
    def autocommit(self) -> bool:
        """True if each statement is a transaction of its own."""
        return self._autocommit

    @autocommit.setter
    def autocommit(self, on: bool) -> None:
        if self.client.in_transaction:
            raise InvalidRequest(
                "A transaction is open; commit it or roll it back before autocommit is changed.",
                identifier="TRANSACTION_ACTIVE",
            )
        self._autocommit = on

    def cursor(self) -> Cursor:
        """Something to run statements with, one result at a time."""
        self._check_open()
        return Cursor(self)

    def commit(self) -> None:
        """Makes the changes since the last commit lasting; after a failure, roll back."""
        self._check_open()
        if self.client.in_transaction:
            self.client.commit()

    def rollback(self) -> None:
        """Undoes the changes since the last commit."""
        self._check_open()
        if self.client.in_transaction:
            self.client.rollback()
        if self._may_have_begun:
            self._roll_back_in_sql()

    def cancel(self) -> bool:
        """Stops what runs here, from any thread; False if nothing did."""
        return self.client.cancel()

    def close(self) -> None:
        """Ends the session, and undoes what was not committed; can be called again."""
        self.client.close()

    def begin(self, operation: str = "") -> FlightSQLClient:
        """The client for a statement, in a transaction unless in autocommit."""
        self._check_open()
        if _BEGINS.search(operation):
            self._may_have_begun = True
        if not self._autocommit and not self.client.in_transaction:
            self.client.begin_transaction()
        return self.client

    def _roll_back_in_sql(self) -> None:
        try:
            self.client.execute("ROLLBACK")
        except ResourceFailed as failure:
            if failure.identifier != "TRANSACTIONCONTEXT_ERROR":  # which says that there is none
                raise
        self._may_have_begun = False

    def _check_open(self) -> None:
        if self.client.closed:
            raise ClientClosed("The connection is closed.")

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.commit()
        finally:
            self.close()  # which rolls back


class Cursor:
    """Runs statements and gives their rows; a context manager and an iterator."""

    _stream: ResultStream | None
    _rows: Iterator[tuple[Any, ...]]
    _query_id: str | None

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: How many rows ``fetchmany`` gives if it is not told.
        self.arraysize = 1
        self._closed = False
        self._stream = None
        self._forget()

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        """The columns of the result: name, Arrow type, …; None if there is no result."""
        if self._stream is None:
            return None
        return [_described(field) for field in self._stream.schema]

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed; -1 if it does not say, as a query."""
        return self._rowcount

    @property
    def query_id(self) -> str | None:
        """The last statement's name on the server."""
        return self._query_id

    def execute(self, operation: str, parameters: Parameters = None) -> Cursor:
        """Runs a statement, with a sequence for its ``?`` or a dict for its ``$name``."""
        self._check_open()
        self._forget()
        stream = self.connection.begin(operation).stream(operation, parameters)
        self._query_id = stream.query_id
        self._rowcount = stream.affected_rows
        if len(stream.schema):
            self._stream = stream
            self._rows = self._tuples(stream)
        else:
            stream.read_all()  # nothing but its end
            stream.close()
        return self

    def executemany(self, operation: str, seq_of_parameters: Sequence[Row]) -> Cursor:
        """Runs a change for every row of parameters: one message, one statement where possible."""
        self._check_open()
        self._forget()
        rows = list(seq_of_parameters)
        self._rowcount = 0
        if not rows:
            return self
        bound = table_of(rows)
        client = self.connection.begin(operation)
        for _ in rows if bound is None else rows[:1]:
            done = client.update(operation, bound)
            self._query_id = done.query_id
            self._rowcount += done.affected_rows
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None after the last."""
        return next(self._result(), None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next rows, ``arraysize`` of them if not told; fewer at the end."""
        return list(islice(self._result(), self.arraysize if size is None else size))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        return list(self._result())

    def fetch_arrow_table(self) -> Any:
        """The whole result as a ``pyarrow.Table``; an extension of PEP 249."""
        self._result()
        assert self._stream is not None
        if self._taken:
            raise InterfaceError("Rows of this result were fetched already, one by one.")
        return self._stream.read_all()

    def fetch_df(self) -> Any:
        """The whole result as a pandas data frame; an extension of PEP 249."""
        return self.fetch_arrow_table().to_pandas()

    def cancel(self) -> None:
        """Stops the statement, from any thread; who waits for it gets QueryCancelled."""
        if (stream := self._stream) is not None:
            stream.cancel()
        self.connection.cancel()

    def close(self) -> None:
        """Lets go of the result; can be called again."""
        self._closed = True
        self._let_go()

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Does nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing, as PEP 249 allows."""

    def _let_go(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._rows, self._taken = None, iter(()), False

    def _forget(self) -> None:
        self._let_go()
        self._rowcount, self._query_id = -1, None

    def _tuples(self, stream: ResultStream) -> Iterator[tuple[Any, ...]]:
        self._taken = True
        for batch in stream:
            for start in range(0, batch.num_rows, _ROWS_AT_A_TIME):
                yield from tuples_of(batch.slice(start, _ROWS_AT_A_TIME))

    def _result(self) -> Iterator[tuple[Any, ...]]:
        self._check_open()
        if self._stream is None:
            raise InvalidRequest("There are no rows to fetch: no query was executed here.")
        return self._rows

    def _check_open(self) -> None:
        if self._closed or self.connection.client.closed:
            raise ClientClosed("The cursor is closed.")

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> tuple[Any, ...]:
        return next(self._result())

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


# ---- types ---------------------------------------------------------------------------------------


class TypeObject:
    """Equal to all types of a family, as PEP 249 wants it: ``description[0][1] == NUMBER``."""

    def __init__(self, name: str, *is_one: Callable[[Any], bool]) -> None:
        self._name = name
        self._is_one = is_one

    def __eq__(self, other: object) -> bool:
        if isinstance(other, pa.DataType):
            return any(is_one(other) for is_one in self._is_one)
        return self is other

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return self._name


STRING = TypeObject("STRING", pa.types.is_string, pa.types.is_large_string)
BINARY = TypeObject("BINARY", pa.types.is_binary, pa.types.is_large_binary)
NUMBER = TypeObject(
    "NUMBER", pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal, pa.types.is_boolean
)
DATETIME = TypeObject(
    "DATETIME", pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_interval
)
#: No table of a lake has such a column.
ROWID = TypeObject("ROWID")

Date = dt.date
Time = dt.time
Timestamp = dt.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> dt.date:
    """The date of a moment, given in seconds since 1970, here."""
    return dt.date.fromtimestamp(ticks)


def TimeFromTicks(ticks: float) -> dt.time:
    """The time of day of a moment, given in seconds since 1970, here."""
    return dt.datetime.fromtimestamp(ticks).time()


def TimestampFromTicks(ticks: float) -> dt.datetime:
    """A moment, given in seconds since 1970, as date and time here."""
    return dt.datetime.fromtimestamp(ticks)


def _described(field: Any) -> tuple[Any, ...]:
    kind = field.type
    is_decimal = pa.types.is_decimal(kind)
    precision, scale = (kind.precision, kind.scale) if is_decimal else (None, None)
    return field.name, kind, None, None, precision, scale, field.nullable

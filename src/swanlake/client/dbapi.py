"""The Python database API (PEP 249) over Flight SQL.

    >>> with dbapi.connect("grpc://localhost:4214") as connection:  # doctest: +SKIP
    ...     cursor = connection.cursor()
    ...     cursor.execute("SELECT city FROM places WHERE height > ?", [1000])
    ...     cursor.fetchall()
    [('Bern',)]

A transaction begins with the first statement and ends with ``commit`` or ``rollback``, unless the
connection is in ``autocommit``. Rows are fetched as they arrive: ``fetchmany`` does not hold the
whole result in memory. The exceptions are SwanLake's, which are PEP 249's too.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import pyarrow as pa

from swanlake.client.api.rows import row_tuples
from swanlake.client.api.stream import ResultStream
from swanlake.client.client import FlightSQLClient
from swanlake.client.transport.parameters import ParameterRow, Parameters, table_from_rows
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
#: Threads may share the module, but not a connection; only ``cancel`` works from any thread.
threadsafety = 1
paramstyle = "qmark"

#: Rows converted to Python objects at a time, few enough for a fast first fetch.
_ROWS_AT_A_TIME = 1024
#: May open a transaction that only the server knows of. ``rollback`` ends it, so that the next user
#: of a pooled connection is not inside it.
_BEGINS = re.compile(r"\b(?:BEGIN|START)\b", re.IGNORECASE)


class Warning(Exception):
    """Required by PEP 249; SwanLake raises none."""


def connect(
    url: str = "grpc://127.0.0.1:4214", *, autocommit: bool = False, **options: Any
) -> Connection:
    """Connects to a server; the options are those of ``FlightSQLClient``."""
    return Connection(FlightSQLClient(url, **options), autocommit=autocommit)


class Connection:
    """A session on a server; as a context manager, commits or rolls back, and closes."""

    def __init__(self, client: FlightSQLClient, *, autocommit: bool = False) -> None:
        #: The underlying client, for what PEP 249 lacks: ``ingest``, ``status``, …
        self.client = client
        self._autocommit = autocommit
        self._may_have_begun = False

    @property
    def autocommit(self) -> bool:
        """True if each statement commits on its own."""
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
        """A new cursor, which runs statements and holds one result."""
        self._check_open()
        return Cursor(self)

    def commit(self) -> None:
        """Commits the open transaction; roll back if it fails."""
        self._check_open()
        if self.client.in_transaction:
            self.client.commit()

    def rollback(self) -> None:
        """Rolls the open transaction back."""
        self._check_open()
        if self.client.in_transaction:
            self.client.rollback()
        if self._may_have_begun:
            try:
                self.client.execute("ROLLBACK")
            except ResourceFailed as failure:
                if failure.identifier != "TRANSACTIONCONTEXT_ERROR":  # no transaction is open
                    raise
            self._may_have_begun = False

    def cancel(self) -> bool:
        """Stops the running statements, from any thread; False if there were none."""
        return self.client.cancel()

    def close(self) -> None:
        """Ends the session and rolls an open transaction back; idempotent."""
        self.client.close()

    def begin(self, operation: str = "") -> FlightSQLClient:
        """The client for a statement, in a transaction unless in autocommit."""
        self._check_open()
        if _BEGINS.search(operation):
            self._may_have_begun = True
        if not self._autocommit and not self.client.in_transaction:
            self.client.begin_transaction()
        return self.client

    def _check_open(self) -> None:
        if self.client.closed:
            raise ClientClosed("The connection is closed.")

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            if error is None:
                self.commit()
        finally:
            self.close()  # rolls back


class Cursor:
    """Runs statements and fetches their rows; a context manager and an iterator."""

    _stream: ResultStream | None
    _rows: Iterator[tuple[Any, ...]]
    _query_id: str | None

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: The default number of rows of ``fetchmany``.
        self.arraysize = 1
        self._closed = False
        self._stream = None
        self._reset()

    @property
    def description(self) -> list[tuple[Any, ...]] | None:
        """The columns of the result: name, Arrow type, …; None if there is no result."""
        if self._stream is None:
            return None
        return [_described(field) for field in self._stream.schema]

    @property
    def rowcount(self) -> int:
        """How many rows the last statement changed; -1 if unknown, as for a query."""
        return self._rowcount

    @property
    def query_id(self) -> str | None:
        """The last statement's id on the server."""
        return self._query_id

    def execute(self, operation: str, parameters: Parameters = None) -> Cursor:
        """Runs a statement, with a sequence for its ``?`` or a dict for its ``$name``."""
        self._check_open()
        self._reset()
        stream = self.connection.begin(operation).stream(operation, parameters)
        self._query_id = stream.query_id
        self._rowcount = stream.affected_rows
        if len(stream.schema):
            self._stream = stream
            self._rows = self._tuples(stream)
        else:
            stream.read_all()  # no rows, only the end of the stream
            stream.close()
        return self

    def executemany(self, operation: str, seq_of_parameters: Sequence[ParameterRow]) -> Cursor:
        """Runs a change for every row of parameters, in one message if they have columns."""
        self._check_open()
        self._reset()
        rows = list(seq_of_parameters)
        self._rowcount = 0
        if not rows:
            return self
        bound = table_from_rows(rows)
        client = self.connection.begin(operation)
        for _ in rows if bound is None else rows[:1]:
            result = client.update(operation, bound)
            self._query_id = result.query_id
            self._rowcount += result.affected_rows
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None after the last."""
        return next(self._result(), None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next ``size`` rows, by default ``arraysize``; fewer at the end."""
        return list(islice(self._result(), self.arraysize if size is None else size))

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All remaining rows."""
        return list(self._result())

    def fetch_arrow_table(self) -> Any:
        """The whole result as a ``pyarrow.Table``; an extension of PEP 249."""
        self._result()
        assert self._stream is not None
        if self._partly_fetched:
            raise InterfaceError("Rows of this result were fetched already, one by one.")
        return self._stream.read_all()

    def fetch_df(self) -> Any:
        """The whole result as a pandas data frame; an extension of PEP 249."""
        return self.fetch_arrow_table().to_pandas()

    def cancel(self) -> None:
        """Stops the statement, from any thread; its caller gets QueryCancelled."""
        if (stream := self._stream) is not None:
            stream.cancel()
        self.connection.cancel()

    def close(self) -> None:
        """Discards the result; idempotent."""
        self._closed = True
        self._discard_result()

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Does nothing, as PEP 249 allows."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing, as PEP 249 allows."""

    def _discard_result(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream, self._rows, self._partly_fetched = None, iter(()), False

    def _reset(self) -> None:
        self._discard_result()
        self._rowcount, self._query_id = -1, None

    def _tuples(self, stream: ResultStream) -> Iterator[tuple[Any, ...]]:
        self._partly_fetched = True
        for batch in stream:
            for start in range(0, batch.num_rows, _ROWS_AT_A_TIME):
                yield from row_tuples(batch.slice(start, _ROWS_AT_A_TIME))

    def _result(self) -> Iterator[tuple[Any, ...]]:
        self._check_open()
        if self._stream is None:
            raise InvalidRequest("There are no rows to fetch: the cursor has executed no query.")
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


class TypeObject:
    """Equal to all types of a family, as PEP 249 requires: ``description[0][1] == NUMBER``."""

    def __init__(self, name: str, *predicates: Callable[[Any], bool]) -> None:
        self._name = name
        self._predicates = predicates

    def __eq__(self, other: object) -> bool:
        if isinstance(other, pa.DataType):
            return any(predicate(other) for predicate in self._predicates)
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
#: Equal to no type: DuckLake has no row ids.
ROWID = TypeObject("ROWID")

Date = dt.date
Time = dt.time
Timestamp = dt.datetime
Binary = bytes
DateFromTicks = dt.date.fromtimestamp
TimestampFromTicks = dt.datetime.fromtimestamp


def TimeFromTicks(ticks: float) -> dt.time:
    """The local time of day of a Unix timestamp."""
    return dt.datetime.fromtimestamp(ticks).time()


def _described(field: Any) -> tuple[Any, ...]:
    kind = field.type
    is_decimal = pa.types.is_decimal(kind)
    precision, scale = (kind.precision, kind.scale) if is_decimal else (None, None)
    return field.name, kind, None, None, precision, scale, field.nullable

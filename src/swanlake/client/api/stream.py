"""A result that is read while it arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import pyarrow as pa

from swanlake.client import requests
from swanlake.client.connection import Connection, Statement
from swanlake.client.driver import Call, Rows
from swanlake.errors import ClientClosed, SwanLakeError


class ResultStream:
    """The batches of a result, in bounded memory; a context manager.

    Closing it before its end stops the statement on the server.

    >>> with client.stream("FROM range(1_000_000)") as stream:  # doctest: +SKIP
    ...     for batch in stream:
    ...         print(batch.num_rows)
    """

    def __init__(
        self,
        connection: Connection,
        rows: Rows,
        call: Call,
        released: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._rows = rows
        self._call = call
        self._released = released
        self._ended = False
        self._closed = False
        self._has_let_go = False

    @property
    def schema(self) -> Any:
        """The columns, as an Arrow schema."""
        return self._rows.schema

    @property
    def query_id(self) -> str:
        return self._call.query_id

    @property
    def affected_rows(self) -> int:
        """Rows that the statement changed; -1 if it does not say."""
        return self._rows.affected

    @property
    def is_over(self) -> bool:
        """True if it was read to its end, or closed."""
        return self._ended or self._closed

    def read(self) -> Any | None:
        """The next batch, or None after the last."""
        if self.at_end():
            return None
        try:
            batch = self.begin_read().wait()
        except SwanLakeError:
            self.end()
            raise
        if batch is None:
            self.end()
        return batch

    def at_end(self) -> bool:
        """True after the last batch; raises ClientClosed if it was closed before."""
        if self._closed and not self._ended:
            raise ClientClosed("The stream is closed.")
        return self._ended

    def begin_read(self) -> Statement[Any | None]:
        """Begins to fetch the next batch; who does so calls ``end`` when there is none."""
        return self._connection.begin(requests.read(self._rows), self._call)

    def end(self) -> None:
        """There is nothing more to read, and the connection is for others."""
        self._ended = True
        self._let_go()

    def read_all(self) -> Any:
        """The rest, as one table."""
        return pa.Table.from_batches(list(self), self.schema)

    def to_reader(self) -> Any:
        """The rest as a ``pyarrow.RecordBatchReader``, for whoever takes one."""
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def cancel(self) -> None:
        """Stops the statement, from any thread; who reads gets QueryCancelled."""
        self._rows.stop()

    def close(self) -> None:
        """Lets go of what was not read; can be called again."""
        if self._closed:
            return
        self._closed = True
        try:
            if not self._ended and not self._connection.closed:
                self._drain()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if not self._has_let_go:
            self._has_let_go = True
            self._released()

    def _drain(self) -> None:
        """Ends the call: the connection is for the next statement only when this one is over."""
        self._rows.stop()
        try:
            while self.begin_read().wait() is not None:
                pass
        except SwanLakeError:
            pass  # that it was stopped

    def __iter__(self) -> Iterator[Any]:
        while (batch := self.read()) is not None:
            yield batch

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def end_unread(statement: Statement[Rows]) -> bool:
    """Ends a stream whose reader left before it began; False if its connection was given up."""
    over = statement.stop()
    if over and statement.call.rows is not None:
        ResultStream(statement.connection, statement.call.rows, statement.call).close()
    return over

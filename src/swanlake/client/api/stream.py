"""Results that are read while they arrive, for threads and for tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from swanlake.client.aio.waiting import run_blocking
from swanlake.client.api import requests
from swanlake.client.transport.call_thread import run_in_background
from swanlake.client.transport.connection import Connection, PendingRequest
from swanlake.client.transport.driver import CallContext, ResultReader
from swanlake.errors import ClientClosed, SwanLakeError


class StreamBase:
    """The state of a stream, and all that does not depend on how its reader waits."""

    def __init__(
        self,
        connection: Connection,
        reader: ResultReader,
        call: CallContext,
        on_release: Callable[[], None] = lambda: None,
    ) -> None:
        self._connection = connection
        self._reader = reader
        self._call = call
        self._on_release = on_release
        self._ended = False
        self._closed = False
        self._released = False

    @property
    def schema(self) -> Any:
        """The columns, as an Arrow schema."""
        return self._reader.schema

    @property
    def query_id(self) -> str:
        return self._call.query_id

    @property
    def affected_rows(self) -> int:
        """Rows that the statement changed; -1 if unknown."""
        return self._reader.affected

    @property
    def is_over(self) -> bool:
        """True if the stream was read to its end, or closed."""
        return self._ended or self._closed

    def cancel(self) -> None:
        """Stops the statement, from any thread; the reader gets QueryCancelled."""
        self._reader.stop()

    def _at_end(self) -> bool:
        """True after the last batch; raises ClientClosed if the stream was closed before."""
        if self._closed and not self._ended:
            raise ClientClosed("The stream is closed.")
        return self._ended

    def _begin_read(self) -> PendingRequest[Any | None]:
        return self._connection.begin(requests.read(self._reader), self._call)

    @contextmanager
    def _end_on_error(self) -> Iterator[None]:
        try:
            yield
        except SwanLakeError:
            self._end()
            raise

    def _received(self, batch: Any | None) -> Any | None:
        if batch is None:
            self._end()
        return batch

    def _end(self) -> None:
        self._ended = True
        self._release()

    def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            if not self._ended and not self._connection.closed:
                self._drain()
        finally:
            self._release()

    def _drain(self) -> None:
        """Ends the call, so that the connection can run its next request."""
        self._reader.stop()
        try:
            while self._begin_read().wait() is not None:
                pass
        except SwanLakeError:
            pass  # the cancellation

    def _release(self) -> None:
        if not self._released:
            self._released = True
            self._on_release()


class ResultStream(StreamBase):
    """The batches of a result, in bounded memory; a context manager.

    Closing it before its end stops the statement on the server.

    >>> with client.stream("FROM range(1_000_000)") as stream:  # doctest: +SKIP
    ...     for batch in stream:
    ...         print(batch.num_rows)
    """

    def read(self) -> Any | None:
        """The next batch, or None after the last."""
        if self._at_end():
            return None
        with self._end_on_error():
            return self._received(self._begin_read().wait())

    def read_all(self) -> Any:
        """The remaining rows, as one table."""
        return pa.Table.from_batches(list(self), self.schema)

    def to_reader(self) -> Any:
        """The remaining rows, as a ``pyarrow.RecordBatchReader``."""
        return pa.RecordBatchReader.from_batches(self.schema, self)

    def close(self) -> None:
        """Discards the remaining rows; idempotent."""
        self._close()

    def __iter__(self) -> Iterator[Any]:
        while (batch := self.read()) is not None:
            yield batch

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __enter__(self) -> ResultStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class AsyncResultStream(StreamBase):
    """The batches of a result, in bounded memory: ``async for batch in stream``."""

    async def read(self) -> Any | None:
        """The next batch, or None after the last."""
        if self._at_end():
            return None
        with self._end_on_error():
            return self._received(await self._begin_read().wait_async())

    async def read_all(self) -> Any:
        """The remaining rows, as one table."""
        return pa.Table.from_batches([batch async for batch in self], self.schema)

    async def close(self) -> None:
        """Discards the remaining rows; idempotent."""
        if not self.is_over:
            await run_blocking("swanlake-close-stream", self._close)

    async def __aiter__(self) -> AsyncIterator[Any]:
        while (batch := await self.read()) is not None:
            yield batch

    async def __aenter__(self) -> AsyncResultStream:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


def discard(pending: PendingRequest[ResultReader]) -> Future[bool]:
    """Ends a stream that will not be read, in the background; False if its connection broke."""
    if pending.future.done() and pending.call.reader is None:
        failed: Future[bool] = Future()
        failed.set_result(True)  # the statement failed: there is nothing to end
        return failed

    def end() -> bool:
        over = pending.stop_in_background().result()
        if over and pending.call.reader is not None:
            ResultStream(pending.connection, pending.call.reader, pending.call).close()
        return over

    return run_in_background("swanlake-discard", end)

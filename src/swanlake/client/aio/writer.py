"""Writers for tasks: rows in, one by one; batches out, each acknowledged and taken once."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

from swanlake.client.aio.waiting import callback_runner, wait_for
from swanlake.client.api.options import UNSET, Timeout, Unset, WriterOptions
from swanlake.client.transport.address import Address
from swanlake.client.transport.connection import Connection
from swanlake.client.transport.deadline import Deadline, WaitTimeout
from swanlake.client.writer.base import (
    CHUNKS_PER_ADD,
    DISCONNECT_TIMEOUT,
    Connect,
    WriterBase,
    log,
    raise_or_note,
)
from swanlake.client.writer.batching import RowChunk
from swanlake.client.writer.rows import TargetTable, arrow_batches
from swanlake.errors import RowRefused, RowsNotWritten, SwanLakeError, WriterError, WriterTimeout

T = TypeVar("T")


class AsyncWriter(WriterBase):
    """Writes rows to a table in batches; for tasks of one event loop, an async context manager.

    A row is a dict, a tuple, a named tuple or a dataclass; ``write_many`` takes any number of them,
    or Arrow tables and data frames. A call returns when the rows are in memory; they are
    acknowledged when the server has them on its disk, which ``flush`` and ``close`` wait for.

    >>> async with pool.writer("events") as writer:  # doctest: +SKIP
    ...     await writer.write({"id": 1, "name": "start"})
    ...     await writer.write_many(frame)
    """

    def __init__(
        self,
        address: Address,
        table: str,
        options: WriterOptions | None = None,
        *,
        connect: Connect = Connection,
        **overrides: Any,
    ) -> None:
        super().__init__(address, table, options, connect, callback_runner(), overrides)

    async def write(self, row: Any, *, timeout: Timeout = UNSET) -> None:
        """Takes a row; waits while too many are pending. If it raises, the row is not taken."""
        if not self._take_now(row):
            await self.write_many((row,), timeout=timeout)

    async def write_many(self, rows: Any, *, timeout: Timeout = UNSET) -> None:
        """Takes rows; if it raises, ``rows_taken`` of the error says how many were taken."""
        self._sender.raise_failures()
        limit = self._options.write_timeout if isinstance(timeout, Unset) else timeout
        write = _AsyncWrite(self, Deadline(limit))
        try:
            await write.take(rows)
        except WriterError as error:
            error.rows_taken = write.rows_taken
            raise

    async def flush(self, *, timeout: float | None = None) -> None:
        """Waits until all rows written so far are acknowledged; raises if some failed."""
        await self._wait(self._sender.when_settled(), Deadline(timeout))
        self._sender.raise_failures()

    async def close(self, *, timeout: Timeout = UNSET) -> None:
        """Flushes and closes; raises RowsNotWritten for rows not acknowledged in time."""
        limit = self._options.close_timeout if isinstance(timeout, Unset) else timeout
        self._sender.stop_accepting()
        try:
            await self._settle(Deadline(limit))
        except BaseException as interruption:
            self._add_failures(interruption)
            raise
        self._sender.raise_failures()

    async def _settle(self, deadline: Deadline) -> None:
        table = self._sender.table_name
        try:
            await self._wait(self._sender.when_settled(), deadline)
        except WriterTimeout:
            log.warning("writer of %s: closed with rows pending", table)
        finally:
            self._sender.fail_pending()
        try:
            await self._wait(self._sender.when_stopped(), Deadline(DISCONNECT_TIMEOUT))
        except WriterTimeout:
            log.warning("writer of %s: a call did not return", table)

    async def _wait(self, future: Future[T], deadline: Deadline) -> T:
        try:
            return await wait_for(future, deadline.seconds_left())
        except WaitTimeout:
            raise self._timeout_error(deadline) from None

    async def __aenter__(self) -> AsyncWriter:
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            await self.close()
        except RowsNotWritten as lost:
            raise_or_note(lost, error)


class _AsyncWrite:
    """The rows of one call on their way to the sender."""

    def __init__(self, writer: AsyncWriter, deadline: Deadline) -> None:
        self._writer = writer
        self._sender = writer._sender
        self._deadline = deadline
        self.rows_taken = 0

    async def take(self, rows: Any) -> None:
        """Takes rows in their order, up to the first that does not fit the table."""
        batches = arrow_batches(rows)
        is_arrow = batches is not None
        units: Iterable[Any] = rows if batches is None else batches
        table = self._sender.table or await self._describe_table()
        chunks: list[RowChunk] = []
        for unit in units:
            try:
                chunks += self._writer._convert(table, unit, is_arrow=is_arrow)
            except RowRefused as refused:
                await self._add(chunks)
                table = await self._changed_table(refused)
                chunks = [*self._writer._convert(table, unit, is_arrow=is_arrow)]
            if len(chunks) >= CHUNKS_PER_ADD:
                await self._add(chunks)
                chunks = []
        await self._add(chunks)

    async def _add(self, chunks: list[RowChunk]) -> None:
        start = 0
        while start < len(chunks):
            count = self._sender.add(chunks[start:])
            self.rows_taken += sum(chunk.rows for chunk in chunks[start : start + count])
            start += count
            if start < len(chunks):
                await self._writer._wait(self._sender.when_room(), self._deadline)

    async def _describe_table(self) -> TargetTable:
        return await self._writer._wait(self._sender.describe_table(), self._deadline)

    async def _changed_table(self, refused: RowRefused) -> TargetTable:
        """The table as it is now, which may fit a row that was refused before."""
        if not self._sender.may_describe_again:
            raise refused
        try:
            return await self._describe_table()
        except SwanLakeError:
            raise refused from None

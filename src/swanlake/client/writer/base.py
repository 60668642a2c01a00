"""Writers: rows in, one by one; batches out, each acknowledged by the server and taken once.

    with client.writer("events") as writer:
        writer.write({"id": 1, "name": "start"})

The bodies are written once, as coroutines. An AsyncWriter awaits in them; a Writer blocks where
they would wait, so that they come to their end without being suspended.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from swanlake.client.address import Address
from swanlake.client.batching import Piece, WriterReport
from swanlake.client.connection import Connection
from swanlake.client.deadline import Deadline
from swanlake.client.options import (
    CANCEL_GRACE,
    CONNECT_TIMEOUT,
    UNSET,
    Unset,
    WriterOptions,
)
from swanlake.client.outbox import Outbox
from swanlake.client.rows import TargetTable, arrow_batches
from swanlake.client.statements import Timeout
from swanlake.errors import (
    RowRefused,
    RowsNotWritten,
    SwanLakeError,
    WriterError,
    WriterTimeout,
)

log = logging.getLogger("swanlake.client")

T = TypeVar("T")
Connect = Callable[[Address], Connection]

#: Rows that are looked at before the lock is taken for all of them.
_AT_ONCE = 1000
#: How long an end waits for the connection to be closed when all else is done.
_LAST_WORDS = 2.0


def connection_to(address: Address) -> Connection:
    """A connection with the usual limits, to be opened."""
    return Connection(address, connect_timeout=CONNECT_TIMEOUT, cancel_grace=CANCEL_GRACE)


def _at_once(callback: Callable[[], object]) -> None:
    callback()


def _in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the loop is closed: better here than never
        callback()


class _Writing(ABC):
    """What writers for threads and for tasks have in common: all but the waiting."""

    def __init__(
        self,
        address: Address,
        table: str,
        options: WriterOptions | None = None,
        *,
        connect: Connect = connection_to,
        call_back: Callable[[Callable[[], object]], None] = _at_once,
        **overrides: Any,
    ) -> None:
        options = replace(options or WriterOptions(), **overrides)
        if options.catalog is not None:  # a session of its own can be where the table is
            address = replace(address, catalog=options.catalog)
        self._address = address
        self._options = options
        # It must not know the writer: one that nobody holds any more is to be noticed.
        self._outbox = Outbox(partial(connect, address), table, options, call_back)

    @property
    def producer(self) -> str:
        """The name under which the server knows the batches."""
        return self._outbox.producer

    @property
    def closed(self) -> bool:
        return self._outbox.closing

    def report(self) -> WriterReport:
        """What became of the rows so far."""
        return self._outbox.report()

    @abstractmethod
    async def _pause(self, future: Future[T], deadline: Deadline) -> T:
        """Waits for a future; raises WriterTimeout if it takes too long."""

    async def _write(self, rows: Any, timeout: Timeout) -> None:
        self._outbox.raise_failures()
        limit = self._options.write_timeout if isinstance(timeout, Unset) else timeout
        taking = _Taking(self, Deadline(limit))
        try:
            await taking.all_of(rows)
        except WriterError as error:
            error.rows_taken = taking.rows_taken
            raise

    async def _flush(self, timeout: float | None) -> None:
        await self._pause(self._outbox.settled(), Deadline(timeout))
        self._outbox.raise_failures()

    async def _close(self, timeout: Timeout) -> None:
        limit = self._options.close_timeout if isinstance(timeout, Unset) else timeout
        self._outbox.finish()
        try:
            await self._end(Deadline(limit))
        except BaseException as interruption:
            self._note_failures(interruption)
            raise
        self._outbox.raise_failures()

    async def _end(self, deadline: Deadline) -> None:
        try:
            await self._pause(self._outbox.settled(), deadline)
        except WriterTimeout:
            log.warning("writer of %s: closed with rows pending", self._outbox.table_name)
        finally:
            self._outbox.give_up()
        try:
            await self._pause(self._outbox.gone(), Deadline(_LAST_WORDS))
        except WriterTimeout:
            log.warning("writer of %s: a call did not come back", self._outbox.table_name)

    def _note_failures(self, error: BaseException) -> None:
        """Nobody will ask any more what became of the rows: the error that ends it all says so."""
        try:
            self._outbox.raise_failures()
        except RowsNotWritten as lost:
            _raise_unless(error, lost)

    def _too_late(self, deadline: Deadline) -> WriterTimeout:
        report = self.report()
        return WriterTimeout(
            f"The server did not acknowledge enough of {report.rows_pending} pending rows for "
            f"{self._outbox.table_name} within {deadline.timeout:g} s.{self._outbox.trouble}"
        )

    def __del__(self) -> None:
        outbox = getattr(self, "_outbox", None)
        if outbox is not None and not outbox.closing:
            outbox.finish()
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return (
            f"<{type(self).__name__} of {self._outbox.table_name} at {self._address.url} {state}>"
        )


class _Taking:
    """One call's rows on their way into the outbox."""

    def __init__(self, writer: _Writing, deadline: Deadline) -> None:
        self._writer = writer
        self._outbox = writer._outbox
        self._options = writer._options
        self._deadline = deadline
        self.rows_taken = 0

    async def all_of(self, rows: Any) -> None:
        """Takes rows in their order, up to the first that does not fit."""
        batches = arrow_batches(rows)
        units: Iterable[Any] = rows if batches is None else batches
        table = self._outbox.table or await self._ask_table()
        pieces: list[Piece] = []
        for unit in units:
            try:
                pieces += self._pieces(table, unit, is_arrow=batches is not None)
            except RowRefused as refused:
                await self._put(pieces)
                table = await self._changed_table(refused)
                pieces = self._pieces(table, unit, is_arrow=batches is not None)
            if len(pieces) >= _AT_ONCE:
                await self._put(pieces)
                pieces = []
        await self._put(pieces)

    def _pieces(self, table: TargetTable, unit: Any, *, is_arrow: bool) -> list[Piece]:
        options = self._options
        if is_arrow:
            return table.take_arrow(unit, options.max_rows, options.max_bytes)
        return [table.take(unit, options.columns)]

    async def _put(self, pieces: list[Piece]) -> None:
        start = 0
        while start < len(pieces):
            count = self._outbox.offer(pieces[start:])
            self.rows_taken += sum(piece.rows for piece in pieces[start : start + count])
            start += count
            if start < len(pieces):
                await self._writer._pause(self._outbox.room(), self._deadline)

    async def _ask_table(self) -> TargetTable:
        return await self._writer._pause(self._outbox.ask_table(), self._deadline)

    async def _changed_table(self, refused: RowRefused) -> TargetTable:
        """The table as it is now, if it may fit what it did not fit before."""
        if not self._outbox.may_ask_again:
            raise refused
        try:
            return await self._ask_table()
        except SwanLakeError:
            raise refused from None


class Writer(_Writing):
    """Brings rows to a table in batches; for any number of threads, and a context manager.

    A row is a dict, a tuple, a named tuple or a dataclass; ``write_many`` takes any number of them,
    or Arrow tables and data frames. A call returns when the rows are taken into memory; they are
    acknowledged when the server has them on its disk, which ``flush`` and ``close`` wait for.

    >>> with client.writer("events") as writer:  # doctest: +SKIP
    ...     writer.write({"id": 1, "name": "start"})
    ...     writer.write_many(frame)
    """

    def write(self, row: Any, *, timeout: Timeout = UNSET) -> None:
        """Takes a row; waits while too many are pending. If it raises, the row is not taken."""
        _now(self._write((row,), timeout))

    def write_many(self, rows: Any, *, timeout: Timeout = UNSET) -> None:
        """Takes rows; if it raises, ``rows_taken`` of the error says how many it had taken."""
        _now(self._write(rows, timeout))

    def flush(self, *, timeout: float | None = None) -> None:
        """Waits until all that was written so far is acknowledged; raises if some of it failed."""
        _now(self._flush(timeout))

    def close(self, *, timeout: Timeout = UNSET) -> None:
        """Flushes and ends; raises RowsNotWritten for what was not acknowledged in time."""
        _now(self._close(timeout))

    async def _pause(self, future: Future[T], deadline: Deadline) -> T:
        try:
            return future.result(deadline.patience(0))
        except TimeoutError:
            if not future.cancel():
                return future.result()  # it came at the last moment, or is a timeout itself
            raise self._too_late(deadline) from None

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except RowsNotWritten as lost:
            _raise_unless(error, lost)


class AsyncWriter(_Writing):
    """The same for tasks of one event loop, in which its callbacks are called."""

    def __init__(
        self,
        address: Address,
        table: str,
        options: WriterOptions | None = None,
        *,
        connect: Connect = connection_to,
        **overrides: Any,
    ) -> None:
        call_back = partial(_in_loop, asyncio.get_running_loop())
        super().__init__(address, table, options, connect=connect, call_back=call_back, **overrides)

    async def write(self, row: Any, *, timeout: Timeout = UNSET) -> None:
        """Takes a row; waits while too many are pending. If it raises, the row is not taken."""
        await self._write((row,), timeout)

    async def write_many(self, rows: Any, *, timeout: Timeout = UNSET) -> None:
        """Takes rows; if it raises, ``rows_taken`` of the error says how many it had taken."""
        await self._write(rows, timeout)

    async def flush(self, *, timeout: float | None = None) -> None:
        """Waits until all that was written so far is acknowledged; raises if some of it failed."""
        await self._flush(timeout)

    async def close(self, *, timeout: Timeout = UNSET) -> None:
        """Flushes and ends; raises RowsNotWritten for what was not acknowledged in time."""
        await self._close(timeout)

    async def _pause(self, future: Future[T], deadline: Deadline) -> T:
        waiting = asyncio.wrap_future(future)
        try:
            await asyncio.wait([waiting], timeout=deadline.patience(0))
            if not waiting.done():
                raise self._too_late(deadline)
            return waiting.result()
        finally:
            waiting.cancel()  # if the task is cancelled, nobody waits any more

    async def __aenter__(self) -> AsyncWriter:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self.close()
        except RowsNotWritten as lost:
            _raise_unless(error, lost)


def _now(body: Coroutine[Any, Any, None]) -> None:
    """Runs a body that never suspends."""
    try:
        body.send(None)
    except StopIteration:
        return
    raise AssertionError("a writer for threads waited as a task")


def _raise_unless(error: BaseException | None, lost: RowsNotWritten) -> None:
    """What ended a block early is more important, but does not hide that rows were lost."""
    if error is None:
        raise lost
    log.error("%s", lost)
    error.add_note(str(lost))

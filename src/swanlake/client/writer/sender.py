"""The part of a writer that works in the background: it sends what was written.

One thread for each writer, with a connection of its own: it neither waits for the statements of
others nor belongs to their transactions. Who writes meets it under one lock, and waits for it by
futures, which threads and tasks can both wait for.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa

from swanlake.client import requests
from swanlake.client.backoff import backoff
from swanlake.client.batching import Batch, Batcher, Failure, Piece, WriterReport, may_repeat
from swanlake.client.connection import Connection, Request
from swanlake.client.deadline import Deadline
from swanlake.client.driver import Call
from swanlake.client.forks import check_fork, is_cut_off
from swanlake.client.options import WriterOptions
from swanlake.client.rows import TargetTable, target_table
from swanlake.errors import (
    InvalidRequest,
    RowsNotWritten,
    ServerUnavailable,
    SwanLakeError,
    WriterClosed,
)

log = logging.getLogger("swanlake.client")

T = TypeVar("T")

#: A connection to a server that may be gone is not given longer to say goodbye.
_GOODBYE = 0.5
#: A row that does not fit is held against what the table is now, but not more often than this.
_ASK_AGAIN = 1.0


class Outbox:
    """Rows on their way to one table."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        table: str,
        options: WriterOptions,
        call_back: Callable[[Callable[[], object]], None],
    ) -> None:
        self.table_name = table
        self.options = options
        #: The table as the server last described it; None until it has.
        self.table: TargetTable | None = None
        self._connect = connect
        self._call_back = call_back
        self._connection: Connection | None = None
        self._batcher = Batcher(options, options.producer or uuid4().hex)
        self._changed = threading.Condition()
        self._waiting: list[tuple[Callable[[], bool], Future[None]]] = []
        self._asking: list[Future[TargetTable]] = []
        self._asked_at = float("-inf")
        self._ask_failures = 0
        self._ask_not_before = 0.0
        self._ask_until = 0.0
        self._untold: list[Failure] = []
        self._last_error: SwanLakeError | None = None
        self._closing = False
        self._ended = False
        self._thread = threading.Thread(
            target=self._work, name=f"swanlake-writer-{table}", daemon=True
        )
        self._thread.start()
        atexit.register(self._at_exit)

    # ---- for those who write ---------------------------------------------------------------------

    def offer(self, pieces: Iterable[Piece]) -> int:
        """Takes pieces as long as there is room; how many it took."""
        check_fork()  # there is no thread that would send them
        taken = 0
        with self._changed:
            if self._closing:
                raise self._closed()
            now, look = time.monotonic(), False
            for piece in pieces:
                if not self._batcher.has_room:
                    break
                look = self._batcher.add(piece, now) or look
                taken += 1
            if look:
                self._changed.notify_all()
        return taken

    def room(self) -> Future[None]:
        """Done when there is room, or there will never be any again."""
        return self._when(lambda: self._batcher.has_room or self._closing)

    def settled(self) -> Future[None]:
        """Sends all that was written so far; done when none of it is pending."""
        with self._changed:
            before = self._batcher.cut_all(time.monotonic())
            self._changed.notify_all()
        return self._when(lambda: self._batcher.is_settled(before))

    def ask_table(self) -> Future[TargetTable]:
        """Has the server describe the table, as soon as it can."""
        check_fork()
        asked: Future[TargetTable] = Future()
        with self._changed:
            if self._closing:
                raise self._closed()
            if not self._asking:
                limit = self.options.retry_timeout
                now = time.monotonic()
                self._ask_until = float("inf") if limit is None else now + limit
                self._ask_not_before, self._ask_failures = now, 0
            self._asking.append(asked)
            self._changed.notify_all()
        return asked

    @property
    def may_ask_again(self) -> bool:
        """True if the table may have changed since it was described."""
        return time.monotonic() - self._asked_at > _ASK_AGAIN

    def raise_failures(self) -> None:
        """Raises RowsNotWritten for what was given up and not told yet."""
        if not self._untold:
            return
        with self._changed:
            failures, self._untold = self._untold, []
        if failures:
            error = RowsNotWritten(_sentence(self.table_name, failures))
            error.failures = tuple(failures)
            raise error

    @property
    def trouble(self) -> str:
        """What the server, or the way to it, is ailing from: for the end of a message."""
        error = self._last_error
        return "" if error is None else f" The last attempt failed: {error.wire_message}"

    @property
    def producer(self) -> str:
        return self._batcher.producer

    def report(self) -> WriterReport:
        with self._changed:
            return self._batcher.report()

    # ---- the end ---------------------------------------------------------------------------------

    @property
    def closing(self) -> bool:
        return self._closing

    def finish(self) -> None:
        """No more rows; the thread ends when it has sent those there are."""
        with self._changed:
            self._closing = True
            self._batcher.cut_all(time.monotonic())
            self._changed.notify_all()
            asking, self._asking = self._asking, []
            done = self._now_done()
        for one in asking:
            if one.set_running_or_notify_cancel():
                one.set_exception(self._closed())
        _resolve(done)

    def gone(self) -> Future[None]:
        """Done when the thread has ended and the connection is closed."""
        return self._when(lambda: self._ended)

    def give_up(self) -> None:
        """What is not acknowledged by now is reported as failed."""
        with self._changed:
            error = self._last_error or ServerUnavailable(
                "The writer was closed before the server acknowledged the rows."
            )
            failures = self._batcher.give_up_all(error, time.monotonic())
            self._changed.notify_all()
            done = self._now_done()
        for failure in failures:
            self._tell(failure)
        _resolve(done)  # after the telling: a flush that ends now has something to raise

    def _at_exit(self) -> None:
        """The program ends and nobody closed the writer: what was written is sent all the same."""
        if is_cut_off():
            return  # all of it belongs to the parent
        self.finish()
        wait_for([self.settled()], Deadline(self.options.close_timeout).patience(0))
        self.give_up()
        try:
            self.raise_failures()
        except RowsNotWritten as error:
            log.error("at the end of the program: %s", error)

    # ---- the thread ------------------------------------------------------------------------------

    def _work(self) -> None:
        pa.array([])  # looks for pandas, which takes long, and cannot be done while a program ends
        while (task := self._next_task()) is not None:
            task()
        self._hang_up()
        atexit.unregister(self._at_exit)
        with self._changed:
            self._ended = True
            done = self._now_done()
        _resolve(done)

    def _next_task(self) -> Callable[[], None] | None:
        with self._changed:
            while True:
                now = time.monotonic()
                if self._closing and self._batcher.is_empty:
                    return None
                if self._asking and self._ask_not_before <= now:
                    return self._ask_for_table
                batch = self._batcher.take(now)
                if batch is not None:
                    return partial(self._send, batch)
                moments = [self._batcher.wake_at()]
                if self._asking:
                    moments.append(self._ask_not_before)
                soonest = min((one for one in moments if one is not None), default=None)
                self._changed.wait(None if soonest is None else max(0.0, soonest - now))

    def _ask_for_table(self) -> None:
        try:
            schema, described = self._ask(requests.columns(self.table_name, self.options.schema))
            table = target_table(self.table_name, schema, described)
        except SwanLakeError as error:
            self._table_not_told(error)
            return
        except Exception as unforeseen:  # a thread that dies would answer nobody
            log.exception("writer of %s: its columns", self.table_name)
            self._table_not_told(InvalidRequest(f"The table is not understood: {unforeseen!r}"))
            return
        with self._changed:
            self.table, self._asked_at, self._last_error = table, time.monotonic(), None
            asking, self._asking = self._asking, []
        for one in asking:
            if one.set_running_or_notify_cancel():
                one.set_result(table)

    def _table_not_told(self, error: SwanLakeError) -> None:
        with self._changed:
            self._last_error = error
            now = time.monotonic()
            if may_repeat(error, named=True) and now < self._ask_until and not self._closing:
                self._ask_failures += 1
                self._ask_not_before = now + backoff(self._ask_failures)
                return
            asking, self._asking = self._asking, []
        for one in asking:
            if one.set_running_or_notify_cancel():
                one.set_exception(error)

    def _send(self, batch: Batch) -> None:
        name = (self._batcher.producer, batch.sequence) if self.options.queue else None
        try:
            self._ask(
                requests.ingest(
                    self.table_name,
                    batch.table,
                    queue=self.options.queue,
                    schema=self.options.schema,
                    batch_name=name,
                )
            )
        except SwanLakeError as error:
            self._failed(batch, error)
        except Exception as unforeseen:  # a thread that dies would lose it without a word
            log.exception("writer of %s: batch %s", self.table_name, batch.sequence)
            self._failed(batch, InvalidRequest(f"The batch could not be sent: {unforeseen!r}"))
        else:
            self._acknowledged(batch)

    def _acknowledged(self, batch: Batch) -> None:
        with self._changed:
            self._last_error = None
            if not self._batcher.holds(batch):
                return  # given up meanwhile
            receipt = self._batcher.acknowledge(batch)
            done = self._now_done()
        if self.options.on_acknowledged is not None:
            self._call_back(partial(self._call, self.options.on_acknowledged, receipt))
        _resolve(done)

    def _failed(self, batch: Batch, error: SwanLakeError) -> None:
        with self._changed:
            self._last_error = error
            if not self._batcher.holds(batch):
                return
            failure = self._batcher.fail(batch, error, time.monotonic())
            if not may_repeat(error, named=True):
                self.table = None  # it may not be what we think
            done = self._now_done()
        if failure is None:
            log.info(
                "writer of %s: batch %s will be sent again after %s",
                self.table_name,
                batch.sequence,
                error.wire_message,
            )
        else:
            self._tell(failure)
        _resolve(done)

    def _tell(self, failure: Failure) -> None:
        """A failure is told once: to ``on_error``, or to whoever calls the writer next."""
        on_error = self.options.on_error

        def tell() -> None:
            if on_error is None or not self._call(on_error, failure):
                with self._changed:
                    self._untold.append(failure)

        if on_error is None:
            tell()
        else:
            self._call_back(tell)

    def _call(self, callback: Callable[[T], None], news: T) -> bool:
        """Calls what a user gave; False if it raised, which must not end the thread."""
        try:
            callback(news)
        except Exception:
            log.exception("writer of %s: a callback raised for %s", self.table_name, news)
            return False
        return True

    def _closed(self) -> WriterClosed:
        return WriterClosed(f"The writer of {self.table_name} is closed.")

    # ---- the connection --------------------------------------------------------------------------

    def _ask(self, request: Request[T]) -> T:
        """The answer of the server, on a connection that is made where there is none."""
        connection = self._connection or self._new_connection()
        try:
            return connection.begin(request, Call(Deadline(self.options.request_timeout))).wait()
        except SwanLakeError:
            if connection.suspect or connection.broken is not None:
                self._hang_up()
            raise

    def _new_connection(self) -> Connection:
        connection = self._connect()
        try:
            connection.open().wait()
        except BaseException:
            connection.close(_GOODBYE)
            raise
        self._connection = connection
        return connection

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(_GOODBYE)

    # ---- waiting ---------------------------------------------------------------------------------

    def _when(self, condition: Callable[[], bool]) -> Future[None]:
        future: Future[None] = Future()
        with self._changed:
            if not condition():
                self._waiting.append((condition, future))
                return future
        future.set_result(None)
        return future

    def _now_done(self) -> list[Future[None]]:
        """Those whose condition holds now; to be resolved when the lock is free."""
        done, waiting = [], []
        for condition, future in self._waiting:
            if future.cancelled() or condition():
                done.append(future)
            else:
                waiting.append((condition, future))
        self._waiting = waiting
        return done


def _resolve(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        if future.set_running_or_notify_cancel():
            future.set_result(None)


def _sentence(table: str, failures: list[Failure]) -> str:
    first = failures[0]
    rows = sum(failure.rows for failure in failures)
    doubt = sum(failure.rows for failure in failures if failure.in_doubt)
    known = f" ({doubt} of them may have been all the same)" if doubt else ""
    return (
        f"{rows} rows were not written to {table}{known}: {first.error.wire_message} "
        f"(batch {first.sequence} of producer {first.producer}"
        f"{', and others' if len(failures) > 1 else ''}; see failures)"
    )

"""The background thread of a writer, which sends its batches.

Each writer has one thread and its own connection, independent of the statements and transactions
of others. Callers share one lock with the thread, and wait for futures, which threads and tasks can
both do.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar
from uuid import uuid4

import pyarrow as pa

from swanlake._internal.backoff import backoff
from swanlake.client.api import requests
from swanlake.client.api.options import WriterOptions
from swanlake.client.transport.condition_futures import ConditionFutures, resolve
from swanlake.client.transport.connection import Connection, Request
from swanlake.client.transport.deadline import Deadline
from swanlake.client.transport.driver import CallContext
from swanlake.client.transport.fork_guard import check_fork, threads_unavailable
from swanlake.client.writer.batching import (
    Batcher,
    Failure,
    RowChunk,
    WriteBatch,
    WriterReport,
    may_retry,
)
from swanlake.client.writer.rows import TargetTable, target_table
from swanlake.errors import (
    InvalidRequest,
    RowsNotWritten,
    ServerUnavailable,
    SwanLakeError,
    WriterClosed,
)

log = logging.getLogger("swanlake.client")

T = TypeVar("T")

#: How long a connection to a server that may be gone takes to close.
_CLOSE_TIMEOUT = 0.5
#: A row that does not fit makes the writer describe the table again, at most this often.
_DESCRIBE_INTERVAL = 1.0


class WriteSender:
    """Sends the rows of one writer to one table."""

    def __init__(
        self,
        connect: Callable[[], Connection],
        table: str,
        options: WriterOptions,
        run_callback: Callable[[Callable[[], object]], None],
    ) -> None:
        self.table_name = table
        self.options = options
        #: The table as the server last described it; None until it has.
        self.table: TargetTable | None = None
        self._connect = connect
        self._post_callback = run_callback
        self._connection: Connection | None = None
        self._batcher = Batcher(options, options.producer or uuid4().hex)
        # Reentrant: an abandoned writer may be collected by a thread that holds the lock.
        self._lock = threading.RLock()
        self._condition = threading.Condition(self._lock)
        self._waiters = ConditionFutures()
        self._describe_waiters: list[Future[TargetTable]] = []
        self._described_at = float("-inf")
        self._describe_failures = 0
        self._describe_not_before = 0.0
        self._describe_until = 0.0
        self._unreported: list[Failure] = []
        self._last_error: SwanLakeError | None = None
        self._closing = False
        self._ended = False
        self._thread = threading.Thread(
            target=self._run, name=f"swanlake-writer-{table}", daemon=True
        )
        self._thread.start()
        atexit.register(self._at_exit)

    def add(self, chunks: Iterable[RowChunk]) -> int:
        """Adds chunks while there is room; returns how many it added."""
        check_fork()  # a forked child has no thread to send them
        added = 0
        with self._condition:
            if self._closing:
                raise self._closed_error()
            now, changed = time.monotonic(), False
            for chunk in chunks:
                if not self._batcher.has_room:
                    break
                changed = self._batcher.add(chunk, now) or changed
                added += 1
            if changed:
                self._condition.notify_all()
        return added

    def add_now(self, chunk: RowChunk) -> bool:
        """Adds a chunk; False if there is no room, or the writer is closing or has news."""
        check_fork()
        with self._lock:
            if self._closing or self._unreported or not self._batcher.has_room:
                return False
            if self._batcher.add(chunk, time.monotonic()):
                self._condition.notify_all()
        return True

    def when_room(self) -> Future[None]:
        """Done when there is room, or the writer is closing."""
        with self._condition:
            return self._waiters.add(lambda: self._batcher.has_room or self._closing)

    def when_settled(self) -> Future[None]:
        """Sends all rows added so far; done when none of them is pending."""
        with self._condition:
            before = self._batcher.finish_all(time.monotonic())
            self._condition.notify_all()
            return self._waiters.add(lambda: self._batcher.is_settled(before))

    def describe_table(self) -> Future[TargetTable]:
        """Has the server describe the table, with retries."""
        check_fork()
        described: Future[TargetTable] = Future()
        with self._condition:
            if self._closing:
                raise self._closed_error()
            if not self._describe_waiters:
                limit = self.options.retry_timeout
                now = time.monotonic()
                self._describe_until = float("inf") if limit is None else now + limit
                self._describe_not_before, self._describe_failures = now, 0
            self._describe_waiters.append(described)
            self._condition.notify_all()
        return described

    @property
    def may_describe_again(self) -> bool:
        """True if the last description is old enough to be repeated."""
        return time.monotonic() - self._described_at > _DESCRIBE_INTERVAL

    def raise_failures(self) -> None:
        """Raises RowsNotWritten for failed batches that were not reported yet."""
        if not self._unreported:
            return
        with self._condition:
            failures, self._unreported = self._unreported, []
        if failures:
            error = RowsNotWritten(_failure_message(self.table_name, failures))
            error.failures = tuple(failures)
            raise error

    @property
    def last_error_text(self) -> str:
        """A sentence about the last failed attempt, to end a message with; may be empty."""
        error = self._last_error
        return "" if error is None else f" The last attempt failed: {error.wire_message}"

    @property
    def producer(self) -> str:
        return self._batcher.producer

    def report(self) -> WriterReport:
        with self._condition:
            return self._batcher.report()

    @property
    def closing(self) -> bool:
        return self._closing

    def stop_accepting(self) -> None:
        """Refuses new rows; the thread ends when the pending ones are settled."""
        with self._condition:
            self._closing = True
            self._batcher.finish_all(time.monotonic())
            self._condition.notify_all()
            waiters, self._describe_waiters = self._describe_waiters, []
            done = self._waiters.pop_ready()
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_exception(self._closed_error())
        resolve(done)

    def when_stopped(self) -> Future[None]:
        """Done when the thread has ended and the connection is closed."""
        with self._condition:
            return self._waiters.add(lambda: self._ended)

    def fail_pending(self) -> None:
        """Fails all rows that are not acknowledged."""
        with self._condition:
            error = self._last_error or ServerUnavailable(
                "The writer was closed before the server acknowledged the rows."
            )
            failures = self._batcher.fail_all(error, time.monotonic())
            self._condition.notify_all()
            done = self._waiters.pop_ready()
        for failure in failures:
            self._report_failure(failure)
        resolve(done)  # after the report, so that a flush that ends now can raise it

    def _at_exit(self) -> None:
        """Sends the rows of a writer that was not closed before the program ends."""
        if threads_unavailable():
            return  # the writer belongs to the parent process
        self.stop_accepting()
        wait([self.when_settled()], Deadline(self.options.close_timeout).seconds_left())
        self.fail_pending()
        try:
            self.raise_failures()
        except RowsNotWritten as error:
            log.error("at the end of the program: %s", error)

    def _run(self) -> None:
        pa.array([])  # makes pyarrow import pandas now: it cannot while the program ends
        while (task := self._next_task()) is not None:
            task()
        self._close_connection()
        atexit.unregister(self._at_exit)
        with self._condition:
            self._ended = True
            done = self._waiters.pop_ready()
        resolve(done)

    def _next_task(self) -> Callable[[], None] | None:
        with self._condition:
            while True:
                now = time.monotonic()
                if self._closing and self._batcher.is_empty:
                    return None
                if self._describe_waiters and self._describe_not_before <= now:
                    return self._describe_table
                batch = self._batcher.next_batch(now)
                if batch is not None:
                    return partial(self._send, batch)
                due = [self._batcher.next_batch_at()]
                if self._describe_waiters:
                    due.append(self._describe_not_before)
                soonest = min((moment for moment in due if moment is not None), default=None)
                self._condition.wait(None if soonest is None else max(0.0, soonest - now))

    def _describe_table(self) -> None:
        try:
            schema, described = self._request(
                requests.columns(self.table_name, self.options.schema)
            )
            table = target_table(self.table_name, schema, described)
        except SwanLakeError as error:
            self._describe_failed(error)
            return
        except Exception as unforeseen:  # a dead thread would leave its callers waiting
            log.exception("writer of %s: describing the table failed", self.table_name)
            self._describe_failed(InvalidRequest(f"The table is not understood: {unforeseen!r}"))
            return
        with self._condition:
            self.table, self._described_at, self._last_error = table, time.monotonic(), None
            waiters, self._describe_waiters = self._describe_waiters, []
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_result(table)

    def _describe_failed(self, error: SwanLakeError) -> None:
        with self._condition:
            self._last_error = error
            now = time.monotonic()
            if may_retry(error, named=True) and now < self._describe_until and not self._closing:
                self._describe_failures += 1
                self._describe_not_before = now + backoff(self._describe_failures)
                return
            waiters, self._describe_waiters = self._describe_waiters, []
        for waiter in waiters:
            if waiter.set_running_or_notify_cancel():
                waiter.set_exception(error)

    def _send(self, batch: WriteBatch) -> None:
        name = (self._batcher.producer, batch.sequence) if self.options.queue else None
        try:
            self._request(
                requests.ingest(
                    self.table_name,
                    batch.table,
                    queue=self.options.queue,
                    schema=self.options.schema,
                    batch_name=name,
                )
            )
        except SwanLakeError as error:
            self._attempt_failed(batch, error)
        except Exception as unforeseen:  # a dead thread would lose the batch silently
            log.exception("writer of %s: batch %s failed", self.table_name, batch.sequence)
            self._attempt_failed(batch, InvalidRequest(f"The batch was not sent: {unforeseen!r}"))
        else:
            self._acknowledged(batch)

    def _acknowledged(self, batch: WriteBatch) -> None:
        with self._condition:
            self._last_error = None
            if not self._batcher.is_pending(batch):
                return  # failed meanwhile
            receipt = self._batcher.acknowledge(batch)
            done = self._waiters.pop_ready()
        if self.options.on_acknowledged is not None:
            self._post_callback(partial(self._call_user, self.options.on_acknowledged, receipt))
        resolve(done)

    def _attempt_failed(self, batch: WriteBatch, error: SwanLakeError) -> None:
        with self._condition:
            self._last_error = error
            if not self._batcher.is_pending(batch):
                return
            failure = self._batcher.fail(batch, error, time.monotonic())
            if not may_retry(error, named=True):
                self.table = None  # it may have changed
            done = self._waiters.pop_ready()
        if failure is None:
            log.info(
                "writer of %s: batch %s will be sent again after %s",
                self.table_name,
                batch.sequence,
                error.wire_message,
            )
        else:
            self._report_failure(failure)
        resolve(done)

    def _report_failure(self, failure: Failure) -> None:
        """Reports a failure once: to ``on_error``, or by raising it from the writer's next call."""
        on_error = self.options.on_error

        def report() -> None:
            if on_error is None or not self._call_user(on_error, failure):
                with self._condition:
                    self._unreported.append(failure)

        if on_error is None:
            report()
        else:
            self._post_callback(report)

    def _call_user(self, callback: Callable[[T], None], outcome: T) -> bool:
        """Calls a user's function; False if it raised, which must not end the thread."""
        try:
            callback(outcome)
        except Exception:
            log.exception("writer of %s: a callback raised for %s", self.table_name, outcome)
            return False
        return True

    def _closed_error(self) -> WriterClosed:
        return WriterClosed(f"The writer of {self.table_name} is closed.")

    def _request(self, request: Request[T]) -> T:
        """The server's answer, on a new connection if there is none."""
        connection = self._connection
        if connection is None:
            connection = self._connect()
            connection.open()
            self._connection = connection
        try:
            return connection.begin(
                request, CallContext(Deadline(self.options.request_timeout))
            ).wait()
        except SwanLakeError:
            if connection.suspect or connection.broken is not None:
                self._close_connection()
            raise

    def _close_connection(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(_CLOSE_TIMEOUT)


def _failure_message(table: str, failures: list[Failure]) -> str:
    first = failures[0]
    rows = sum(failure.rows for failure in failures)
    unknown = sum(failure.rows for failure in failures if failure.in_doubt)
    note = f" ({unknown} of them may have been written)" if unknown else ""
    return (
        f"{rows} rows were not written to {table}{note}: {first.error.wire_message} "
        f"(batch {first.sequence} of producer {first.producer}"
        f"{', and others' if len(failures) > 1 else ''}; see failures)"
    )

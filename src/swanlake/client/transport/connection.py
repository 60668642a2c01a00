"""One session on a server: requests are begun without blocking, then waited for or stopped."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, wait
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from swanlake._internal.waiting import POLL_SECONDS
from swanlake.client.transport.address import Address
from swanlake.client.transport.call_thread import CallThread, run_in_background
from swanlake.client.transport.deadline import ClientTimeout, Deadline
from swanlake.client.transport.driver import CallContext, Driver
from swanlake.client.transport.fork_guard import check_fork, threads_unavailable
from swanlake.client.transport.trace_headers import trace_headers
from swanlake.errors import (
    ClientClosed,
    ConnectionLost,
    QueryCancelled,
    QueryTimeout,
    ServerUnreachable,
    SessionLost,
    SwanLakeError,
)

log = logging.getLogger("swanlake.client")

T = TypeVar("T")

#: Default seconds to connect, and for a cancelled statement to end before its connection is closed.
CONNECT_TIMEOUT = 10.0
CANCEL_GRACE = 5.0

#: gRPC enforces the deadline of a call; a call this late will not return.
_OVERDUE = 1.0


@dataclass(frozen=True)
class Request(Generic[T]):
    """What to ask of a server, and what is known about its effects."""

    run: Callable[[Connection, CallContext], T]
    #: True only if it cannot write, so that running it twice does no harm.
    idempotent: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    #: True only if it leaves nothing behind in the session: no setting, no temporary table.
    stateless: bool = False


class PendingRequest(Generic[T]):
    """A request that a connection is running, or will run after those before it."""

    def __init__(self, connection: Connection, call: CallContext, future: Future[T]) -> None:
        self.connection = connection
        self.call = call
        self.future = future
        self._stopping: Future[bool] | None = None

    def wait(self) -> T:
        """Blocks until there is a result; stops the request if the wait is interrupted."""
        try:
            wait([self.future], self._seconds_left)
        except BaseException:  # Ctrl-C, or any other exception of a signal handler
            self.stop()
            raise
        if not self.future.done():
            raise self._overdue()
        try:
            return self.future.result()
        except CancelledError:
            raise self._never_begun() from None

    async def wait_async(self) -> T:
        """Awaits the result. A cancelled task leaves at once, and the request is then stopped.

        Cancelling the future cancels a call that has not begun, and does nothing to one that has:
        a thread cannot be interrupted. The connection is busy until the request has stopped.
        """
        try:
            async with asyncio.timeout(self._seconds_left):
                return await asyncio.wrap_future(self.future)
        except SwanLakeError:
            raise  # QueryTimeout is a TimeoutError too
        except TimeoutError:
            raise self._overdue() from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                self.stop_in_background()
                raise
            # The request was cancelled, not the task.
            raise self._never_begun() from None

    def stop(self, within: float | None = None) -> bool:
        """Has the server stop the request, and waits until it has; True if it is over.

        If it does not end in time, the connection is marked broken.
        """
        self.future.cancel()  # works only while the request is queued behind others
        grace = Deadline(self.connection.cancel_grace if within is None else within)
        while not self.future.done():
            if self.call.reader is not None:
                self.call.reader.stop()
            try:
                if self.connection.driver.can_cancel:
                    self.connection.driver.cancel(self.call.query_id, grace)
                left = grace.remaining()
            except SwanLakeError:
                break  # the server is unreachable, or the time is over
            # Then again: the first request to stop may reach the server before the statement.
            wait([self.future], min(POLL_SECONDS, left or 0.0))
        wait([self.future], grace.seconds_left())
        if not self.future.done():
            self.connection.mark_broken()
        return self.future.done()

    def stop_in_background(self) -> Future[bool]:
        """Calls ``stop`` in a thread, once; gives the same future to all callers."""
        if self._stopping is None:
            self._stopping = run_in_background("swanlake-stop", self.stop)
        return self._stopping

    @property
    def _seconds_left(self) -> float | None:
        return self.call.deadline.seconds_left(_OVERDUE)

    def _overdue(self) -> QueryTimeout:
        """Abandons a call that did not even end by its deadline; the error to raise."""
        self.connection.mark_broken()
        self.future.cancel()
        error = QueryTimeout(
            f"The server did not answer within {self.call.deadline.timeout:g} s; the connection "
            "was given up."
        )
        error.query_id = self.call.query_id
        return error

    def _never_begun(self) -> QueryCancelled:
        error = QueryCancelled("The statement was cancelled before it began.")
        error.query_id = self.call.query_id
        return error


class Connection:
    """A session on a server; its requests run one after the other."""

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout: float = CONNECT_TIMEOUT,
        cancel_grace: float = CANCEL_GRACE,
    ) -> None:
        self.driver = Driver(address, connect_timeout)
        self.cancel_grace = cancel_grace
        #: The error that made the connection unusable, if any.
        self.broken: SwanLakeError | None = None
        #: True if the last request failed on the network.
        self.suspect = False
        #: True once a request may have left state in the session.
        self.has_session_state = False
        #: The id of the open transaction, if any.
        self.transaction: bytes | None = None
        self._connect_timeout = connect_timeout
        self._call_thread = CallThread(f"swanlake-{self.session_id[:8]}")
        self._lock = threading.Lock()
        self._closed = False
        self._pending: set[PendingRequest[Any]] = set()

    @property
    def session_id(self) -> str:
        return self.driver.session_id

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def usable(self) -> bool:
        """False if closed or broken."""
        return not self._closed and self.broken is None

    @property
    def busy(self) -> bool:
        """True while a request runs."""
        with self._lock:
            return any(not pending.future.done() for pending in self._pending)

    def open(self) -> None:
        """Connects; closes the connection if that fails."""
        request = Request(
            lambda connection, call: connection.driver.open(call.deadline), stateless=True
        )
        try:
            self.begin(request, CallContext(Deadline(self._connect_timeout))).wait()
        except BaseException:
            self.close(timeout=0.1)
            raise

    def with_same_limits(self, address: Address) -> Connection:
        """A new connection with the timeouts of this one; not opened yet."""
        return Connection(
            address, connect_timeout=self._connect_timeout, cancel_grace=self.cancel_grace
        )

    def begin(self, request: Request[T], call: CallContext) -> PendingRequest[T]:
        """Queues a request behind those that were begun before it; returns at once."""
        check_fork()  # a forked child has no thread to make the call
        if self._closed:
            raise ClientClosed(f"The connection {self.session_id} is closed.")
        if not request.stateless:
            self.has_session_state = True
        call.headers = {**trace_headers(), **request.headers, **call.headers}
        future = self._call_thread.submit(lambda: self._run(request, call))
        pending = PendingRequest(self, call, future)
        with self._lock:
            self._pending.add(pending)
        future.add_done_callback(lambda _: self._forget(pending))
        return pending

    def cancel(self) -> bool:
        """Stops all pending requests, from any thread; False if there were none."""
        requests = self._pending_requests()
        for pending in requests:
            pending.stop()
        return bool(requests)

    def mark_broken(self) -> None:
        """Makes the connection unusable because one of its calls did not return."""
        self.broken = self.broken or ConnectionLost(
            f"The connection {self.session_id} was given up: a call on it did not return."
        )

    def close(self, timeout: float = 5.0) -> None:
        """Ends the session and the connection within about ``timeout`` seconds; idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if threads_unavailable():
            return  # the connection belongs to the parent process, or ends with the program
        ends = time.monotonic() + timeout
        for pending in self._pending_requests():
            pending.stop(within=max(0.1, min(self.cancel_grace, ends - time.monotonic())))
        if self.broken is None:
            ended = self._call_thread.submit(self._end_session)
            if not wait([ended], max(0.1, ends - time.monotonic())).done:
                self.mark_broken()
        self._call_thread.close()
        if self._call_thread.join(max(0.1, ends - time.monotonic())):
            self.driver.disconnect()
        else:
            log.warning("connection %s: a call did not return; abandoned", self.session_id)

    def _run(self, request: Request[T], call: CallContext) -> T:
        # Checked here and not in `begin`: a request queued before this one may have failed since.
        if self.broken is not None:
            raise type(self.broken)(self.broken.message)
        try:
            answer = request.run(self, call)
        except (SessionLost, ConnectionLost, ServerUnreachable, ClientTimeout) as failure:
            self.suspect = True
            if isinstance(failure, SessionLost):
                self.broken = failure
            raise
        self.suspect = False
        return answer

    def _pending_requests(self) -> list[PendingRequest[Any]]:
        with self._lock:
            return list(self._pending)

    def _forget(self, pending: PendingRequest[Any]) -> None:
        with self._lock:
            self._pending.discard(pending)

    def _end_session(self) -> None:
        try:
            self.driver.close_session(Deadline(self.cancel_grace))
        except SwanLakeError as error:  # a server that is gone has closed the session too
            log.debug("connection %s: the session was not closed: %s", self.session_id, error)

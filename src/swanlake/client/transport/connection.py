"""One session on a server, used without blocking: statements are begun, waited for, or stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from swanlake.client.address import Address
from swanlake.client.deadline import Deadline, GivenUp
from swanlake.client.driver import Call, Driver
from swanlake.client.forks import check_fork, is_cut_off
from swanlake.client.line import Line
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

#: gRPC keeps deadlines by itself; a call that is so late is not coming back.
_LATE = 1.0
#: Between two requests to stop a statement: the first may come before the statement itself.
_STOP_INTERVAL = 0.05


@dataclass(frozen=True)
class Request(Generic[T]):
    """Something to be asked of a server: how, and whether asking twice could do harm."""

    ask: Callable[[Connection, Call], T]
    #: True if it certainly cannot write.
    repeatable: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)
    #: True if it certainly leaves nothing behind in the session: no setting, no temporary table.
    traceless: bool = False


class Statement(Generic[T]):
    """A request under way on a connection."""

    def __init__(self, connection: Connection, call: Call, future: Future[T]) -> None:
        self.connection = connection
        self.call = call
        self.future = future

    def wait(self) -> T:
        """The answer; a caller who is interrupted stops the statement and leaves."""
        try:
            wait_for([self.future], self.patience)
        except BaseException:  # Ctrl-C, or whatever else a handler of signals raises
            self.stop()
            raise
        if not self.future.done():
            raise self.give_up()
        try:
            return self.future.result()
        except CancelledError:
            raise self.never_begun() from None

    @property
    def patience(self) -> float | None:
        """How long to wait for the future: the call keeps its deadline by itself."""
        return self.call.deadline.patience(_LATE)

    def give_up(self) -> QueryTimeout:
        """Leaves a call to itself that even its deadline did not end; what to raise for it."""
        self.connection.give_up()
        self.future.cancel()
        error = QueryTimeout(
            f"The server did not answer within {self.call.deadline.timeout:g} s; the connection "
            "was given up."
        )
        error.query_id = self.call.query_id
        return error

    def never_begun(self) -> QueryCancelled:
        """What to raise for a statement that was stopped while others were before it."""
        error = QueryCancelled("The statement was cancelled before it began.")
        error.query_id = self.call.query_id
        return error

    def stop(self, within: float | None = None) -> bool:
        """Has the server stop the statement and waits until it has; True if it is over.

        A connection whose statement does not end in time is given up.
        """
        self.future.cancel()  # does something only while it waits for others on this connection
        grace = Deadline(self.connection.cancel_grace if within is None else within)
        while not self.future.done():
            if self.call.rows is not None:
                self.call.rows.stop()
            try:
                if self.connection.driver.can_cancel:
                    self.connection.driver.cancel(self.call.query_id, grace)
                left = grace.remaining()
            except SwanLakeError:
                break  # nobody hears us, or the time is over
            wait_for([self.future], min(_STOP_INTERVAL, left or 0.0))
        wait_for([self.future], grace.patience(0))
        if not self.future.done():
            self.connection.give_up()
        return self.future.done()


class Connection:
    """A session on a server; its statements run one after the other."""

    def __init__(
        self,
        address: Address,
        *,
        connect_timeout: float,
        cancel_grace: float,
    ) -> None:
        self.driver = Driver(address, connect_timeout)
        self.cancel_grace = cancel_grace
        #: Why it must not be used again, if it must not.
        self.broken: SwanLakeError | None = None
        #: True if the last word from the network was a bad one.
        self.suspect = False
        #: True once something was asked that may have left its traces in the session.
        self.has_traces = False
        #: The name of the open transaction, if there is one.
        self.transaction: bytes | None = None
        self._connect_timeout = connect_timeout
        self._line = Line(f"swanlake-{self.session_id[:8]}")
        self._lock = threading.Lock()
        self._closed = False
        self._under_way: set[Statement[Any]] = set()

    @property
    def session_id(self) -> str:
        return self.driver.session_id

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def busy(self) -> bool:
        """True while a call is under way."""
        with self._lock:
            return any(not statement.future.done() for statement in self._under_way)

    def open(self) -> Statement[None]:
        """Begins to connect."""
        request = Request(
            lambda connection, call: connection.driver.open(call.deadline), traceless=True
        )
        return self.begin(request, Call(Deadline(self._connect_timeout)))

    def like(self, address: Address) -> Connection:
        """Another connection, with the same limits; to be opened."""
        return Connection(
            address, connect_timeout=self._connect_timeout, cancel_grace=self.cancel_grace
        )

    def begin(self, request: Request[T], call: Call) -> Statement[T]:
        """Begins to ask; the answer is for whoever waits for the statement."""
        check_fork()  # there is no thread that would make the call
        if self._closed:
            raise ClientClosed(f"The connection {self.session_id} is closed.")
        if not request.traceless:
            self.has_traces = True
        call.headers = {**request.headers, **call.headers}
        statement = Statement(self, call, self._line.submit(lambda: self._ask(request, call)))
        with self._lock:
            self._under_way.add(statement)
        statement.future.add_done_callback(lambda _: self._is_over(statement))
        return statement

    def cancel(self) -> bool:
        """Stops the statements under way, from any thread; False if there were none."""
        statements = self._statements_under_way()
        for statement in statements:
            statement.stop()
        return bool(statements)

    def give_up(self) -> None:
        """From now on the connection is of no use: a call of it did not come back."""
        self.broken = self.broken or ConnectionLost(
            f"The connection {self.session_id} was given up: a call on it did not come back."
        )

    def close(self, timeout: float = 5.0) -> None:
        """Ends the session and the connection, in bounded time; can be called again."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if is_cut_off():
            return  # all of it belongs to the parent, or ends with the program
        ends = time.monotonic() + timeout
        for statement in self._statements_under_way():
            statement.stop(within=max(0.1, min(self.cancel_grace, ends - time.monotonic())))
        if self.broken is None:
            goodbye = self._line.submit(self._end_session)
            if not wait_for([goodbye], max(0.1, ends - time.monotonic())).done:
                self.give_up()
        self._line.close()
        if self._line.join(max(0.1, ends - time.monotonic())):
            self.driver.disconnect()
        else:
            log.warning("connection %s: a call did not come back; it is left", self.session_id)

    def _ask(self, request: Request[T], call: Call) -> T:
        # What a statement before this one left behind decides whether this one may run.
        if self.broken is not None:
            raise type(self.broken)(self.broken.message)
        try:
            answer = request.ask(self, call)
        except (SessionLost, ConnectionLost, ServerUnreachable, GivenUp) as failure:
            self.suspect = True
            if isinstance(failure, SessionLost):
                self.broken = failure
            raise
        self.suspect = False
        return answer

    def _statements_under_way(self) -> list[Statement[Any]]:
        with self._lock:
            return list(self._under_way)

    def _is_over(self, statement: Statement[Any]) -> None:
        with self._lock:
            self._under_way.discard(statement)

    def _end_session(self) -> None:
        try:
            self.driver.close_session(Deadline(self.cancel_grace))
        except SwanLakeError as refused:  # a server that is gone has closed it too
            log.debug("connection %s: its session was not closed: %s", self.session_id, refused)

"""A statement while it runs: its session, its deadline, and how it is cancelled."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb

from swanlake._internal.tracing import Trace
from swanlake._internal.waiting import POLL_SECONDS
from swanlake.access.identity import Identity, Role
from swanlake.errors import (
    InvalidRequest,
    QueryCancelled,
    QueryTimeout,
    SwanLakeError,
    WriterLockExceeded,
)
from swanlake.queue.batch_ids import BatchId
from swanlake.sessions.ids import SessionKey, new_handle
from swanlake.sql.statement import Statement

log = logging.getLogger("swanlake.sessions")

#: Seconds between two checks whether the client is still connected. Under load gRPC takes a
#: millisecond to answer and holds the GIL; cancellation by query id does not depend on it.
_PROBE_INTERVAL = 0.2
#: A client may close a statement before its fetch arrives, which is on its way then.
_FETCH_SECONDS = 1.0


class Run:
    """One statement from its arrival to the last row of its result.

    DuckDB works for it, and a client waits for it, in several intervals: a result is fetched batch
    by batch.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        session: SessionKey,
        *,
        identity: Identity | None = None,
        address: str = "",
        query_id: str | None = None,
        timeout: float | None = None,
        batch_id: Callable[[], BatchId | None] = lambda: None,
        trace: Trace | None = None,
        on_end: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.handle = new_handle()
        self.session = session
        self.identity = identity or Identity(session.identity, Role.READER)
        #: ``host:port`` of the client.
        self.address = address
        #: What the client sent; empty for a call without SQL.
        self.sql = ""
        #: The last statement of the text, once it is parsed.
        self.statement: Statement | None = None
        #: True if the text is only described.
        self.describes_only = False
        #: Whether the statement may change more than the session; None: as its type says.
        self.may_change: bool | None = None
        #: The procedure that it called, with its arguments; for the audit log.
        self.action: str | None = None
        #: The rows that were returned or changed so far.
        self.rows = 0
        #: When DuckDB had given all rows; 0 if there are none, or it did not yet.
        self.executed_at = 0.0
        #: What the statement failed with.
        self.error: BaseException | None = None
        #: True once a result waits for its reader: the statement ends when that is done.
        self.has_reader = False
        #: What happens when, if that is exported.
        self.trace = trace
        self._on_end = on_end
        self._has_ended = False
        self.query_id = query_id or self.handle.hex()
        self.started = time.monotonic()
        self._timeout = timeout
        self._batch_id = batch_id
        #: The tables for which the batch id was used.
        self._ingested: set[str] = set()
        self._watchdog = watchdog
        self._lock = threading.Lock()
        self._stop: SwanLakeError | None = None
        self._lock_hold: _LockHold | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._client_is_gone: Callable[[], bool] | None = None
        self._probed_at = self.started
        #: True once the statement was executed, or a client waits for its result.
        self._has_result = False
        self._stops_unfetched_at = math.inf

    @property
    def seconds(self) -> float:
        """Since its arrival."""
        return time.monotonic() - self.started

    def batch_id(self, table: str) -> BatchId | None:
        """The producer's id of the rows for a table; a statement can use it once per table."""
        batch_id = self._batch_id()
        if batch_id is not None:
            if table in self._ingested:
                raise self._ambiguous(batch_id)
            self._ingested.add(table)
        return batch_id

    def check_batch_id(self, inserts: int) -> None:
        """Raises if several INSERTs into the queue would share one batch id."""
        if inserts > 1 and (batch_id := self._batch_id()) is not None:
            raise self._ambiguous(batch_id)

    def _ambiguous(self, batch_id: BatchId) -> InvalidRequest:
        return InvalidRequest(
            f"The text has more than one INSERT into the queue, and each would be batch "
            f"{batch_id.sequence} of {batch_id.producer}: send them one by one.",
            identifier="INGEST_AMBIGUOUS",
        )

    @contextmanager
    def client_waiting(self, client_is_gone: Callable[[], bool] | None) -> Iterator[None]:
        """A client waits for the statement during the block.

        The probe belongs to the client's call and must not be used after it.
        """
        with self._lock:
            self._client_is_gone = client_is_gone
        try:
            yield
        finally:
            with self._lock:
                self._client_is_gone = None

    @contextmanager
    def interruptible(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """DuckDB works for the statement during the block, and is interrupted if it is cancelled.

        Blocks nest: an inner one only names another connection. Work that has begun is stopped by
        an interrupt or not at all; the deadline is not checked again once it may be done.
        """
        with self._lock:
            outer = self._connection
            if outer is None:
                # The client is not probed: that takes a tenth of a millisecond, and the watchdog
                # does it for every statement that takes longer.
                self._check_deadline()
                if self._stop is not None:
                    raise self._stop
            self._connection = connection
        if outer is None:
            self._watchdog.add(self)
        try:
            yield
        except Exception as error:
            with self._lock:
                stopped = self._stop
            if stopped is None or outer is not None:
                raise
            if isinstance(error, SwanLakeError) and error.in_doubt:
                raise  # an unknown outcome matters more to the client than the cancellation
            raise stopped from None
        finally:
            with self._lock:
                self._connection = outer
            if outer is None:
                self._watchdog.discard(self)

    @contextmanager
    def holding_lock(self, seconds: float, is_awaited: Callable[[], bool]) -> Iterator[None]:
        """The statement holds a lock during the block; it is stopped if it keeps others waiting.

        Only DuckDB's work is stopped, and only after that many seconds; 0 is no limit.
        """
        if not seconds:
            yield
            return
        self._lock_hold = _LockHold(seconds, time.monotonic() + seconds, is_awaited)
        try:
            yield
        finally:
            self._lock_hold = None

    def run_without_lock(self) -> None:
        """Forgets that the statement was stopped for its lock: it is run again, without one."""
        with self._lock:
            if isinstance(self._stop, WriterLockExceeded):
                self._stop = None

    def cancel(self, reason: SwanLakeError) -> bool:
        """Stops the statement; True if DuckDB was working for it at this moment."""
        with self._lock:
            if self._stop is None:
                self._stop = reason
            return self._interrupt()

    def keep_result(self) -> None:
        """The statement was executed, or a client waits for its result."""
        with self._lock:
            self._has_result = True

    def stop_unless_fetched(self) -> None:
        """The client closed the statement: if it does not fetch the result soon, it never will.

        A statement that was executed is not stopped: that would abort its transaction.
        """
        with self._lock:
            self._stops_unfetched_at = time.monotonic() + _FETCH_SECONDS

    def end(self, error: BaseException | None = None) -> None:
        """The statement failed, or its rows were delivered or will never be; idempotent."""
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            self.error = error
        self._on_end(self)
        self.error = None  # its traceback would keep the rows of the statement in memory

    @property
    def has_ended(self) -> bool:
        """True once nothing more happens to the statement and its result."""
        return self._has_ended

    @property
    def stop_reason(self) -> SwanLakeError | None:
        """Why the statement was stopped; None if it was not."""
        with self._lock:
            return self._stop

    @property
    def progress(self) -> float | None:
        """How much of the statement is done, from 0 to 1, as DuckDB estimates it; None: unknown."""
        with self._lock:
            percent = -1.0 if self._connection is None else self._connection.query_progress()
        return percent / 100 if percent >= 0 else None

    def check(self) -> None:
        """Raises if the statement was cancelled, is past its deadline, or its client is gone."""
        with self._lock:
            self._check_stop()
            if self._stop is not None:
                raise self._stop

    def check_stopped(self) -> None:
        """Raises if the statement is known to be stopped; checks nothing else."""
        with self._lock:
            if self._stop is not None:
                raise self._stop

    @property
    def is_stopped(self) -> bool:
        """True once the statement was cancelled or ran out of time."""
        with self._lock:
            return self._stop is not None

    def watch(self) -> None:
        """Interrupts a stopped statement; called repeatedly, as an early interrupt is lost."""
        hold = self._lock_hold
        overdue = None if hold is None else hold.overdue()  # before the lock, as it takes another
        with self._lock:
            if self._stop is None and self._lock_hold is not None:
                self._stop = overdue
            self._check_stop()
            if self._stop is not None:
                self._interrupt()

    @property
    def is_interruptible(self) -> bool:
        """True while DuckDB works for the statement."""
        with self._lock:
            return self._connection is not None

    def _check_stop(self) -> None:
        if self._stop is not None:
            return
        now = time.monotonic()
        if now - self._probed_at >= _PROBE_INTERVAL:
            self._probed_at = now
            if self._client_is_gone is not None and self._client_is_gone():
                self._stop = QueryCancelled("The client cancelled the statement or went away.")
        if now > self._stops_unfetched_at and not self._has_result:
            self._stop = QueryCancelled("The client closed the statement and fetched no result.")
        self._check_deadline()

    def _check_deadline(self) -> None:
        if self._stop is not None or not self._timeout:
            return
        if time.monotonic() > self.started + self._timeout:
            self._stop = QueryTimeout(
                f"The statement ran longer than its limit of {self._timeout:g} s and was stopped; "
                "query_timeout_seconds sets the limit."
            )

    def _interrupt(self) -> bool:
        if self._connection is None:
            return False
        self._connection.interrupt()
        return True


@dataclass(frozen=True)
class _LockHold:
    """A catalog's lock that a statement holds."""

    seconds: float
    until: float
    is_awaited: Callable[[], bool]

    def overdue(self) -> WriterLockExceeded | None:
        """The reason to stop the statement; None if it may go on."""
        if time.monotonic() < self.until or not self.is_awaited():
            return None
        return WriterLockExceeded(
            f"The statement held the lock of its catalog for {self.seconds:g} s while other "
            "statements waited for it, and was stopped. Nothing was changed. Store what takes long "
            "in a temporary table first, change fewer rows at a time, or raise writer_lock_seconds."
        )


def time_limit(requested: float, ceiling: float) -> float:
    """The limit of a statement: what its caller requests, within the operator's. 0 is none."""
    return min(requested, ceiling) if requested and ceiling else requested or ceiling


class Watchdog:
    """One thread that enforces deadlines, disconnects and cancellation of running statements."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._runs: set[Run] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._watch, name="swanlake-watchdog", daemon=True)
        self._thread.start()

    def add(self, run: Run) -> None:
        with self._lock:
            self._runs.add(run)
            if len(self._runs) == 1:
                self._lock.notify()

    def discard(self, run: Run) -> None:
        with self._lock:
            self._runs.discard(run)

    def running(self) -> list[Run]:
        """The statements for which DuckDB works right now."""
        with self._lock:
            return list(self._runs)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify()
        self._thread.join(timeout=5)

    def _watch(self) -> None:
        while True:
            with self._lock:
                while not self._runs and not self._closed:
                    self._lock.wait()
                if self._closed:
                    return
            time.sleep(POLL_SECONDS)  # first, as most statements have ended by then
            for run in self.running():
                try:
                    run.watch()
                except Exception:
                    log.exception("a statement could not be watched")

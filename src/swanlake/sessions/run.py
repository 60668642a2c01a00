"""A statement while it runs: who asked for it, until when it may run, and how it is stopped."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import duckdb

from swanlake.errors import InvalidRequest, QueryCancelled, QueryTimeout, SwanLakeError
from swanlake.queue.names import Ingest
from swanlake.sessions.ids import SessionKey, new_handle

log = logging.getLogger("swanlake.sessions")

#: How often running statements are looked at: the latency of a timeout and of a client's hang-up.
WATCH_INTERVAL = 0.05
#: How often a client is asked whether it is still there. Under load gRPC takes a millisecond to
#: say, and nobody else can do anything meanwhile; who cancels by name is heard at once.
_PROBE_INTERVAL = 0.2


class Run:
    """One statement from its arrival to the last row of its result.

    It is *engaged* while DuckDB works for it, and has a *call* while a client waits for it; both
    end and begin again as a result is fetched batch by batch.
    """

    def __init__(
        self,
        watchdog: Watchdog,
        session: SessionKey,
        *,
        query_id: str | None = None,
        timeout: float | None = None,
        ingest: Callable[[], Ingest | None] = lambda: None,
    ) -> None:
        self.handle = new_handle()
        self.session = session
        self.query_id = query_id or self.handle.hex()
        self.started = time.monotonic()
        self._timeout = timeout
        self._ingest = ingest
        self._ingested: set[str] = set()
        self._watchdog = watchdog
        self._lock = threading.Lock()
        self._stop: SwanLakeError | None = None
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._client_is_gone: Callable[[], bool] | None = None
        self._probed_at = self.started

    def ingest(self, table: str) -> Ingest | None:
        """What the producer calls the rows for a table; they can be named once in a statement."""
        ingest = self._ingest()
        if ingest is not None:
            if table in self._ingested:
                raise self._ambiguous(ingest)
            self._ingested.add(table)
        return ingest

    def check_names(self, inserts: int) -> None:
        """Refuses a text whose inserts into the queue would all have one name."""
        if inserts > 1 and (ingest := self._ingest()) is not None:
            raise self._ambiguous(ingest)

    def _ambiguous(self, ingest: Ingest) -> InvalidRequest:
        return InvalidRequest(
            f"The text has more than one INSERT into the queue, and each would be batch "
            f"{ingest.sequence} of {ingest.producer}: send them one by one.",
            identifier="INGEST_AMBIGUOUS",
        )

    @contextmanager
    def call(self, client_is_gone: Callable[[], bool] | None) -> Iterator[None]:
        """The time in which a client waits for this statement.

        The probe belongs to the call and must not be used after it, so it is dropped under the
        lock.
        """
        with self._lock:
            self._client_is_gone = client_is_gone
        try:
            yield
        finally:
            with self._lock:
                self._client_is_gone = None

    @contextmanager
    def engaged(self, connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
        """The time in which DuckDB works for this statement and may be interrupted.

        Inside itself it only says which connection that is: what has begun is stopped by an
        interrupt or not at all, and never by a look at the clock when it is already done.
        """
        with self._lock:
            before = self._connection
            if before is not None:
                self._connection = connection
        if before is not None:
            try:
                yield
            finally:
                with self._lock:
                    self._connection = before
            return
        with self._lock:
            # Not the client's probe: gRPC takes a tenth of a millisecond to answer it, and the
            # watchdog asks it for every statement that lasts.
            self._look_at_the_clock()
            if self._stop is not None:
                raise self._stop
            self._connection = connection
        self._watchdog.add(self)
        try:
            yield
        except BaseException as error:
            with self._lock:
                stopped = self._stop
            if stopped is None or not isinstance(error, Exception):
                raise
            if isinstance(error, SwanLakeError) and error.in_doubt:
                raise  # that it may have been done matters more than that it was to be stopped
            raise stopped from None
        finally:
            with self._lock:
                self._connection = None
            self._watchdog.discard(self)

    def cancel(self, reason: SwanLakeError) -> bool:
        """Stops the statement; True if DuckDB was working for it at this moment."""
        with self._lock:
            if self._stop is None:
                self._stop = reason
            return self._interrupt()

    def check(self) -> None:
        """Raises if the statement was cancelled, ran out of time, or nobody waits for it."""
        with self._lock:
            self._look()
            if self._stop is not None:
                raise self._stop

    def check_stopped(self) -> None:
        """Raises if the statement was stopped; asks nobody."""
        with self._lock:
            if self._stop is not None:
                raise self._stop

    @property
    def is_stopped(self) -> bool:
        """True once it was cancelled or ran out of time."""
        with self._lock:
            return self._stop is not None

    def watch(self) -> None:
        """Called again and again while engaged: an interrupt sent too early would be lost."""
        with self._lock:
            self._look()
            if self._stop is not None:
                self._interrupt()

    @property
    def engaged_now(self) -> bool:
        with self._lock:
            return self._connection is not None

    def _look(self) -> None:
        if self._stop is not None:
            return
        if self._is_time_to_probe() and self._client_is_gone is not None and self._client_is_gone():
            self._stop = QueryCancelled("The client cancelled the statement or went away.")
        else:
            self._look_at_the_clock()

    def _is_time_to_probe(self) -> bool:
        now = time.monotonic()
        if now - self._probed_at < _PROBE_INTERVAL:
            return False
        self._probed_at = now
        return True

    def _look_at_the_clock(self) -> None:
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


class Watchdog:
    """One thread that looks after every engaged statement: deadlines, vanished clients, cancels."""

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
        """The statements DuckDB is working for right now."""
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
            time.sleep(WATCH_INTERVAL)  # first: most statements are over by then
            for run in self.running():
                try:
                    run.watch()
                except Exception:
                    log.exception("a statement could not be watched")

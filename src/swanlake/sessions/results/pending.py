"""A read that runs in the background, so that its call can be answered before it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from swanlake._internal.waiting import wait
from swanlake._internal.worker_threads import WorkerThreads
from swanlake.errors import QueryCancelled, QueryError, SwanLakeError
from swanlake.sessions.results.stream import Outcome, ResultStream
from swanlake.sessions.run import Run

#: How long a statement may take to stop.
_STOP_SECONDS = 1.0


class PendingResult:
    """The result of a statement that a background thread executes."""

    def __init__(self, run: Run, schema: Any) -> None:
        self.run = run
        self.handle = run.handle
        self.created = time.monotonic()
        self._schema = schema
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._abandoned: SwanLakeError | None = None

    @property
    def memory_bytes(self) -> int:
        """The bytes in memory of rows that were not read yet."""
        stream = None if self._outcome is None else self._outcome.stream
        return 0 if stream is None else stream.memory_bytes

    @property
    def error(self) -> BaseException | None:
        """What the statement failed with."""
        stream = None if self._outcome is None else self._outcome.stream
        return self._error if stream is None else stream.error

    def execute(self, statement: Callable[[], Outcome]) -> None:
        """Executes the statement; what it raises is raised by ``outcome``."""
        try:
            outcome = statement()
            self.run.keep_result()
        except BaseException as error:  # noqa: BLE001 - raised by outcome()
            self._error = error
            self.run.end(error)
        else:
            with self._lock:
                self._outcome, abandoned = outcome, self._abandoned
            if abandoned is not None and outcome.stream is not None:
                outcome.stream.abandon(abandoned)
        self._ended.set()

    def ends_within(self, seconds: float) -> bool:
        """Waits; True if the statement has been executed."""
        return self._ended.wait(seconds)

    def outcome(self) -> Outcome:
        """Waits for the outcome; the statement's deadline and cancellation end the wait."""
        wait(self._ended.wait, self.run.check)
        if self._error is not None:
            raise self._error
        assert self._outcome is not None
        return self._outcome

    def stream(self) -> ResultStream:
        """Waits for the rows; raises if they are not what was announced."""
        stream = self.outcome().stream
        if stream is None or stream.schema != self._schema:
            raise QueryError(
                "A table of the statement was altered since the statement was prepared; prepare it "
                "again.",
                identifier="RESULT_SCHEMA_CHANGED",
            )
        return stream

    def abandon(self, reason: SwanLakeError) -> None:
        """Stops the statement; no client will fetch its result."""
        self.run.cancel(reason)
        with self._lock:
            self._abandoned, outcome = reason, self._outcome
        if outcome is not None and outcome.stream is not None:
            outcome.stream.abandon(reason)

    def drop_rows(self) -> None:
        """Drops the rows of a cancelled statement, unless its reader has just asked for some."""
        if self._outcome is not None and self._outcome.stream is not None:
            self._outcome.stream.drop_rows()

    def release_reader(self) -> None:
        """The client stopped waiting for the outcome."""
        self.abandon(QueryCancelled("The client went away."))


def within_deadline(
    background: WorkerThreads, run: Run, statement: Callable[[], Outcome]
) -> Outcome:
    """The outcome of a statement that may wait for an object store.

    DuckDB cannot be interrupted while it waits for the answer to a request. A statement that is
    stopped meanwhile is answered at once; it goes on in the background, with its session, until the
    request fails.
    """
    pending = PendingResult(run, None)
    background.run(lambda: pending.execute(statement))
    try:
        return pending.outcome()
    except SwanLakeError as stopped:
        if pending.ends_within(_STOP_SECONDS):
            return pending.outcome()
        pending.abandon(stopped)
        raise type(stopped)(
            f"{stopped.message} It still waits for the object store, so it is not known yet "
            "whether it takes effect.",
            identifier=stopped.identifier,
            code=stopped.code,
        ) from None

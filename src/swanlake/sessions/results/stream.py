"""Delivers the rows of a statement to a client, batch by batch."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import duckdb

from swanlake._internal.waiting import wait
from swanlake.engine.errors import ENGINE_ERRORS, translate
from swanlake.errors import QueryCancelled, QueryError, SwanLakeError
from swanlake.sessions.results.columns import with_column_metadata
from swanlake.sessions.results.spill import SpillBuffer
from swanlake.sessions.results.wire import WireFormat
from swanlake.sessions.run import Run

log = logging.getLogger("swanlake.sessions")

_VECTOR = 2048  # rows DuckDB works on at a time
_CELLS_PER_BATCH = 512 * 1024
_MAX_ROWS_PER_BATCH = 64 * _VECTOR


def rows_per_batch(columns: int) -> int:
    """The number of rows for batches of a few megabytes."""
    vectors = _CELLS_PER_BATCH // max(columns, 1) // _VECTOR
    return min(max(vectors, 1) * _VECTOR, _MAX_ROWS_PER_BATCH)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a statement: a stream of rows, a number of affected rows, both, or neither."""

    stream: ResultStream | None = None
    affected: int | None = None


class ResultStream:
    """A result that is read once, batch by batch.

    It starts *live*: DuckDB produces each batch on request, and the session's connection can do
    nothing else. Before the session runs another statement it *settles* the stream, which moves
    the rest into a buffer; the reader does not notice.
    """

    def __init__(
        self,
        run: Run,
        connection: duckdb.DuckDBPyConnection,
        *,
        activity: Callable[[], None],
        report: Callable[[Exception], bool],
        buffer: Callable[[Any], SpillBuffer],
        in_transaction: bool = False,
    ) -> None:
        """Reads the result of the statement that ``connection`` has just executed."""
        self.run = run
        self.in_transaction = in_transaction
        self.handle = run.handle
        self.created = time.monotonic()
        self._connection = connection
        self._activity = activity
        self._report = report
        self._lock = threading.Lock()
        self._error: SwanLakeError | None = None
        self._closed = False
        self._settling: threading.Thread | None = None
        self._borrowed: AbstractContextManager[object] | None = None
        description = connection.description or ()
        self._sql_types = [column[1] for column in description]
        batch_rows = rows_per_batch(len(description))
        self._reader: Any = connection.to_arrow_reader(batch_rows)
        self._format = WireFormat(self._reader.schema)
        self.schema = self._format.schema
        self._buffer = buffer(self.schema)
        self._rows = 0
        # One batch is read ahead, so that a statement that fails at once fails in its execution.
        # DuckDB fills its batches: a short one is the last, and one more read ends the statement.
        while self.live and self._fetch_into_buffer() < batch_rows:
            pass

    def keep(self, connection: AbstractContextManager[object]) -> None:
        """Takes over the borrowed connection of a live result, and returns it at the end."""
        self._borrowed = connection

    @property
    def error(self) -> SwanLakeError | None:
        """What the statement failed with after it had been executed."""
        return self._error

    @property
    def live(self) -> bool:
        """True while DuckDB still holds rows of this result."""
        return self._reader is not None

    @property
    def described_schema(self) -> Any:
        """The schema with Flight SQL's metadata of the columns."""
        return with_column_metadata(self.schema, self._sql_types)

    @property
    def total_rows(self) -> int | None:
        """The number of rows; None while DuckDB still holds some."""
        return None if self.live else self._rows

    @property
    def memory_bytes(self) -> int:
        """The bytes of the rows that wait in memory for their reader."""
        return self._buffer.memory_bytes

    def read(self) -> Any | None:
        """The next batch, or None at the end."""
        with self._lock:
            self._activity()
            self.run.check_stopped()
            batch = self._buffer.take()
            if batch is not None:
                return batch
            if self._error is not None:
                raise self._error
            if self._closed:
                raise QueryError(
                    "The result was closed with its session.", identifier="RESULT_CLOSED"
                )
            return self._fetch()

    def settle(self, check: Callable[[], None]) -> None:
        """Buffers what DuckDB still holds; returns when the connection is free.

        A batch may take long, and the statement that waits has its own deadline: a thread does the
        work, while ``check`` is called repeatedly and raises to stop waiting. The thread then goes
        on, and the next statement waits for the same thread.
        """
        if not self.live:
            return
        thread = self._settling
        if thread is None or not thread.is_alive():
            thread = threading.Thread(target=self._settle, name="swanlake-settle", daemon=True)
            self._settling = thread
            thread.start()

        def has_ended(seconds: float) -> bool:
            thread.join(seconds)
            return not thread.is_alive()

        wait(has_ended, check)

    def _settle(self) -> None:
        """Leaves no live result behind, even after an error.

        The next statement would end it, and its reader would take that for the end of the rows.
        """
        while self.live:
            with self._lock:  # released after each batch, as a client may be reading
                try:
                    if self._closed:
                        self._release()
                        return
                    self._fetch_into_buffer()
                except SwanLakeError as failed:
                    self._fail(failed)
                except OSError as full:
                    self._fail(
                        QueryError(
                            f"The rest of the result could not be written to disk: {full}.",
                            identifier="RESULT_SPILL_FAILED",
                        )
                    )
                except Exception as bug:
                    log.exception("buffering the rest of a result failed")
                    self._fail(
                        SwanLakeError(
                            f"The rest of the result was lost ({type(bug).__name__}); the "
                            "server's log has the details.",
                            identifier="INTERNAL_ERROR",
                        )
                    )

    def drain(self) -> None:
        """Buffers the whole result; raises if the statement fails."""
        with self._lock:
            while self.live:
                self._fetch_into_buffer()

    def append_from(self, other: ResultStream) -> None:
        """Adds all rows of another drained result of the same statement."""
        with self._lock:
            while (batch := other.read()) is not None:
                self._buffer.append(batch.cast(self.schema))
                self._rows += batch.num_rows
                self.run.rows = self._rows

    def close(self) -> None:
        """Drops the rest of the result; a fetch in progress ends first."""
        self._closed = True
        with self._lock:
            self._release()
            self._buffer.close()

    def drop_rows(self) -> None:
        """Drops the rows of a cancelled statement, unless its reader has just asked for some.

        Then the reader does: its fetch is interrupted, and fails.
        """
        if self._lock.acquire(blocking=False):
            try:
                self._release()
                self._buffer.close()
            finally:
                self._lock.release()

    def abandon(self, reason: SwanLakeError) -> None:
        """Drops the rest of the result at once; a fetch in progress is interrupted."""
        self._closed = True
        if self.live:
            self.run.cancel(reason)
        self.close()

    def release_reader(self) -> None:
        """The client reads no further.

        In a transaction the statement is not interrupted: DuckDB would abort the transaction, and
        the client may go on with it.
        """
        if self.in_transaction:
            self.close()
        else:
            self.abandon(QueryCancelled("The client went away."))

    def discard(self) -> None:
        """Reads the result to its end and keeps no rows; raises if the statement fails."""
        while self.read() is not None:
            pass

    def _fetch_into_buffer(self) -> int:
        """Buffers one batch, if there is one; the number of its rows."""
        batch = self._fetch()
        if batch is None:
            return 0
        self._buffer.append(batch)
        return int(batch.num_rows)

    def _fetch(self) -> Any | None:
        if self._reader is None:
            return None
        try:
            with self.run.interruptible(self._connection):
                batch = self._format.convert(self._reader.read_next_batch())
            self._rows += batch.num_rows
            self.run.rows = self._rows
            return batch
        except StopIteration:
            self._release()
            return None
        except SwanLakeError as stopped:  # first: a timeout is an OSError as well
            self._release()
            self._error = stopped
            raise
        except ENGINE_ERRORS as error:
            self._release()
            self._error = translate(error, lost_engine=self._report(error))
            raise self._error from error

    def _fail(self, error: SwanLakeError) -> None:
        self._release()
        self._buffer.close()
        self._error = error

    def _release(self) -> None:
        if self._reader is not None:
            self._reader = None
            self.run.executed_at = time.monotonic()
        borrowed, self._borrowed = self._borrowed, None
        if borrowed is not None:
            borrowed.__exit__(None, None, None)

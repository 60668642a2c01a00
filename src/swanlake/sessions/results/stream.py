"""The rows of a statement on their way to a client."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from swanlake.engine.errors import ENGINE_ERRORS, translate
from swanlake.errors import QueryCancelled, QueryError, SwanLakeError
from swanlake.sessions.runs import Run
from swanlake.sessions.spill import SpillBuffer
from swanlake.sessions.wire import WireFormat

log = logging.getLogger("swanlake.sessions")

_VECTOR = 2048  # rows DuckDB works on at a time
_CELLS_PER_BATCH = 512 * 1024
_MAX_ROWS_PER_BATCH = 64 * _VECTOR
_POLL = 0.05


def rows_per_batch(columns: int) -> int:
    """Rows for batches of a few megabytes: large enough to stream fast, small enough to hold."""
    vectors = _CELLS_PER_BATCH // max(columns, 1) // _VECTOR
    return min(max(vectors, 1) * _VECTOR, _MAX_ROWS_PER_BATCH)


@dataclass(frozen=True)
class Outcome:
    """What a statement gave: a stream of rows, a number of affected rows, both, or neither."""

    stream: ResultStream | None = None
    affected: int | None = None


class ResultStream:
    """A result that is read once, batch by batch.

    It starts *live*: DuckDB produces each batch when it is asked for, and the session's connection
    can do nothing else. Before the session runs another statement it *settles* the stream, which
    moves the rest into a buffer. The reader notices nothing.
    """

    def __init__(
        self,
        run: Run,
        connection: duckdb.DuckDBPyConnection,
        *,
        activity: Callable[[], None],
        report: Callable[[Exception], bool],
        memory_limit: int,
        spill_directory: Path,
        in_transaction: bool = False,
    ) -> None:
        """Takes over the result of the statement that ``connection`` has just executed."""
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
        batch_rows = rows_per_batch(len(connection.description or ()))
        self._reader: Any = connection.to_arrow_reader(batch_rows)
        self._format = WireFormat(self._reader.schema)
        self.schema = self._format.schema
        self._buffer = SpillBuffer(self.schema, memory_limit, spill_directory)
        self._rows = 0
        self._read_ahead(batch_rows)

    @property
    def live(self) -> bool:
        """True while DuckDB still holds rows of this result."""
        return self._reader is not None

    @property
    def total_rows(self) -> int | None:
        """The number of rows, once DuckDB has given them all."""
        return None if self.live else self._rows

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

        A batch may take long, and the statement that waits has its own limits: the work is done by
        a thread, while ``check`` is asked again and again and raises when nobody waits any more.
        The thread then goes on, and the next statement finds it further.
        """
        if not self.live:
            return
        if self._settling is None or not self._settling.is_alive():
            self._settling = threading.Thread(
                target=self._settle, name="swanlake-settle", daemon=True
            )
            self._settling.start()
        while self._settling.is_alive():
            self._settling.join(_POLL)
            check()

    def _settle(self) -> None:
        """Leaves no live result behind, whatever happens.

        The next statement would end it, and its reader could not tell that from its end.
        """
        while self.live:
            with self._lock:  # given back after each batch: a client may be reading meanwhile
                try:
                    if self._closed:
                        self._release()
                        return
                    batch = self._fetch()
                    if batch is not None:
                        self._buffer.append(batch)
                except SwanLakeError as failed:
                    self._fail(failed)
                except OSError as full:
                    self._fail(
                        QueryError(
                            f"The rest of the result could not be kept on disk: {full}.",
                            identifier="RESULT_SPILL_FAILED",
                        )
                    )
                except Exception as bug:
                    log.exception("the rest of a result was lost")
                    self._fail(
                        SwanLakeError(
                            f"The rest of the result was lost ({type(bug).__name__}); the "
                            "server's log has the details.",
                            identifier="INTERNAL_ERROR",
                        )
                    )

    def drain(self) -> None:
        """Buffers the whole result now, and raises what it raises."""
        with self._lock:
            while self._reader is not None:
                batch = self._fetch()
                if batch is not None:
                    self._buffer.append(batch)

    def append_from(self, other: ResultStream) -> None:
        """Adds all rows of another drained result of the same statement."""
        with self._lock:
            while (batch := other.read()) is not None:
                self._buffer.append(batch.cast(self.schema))
                self._rows += batch.num_rows

    def close(self) -> None:
        """Gives up the rest of the result; a fetch that is under way ends first."""
        self._closed = True
        with self._lock:
            self._release()
            self._buffer.close()

    def abandon(self, reason: SwanLakeError) -> None:
        """Gives up the rest of the result at once: a fetch that is under way is interrupted."""
        self._closed = True
        if self.live:
            self.run.cancel(reason)
        self.close()

    def leave(self) -> None:
        """The client reads no further.

        In a transaction nothing is interrupted for that: DuckDB would abort all of it, and the
        client may only want to go on without the rest of one result.
        """
        if self.in_transaction:
            self.close()
        else:
            self.abandon(QueryCancelled("The client went away."))

    def discard(self) -> None:
        """Reads the result to its end and keeps nothing of it; raises what it raises."""
        while self.read() is not None:
            pass

    def _read_ahead(self, batch_rows: int) -> None:
        """Reads the first batch, so that a statement that fails at once fails in its execution.

        DuckDB fills its batches, so a short one is the last, and asking once more ends the
        statement.
        """
        while self._reader is not None:
            batch = self._fetch()
            if batch is None:
                return
            self._buffer.append(batch)
            if batch.num_rows == batch_rows:
                return

    def _fetch(self) -> Any | None:
        if self._reader is None:
            return None
        try:
            with self.run.engaged(self._connection):
                batch = self._format.convert(self._reader.read_next_batch())
            self._rows += batch.num_rows
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
            self._report(error)
            self._error = translate(error)
            raise self._error from error

    def _fail(self, error: SwanLakeError) -> None:
        self._release()
        self._buffer.close()
        self._error = error

    def _release(self) -> None:
        self._reader = None

"""Rows that a query still produces while it is decided what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from types import TracebackType
from typing import Self

import duckdb
import pyarrow as pa

from swanlake.engine.errors import ENGINE_ERRORS

_BATCH_ROWS = 100_000


class ArrivingRows:
    """The rows of the query that a connection has begun, for the block.

    >>> with ArrivingRows(connection) as rows:
    ...     few = rows.up_to(10)
    ...     keep(few) if few is not None else write(rows.reader())

    Whatever the block fails with, if the query failed, its error is the one that is raised.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._reader = connection.to_arrow_reader(_BATCH_ROWS)
        self._coming = self._batches()
        self._taken: list[pa.RecordBatch] = []
        self._failure: Exception | None = None

    def up_to(self, most: int) -> pa.Table | None:
        """All rows, if there are no more than that."""
        count = 0
        for batch in self._coming:
            self._taken.append(batch)
            count += batch.num_rows
            if count > most:
                return None
        return pa.Table.from_batches(self._taken, self._reader.schema)

    def reader(self) -> pa.RecordBatchReader:
        """All rows, those that were looked at already and those that are still to come."""
        batches = chain(self._taken, self._coming)
        return pa.RecordBatchReader.from_batches(self._reader.schema, batches)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._reader
        except ENGINE_ERRORS as error:
            self._failure = error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            # Until the next statement, the query would keep its transaction open.
            with suppress(duckdb.Error):
                self._connection.execute("SELECT 1").fetchall()
        if self._failure is not None:
            raise _as_of_duckdb(self._failure) from None


def _as_of_duckdb(error: Exception) -> duckdb.Error:
    """What DuckDB would have raised, had its words not come through Arrow."""
    if isinstance(error, duckdb.Error):
        return error
    kind = duckdb.Error
    if str(error).startswith("Invalid Input Error"):
        kind = duckdb.InvalidInputException
    return kind(str(error))

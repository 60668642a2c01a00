"""Reads the first rows of a running query without losing them for a later reader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from typing import Self

import duckdb
import pyarrow as pa

from swanlake.engine.errors import ENGINE_ERRORS

_BATCH_ROWS = 100_000


class PeekableReader:
    """The rows of the query that a connection has just executed, for the block.

    >>> with PeekableReader(connection) as rows:
    ...     few = rows.up_to(10)
    ...     inline(few) if few is not None else write(rows.reader())

    If the query fails, its error is raised, whatever error the block raises.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection
        self._reader = connection.to_arrow_reader(_BATCH_ROWS)
        self._remaining = self._batches()
        self._peeked: list[pa.RecordBatch] = []
        self._failure: Exception | None = None

    def up_to(self, limit: int) -> pa.Table | None:
        """All rows; None if there are more than the limit."""
        count = 0
        for batch in self._remaining:
            self._peeked.append(batch)
            count += batch.num_rows
            if count > limit:
                return None
        return pa.Table.from_batches(self._peeked, self._reader.schema)

    def reader(self) -> pa.RecordBatchReader:
        """All rows, including those that ``up_to`` has read."""
        batches = chain(self._peeked, self._remaining)
        return pa.RecordBatchReader.from_batches(self._reader.schema, batches)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._reader
        except ENGINE_ERRORS as error:
            self._failure = error
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
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
    is_invalid = str(error).startswith("Invalid Input Error")
    return (duckdb.InvalidInputException if is_invalid else duckdb.Error)(str(error))

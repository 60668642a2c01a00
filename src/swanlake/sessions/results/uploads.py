"""Receives the rows that a client uploads for a statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from swanlake.errors import InvalidRequest, QueryError, SwanLakeError
from swanlake.sessions.results.spill import SpillBuffer
from swanlake.sessions.run import Run


@contextmanager
def receive_upload(run: Run, reader: Any, buffer: Callable[[Any], SpillBuffer]) -> Iterator[Any]:
    """All rows that a client sends, received before the statement begins.

    A slow client so blocks only its own session, not DuckDB or the writer lock of a catalog.
    """
    rows = buffer(reader.schema)
    try:
        _receive(run, reader, rows)
        yield pa.RecordBatchReader.from_batches(reader.schema, rows)
    finally:
        rows.close()


def _receive(run: Run, reader: Any, rows: SpillBuffer) -> None:
    try:
        for batch in reader:
            run.check()
            rows.append(batch)
    except SwanLakeError:  # first: a timeout is an OSError as well
        raise
    except MemoryError as bomb:
        raise batch_too_large("The upload") from bomb
    except pa.ArrowException as broken:
        raise InvalidRequest(f"The upload cannot be read: {broken}.") from broken
    except OSError as full:
        raise spill_failed("The upload", full) from full
    run.check()  # an upload that broke off looks complete to its reader


def spill_failed(what: str, error: OSError) -> QueryError:
    """The error for rows of a client that could not be kept on disk."""
    return QueryError(
        f"{what} could not be written to disk: {error}.", identifier="UPLOAD_SPILL_FAILED"
    )


def batch_too_large(what: str) -> InvalidRequest:
    """The error for a batch that Arrow has no memory to decode."""
    return InvalidRequest(
        f"{what} cannot be decoded: a batch needs more memory than the server has for it, once it "
        "is decompressed. Send smaller batches.",
        identifier="CALLER_MEMORY_EXHAUSTED",
    )

"""Receives the rows that a client uploads for a statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from swanlake.errors import InvalidRequest, QueryError, SwanLakeError
from swanlake.sessions.results.spill import SpillBuffer
from swanlake.sessions.run import Run
from swanlake.sessions.services import SessionServices


@contextmanager
def receive_upload(run: Run, reader: Any, services: SessionServices) -> Iterator[Any]:
    """All rows that a client sends, received before the statement begins.

    A slow client so blocks only its own session, not DuckDB or the writer lock of a catalog.
    """
    rows = SpillBuffer(reader.schema, services.result_buffer_bytes, services.spill_directory)
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
    except pa.ArrowException as broken:
        raise InvalidRequest(f"The upload cannot be read: {broken}.") from broken
    except OSError as full:
        raise QueryError(
            f"The upload could not be written to disk: {full}.", identifier="UPLOAD_SPILL_FAILED"
        ) from full
    run.check()  # an upload that broke off looks complete to its reader

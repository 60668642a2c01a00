"""Rows on their way from a client into a statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from swanlake.errors import InvalidRequest, QueryError, SwanLakeError
from swanlake.sessions.runs import Run
from swanlake.sessions.spill import SpillBuffer


@contextmanager
def received(run: Run, reader: Any, memory_limit: int, spill_directory: Path) -> Iterator[Any]:
    """All rows that a client sends, before anything waits for them but its session.

    Neither DuckDB nor a turn at the lake can be kept waiting by a client that is slow.
    """
    rows = SpillBuffer(reader.schema, memory_limit, spill_directory)
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
            f"The upload could not be kept on disk: {full}.", identifier="UPLOAD_SPILL_FAILED"
        ) from full
    run.check()  # to its reader, an upload that broke off looks like one that is complete

"""What runs in Spark's Python workers: units, on a DuckDB of the worker's own.

A worker lives on from job to job, and its DuckDB with it. An error of a unit is an answer, not a
failed task: Spark would only run the unit again, to no other end.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import duckdb
import pyarrow as pa

from swanlake.engine.database import open_database
from swanlake.engine.errors import may_invalidate
from swanlake.engine.extensions import extension_path
from swanlake.errors import PipelineFailed, SwanLakeError
from swanlake.pipeline.scratch import scratch_directory
from swanlake.sql.quoting import literal

#: What DuckDB needs to read and write files at a URL.
_URL_EXTENSIONS = ("httpfs", "aws")


@dataclass(frozen=True)
class WorkerSpec:
    """How a worker sets its DuckDB up."""

    memory_limit: str = ""
    threads: int = 1
    #: Files of the lake are at a URL; what is run first may make their secrets known.
    urls: bool = False
    init_sql: str = field(default="", repr=False)


@dataclass(frozen=True)
class Done:
    """A unit's result."""

    result: Any


@dataclass(frozen=True)
class Failed:
    """A unit's error."""

    error: Exception


Outcome = Done | Failed


class WarmUp:
    """A unit that does nothing but have a worker start and load what others need."""

    def run(self, connection: duckdb.DuckDBPyConnection) -> None:
        import_module("swanlake.queue.work")

    def undo(self, result: None) -> None:
        """There is nothing to undo."""


def run_units(
    batches: Iterable[Any], units: Sequence[bytes], pickled_spec: bytes
) -> Iterator[pa.RecordBatch]:
    """For positions among the units: each position with the unit's outcome."""
    spec: WorkerSpec = pickle.loads(pickled_spec)
    for batch in batches:
        for position in batch.column(0).to_pylist():
            yield pa.RecordBatch.from_pydict(
                {"position": [position], "outcome": [_outcome(units[position], spec)]}
            )


def _outcome(unit: bytes, spec: WorkerSpec) -> bytes:
    try:
        return pickle.dumps(Done(pickle.loads(unit).run(connection(spec))))
    except Exception as error:  # noqa: BLE001 - the server decides what an error means
        if may_invalidate(error):
            _connections.clear()
        return pickle.dumps(Failed(_portable(error)))


def _portable(error: Exception) -> Exception:
    """The error, if it survives the way to another process and says enough there."""
    if isinstance(error, OSError) and not isinstance(error, SwanLakeError):
        return PipelineFailed(
            f"A worker on {socket.gethostname()}, as user {os.getuid()}, failed: {error}. Spark's "
            "workers must be able to read and write the lake's data path."
        )
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:  # noqa: BLE001 - whatever it is that its class cannot do
        pass
    return PipelineFailed(f"A unit failed: {type(error).__name__}: {error}")


#: The one of this process, by what it was made from.
_connections: dict[WorkerSpec, duckdb.DuckDBPyConnection] = {}


def connection(spec: WorkerSpec) -> duckdb.DuckDBPyConnection:
    """This worker's DuckDB."""
    if spec not in _connections:
        _connections.clear()
        _connections[spec] = _open(spec)
    return _connections[spec]


def _open(spec: WorkerSpec) -> duckdb.DuckDBPyConnection:
    # Of its own: DuckDB calls its files there the same in every process.
    directory = scratch_directory() / f"swanlake-worker-{os.getpid()}"
    opened = open_database(directory, spec.memory_limit, spec.threads)
    opened.execute("SET arrow_lossless_conversion = true")
    if spec.urls:
        for name in _URL_EXTENSIONS:
            opened.execute(f"LOAD {literal(str(extension_path(name)))}")
        opened.execute(spec.init_sql)
    return opened

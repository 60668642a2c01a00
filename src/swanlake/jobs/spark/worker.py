"""Runs units in Spark's Python workers, each with its own DuckDB.

A worker and its DuckDB are reused from job to job. The outcome of a unit is its result or its
error, which is returned, not raised: Spark would run the task again, with the same error.
"""

from __future__ import annotations

import os
import pickle
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from swanlake.engine.database import open_database
from swanlake.engine.errors import may_invalidate
from swanlake.engine.object_storage import use_object_store
from swanlake.errors import PipelineFailed, SwanLakeError
from swanlake.jobs.shared_directories import check_directory_visible
from swanlake.lake.files import datafile, storage
from swanlake.lake.files.storage_options import StorageOptions
from swanlake.lake.model.layout import DataFile, Table
from swanlake.lake.model.types import default_sql
from swanlake.sql.quoting import identifier

_URL_EXTENSIONS = ("httpfs", "aws")
_ROWS = "__swanlake_rows"


@dataclass(frozen=True)
class WorkerSpec:
    """The configuration of a worker's DuckDB."""

    memory_limit: str = ""
    threads: int = 1
    #: How files of the lake are reached if they are in an object store.
    storage: StorageOptions | None = None
    #: True on another machine, or in another installation, than the server.
    is_remote: bool = False


@dataclass(frozen=True)
class WarmUp:
    """A unit that only starts a worker and imports the modules of other units."""

    modules: tuple[str, ...] = ()

    def run(self, connection: duckdb.DuckDBPyConnection) -> None:
        for name in self.modules:
            import_module(name)

    def undo(self, result: None) -> None:
        """Does nothing: no file was written."""


def run_units(
    batches: Iterable[Any], units: Sequence[bytes], pickled_spec: bytes
) -> Iterator[pa.RecordBatch]:
    """Runs the units at the given positions; yields each position with its outcome."""
    spec: WorkerSpec = pickle.loads(pickled_spec)
    for batch in batches:
        for position in batch.column(0).to_pylist():
            unit = pickle.loads(units[position])
            yield pa.RecordBatch.from_pydict(
                {"position": [position], "outcome": [_outcome(spec, unit.run)]}
            )


def read_rows(
    batches: Iterable[Any], units: Sequence[bytes], pickled_spec: bytes
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of the units at the given positions, in types that Spark has."""
    spec: WorkerSpec = pickle.loads(pickled_spec)
    for batch in batches:
        for position in batch.column(0).to_pylist():
            yield from pickle.loads(units[position]).rows(connection(spec))


def write_rows(
    batches: Iterable[Any], pickled_table: bytes, pickled_spec: bytes
) -> Iterator[pa.RecordBatch]:
    """Writes rows as files of a table; yields one outcome, or nothing without rows."""
    spec: WorkerSpec = pickle.loads(pickled_spec)
    table: Table = pickle.loads(pickled_table)
    batches = iter(batches)
    first = next(batches, None)
    if first is not None:
        rows = pa.RecordBatchReader.from_batches(first.schema, chain([first], batches))
        outcome = _outcome(spec, lambda duck: _write(duck, rows, table, spec))
        yield pa.RecordBatch.from_pydict({"outcome": [outcome]})


def _write(
    duck: duckdb.DuckDBPyConnection, rows: pa.RecordBatchReader, table: Table, spec: WorkerSpec
) -> tuple[DataFile, ...]:
    """Writes rows; columns of the table that they lack get their default."""
    if spec.is_remote:
        check_directory_visible(table)
    values = ", ".join(
        identifier(column.name) if column.name in rows.schema.names else default_sql(column)
        for column in table.columns
    )
    duck.register(_ROWS, rows)
    try:
        return tuple(datafile.write_files(duck, f"SELECT {values} FROM {_ROWS}", table))
    finally:
        duck.unregister(_ROWS)


def _outcome(spec: WorkerSpec, work: Callable[[duckdb.DuckDBPyConnection], object]) -> bytes:
    try:
        return pickle.dumps(work(connection(spec)))
    except Exception as error:  # noqa: BLE001 - the server decides what an error means
        if may_invalidate(error):
            _connections.clear()
        return pickle.dumps(_portable(error))


def _portable(error: Exception) -> Exception:
    """The error itself if it can be pickled, else one of ours with the same message."""
    if isinstance(error, OSError) and not isinstance(error, SwanLakeError):
        return PipelineFailed(
            f"A worker on {socket.gethostname()}, as user {os.getuid()}, failed: {error}. Spark's "
            "workers must be able to read and write the lake's data path."
        )
    try:
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    except Exception:  # noqa: BLE001 - pickling may raise anything
        pass
    return PipelineFailed(f"A unit failed: {type(error).__name__}: {error}")


#: The one connection of this process, by its configuration.
_connections: dict[WorkerSpec, duckdb.DuckDBPyConnection] = {}


def connection(spec: WorkerSpec) -> duckdb.DuckDBPyConnection:
    """This worker's DuckDB."""
    if spec not in _connections:
        _connections.clear()
        _connections[spec] = _open(spec)
    return _connections[spec]


def _open(spec: WorkerSpec) -> duckdb.DuckDBPyConnection:
    # One directory per process: DuckDB uses the same file names in each.
    directory = scratch_directory() / f"swanlake-worker-{os.getpid()}"
    extensions = () if spec.storage is None else _URL_EXTENSIONS
    opened = open_database(directory, spec.memory_limit, spec.threads, extensions)
    if spec.storage is not None:
        use_object_store(opened, spec.storage)
        storage.configure(spec.storage)
    return opened


def scratch_directory() -> Path:
    """A directory that Spark cleans up after a crash too, else the machine's temporary one."""
    for directory in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if directory and os.access(directory, os.W_OK | os.X_OK):
            return Path(directory)
    return Path(tempfile.gettempdir())

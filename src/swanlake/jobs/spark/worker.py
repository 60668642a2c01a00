"""What runs in Spark's Python workers: units, on a DuckDB of the worker's own.

A worker lives on from job to job, and its DuckDB with it. An error of a unit is an answer, not a
failed task: Spark would only run the unit again, to no other end.
"""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain
from typing import Any

import duckdb
import pyarrow as pa

from swanlake.engine.database import open_database
from swanlake.engine.errors import may_invalidate
from swanlake.engine.extensions import extension_path
from swanlake.errors import PipelineFailed, SwanLakeError
from swanlake.lake import datafile
from swanlake.lake.layout import DataFile, Table
from swanlake.lake.types import default_sql
from swanlake.pipeline.scratch import scratch_directory
from swanlake.pipeline.sharing import check_directory
from swanlake.sql.quoting import identifier, literal

#: What DuckDB needs to read and write files at a URL.
_URL_EXTENSIONS = ("httpfs", "aws")
_ROWS = "__swanlake_rows"


@dataclass(frozen=True)
class WorkerSpec:
    """How a worker sets its DuckDB up."""

    memory_limit: str = ""
    threads: int = 1
    #: Files of the lake are at a URL; what is run first may make their secrets known.
    urls: bool = False
    #: On another machine, or in another installation, than the server.
    elsewhere: bool = False
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
            unit = pickle.loads(units[position])
            yield pa.RecordBatch.from_pydict(
                {"position": [position], "outcome": [_outcome(spec, unit.run)]}
            )


def read_rows(
    batches: Iterable[Any], units: Sequence[bytes], pickled_spec: bytes
) -> Iterator[pa.RecordBatch]:
    """For positions among the units: the rows of each unit, in types that Spark has."""
    spec: WorkerSpec = pickle.loads(pickled_spec)
    for batch in batches:
        for position in batch.column(0).to_pylist():
            yield from pickle.loads(units[position]).rows(connection(spec))


def write_rows(
    batches: Iterable[Any], pickled_table: bytes, pickled_spec: bytes
) -> Iterator[pa.RecordBatch]:
    """Writes rows as files of a table, and gives the one outcome of that; of no rows, none."""
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
    """Files with rows that have some of the table's columns, by their names."""
    if spec.elsewhere:
        check_directory(table)
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
        return pickle.dumps(Done(work(connection(spec))))
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
    if spec.urls:
        for name in _URL_EXTENSIONS:
            opened.execute(f"LOAD {literal(str(extension_path(name)))}")
        opened.execute(spec.init_sql)
    return opened

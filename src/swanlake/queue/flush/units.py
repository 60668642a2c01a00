"""Flush units: segments of a table become Parquet files, in any process.

Segments carry column ids, so the table may have changed since: renamed columns match, new ones get
their default, dropped ones are left out, and values are cast to the current type. A worker that
does not see the files of the segments fetches them from their server.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa

from swanlake.jobs.segment_transfer.grants import TransferGrant
from swanlake.jobs.shared_directories import check_directory_visible
from swanlake.jobs.spark.casts import spark_column
from swanlake.lake.files import datafile
from swanlake.lake.model.layout import Column, DataFile, Table
from swanlake.lake.model.types import default_sql, duckdb_type
from swanlake.queue.storage.segment import (
    Damage,
    Segment,
    SegmentDamaged,
    SegmentRef,
    column_ids,
    open_segment,
    schema_as_of,
)
from swanlake.sql.quoting import identifier

_VIEW = "__swanlake_segment_"

# Batches in a mapped file are not aligned. Arrow's engine copes, but would print a warning for
# every batch.
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "ignore")


@dataclass(frozen=True)
class FlushResult:
    """The files a unit wrote; they are not committed yet."""

    files: tuple[DataFile, ...]
    damages: Mapping[UUID, tuple[Damage, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class FlushUnit:
    """Writes segments as files of a table, in the order of the segments."""

    table: Table
    segments: tuple[SegmentRef, ...]
    #: For remote workers, which may not see the files of the segments.
    grant: TransferGrant | None = None

    def run(self, connection: duckdb.DuckDBPyConnection) -> FlushResult:
        if self.grant is not None:
            check_directory_visible(self.table)
        segments = [read_segment(ref, self.grant) for ref in self.segments]
        with segments_as_query(connection, segments, self.table) as query:
            files = datafile.write_files(connection, query, self.table)
        return FlushResult(tuple(files), _damages(segments))

    def undo(self, result: FlushResult) -> None:
        datafile.remove_files(self.table, result.files)

    def rows(self, connection: duckdb.DuckDBPyConnection) -> Iterator[pa.RecordBatch]:
        """The rows for a transform, in types that Spark has."""
        segments = [read_segment(ref, self.grant) for ref in self.segments]
        columns = ", ".join(
            f"{_cast(spark_column(column), identifier(column.name))} AS {identifier(column.name)}"
            for column in self.table.columns
        )
        with segments_as_query(connection, segments, self.table) as query:
            yield from connection.execute(f"SELECT {columns} FROM ({query})").to_arrow_reader()


@dataclass(frozen=True)
class CheckUnit:
    """Finds damage in segments; writes nothing."""

    segments: tuple[SegmentRef, ...]
    grant: TransferGrant | None = None

    def run(self, connection: duckdb.DuckDBPyConnection) -> dict[UUID, tuple[Damage, ...]]:
        """The damages, by segment."""
        return _damages([read_segment(ref, self.grant) for ref in self.segments])

    def undo(self, result: object) -> None:
        """Does nothing: no file was written."""


def plan_units(
    table: Table,
    segments: Sequence[SegmentRef],
    unit_bytes: int,
    grant: TransferGrant | None = None,
) -> list[FlushUnit]:
    """Groups segments into units of about the same size, in order."""
    units: list[list[SegmentRef]] = []
    size = 0
    for segment in segments:
        if not units or size + segment.size > unit_bytes:
            units.append([])
            size = 0
        units[-1].append(segment)
        size += segment.size
    return [FlushUnit(table, tuple(unit), grant) for unit in units]


def _damages(segments: Sequence[Segment]) -> dict[UUID, tuple[Damage, ...]]:
    return {segment.header.id: tuple(segment.damages) for segment in segments if segment.damages}


def read_segment(ref: SegmentRef, grant: TransferGrant | None) -> Segment:
    """A segment from its file; with a grant, from its server if the file is not visible."""
    if grant is None:
        return open_segment(ref.path, ref.size, ref.skip)
    with suppress(OSError, SegmentDamaged):
        if os.path.getsize(ref.path) >= ref.size:
            segment = open_segment(ref.path, ref.size, ref.skip)
            if segment.header.id == ref.id:
                return segment
    # Imported late: Flight is only needed here.
    from swanlake.jobs.segment_transfer.fetch import fetched_segment

    with fetched_segment(grant, str(ref.id), ref.size) as path:
        return open_segment(path, ref.size, ref.skip)


@contextmanager
def segments_as_query(
    connection: duckdb.DuckDBPyConnection,
    segments: Sequence[Segment],
    table: Table,
    name: str = _VIEW,
) -> Iterator[str]:
    """A query for the rows of segments, with the current columns of a table.

    It reads Arrow tables over mapped files: nothing is copied, and it can run more than once.
    """
    queries: list[str] = []
    with ExitStack() as registered:
        for schema, group in _by_schema(segments, table):
            view = f"{name}{len(queries)}"
            batches = [batch for segment in group for batch in segment.record_batches(schema)]
            connection.register(view, pa.Table.from_batches(batches, schema))
            registered.callback(connection.unregister, view)
            queries.append(_select(view, schema, table))
        yield "\nUNION ALL ".join(queries) or _empty_query(table)


def _by_schema(segments: Sequence[Segment], table: Table) -> Iterator[tuple[Any, list[Segment]]]:
    """Groups adjacent segments with the same columns, under the current struct field names."""
    pairs = [(schema_as_of(segment.schema, table.columns), segment) for segment in segments]
    for (schema, _), group in groupby(pairs, key=lambda pair: (pair[0], column_ids(pair[0]))):
        yield schema, [segment for _, segment in group]


def _select(view: str, schema: Any, table: Table) -> str:
    names = dict(zip(column_ids(schema), map(identifier, schema.names), strict=True))
    values = ", ".join(
        f"{_cast(column, names.get(column.id) or default_sql(column))} AS {identifier(column.name)}"
        for column in table.columns
    )
    return f"SELECT {values} FROM {identifier(view)}"


def _empty_query(table: Table) -> str:
    columns = ", ".join(
        f"{_cast(column, 'NULL')} AS {identifier(column.name)}" for column in table.columns
    )
    return f"SELECT {columns} LIMIT 0"


def _cast(column: Column, value: str) -> str:
    return f"CAST({value} AS {duckdb_type(column)})"

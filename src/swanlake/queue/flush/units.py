"""What a flush does: the segments of a table become Parquet files. It runs anywhere.

Segments know the ids of the columns their rows are for, so a table may have changed since: columns
that were renamed are found, new ones get their default, dropped ones are left out, and values are
cast to what the column is. Where their files cannot be seen, the server that has them is asked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa

from swanlake.lake import datafile
from swanlake.lake.layout import Column, DataFile, Table
from swanlake.lake.types import default_sql, duckdb_type
from swanlake.pipeline.loans import Loan
from swanlake.pipeline.sharing import check_directory
from swanlake.pipeline.stand_ins import for_spark
from swanlake.queue.names import Ingest
from swanlake.queue.segment import (
    Damage,
    Segment,
    SegmentDamaged,
    column_ids,
    open_segment,
    schema_as_of,
)
from swanlake.sql.quoting import identifier

_VIEW = "__swanlake_segment_"

# Batches in a mapped file begin where the one before ended. Arrow's engine copes with that, and
# would say so on standard error for every batch.
os.environ.setdefault("ACERO_ALIGNMENT_HANDLING", "ignore")


@dataclass(frozen=True)
class SegmentRef:
    """A segment in a file, and how much of the file counts."""

    id: UUID
    path: str
    size: int
    #: Batches that came another way already.
    skip: frozenset[Ingest] = frozenset()


@dataclass(frozen=True)
class UnitResult:
    """What a unit wrote; nothing refers to the files yet."""

    files: tuple[DataFile, ...]
    rows: int
    damages: Mapping[UUID, tuple[Damage, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class FlushUnit:
    """Segments that become files of a table, in the order of the segments."""

    table: Table
    segments: tuple[SegmentRef, ...]
    #: For workers elsewhere, which may not see the files of the segments.
    loan: Loan | None = None

    def run(self, connection: duckdb.DuckDBPyConnection) -> UnitResult:
        """Writes the files."""
        if self.loan is not None:
            check_directory(self.table)
        segments = [opened(one, self.loan) for one in self.segments]
        with segments_as_query(connection, segments, self.table) as query:
            files = datafile.write_files(connection, query, self.table)
        return UnitResult(
            tuple(files),
            sum(file.record_count for file in files),
            {segment.header.id: tuple(segment.damages) for segment in segments if segment.damages},
        )

    def undo(self, result: UnitResult) -> None:
        """Removes the files."""
        datafile.remove_files(self.table, result.files)

    def rows(self, connection: duckdb.DuckDBPyConnection) -> Iterator[pa.RecordBatch]:
        """The rows, for a transform: in types that Spark has."""
        segments = [opened(one, self.loan) for one in self.segments]
        columns = ", ".join(
            f"{_cast(for_spark(column), identifier(column.name))} AS {identifier(column.name)}"
            for column in self.table.columns
        )
        with segments_as_query(connection, segments, self.table) as query:
            yield from connection.execute(f"SELECT {columns} FROM ({query})").to_arrow_reader()


@dataclass(frozen=True)
class CheckUnit:
    """Looks for damage in segments; it writes nothing."""

    segments: tuple[SegmentRef, ...]
    loan: Loan | None = None

    def run(self, connection: duckdb.DuckDBPyConnection) -> dict[UUID, tuple[Damage, ...]]:
        """What is damaged, by segment."""
        segments = [opened(one, self.loan) for one in self.segments]
        return {one.header.id: tuple(one.damages) for one in segments if one.damages}

    def undo(self, result: object) -> None:
        """There is nothing to undo."""


def plan_units(
    table: Table, segments: Sequence[SegmentRef], unit_bytes: int, loan: Loan | None = None
) -> list[FlushUnit]:
    """The segments in units of about a size, in order."""
    units: list[list[SegmentRef]] = []
    size = 0
    for segment in segments:
        if not units or size + segment.size > unit_bytes:
            units.append([])
            size = 0
        units[-1].append(segment)
        size += segment.size
    return [FlushUnit(table, tuple(unit), loan) for unit in units]


def opened(one: SegmentRef, loan: Loan | None) -> Segment:
    """A segment from its file or, on loan, from its server if the file is not to be seen here."""
    if loan is None:
        return open_segment(one.path, one.size, one.skip)
    with suppress(OSError, SegmentDamaged):
        if os.path.getsize(one.path) >= one.size:
            segment = open_segment(one.path, one.size, one.skip)
            if segment.header.id == one.id:
                return segment
    from swanlake.pipeline.fetch import fetched  # with Flight, which is not the queue's business

    with fetched(loan, str(one.id), one.size) as path:
        return open_segment(path, one.size, one.skip)


@contextmanager
def segments_as_query(
    connection: duckdb.DuckDBPyConnection,
    segments: Sequence[Segment],
    table: Table,
    name: str = _VIEW,
) -> Iterator[str]:
    """A query for the rows of segments, with the columns of a table as it is now.

    It reads Arrow tables over mapped files: nothing is copied, and it can be run again.
    """
    views: list[str] = []
    queries: list[str] = []
    try:
        for schema, group in _by_schema(segments, table):
            view = f"{name}{len(views)}"
            batches = [batch for segment in group for batch in segment.record_batches(schema)]
            connection.register(view, pa.Table.from_batches(batches, schema))
            views.append(view)
            queries.append(_select(view, schema, table))
        yield "\nUNION ALL ".join(queries) or _nothing(table)
    finally:
        for view in views:
            connection.unregister(view)


def _by_schema(segments: Sequence[Segment], table: Table) -> Iterator[tuple[Any, list[Segment]]]:
    """Neighbours whose columns are the same, as one; structs as the table calls their fields."""
    group: list[Segment] = []
    schema: Any = None
    for segment in segments:
        own = schema_as_of(segment.schema, table.columns)
        if group and not _same_columns(schema, own):
            yield schema, group
            group = []
        schema = schema if group else own
        group.append(segment)
    if group:
        yield schema, group


def _same_columns(one: Any, other: Any) -> bool:
    return one.remove_metadata() == other.remove_metadata() and column_ids(one) == column_ids(other)


def _select(view: str, schema: Any, table: Table) -> str:
    given = dict(zip(column_ids(schema), map(identifier, schema.names), strict=True))
    values = ", ".join(
        f"{_cast(column, given.get(column.id) or default_sql(column))} AS {identifier(column.name)}"
        for column in table.columns
    )
    return f"SELECT {values} FROM {identifier(view)}"


def _nothing(table: Table) -> str:
    columns = ", ".join(
        f"{_cast(column, 'NULL')} AS {identifier(column.name)}" for column in table.columns
    )
    return f"SELECT {columns} LIMIT 0"


def _cast(column: Column, value: str) -> str:
    return f"CAST({value} AS {duckdb_type(column)})"

"""SQL for the rows under compaction: from files of any age, or from the metadata.

The queries return the columns under their current names, the row id and the snapshot id of each
row, and internal columns that are not written: the snapshot that deleted it, its file and position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa

from swanlake.errors import Unsupported
from swanlake.lake.files.datafile import INTERNAL_FIELD_IDS, ROW_ID, SNAPSHOT_ID
from swanlake.lake.model.evolution import Field, find_field, read_fields, value_sql
from swanlake.lake.model.layout import Column, Table, folded
from swanlake.lake.model.partitioning import Partition
from swanlake.lake.model.table_files import InlinedRow, LiveFile
from swanlake.lake.model.types import duckdb_type
from swanlake.maintenance.compaction.plan import DELETED_AT, POSITION, SOURCE
from swanlake.sql.quoting import identifier, literal

#: Virtual columns of DuckDB; a column of the same name in a file would hide them.
_RESERVED = ("file_row_number", "file_index")
#: The number of a row's file within a scan, from 0.
_FILE = "CAST(file_index AS BIGINT)"


@dataclass(frozen=True)
class Scan:
    """Files with the same columns in the same order, and the query that reads them."""

    files: tuple[LiveFile, ...]
    has_row_ids: bool
    query: str


def plan_scans(
    connection: duckdb.DuckDBPyConnection,
    files: Sequence[LiveFile],
    layout: Table,
    table: Table,
    deleted: str | None,
) -> list[Scan]:
    """Scans of all rows of the files, in the order of the files."""
    fields = read_fields(connection, [file.path for file in files])
    scans: list[Scan] = []
    before = 0
    for group_fields, group in groupby(files, key=lambda file: fields[file.path]):
        members = tuple(group)
        scans.append(_scan(members, group_fields, before, layout, table, deleted))
        before += len(members)
    return scans


def _scan(
    files: tuple[LiveFile, ...],
    fields: tuple[Field, ...],
    before: int,
    layout: Table,
    table: Table,
    deleted: str | None,
) -> Scan:
    _check_readable(files[0], fields)
    columns = []
    for column in layout.columns:
        field = find_field(fields, column.id)
        source = f"f.{identifier(field.name)}" if field else ""
        columns.append(f"{value_sql(field, column, source)} AS {identifier(column.name)}")
    row_id = find_field(fields, INTERNAL_FIELD_IDS[ROW_ID])
    if row_id is None and any(file.row_id_start is None for file in files):
        raise Unsupported(f"the rows of {files[0].path} have no ids")
    row_ids = _internal(row_id, [file.row_id_start for file in files], " + file_row_number")
    snapshot_id = find_field(fields, INTERNAL_FIELD_IDS[SNAPSHOT_ID])
    snapshots = _internal(snapshot_id, [file.begin_snapshot for file in files])
    paths = ", ".join(literal(file.path) for file in files)
    query = (
        f"SELECT {', '.join((*columns, *added_columns(table, layout)))}, {row_ids} AS {ROW_ID}, "
        f"{snapshots} AS {SNAPSHOT_ID}, {'d.dead' if deleted else 'NULL'} AS {DELETED_AT}, "
        f"{_FILE} + {before} AS {SOURCE}, file_row_number AS {POSITION} "
        f"FROM read_parquet([{paths}], hive_partitioning => false) AS f"
    )
    if deleted:
        query += (
            f" LEFT JOIN {deleted} AS d ON d.source = {_FILE} + {before} "
            "AND d.pos = file_row_number"
        )
    return Scan(files, row_id is not None, query)


def _internal(field: Field | None, by_file: Sequence[int | None], rest: str = "") -> str:
    """An internal column if the files have it, else the value known of each file."""
    if field is not None:
        return f"f.{identifier(field.name)}"
    return f"(CAST({list(by_file)} AS BIGINT[]))[{_FILE} + 1]{rest}"


def _check_readable(file: LiveFile, fields: Sequence[Field]) -> None:
    if not fields or any(field.id is None for field in fields):
        raise Unsupported(f"the columns of {file.path} have no ids")
    for field in fields:
        if folded(field.name) in _RESERVED:
            raise Unsupported(f"{file.path} has a column {field.name!r}, which hides DuckDB's own")


@contextmanager
def deleted_rows_table(
    connection: duckdb.DuckDBPyConnection, files: Sequence[LiveFile]
) -> Iterator[str]:
    """A temporary table of all deleted rows: file number, position, deleting snapshot."""
    selects = []
    for number, file in enumerate(files):
        for deletes in file.deletes:
            fields = read_fields(connection, [deletes.path])[deletes.path]
            embedded = any(field.name == SNAPSHOT_ID for field in fields)
            since = SNAPSHOT_ID if embedded else deletes.begin_snapshot
            selects.append(
                f"SELECT {number} AS source, pos, {since} AS dead "
                f"FROM read_parquet({literal(deletes.path)}, hive_partitioning => false)"
            )
        if file.inlined_deletes:
            values = ", ".join(f"({position}, {since})" for position, since in file.inlined_deletes)
            selects.append(
                f"SELECT {number} AS source, pos, dead FROM (VALUES {values}) v(pos, dead)"
            )
    name = f"temp.swanlake_deleted_{uuid4().hex}"
    connection.execute(
        f"CREATE TEMP TABLE {name.removeprefix('temp.')} AS "
        "SELECT CAST(source AS BIGINT) AS source, CAST(pos AS BIGINT) AS pos, "
        "CAST(min(dead) AS BIGINT) AS dead "
        f"FROM ({' UNION ALL '.join(selects)}) GROUP BY ALL"
    )
    try:
        yield name
    finally:
        connection.execute(f"DROP TABLE {name}")


def first_contiguous_row_id(
    connection: duckdb.DuckDBPyConnection, scans: Sequence[Scan], table: Table
) -> int | None:
    """The first row id if the row ids are consecutive in scan order, else None."""
    if len(scans) > 1 or scans[0].has_row_ids or table.sort_keys:
        return None
    (is_ordered,) = connection.execute(
        "SELECT current_setting('preserve_insertion_order')"
    ).fetchall()[0]
    files = scans[0].files
    start = expected = files[0].row_id_start
    for file in files:
        if file.row_id_start != expected or expected is None:
            return None
        expected += file.record_count
    return start if is_ordered else None


def inlined_to_arrow(columns: Sequence[Column], rows: Sequence[InlinedRow]) -> Any:
    """Inlined rows as an Arrow table: text to be cast, or bytes."""
    numbers = {
        name: pa.array([row[index] for row in rows], pa.int64())
        for index, name in enumerate(("row_id", "begin_snapshot", "end_snapshot"))
    }
    values = {}
    for index, column in enumerate(columns):
        stored = [row[index + len(numbers)] for row in rows]
        if column.type == "blob":
            values[f"c{index}"] = pa.array(stored, pa.binary())
        else:
            texts = [value.decode() if isinstance(value, bytes) else value for value in stored]
            values[f"c{index}"] = pa.array(texts, pa.string())
    return pa.table(numbers | values | {"position": pa.array(range(len(rows)), pa.int64())})


def list_partitions(
    connection: duckdb.DuckDBPyConnection, rows: str, keys: Sequence[Partition]
) -> list[tuple[str, tuple[str | None, ...]]]:
    """For each partition with rows: a condition that selects them, and the partition values."""
    if not keys:
        return [("true", ())]
    texts = [f"CAST({key.expression or identifier(key.column)} AS VARCHAR)" for key in keys]
    partitions = connection.execute(
        f"SELECT DISTINCT {', '.join(texts)} FROM ({rows}) ORDER BY ALL"
    ).fetchall()
    return [
        (
            " AND ".join(
                f"{text} IS NULL" if key is None else f"{text} = {literal(key)}"
                for text, key in zip(texts, values, strict=True)
            ),
            tuple(values),
        )
        for values in partitions
    ]


def added_columns(table: Table, layout: Table) -> list[str]:
    """Columns added to the table later: not written, but the sort order may use them."""
    if not table.sort_keys:
        return []
    known = {column.id for column in layout.columns}
    used_names = {folded(column.name) for column in layout.columns}
    return [
        # All rows have the same value, so any value sorts the same.
        f"CAST(NULL AS {duckdb_type(column)}) AS {identifier(column.name)}"
        for column in table.columns
        if column.id not in known and folded(column.name) not in used_names
    ]


def union_all(scans: Sequence[Scan]) -> str:
    """A query for all rows of all scans."""
    return " UNION ALL ".join(scan.query for scan in scans)

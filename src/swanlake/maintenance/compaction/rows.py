"""The rows that compaction is about, as SQL: out of files of any age, or out of the metadata.

Queries yield the columns under the names that they have now, the ids of the rows and of the
snapshots they came with, and what is not written to files: since when a row is deleted, and where
it came from.
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
from swanlake.lake.datafile import INTERNAL_FIELD_IDS, ROW_ID, SNAPSHOT_ID
from swanlake.lake.evolution import Field, find, read_fields, value
from swanlake.lake.layout import Column, Table, folded
from swanlake.lake.live_files import InlinedRow, LiveFile
from swanlake.lake.partitioning import Partition
from swanlake.lake.types import duckdb_type
from swanlake.pipeline.compact_plan import DEAD, PLACE, SOURCE
from swanlake.sql.quoting import identifier, literal

#: Names that DuckDB gives to what it knows of a file; a column of the same name would hide it.
_RESERVED = ("file_row_number", "file_index")
#: Which of the files of a scan a row is in, from 0 on.
_FILE = "CAST(file_index AS BIGINT)"


@dataclass(frozen=True)
class Scan:
    """Files with the same columns in the same places, and what reads them."""

    files: tuple[LiveFile, ...]
    has_row_ids: bool
    query: str


def scans_of(
    connection: duckdb.DuckDBPyConnection,
    files: Sequence[LiveFile],
    layout: Table,
    table: Table,
    deleted: str | None,
) -> list[Scan]:
    """Everything in the files, in their order."""
    fields = read_fields(connection, [file.path for file in files])
    scans: list[Scan] = []
    before = 0
    for found, group in groupby(files, key=lambda file: fields[file.path]):
        some = tuple(group)
        scans.append(_scan(some, found, before, layout, table, deleted))
        before += len(some)
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
        field = find(fields, column.id)
        source = f"f.{identifier(field.name)}" if field else ""
        columns.append(f"{value(field, column, source)} AS {identifier(column.name)}")
    row_id = find(fields, INTERNAL_FIELD_IDS[ROW_ID])
    if row_id is None and any(file.row_id_start is None for file in files):
        raise Unsupported(f"the rows of {files[0].path} have no ids")
    row_ids = _internal(row_id, [file.row_id_start for file in files], " + file_row_number")
    snapshot_id = find(fields, INTERNAL_FIELD_IDS[SNAPSHOT_ID])
    snapshots = _internal(snapshot_id, [file.begin_snapshot for file in files])
    paths = ", ".join(literal(file.path) for file in files)
    query = (
        f"SELECT {', '.join((*columns, *added_columns(table, layout)))}, {row_ids} AS {ROW_ID}, "
        f"{snapshots} AS {SNAPSHOT_ID}, {'d.dead' if deleted else 'NULL'} AS {DEAD}, "
        f"{_FILE} + {before} AS {SOURCE}, file_row_number AS {PLACE} "
        f"FROM read_parquet([{paths}], hive_partitioning => false) AS f"
    )
    if deleted:
        query += (
            f" LEFT JOIN {deleted} AS d ON d.source = {_FILE} + {before} "
            "AND d.pos = file_row_number"
        )
    return Scan(files, row_id is not None, query)


def _internal(field: Field | None, by_file: Sequence[int | None], rest: str = "") -> str:
    """An internal column of the files if they have it, else what is known of each of them."""
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
def deleted_rows(connection: duckdb.DuckDBPyConnection, files: Sequence[LiveFile]) -> Iterator[str]:
    """A table of all deleted rows: the number of the file, the place in it, and since when."""
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
            values = ", ".join(f"({place}, {since})" for place, since in file.inlined_deletes)
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


def contiguous_from(
    connection: duckdb.DuckDBPyConnection, scans: Sequence[Scan], table: Table
) -> int | None:
    """The first row id if the others follow one by one in the order of the scan."""
    if len(scans) > 1 or scans[0].has_row_ids or table.sort_keys:
        return None
    (kept,) = connection.execute("SELECT current_setting('preserve_insertion_order')").fetchall()[0]
    files = scans[0].files
    start = expected = files[0].row_id_start
    for file in files:
        if file.row_id_start != expected or expected is None:
            return None
        expected += file.record_count
    return start if kept else None


def as_arrow(columns: Sequence[Column], rows: Sequence[InlinedRow]) -> Any:
    """Inlined rows as DuckDB can read them: texts to cast, or bytes."""
    numbers = {
        name: pa.array([row[place] for row in rows], pa.int64())
        for place, name in enumerate(("row_id", "begin_snapshot", "end_snapshot"))
    }
    values = {}
    for place, column in enumerate(columns):
        given = [row[place + len(numbers)] for row in rows]
        if column.type == "blob":
            values[f"c{place}"] = pa.array(given, pa.binary())
        else:
            values[f"c{place}"] = pa.array([_text(one) for one in given], pa.string())
    return pa.table(numbers | values | {"place": pa.array(range(len(rows)), pa.int64())})


def _text(given: str | bytes | None) -> str | None:
    return given.decode() if isinstance(given, bytes) else given


def partitions_in(
    connection: duckdb.DuckDBPyConnection, rows: str, keys: Sequence[Partition]
) -> list[tuple[str, tuple[str | None, ...]]]:
    """For each partition that has rows: a condition that is true of them, and its values."""
    if not keys:
        return [("true", ())]
    texts = [f"CAST({key.expression or identifier(key.column)} AS VARCHAR)" for key in keys]
    found = connection.execute(
        f"SELECT DISTINCT {', '.join(texts)} FROM ({rows}) ORDER BY ALL"
    ).fetchall()
    return [
        (
            " AND ".join(
                f"{text} IS NULL" if one is None else f"{text} = {literal(one)}"
                for text, one in zip(texts, values, strict=True)
            ),
            tuple(values),
        )
        for values in found
    ]


def added_columns(table: Table, layout: Table) -> list[str]:
    """Columns that the table got later. They are not written, but its order may be by them."""
    if not table.sort_keys:
        return []
    known = {column.id for column in layout.columns}
    taken = {folded(column.name) for column in layout.columns}
    return [
        # All rows have the same value, and where all are alike it does not matter which.
        f"CAST(NULL AS {duckdb_type(column)}) AS {identifier(column.name)}"
        for column in table.columns
        if column.id not in known and folded(column.name) not in taken
    ]


def everything(scans: Sequence[Scan]) -> str:
    """All rows of all scans."""
    return " UNION ALL ".join(scan.query for scan in scans)

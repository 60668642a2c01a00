"""What compaction does to files. It runs anywhere: all that a unit needs is in it.

Rows keep their ids and the snapshots they came with. Of a file with deleted rows two become one
each: the rows that are there now, and those that only older snapshots see. The latter end with the
last of their deletes, so nobody who reads the table as it is opens them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import duckdb
import pyarrow as pa

from swanlake.errors import SwanLakeError, Unsupported
from swanlake.lake import datafile
from swanlake.lake.datafile import INTERNAL_FIELD_IDS, ROW_ID, SNAPSHOT_ID
from swanlake.lake.evolution import Field, field_of, find, named_as, read_fields, value
from swanlake.lake.layout import Column, DataFile, DeleteFile, Table, folded
from swanlake.lake.live_files import InlinedRow, InlinedTable, LiveFile
from swanlake.lake.operations import PlacedDeletes, PlacedFile
from swanlake.lake.partitioning import Partition, partitions
from swanlake.lake.types import duckdb_type
from swanlake.sql.quoting import identifier, literal

#: Since which snapshot a row is no longer there, and where it came from: not written to files.
_DEAD, _SOURCE, _PLACE = "_swanlake_dead", "_swanlake_source", "_swanlake_place"
#: Names that DuckDB gives to what it knows of a file; a column of the same name would hide it.
_RESERVED = ("file_row_number", "file_index")
#: How DuckDB says that a file cannot hold a value, such as an interval that goes back.
_NOT_IN_PARQUET = "Parquet files do not support"
_DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class Compacted:
    """What a unit wrote; nothing refers to the files yet."""

    files: tuple[PlacedFile, ...] = ()
    #: Why nothing was written, if it could not be.
    skipped: str | None = None

    @property
    def written(self) -> Iterator[DataFile | DeleteFile]:
        """All the files."""
        for placed in self.files:
            yield placed.file
            if placed.deletes is not None:
                yield placed.deletes.file


@dataclass(frozen=True)
class MergeUnit:
    """Files without deleted rows that become one."""

    table: Table
    files: tuple[LiveFile, ...]

    def run(self, connection: duckdb.DuckDBPyConnection) -> Compacted:
        """Writes the file."""
        return _compacted(self.table, lambda: _merged(connection, self.table, self.files))

    def undo(self, result: Compacted) -> None:
        """Removes it."""
        datafile.remove_files(self.table, result.written)


@dataclass(frozen=True)
class RewriteUnit:
    """Files with deleted rows, to be without them."""

    table: Table
    files: tuple[LiveFile, ...]
    #: Rows that were deleted before this snapshot are in none that is kept.
    oldest_snapshot: int

    def run(self, connection: duckdb.DuckDBPyConnection) -> Compacted:
        """Writes a file with the rows that are left, and one with the others."""
        return _compacted(self.table, lambda: self._write(connection))

    def undo(self, result: Compacted) -> None:
        """Removes them."""
        datafile.remove_files(self.table, result.written)

    def _write(self, connection: duckdb.DuckDBPyConnection) -> Iterator[PlacedFile]:
        first = self.files[0]
        writer = _Writer(
            connection,
            _layout(self.table, first.columns),
            self.table,
            _folder(self.table, first),
            first.partition_id,
            first.partition_values,
        )
        with _deleted_rows(connection, self.files) as deleted:
            scans = _scans(connection, self.files, writer.layout, self.table, deleted)
            counts = dict(
                connection.execute(
                    f"SELECT dead, count(*) FROM {deleted} WHERE dead >= ? "
                    "GROUP BY dead ORDER BY dead",
                    [self.oldest_snapshot],
                ).fetchall()
            )
            yield from writer.split(_all(scans), counts)


@dataclass(frozen=True)
class FoldUnit:
    """Rows that the metadata keeps, to be in files."""

    table: Table
    inlined: InlinedTable
    rows: tuple[InlinedRow, ...]
    oldest_snapshot: int

    def run(self, connection: duckdb.DuckDBPyConnection) -> Compacted:
        """Writes files for the rows that are there now, and for those that were."""
        return _compacted(self.table, lambda: self._write(connection))

    def undo(self, result: Compacted) -> None:
        """Removes them."""
        datafile.remove_files(self.table, result.written)

    def _write(self, connection: duckdb.DuckDBPyConnection) -> Iterator[PlacedFile]:
        given = self.inlined.layout
        layout = _layout(self.table, given.columns)
        keys = partitions(replace(layout, partition_keys=given.partition_keys))
        view = f"swanlake_inlined_{uuid4().hex}"
        connection.register(view, _as_arrow(given.columns, self.rows))
        try:
            rows = f"SELECT * FROM ({self._query(view, layout)})"
            for where, values in _partitions(connection, rows, keys):
                chosen = f"{rows} WHERE {where}"
                counts = dict(
                    connection.execute(
                        f"SELECT {_DEAD}, count(*) FROM ({chosen}) WHERE {_DEAD} >= ? "
                        "GROUP BY ALL ORDER BY ALL",
                        [self.oldest_snapshot],
                    ).fetchall()
                )
                folder = _partition_folder(keys, values)
                partition_id = given.partition_id if keys else None
                yield from _Writer(
                    connection, layout, self.table, folder, partition_id, values
                ).split(chosen, counts)
        finally:
            connection.unregister(view)

    def _query(self, view: str, layout: Table) -> str:
        columns = []
        for place, (given, column) in enumerate(
            zip(self.inlined.layout.columns, layout.columns, strict=True)
        ):
            # The text of a struct has the names that its fields had.
            inlined = f"CAST(c{place} AS {duckdb_type(given)})"
            columns.append(
                f"{value(field_of(given), column, inlined)} AS {identifier(column.name)}"
            )
        return (
            f"SELECT {', '.join((*columns, *_added(self.table, layout)))}, row_id AS {ROW_ID}, "
            f"begin_snapshot AS {SNAPSHOT_ID}, end_snapshot AS {_DEAD}, 0 AS {_SOURCE}, "
            f"place AS {_PLACE} FROM {view}"
        )


CompactUnit = MergeUnit | RewriteUnit | FoldUnit


def _compacted(table: Table, write: Callable[[], Iterator[PlacedFile]]) -> Compacted:
    """All that is written, or nothing if something cannot be."""
    placed: list[PlacedFile] = []
    try:
        for file in write():
            placed.append(file)
    except BaseException as error:
        with suppress(SwanLakeError):  # what went wrong first is to be told
            datafile.remove_files(table, Compacted(tuple(placed)).written)
        reason = error.message if isinstance(error, Unsupported) else str(error)
        if isinstance(error, Unsupported) or _NOT_IN_PARQUET in reason:
            return Compacted(skipped=reason)
        raise
    return Compacted(tuple(placed))


def _merged(
    connection: duckdb.DuckDBPyConnection, table: Table, files: Sequence[LiveFile]
) -> Iterator[PlacedFile]:
    first = files[0]
    layout = _layout(table, first.columns)
    scans = _scans(connection, files, layout, table, None)
    spans = len({file.begin_snapshot for file in files}) > 1 or any(
        file.partial_max is not None for file in files
    )
    start = _contiguous_from(connection, scans, table)
    internal = [*([ROW_ID] if start is None else []), *([SNAPSHOT_ID] if spans else [])]
    written = datafile.write_plain_file(
        connection,
        f"SELECT {_names(layout, internal)} FROM ({_all(scans)}){_order(table)}",
        layout,
        internal=internal,
        folder=_folder(table, first),
        partition_values=first.partition_values,
    )
    if written is None:
        raise Unsupported("its files hold no rows")
    begin, last = written.bounds.get(SNAPSHOT_ID, (first.begin_snapshot, first.begin_snapshot))
    yield PlacedFile(
        written.file,
        begin,
        start,
        last if last > begin else None,
        partition_id=first.partition_id,
    )


@dataclass(frozen=True)
class _Writer:
    """Writes rows of one partition, the present ones and the past ones."""

    connection: duckdb.DuckDBPyConnection
    #: The columns that go into the files.
    layout: Table
    table: Table
    folder: str
    partition_id: int | None
    partition_values: tuple[str | None, ...]

    def split(self, rows: str, deleted: Mapping[int, int]) -> Iterator[PlacedFile]:
        """A file of the rows that are there, and one of those that are deleted.

        ``deleted`` says how many were deleted in each snapshot, of those that are still of use.
        """
        present = self._write(f"({rows}) WHERE {_DEAD} IS NULL{_order(self.table)}")
        if present is not None:
            yield self._placed(present)
        if not deleted:
            return
        past = self._write(
            f"({rows}) WHERE {_DEAD} >= {min(deleted)} ORDER BY {_DEAD}, {_SOURCE}, {_PLACE}"
        )
        if past is None or past.file.record_count != sum(deleted.values()):
            raise RuntimeError("Deleted rows of a file are not where its delete files say.")
        yield self._past(past, deleted)

    def _write(self, rows: str) -> datafile.PlainFile | None:
        internal = [ROW_ID, SNAPSHOT_ID]
        return datafile.write_plain_file(
            self.connection,
            f"SELECT {_names(self.layout, internal)} FROM {rows}",
            self.layout,
            internal=internal,
            folder=self.folder,
            partition_values=self.partition_values,
        )

    def _placed(self, written: datafile.PlainFile) -> PlacedFile:
        begin, last = written.bounds[SNAPSHOT_ID]
        return PlacedFile(
            written.file,
            begin,
            None,
            last if last > begin else None,
            partition_id=self.partition_id,
        )

    def _past(self, written: datafile.PlainFile, deleted: Mapping[int, int]) -> PlacedFile:
        """Rows in the order of their deletes: the last of these end the file, others are listed.

        Were they all listed, the change feed would show the last ones twice.
        """
        placed = self._placed(written)
        end = max(deleted)
        listed = [dead for dead, count in sorted(deleted.items()) for _ in range(count)]
        listed = [dead for dead in listed if dead < end]
        deletes = None
        if listed:
            try:
                file = datafile.write_delete_file(
                    self.connection,
                    self.table,
                    self.table.directory + written.file.path,
                    range(len(listed)),
                    listed,
                )
            except BaseException:
                datafile.remove_files(self.table, [written.file])
                raise
            partial_max = listed[-1] if listed[-1] > listed[0] else None
            deletes = PlacedDeletes(file, listed[0], partial_max)
        return replace(placed, end_snapshot=end, deletes=deletes)


# ---- reading files -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Scan:
    """Files with the same columns in the same places, and what reads them."""

    files: tuple[LiveFile, ...]
    has_row_ids: bool
    query: str


def _scans(
    connection: duckdb.DuckDBPyConnection,
    files: Sequence[LiveFile],
    layout: Table,
    table: Table,
    deleted: str | None,
) -> list[_Scan]:
    """Everything in the files, in their order."""
    fields = read_fields(connection, [file.path for file in files])
    scans: list[_Scan] = []
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
) -> _Scan:
    _check_readable(files[0], fields)
    place = "CAST(file_index AS BIGINT)"
    columns = []
    for column in layout.columns:
        field = find(fields, column.id)
        source = f"f.{identifier(field.name)}" if field else ""
        columns.append(f"{value(field, column, source)} AS {identifier(column.name)}")
    row_id = find(fields, INTERNAL_FIELD_IDS[ROW_ID])
    if row_id is None:
        if any(file.row_id_start is None for file in files):
            raise Unsupported(f"the rows of {files[0].path} have no ids")
        starts = [file.row_id_start for file in files]
        row_ids = f"(CAST({starts} AS BIGINT[]))[{place} + 1] + file_row_number"
    else:
        row_ids = f"f.{identifier(row_id.name)}"
    snapshot_id = find(fields, INTERNAL_FIELD_IDS[SNAPSHOT_ID])
    if snapshot_id is None:
        begins = [file.begin_snapshot for file in files]
        snapshots = f"(CAST({begins} AS BIGINT[]))[{place} + 1]"
    else:
        snapshots = f"f.{identifier(snapshot_id.name)}"
    paths = ", ".join(literal(file.path) for file in files)
    query = (
        f"SELECT {', '.join((*columns, *_added(table, layout)))}, {row_ids} AS {ROW_ID}, "
        f"{snapshots} AS {SNAPSHOT_ID}, {'d.dead' if deleted else 'NULL'} AS {_DEAD}, "
        f"{place} + {before} AS {_SOURCE}, file_row_number AS {_PLACE} "
        f"FROM read_parquet([{paths}], hive_partitioning => false) AS f"
    )
    if deleted:
        query += (
            f" LEFT JOIN {deleted} AS d ON d.source = {place} + {before} "
            "AND d.pos = file_row_number"
        )
    return _Scan(files, row_id is not None, query)


def _check_readable(file: LiveFile, fields: Sequence[Field]) -> None:
    if not fields or any(field.id is None for field in fields):
        raise Unsupported(f"the columns of {file.path} have no ids")
    for field in fields:
        if folded(field.name) in _RESERVED:
            raise Unsupported(f"{file.path} has a column {field.name!r}, which hides DuckDB's own")


@contextmanager
def _deleted_rows(
    connection: duckdb.DuckDBPyConnection, files: Sequence[LiveFile]
) -> Iterator[str]:
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


def _contiguous_from(
    connection: duckdb.DuckDBPyConnection, scans: Sequence[_Scan], table: Table
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


# ---- inlined rows ------------------------------------------------------------------------------


def _as_arrow(columns: Sequence[Column], rows: Sequence[InlinedRow]) -> Any:
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


def _partitions(
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


def _partition_folder(keys: Sequence[Partition], values: Sequence[str | None]) -> str:
    return "".join(
        f"{quote(key.folder, safe='')}="
        f"{_DEFAULT_PARTITION if one is None else quote(one, safe='')}/"
        for key, one in zip(keys, values, strict=True)
    )


# ---- both --------------------------------------------------------------------------------------


def _layout(table: Table, columns: Sequence[Column]) -> Table:
    """The table with the columns that go into a file; constraints were for when they came."""
    return replace(table, columns=named_as(table.columns, columns))


def _added(table: Table, layout: Table) -> list[str]:
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


def _names(layout: Table, internal: Sequence[str]) -> str:
    names = [*(column.name for column in layout.columns), *internal]
    return ", ".join(map(identifier, names))


def _order(table: Table) -> str:
    keys = [
        f"{key.expression} {'DESC' if key.descending else 'ASC'} "
        f"NULLS {'FIRST' if key.nulls_first else 'LAST'}"
        for key in table.sort_keys
    ]
    return f" ORDER BY {', '.join((*keys, _SOURCE, _PLACE))}" if keys else ""


def _all(scans: Sequence[_Scan]) -> str:
    return " UNION ALL ".join(scan.query for scan in scans)


def _folder(table: Table, file: LiveFile) -> str:
    """Where files of the same partition go, inside the table's directory."""
    if file.partition_id is None or not file.path.startswith(table.directory):
        return ""
    inside = file.path.removeprefix(table.directory)
    return inside[: inside.rfind("/") + 1]

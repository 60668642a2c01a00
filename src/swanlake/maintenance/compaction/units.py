"""Compaction units: write new files for old ones, in any process.

Rows keep their row ids and snapshot ids. A file with deleted rows becomes two files: one of current
rows, and one of rows that only older snapshots see. The latter ends with the last of their deletes,
so a reader of the current snapshot never opens it.

As after a merge by the stock extension, its change feed misdates deletes from a merged file that
has a delete file of a single snapshot: it uses the snapshots of the rows. The dates are right again
once there are deletes of a second snapshot, or the file is rewritten.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from urllib.parse import quote
from uuid import uuid4

import duckdb

from swanlake.errors import InvalidValue, SwanLakeError, Unsupported
from swanlake.jobs.shared_directories import check_directory_visible
from swanlake.lake.files import datafile
from swanlake.lake.files.datafile import ROW_ID, SNAPSHOT_ID
from swanlake.lake.model.evolution import expected_field, rename_to_current, value_sql
from swanlake.lake.model.layout import Column, DataFile, DeleteFile, Table
from swanlake.lake.model.operations import PlacedDeletes, PlacedFile
from swanlake.lake.model.partitioning import Partition, partitions
from swanlake.lake.model.table_files import InlinedRow, InlinedTable, LiveFile
from swanlake.lake.model.type_registry import find_type
from swanlake.lake.model.types import duckdb_type
from swanlake.maintenance.compaction.plan import DELETED_AT, POSITION, SOURCE, VERSION
from swanlake.maintenance.compaction.rows import (
    added_columns,
    deleted_rows_table,
    first_contiguous_row_id,
    inlined_to_arrow,
    list_partitions,
    plan_scans,
    union_all,
)
from swanlake.sql.quoting import identifier, literal

#: Versions of a row beyond this number share a file. The change feed misdates some of their
#: deletes, as after the stock extension's own flush; more small files would be worse.
_MAX_VERSIONS = 16
#: How DuckDB says that a file cannot hold a value, such as an interval that goes back.
_NOT_IN_PARQUET = "Parquet files do not support"
_DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"

log = logging.getLogger("swanlake.pipeline")


@dataclass(frozen=True)
class CompactResult:
    """The files a unit wrote; they are not committed yet."""

    files: tuple[PlacedFile, ...] = ()
    #: Why nothing was written; None if something was.
    skipped: str | None = None

    @property
    def written_files(self) -> Iterator[DataFile | DeleteFile]:
        """All data and delete files."""
        for placed in self.files:
            yield placed.file
            if placed.deletes is not None:
                yield placed.deletes.file


@dataclass(frozen=True)
class CompactUnit(ABC):
    """A part of a table that is written to new files."""

    table: Table

    def run(self, connection: duckdb.DuckDBPyConnection) -> CompactResult:
        """Writes all files, or none if a value cannot be stored in Parquet."""
        check_directory_visible(self.table)
        placed: list[PlacedFile] = []
        try:
            for file in self._write(connection):
                placed.append(file)
        except BaseException as error:
            with suppress(SwanLakeError):  # the first error is the one to report
                self.undo(CompactResult(tuple(placed)))
            reason = _skip_reason(error)
            if reason is not None:
                return CompactResult(skipped=reason)
            raise
        return CompactResult(tuple(placed))

    def undo(self, result: CompactResult) -> None:
        datafile.remove_files(self.table, result.written_files)

    @abstractmethod
    def _write(self, connection: duckdb.DuckDBPyConnection) -> Iterator[PlacedFile]:
        """Writes the files; yields each."""


@dataclass(frozen=True)
class MergeUnit(CompactUnit):
    """Merges files without deleted rows into one."""

    files: tuple[LiveFile, ...]

    def _write(self, connection: duckdb.DuckDBPyConnection) -> Iterator[PlacedFile]:
        first = self.files[0]
        layout = _layout(self.table, first.columns)
        scans = plan_scans(connection, self.files, layout, self.table, None)
        spans = len({file.begin_snapshot for file in self.files}) > 1 or any(
            file.partial_max is not None for file in self.files
        )
        start = first_contiguous_row_id(connection, scans, self.table)
        internal = [*([ROW_ID] if start is None else []), *([SNAPSHOT_ID] if spans else [])]
        written = _in_order(
            self.table,
            lambda order: datafile.write_plain_file(
                connection,
                f"SELECT {_names(layout, internal)} FROM ({union_all(scans)}){order}",
                layout,
                internal=internal,
                folder=_folder(self.table, first),
                partition_values=first.partition_values,
            ),
        )
        if written is None:
            raise Unsupported("its files hold no rows")
        snapshots = written.bounds.get(SNAPSHOT_ID, (first.begin_snapshot, first.begin_snapshot))
        yield _placed(written.file, snapshots, first.partition_id, start)


@dataclass(frozen=True)
class RewriteUnit(CompactUnit):
    """Rewrites files without their deleted rows."""

    files: tuple[LiveFile, ...]
    #: Rows that were deleted before this snapshot are visible in none.
    oldest_snapshot: int

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
        with deleted_rows_table(connection, self.files) as deleted:
            scans = plan_scans(connection, self.files, writer.layout, self.table, deleted)
            yield from writer.split(union_all(scans), self.oldest_snapshot)


@dataclass(frozen=True)
class FlushInlinedUnit(CompactUnit):
    """Writes inlined rows to files."""

    inlined: InlinedTable
    rows: tuple[InlinedRow, ...]
    oldest_snapshot: int

    def _write(self, connection: duckdb.DuckDBPyConnection) -> Iterator[PlacedFile]:
        stored = self.inlined.layout
        layout = _layout(self.table, stored.columns)
        keys = partitions(replace(layout, partition_keys=stored.partition_keys))
        view = f"swanlake_inlined_{uuid4().hex}"
        connection.register(view, inlined_to_arrow(stored.columns, self.rows))
        try:
            rows = f"SELECT * FROM ({self._query(view, layout)})"
            for where, values in list_partitions(connection, rows, keys):
                chosen = f"{rows} WHERE {where}"
                folder = _partition_folder(keys, values) if layout.options.partition_folders else ""
                partition_id = stored.partition_id if keys else None
                for placed in _Writer(
                    connection, layout, self.table, folder, partition_id, values
                ).split(chosen, self.oldest_snapshot):
                    yield placed
                    _check_lossless(connection, layout, rows, placed.file)
        finally:
            connection.unregister(view)

    def _query(self, view: str, layout: Table) -> str:
        columns = []
        for index, (stored, column) in enumerate(
            zip(self.inlined.layout.columns, layout.columns, strict=True)
        ):
            # The text of a struct has the field names of its time.
            inlined = f"CAST(c{index} AS {duckdb_type(stored)})"
            columns.append(
                f"{value_sql(expected_field(stored), column, inlined)} AS {identifier(column.name)}"
            )
        columns += added_columns(self.table, layout)
        return (
            f"SELECT {', '.join(columns)}, row_id AS {ROW_ID}, "
            f"begin_snapshot AS {SNAPSHOT_ID}, end_snapshot AS {DELETED_AT}, 0 AS {SOURCE}, "
            f"position AS {POSITION} FROM {view}"
        )


@dataclass(frozen=True)
class _Writer:
    """Writes current and deleted rows of one partition."""

    connection: duckdb.DuckDBPyConnection
    #: The columns that go into the files.
    layout: Table
    table: Table
    folder: str
    partition_id: int | None
    partition_values: tuple[str | None, ...]

    def split(self, rows: str, oldest_snapshot: int) -> Iterator[PlacedFile]:
        """Writes a file of the current rows, and files of the deleted rows by version.

        All versions of an updated row have the same row id. The stock extension's change feed looks
        up deletes by row id, so each version goes to a file of its own. That includes a version
        which the same transaction inserted and deleted: only the change feed shows it. Rows that
        were deleted before their insert are dropped: a fork of a past snapshot hides rows that way.
        """
        present = _in_order(
            self.table, lambda order: self._write(f"({rows}) WHERE {DELETED_AT} IS NULL{order}")
        )
        if present is not None:
            yield _placed(present.file, present.bounds[SNAPSHOT_ID], self.partition_id)
        # The query runs once for each version, so the order leaves no choice.
        order = f"{DELETED_AT}, {SNAPSHOT_ID}, {SOURCE}, {POSITION}"
        past = (
            f"(SELECT *, least({_MAX_VERSIONS}, row_number() OVER "
            f"(PARTITION BY {ROW_ID} ORDER BY {order})) AS {VERSION} "
            f"FROM ({rows}) WHERE {DELETED_AT} >= {oldest_snapshot} "
            f"AND {DELETED_AT} >= {SNAPSHOT_ID})"
        )
        for version, deleted in self._count_deleted(past).items():
            written = self._write(
                f"{past} WHERE {VERSION} = {version} ORDER BY {DELETED_AT}, {SOURCE}, {POSITION}"
            )
            assert written is not None
            yield self._past(written, deleted)

    def _count_deleted(self, past: str) -> dict[int, dict[int, int]]:
        """The number of rows that each snapshot deleted, by version of the row."""
        counts: dict[int, dict[int, int]] = {}
        for version, snapshot, count in self.connection.execute(
            f"SELECT {VERSION}, {DELETED_AT}, count(*) FROM {past} GROUP BY ALL ORDER BY ALL"
        ).fetchall():
            counts.setdefault(version, {})[snapshot] = count
        return counts

    def _write(self, rows: str) -> datafile.UnpartitionedFile | None:
        internal = [ROW_ID, SNAPSHOT_ID]
        return datafile.write_plain_file(
            self.connection,
            f"SELECT {_names(self.layout, internal)} FROM {rows}",
            self.layout,
            internal=internal,
            folder=self.folder,
            partition_values=self.partition_values,
        )

    def _past(self, written: datafile.UnpartitionedFile, deleted: Mapping[int, int]) -> PlacedFile:
        """A file of rows in the order of their deletes; the last delete is the end of the file.

        Earlier deletes go to a delete file. With the last one in it too, the change feed would
        show it twice.
        """
        end = max(deleted)
        first, last = written.bounds[SNAPSHOT_ID]
        # A file that begins with its end is visible to no snapshot, and any expiry removes it. The
        # snapshot before does not see the rows: the file stores the snapshot of each.
        placed = _placed(written.file, (min(first, end - 1), last), self.partition_id)
        listed = [
            snapshot
            for snapshot, count in sorted(deleted.items())
            for _ in range(count)
            if snapshot < end
        ]
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


def _skip_reason(error: BaseException) -> str | None:
    """Why files stay as they are after an error; None if the error is no property of their rows."""
    if isinstance(error, Unsupported | InvalidValue):
        return error.message
    # A conversion fails for values that the stock extension stored and cannot read, such as a
    # HUGEINT that was rounded up to more than its type holds.
    is_conversion = isinstance(error, duckdb.ConversionException)
    return str(error) if is_conversion or _NOT_IN_PARQUET in str(error) else None


def _placed(
    file: DataFile,
    snapshots: tuple[int, int],
    partition_id: int | None,
    row_id_start: int | None = None,
) -> PlacedFile:
    begin, last = snapshots
    partial_max = last if last > begin else None
    return PlacedFile(file, begin, row_id_start, partial_max, partition_id=partition_id)


def _check_lossless(
    connection: duckdb.DuckDBPyConnection, layout: Table, rows: str, file: DataFile
) -> None:
    """Raises Unsupported if a file does not hold the exact values of the rows."""
    for column in layout.columns:
        types = (find_type(leaf.type) for leaf in column.leaves())
        if all(type_ is None or type_.is_exact_in_files for type_ in types):
            continue
        name = identifier(column.name)
        difference = connection.execute(
            f"SELECT {ROW_ID}, {SNAPSHOT_ID}, "
            f"CAST(TRY_CAST({name} AS {duckdb_type(column)}) AS VARCHAR) "
            f"FROM read_parquet({literal(layout.directory + file.path)}, "
            "hive_partitioning => false) EXCEPT "
            f"SELECT {ROW_ID}, {SNAPSHOT_ID}, CAST({name} AS VARCHAR) FROM ({rows}) LIMIT 1"
        ).fetchone()
        if difference is not None:
            raise Unsupported(f"a file cannot hold all values of the column {column.name}")


def _partition_folder(keys: Sequence[Partition], values: Sequence[str | None]) -> str:
    return "".join(
        f"{quote(key.folder, safe='')}="
        f"{_DEFAULT_PARTITION if value is None else quote(value, safe='')}/"
        for key, value in zip(keys, values, strict=True)
    )


def _layout(table: Table, columns: Sequence[Column]) -> Table:
    """The table with the columns of a file; constraints were checked at the insert."""
    return replace(table, columns=rename_to_current(table.columns, columns))


def _names(layout: Table, internal: Sequence[str]) -> str:
    names = [*(column.name for column in layout.columns), *internal]
    return ", ".join(map(identifier, names))


def _in_order(
    table: Table, write: Callable[[str], datafile.UnpartitionedFile | None]
) -> datafile.UnpartitionedFile | None:
    """Writes in the sort order of the table, or unsorted if the rows cannot be sorted.

    Older rows may lack a column of the order, or have values for which its expression fails.
    """
    if not table.sort_keys:
        return write("")
    keys = [key.sql for key in table.sort_keys]
    try:
        return write(f" ORDER BY {', '.join((*keys, SOURCE, POSITION))}")
    except (duckdb.DataError, duckdb.ProgrammingError) as error:
        reason = str(error).splitlines()[0]
        log.info("older rows of %s cannot be sorted: %s", table.full_name, reason)
        return write("")


def _folder(table: Table, file: LiveFile) -> str:
    """The folder of a file's partition, relative to the directory of the table."""
    if file.partition_id is None or not file.path.startswith(table.directory):
        return ""
    inside = file.path.removeprefix(table.directory)
    return inside[: inside.rfind("/") + 1]

"""What compaction does to files. It runs anywhere: all that a unit needs is in it.

Rows keep their ids and the snapshots they came with. A file with deleted rows becomes two: one of
the rows that are there now, and one of those that only older snapshots see. The latter ends with
the last of their deletes, so nobody who reads the table as it is opens it.

One thing is as after a merge by the stock extension: while a file with rows of several snapshots
has a delete file of one snapshot, the extension's change feed dates those deletes by when the rows
came. It is right again once there are deletes of a second snapshot, or the file was rewritten.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import quote
from uuid import uuid4

import duckdb

from swanlake.errors import SwanLakeError, Unsupported
from swanlake.lake import datafile
from swanlake.lake.datafile import ROW_ID, SNAPSHOT_ID
from swanlake.lake.evolution import field_of, named_as, value
from swanlake.lake.layout import Column, DataFile, DeleteFile, Table
from swanlake.lake.live_files import InlinedRow, InlinedTable, LiveFile
from swanlake.lake.operations import PlacedDeletes, PlacedFile
from swanlake.lake.partitioning import Partition, partitions
from swanlake.lake.types import duckdb_type
from swanlake.pipeline.compact_plan import DEAD, PLACE, SOURCE, VERSION
from swanlake.pipeline.compact_rows import (
    added_columns,
    as_arrow,
    contiguous_from,
    deleted_rows,
    everything,
    partitions_in,
    scans_of,
)
from swanlake.pipeline.sharing import check_directory
from swanlake.sql.quoting import identifier, literal

#: A row that was deleted and changed more often shares a file with its later versions: small files
#: without end would be worse than a change feed that dates some of these deletes wrong, as it does
#: after the stock extension's own flush.
_MOST_VERSIONS = 16
#: How DuckDB says that a file cannot hold a value, such as an interval that goes back, or a time
#: without end in seconds.
_NOT_IN_PARQUET = ("Parquet files do not support", "Could not convert Timestamp(S)")
#: Types of which a file keeps less than the metadata does, without a word: there are no integers as
#: large, no time zones of times and no microseconds of intervals.
_COARSE = frozenset({"int128", "uint128", "timetz", "interval"})
_DEFAULT_PARTITION = "__HIVE_DEFAULT_PARTITION__"

log = logging.getLogger("swanlake.pipeline")

W = TypeVar("W")


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
class CompactUnit(ABC):
    """A part of a table that becomes other files."""

    table: Table

    def run(self, connection: duckdb.DuckDBPyConnection) -> Compacted:
        """Writes all of the files, or none if a value cannot be written."""
        check_directory(self.table)
        placed: list[PlacedFile] = []
        try:
            for file in self._write(connection):
                placed.append(file)
        except BaseException as error:
            with suppress(SwanLakeError):  # what went wrong first is to be told
                self.undo(Compacted(tuple(placed)))
            reason = error.message if isinstance(error, Unsupported) else str(error)
            if isinstance(error, Unsupported) or any(text in reason for text in _NOT_IN_PARQUET):
                return Compacted(skipped=reason)
            raise
        return Compacted(tuple(placed))

    def undo(self, result: Compacted) -> None:
        """Removes them."""
        datafile.remove_files(self.table, result.written)

    @abstractmethod
    def _write(self, connection: duckdb.DuckDBPyConnection) -> Iterator[PlacedFile]:
        """The files, one after the other."""


@dataclass(frozen=True)
class MergeUnit(CompactUnit):
    """Files without deleted rows that become one."""

    files: tuple[LiveFile, ...]

    def _write(self, connection: duckdb.DuckDBPyConnection) -> Iterator[PlacedFile]:
        first = self.files[0]
        layout = _layout(self.table, first.columns)
        scans = scans_of(connection, self.files, layout, self.table, None)
        spans = len({file.begin_snapshot for file in self.files}) > 1 or any(
            file.partial_max is not None for file in self.files
        )
        start = contiguous_from(connection, scans, self.table)
        internal = [*([ROW_ID] if start is None else []), *([SNAPSHOT_ID] if spans else [])]
        written = _in_order(
            self.table,
            lambda order: datafile.write_plain_file(
                connection,
                f"SELECT {_names(layout, internal)} FROM ({everything(scans)}){order}",
                layout,
                internal=internal,
                folder=_folder(self.table, first),
                partition_values=first.partition_values,
            ),
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
class RewriteUnit(CompactUnit):
    """Files with deleted rows, to be without them."""

    files: tuple[LiveFile, ...]
    #: Rows that were deleted before this snapshot are in none that is kept.
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
        with deleted_rows(connection, self.files) as deleted:
            scans = scans_of(connection, self.files, writer.layout, self.table, deleted)
            yield from writer.split(everything(scans), self.oldest_snapshot)


@dataclass(frozen=True)
class FoldUnit(CompactUnit):
    """Rows that the metadata keeps, to be in files."""

    inlined: InlinedTable
    rows: tuple[InlinedRow, ...]
    oldest_snapshot: int

    def _write(self, connection: duckdb.DuckDBPyConnection) -> Iterator[PlacedFile]:
        given = self.inlined.layout
        layout = _layout(self.table, given.columns)
        keys = partitions(replace(layout, partition_keys=given.partition_keys))
        view = f"swanlake_inlined_{uuid4().hex}"
        connection.register(view, as_arrow(given.columns, self.rows))
        try:
            rows = f"SELECT * FROM ({self._query(view, layout)})"
            for where, values in partitions_in(connection, rows, keys):
                chosen = f"{rows} WHERE {where}"
                folder = _partition_folder(keys, values) if layout.options.partition_folders else ""
                partition_id = given.partition_id if keys else None
                for placed in _Writer(
                    connection, layout, self.table, folder, partition_id, values
                ).split(chosen, self.oldest_snapshot):
                    yield placed
                    _check_kept(connection, layout, rows, placed.file)
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
        columns += added_columns(self.table, layout)
        return (
            f"SELECT {', '.join(columns)}, row_id AS {ROW_ID}, "
            f"begin_snapshot AS {SNAPSHOT_ID}, end_snapshot AS {DEAD}, 0 AS {SOURCE}, "
            f"place AS {PLACE} FROM {view}"
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

    def split(self, rows: str, oldest_snapshot: int) -> Iterator[PlacedFile]:
        """A file of the rows that are there, and others of those that are deleted.

        A row that was changed has its id in each of its versions. The stock extension's change feed
        looks up by row id when a row of a file was deleted, so they go to files of their own. What
        was deleted before it came is in no snapshot: a fork of the past hides so what it shares a
        file with.
        """
        present = _in_order(
            self.table, lambda order: self._write(f"({rows}) WHERE {DEAD} IS NULL{order}")
        )
        if present is not None:
            yield self._placed(present)
        past = (
            f"(SELECT *, least({_MOST_VERSIONS}, row_number() OVER "
            f"(PARTITION BY {ROW_ID} ORDER BY {DEAD})) AS {VERSION} "
            f"FROM ({rows}) WHERE {DEAD} >= {oldest_snapshot} AND {DEAD} > {SNAPSHOT_ID})"
        )
        for version, deleted in self._count_deleted(past).items():
            written = self._write(
                f"{past} WHERE {VERSION} = {version} ORDER BY {DEAD}, {SOURCE}, {PLACE}"
            )
            assert written is not None
            yield self._past(written, deleted)

    def _count_deleted(self, past: str) -> dict[int, dict[int, int]]:
        """How many rows were deleted in each snapshot, by version of the row."""
        counts: dict[int, dict[int, int]] = {}
        for version, dead, count in self.connection.execute(
            f"SELECT {VERSION}, {DEAD}, count(*) FROM {past} GROUP BY ALL ORDER BY ALL"
        ).fetchall():
            counts.setdefault(version, {})[dead] = count
        return counts

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


def _check_kept(
    connection: duckdb.DuckDBPyConnection, layout: Table, rows: str, file: DataFile
) -> None:
    """Raises Unsupported if rows have other values in a file than they had before."""
    for column in layout.columns:
        if not any(leaf.type in _COARSE for leaf in column.leaves()):
            continue
        name = identifier(column.name)
        kept = connection.execute(
            f"SELECT {ROW_ID}, {SNAPSHOT_ID}, "
            f"CAST(TRY_CAST({name} AS {duckdb_type(column)}) AS VARCHAR) "
            f"FROM read_parquet({literal(layout.directory + file.path)}, "
            "hive_partitioning => false) EXCEPT "
            f"SELECT {ROW_ID}, {SNAPSHOT_ID}, CAST({name} AS VARCHAR) FROM ({rows}) LIMIT 1"
        ).fetchone()
        if kept is not None:
            raise Unsupported(f"a file cannot hold all values of the column {column.name}")


def _partition_folder(keys: Sequence[Partition], values: Sequence[str | None]) -> str:
    return "".join(
        f"{quote(key.folder, safe='')}="
        f"{_DEFAULT_PARTITION if one is None else quote(one, safe='')}/"
        for key, one in zip(keys, values, strict=True)
    )


def _layout(table: Table, columns: Sequence[Column]) -> Table:
    """The table with the columns that go into a file; constraints were for when they came."""
    return replace(table, columns=named_as(table.columns, columns))


def _names(layout: Table, internal: Sequence[str]) -> str:
    names = [*(column.name for column in layout.columns), *internal]
    return ", ".join(map(identifier, names))


def _in_order(table: Table, write: Callable[[str], W]) -> W:
    """What is written in the order of the table, or as it came if the rows cannot be sorted so.

    The order is for rows as they come now; older ones may have no such column, or values of which
    the expression cannot be worked out.
    """
    order = _order(table)
    try:
        return write(order)
    except (duckdb.DataError, duckdb.ProgrammingError) as failed:
        if not order:
            raise
        reason = str(failed).splitlines()[0]
        log.info("older rows of %s cannot be sorted: %s", table.full_name, reason)
        return write("")


def _order(table: Table) -> str:
    keys = [key.sql for key in table.sort_keys]
    return f" ORDER BY {', '.join((*keys, SOURCE, PLACE))}" if keys else ""


def _folder(table: Table, file: LiveFile) -> str:
    """Where files of the same partition go, inside the table's directory."""
    if file.partition_id is None or not file.path.startswith(table.directory):
        return ""
    inside = file.path.removeprefix(table.directory)
    return inside[: inside.rfind("/") + 1]

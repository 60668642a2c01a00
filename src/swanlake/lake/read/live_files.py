"""What a table consists of: its files, with all that compaction must know of them.

Everything is read in one transaction, so the parts fit together; what others change afterwards is
found by the commit that is based on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sqlalchemy import (
    Connection,
    LargeBinary,
    Row,
    String,
    cast,
    func,
    literal_column,
    select,
)
from sqlalchemy import column as named_column
from sqlalchemy import inspect as inspect_database
from sqlalchemy import table as lightweight_table

from swanlake.lake.inlined_tables import OWN_COLUMNS, deletes_table, inlined_table
from swanlake.lake.layout import Column, Default, Table
from swanlake.lake.reading import column_tree, read_table_by_id
from swanlake.lake.tables import CatalogTables


@dataclass(frozen=True)
class LiveDeletes:
    """A file of deleted rows; one that has ended says what was deleted before the next one."""

    id: int
    path: str
    count: int
    begin_snapshot: int
    end_snapshot: int | None = None
    partial_max: int | None = None
    format: str = "parquet"


@dataclass(frozen=True)
class LiveFile:
    """A data file that the table consists of now."""

    id: int
    #: Absolute, or a URL.
    path: str
    record_count: int
    size_bytes: int
    begin_snapshot: int
    #: None if the rows carry their ids.
    row_id_start: int | None = None
    partition_id: int | None = None
    partition_values: tuple[str | None, ...] = ()
    #: The newest snapshot of which it has rows, if they are of several.
    partial_max: int | None = None
    mapping_id: int | None = None
    format: str = "parquet"
    encrypted: bool = False
    #: All files that ever named deleted rows of it, oldest first.
    deletes: tuple[LiveDeletes, ...] = ()
    #: Deletes that are kept in the metadata: places in the file, and since which snapshot.
    inlined_deletes: tuple[tuple[int, int], ...] = ()
    #: The columns of the table when the file began; defaults are what older files have for them.
    columns: tuple[Column, ...] = ()

    @cached_property
    def current_deletes(self) -> LiveDeletes | None:
        """The file that names all its deleted rows but the inlined ones."""
        return next((one for one in self.deletes if one.end_snapshot is None), None)

    @property
    def deleted_count(self) -> int:
        """How many of its rows are no longer there."""
        current = self.current_deletes
        return (current.count if current else 0) + len(self.inlined_deletes)


@dataclass(frozen=True)
class InlinedTable:
    """Rows of a table that are kept in the metadata, all of one version of its columns."""

    name: str
    rows: int
    #: The table when that version began; columns as in ``LiveFile``.
    layout: Table


#: Row id, the snapshots from which on a row is and is no longer there, and its values: texts that
#: DuckDB can cast, or bytes.
InlinedRow = tuple[Any, ...]


@dataclass(frozen=True)
class TableFiles:
    """A table and everything it consists of, at one snapshot."""

    table: Table
    #: In the order in which their rows came.
    files: tuple[LiveFile, ...] = ()
    inlined: tuple[InlinedTable, ...] = ()
    #: No snapshot before this one is kept.
    oldest_snapshot: int = 0

    @property
    def snapshot_id(self) -> int:
        """The snapshot at which this was read."""
        return self.table.snapshot_id

    @property
    def inlined_rows(self) -> int:
        """How many rows the metadata keeps, those that were deleted since included."""
        return sum(one.rows for one in self.inlined)


def read_files(connection: Connection, tables: CatalogTables, table_id: int) -> TableFiles:
    """A table and its files as they are; raises NotFound."""
    table = read_table_by_id(connection, tables, table_id)
    snapshot = tables.snapshot
    oldest = connection.execute(select(func.min(snapshot.c.snapshot_id))).scalar_one()
    columns = _Columns(connection, tables, table_id)
    deletes = _deletes(connection, tables, table)
    inlined_deletes = _inlined_deletes(connection, tables, table_id)
    values = _partition_values(connection, tables, table_id)
    data = tables.data_file
    rows = connection.execute(
        select(data)
        .where(data.c.table_id == table_id, data.c.end_snapshot.is_(None))
        .order_by(data.c.begin_snapshot, data.c.row_id_start, data.c.data_file_id)
    )
    files = tuple(
        LiveFile(
            row.data_file_id,
            _path(table, row),
            row.record_count,
            row.file_size_bytes,
            row.begin_snapshot,
            row.row_id_start,
            row.partition_id,
            tuple(values[row.data_file_id]),
            row.partial_max,
            row.mapping_id,
            row.file_format,
            row.encryption_key is not None,
            tuple(deletes[row.data_file_id]),
            tuple(inlined_deletes[row.data_file_id]),
            columns.at(row.begin_snapshot),
        )
        for row in rows
    )
    inlined = _inlined(connection, tables, table, columns)
    return TableFiles(table, files, inlined, int(oldest))


def read_files_at(
    connection: Connection, tables: CatalogTables, table: Table, paths: Iterable[str]
) -> dict[str, LiveFile]:
    """Of a table's files those at these paths, each with its deletes of now."""
    data, deletes = tables.data_file, tables.delete_file
    written = {path.removeprefix(table.directory) for path in paths} | set(paths)
    rows = connection.execute(
        select(data).where(
            data.c.table_id == table.id,
            data.c.end_snapshot.is_(None),
            data.c.path.in_(sorted(written)),
        )
    ).all()
    ids = [row.data_file_id for row in rows]
    current = connection.execute(
        select(deletes).where(deletes.c.data_file_id.in_(ids), deletes.c.end_snapshot.is_(None))
    )
    by_file = {row.data_file_id: (_live_deletes(table, row),) for row in current}
    inlined = _inlined_deletes(connection, tables, table.id)
    found = (
        LiveFile(
            row.data_file_id,
            _path(table, row),
            row.record_count,
            row.file_size_bytes,
            row.begin_snapshot,
            format=row.file_format,
            encrypted=row.encryption_key is not None,
            deletes=by_file.get(row.data_file_id, ()),
            inlined_deletes=tuple(inlined[row.data_file_id]),
        )
        for row in rows
    )
    return {file.path: file for file in found}


def read_inlined_rows(
    connection: Connection, tables: CatalogTables, name: str, at: int
) -> list[InlinedRow]:
    """The rows that a table of the metadata keeps, up to a snapshot, deleted ones included."""
    database = inspect_database(connection)
    if not database.has_table(name, schema=tables.schema_name):
        return []  # somebody folded them and removed it; a commit that is based on them will see
    found = database.get_columns(name, schema=tables.schema_name)
    inlined = lightweight_table(
        name, *(named_column(one["name"]) for one in found), schema=tables.schema_name
    )
    chosen = [
        inlined.c[one["name"]]
        # Drivers have types of their own for some values, which cannot hold all that DuckDB's can.
        if place < len(OWN_COLUMNS) or isinstance(one["type"], LargeBinary)
        else cast(inlined.c[one["name"]], String)
        for place, one in enumerate(found)
    ]
    rows = connection.execute(
        select(*chosen)
        .where(inlined.c.begin_snapshot <= at)
        .order_by(inlined.c.row_id, inlined.c.begin_snapshot)
    )
    return [tuple(row) for row in rows]


class _Columns:
    """The columns that a table had, at any time; those of two snapshots are often the same."""

    def __init__(self, connection: Connection, tables: CatalogTables, table_id: int) -> None:
        column = tables.column
        self._rows = connection.execute(
            select(column).where(column.c.table_id == table_id).order_by(column.c.column_order)
        ).all()
        self._known: dict[tuple[int, ...], tuple[Column, ...]] = {}

    def at(self, snapshot_id: int) -> tuple[Column, ...]:
        """The columns at a snapshot, each with the value that rows without it have."""
        seen = [row for row in self._rows if _sees(row, snapshot_id)]
        key = tuple(id(row) for row in seen)
        if key not in self._known:
            self._known[key] = column_tree(seen, _initial)
        return self._known[key]


def _sees(row: Row[Any], at: int) -> bool:
    return bool(row.begin_snapshot <= at and (row.end_snapshot is None or row.end_snapshot > at))


def _initial(row: Row[Any]) -> Default | None:
    """The value of rows that are older than the column."""
    return None if row.initial_default is None else Default(row.initial_default)


def _deletes(
    connection: Connection, tables: CatalogTables, table: Table
) -> dict[int, list[LiveDeletes]]:
    deletes = tables.delete_file
    found: dict[int, list[LiveDeletes]] = defaultdict(list)
    for row in connection.execute(
        select(deletes)
        .where(deletes.c.table_id == table.id)
        .order_by(deletes.c.begin_snapshot, deletes.c.delete_file_id)
    ):
        found[row.data_file_id].append(_live_deletes(table, row))
    return found


def _live_deletes(table: Table, row: Row[Any]) -> LiveDeletes:
    return LiveDeletes(
        row.delete_file_id,
        _path(table, row),
        row.delete_count,
        row.begin_snapshot,
        row.end_snapshot,
        row.partial_max,
        row.format,
    )


def _inlined_deletes(
    connection: Connection, tables: CatalogTables, table_id: int
) -> dict[int, list[tuple[int, int]]]:
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    inlined = deletes_table(tables, table_id)
    if inspect_database(connection).has_table(inlined.name, inlined.schema):
        for row in connection.execute(select(inlined).order_by(inlined.c.row_id)):
            found[row.file_id].append((row.row_id, row.begin_snapshot))
    return found


def _partition_values(
    connection: Connection, tables: CatalogTables, table_id: int
) -> dict[int, list[str | None]]:
    value = tables.file_partition_value
    found: dict[int, list[str | None]] = defaultdict(list)
    for row in connection.execute(
        select(value).where(value.c.table_id == table_id).order_by(value.c.partition_key_index)
    ):
        found[row.data_file_id].append(row.partition_value)
    return found


def _inlined(
    connection: Connection, tables: CatalogTables, table: Table, columns: _Columns
) -> tuple[InlinedTable, ...]:
    known, versions = tables.inlined_data_tables, tables.schema_versions
    rows = connection.execute(
        select(known.c.table_name, func.max(versions.c.begin_snapshot).label("begin_snapshot"))
        .join(
            versions,
            # One that was made for the first rows has a version of the schema to itself.
            (versions.c.schema_version <= known.c.schema_version)
            & (versions.c.table_id == known.c.table_id),
        )
        .where(known.c.table_id == table.id)
        .group_by(known.c.table_name, known.c.schema_version)
        .order_by(known.c.schema_version)
    ).all()
    return tuple(
        InlinedTable(row.table_name, count, _layout(connection, tables, table, columns, began))
        for row in rows
        for began in [row.begin_snapshot]
        if (count := _count(connection, tables, row.table_name, table.snapshot_id))
    )


def _layout(
    connection: Connection, tables: CatalogTables, table: Table, columns: _Columns, at: int
) -> Table:
    """The table as rows of a version of it were written, and sorted as it is now."""
    then = read_table_by_id(connection, tables, table.id, at)
    return replace(
        table,
        columns=columns.at(at),
        partition_id=then.partition_id,
        partition_keys=then.partition_keys,
    )


def _count(connection: Connection, tables: CatalogTables, name: str, at: int) -> int:
    inlined = inlined_table(tables, name)
    counted = select(func.count(literal_column("*"))).select_from(inlined)
    return int(connection.execute(counted.where(inlined.c.begin_snapshot <= at)).scalar_one())


def _path(table: Table, row: Row[Any]) -> str:
    return table.directory + str(row.path) if row.path_is_relative else str(row.path)

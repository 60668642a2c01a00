"""The files of a table, with all that compaction must know of them.

Everything is read in one transaction, so it is consistent; a commit that is based on it detects
later changes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, LargeBinary, Row, String, cast, func, literal_column, select
from sqlalchemy import column as named_column
from sqlalchemy import inspect as inspect_database
from sqlalchemy import table as lightweight_table

from swanlake.lake.files.inlined_tables import OWN_COLUMNS, deletes_table, inlined_table
from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.layout import Column, Default, Table
from swanlake.lake.model.table_files import (
    InlinedRow,
    InlinedTable,
    LiveDeletes,
    LiveFile,
    TableFiles,
)
from swanlake.lake.read.metadata import column_tree, read_table_by_id


def read_files(connection: Connection, tables: CatalogTables, table_id: int) -> TableFiles:
    """A table and its files at the head; raises NotFound."""
    table = read_table_by_id(connection, tables, table_id)
    snapshot = tables.snapshot
    oldest = connection.execute(select(func.min(snapshot.c.snapshot_id))).scalar_one()
    columns = _ColumnHistory(connection, tables, table_id)
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
            partial_max=row.partial_max,
            mapping_id=row.mapping_id,
            format=row.file_format,
            encrypted=row.encryption_key is not None,
            deletes=tuple(deletes[row.data_file_id]),
            inlined_deletes=tuple(inlined_deletes[row.data_file_id]),
            columns=columns.at(row.begin_snapshot),
        )
        for row in rows
    )
    inlined = _inlined(connection, tables, table, columns)
    return TableFiles(table, files, inlined, int(oldest))


def read_inlined_rows(
    connection: Connection, tables: CatalogTables, name: str, at: int
) -> list[InlinedRow]:
    """The rows of an inlined table up to a snapshot, deleted ones included."""
    database = inspect_database(connection)
    if not database.has_table(name, schema=tables.schema_name):
        return []  # flushed and dropped meanwhile: a commit based on these rows will conflict
    columns = database.get_columns(name, schema=tables.schema_name)
    inlined = lightweight_table(
        name, *(named_column(column["name"]) for column in columns), schema=tables.schema_name
    )
    chosen = [
        inlined.c[column["name"]]
        # Some of the drivers' types cannot hold all values of DuckDB's.
        if index < len(OWN_COLUMNS) or isinstance(column["type"], LargeBinary)
        else cast(inlined.c[column["name"]], String)
        for index, column in enumerate(columns)
    ]
    rows = connection.execute(
        select(*chosen)
        .where(inlined.c.begin_snapshot <= at)
        .order_by(inlined.c.row_id, inlined.c.begin_snapshot)
    )
    return [tuple(row) for row in rows]


class _ColumnHistory:
    """The columns of a table at any snapshot; cached, as they seldom change."""

    def __init__(self, connection: Connection, tables: CatalogTables, table_id: int) -> None:
        column = tables.column
        self._rows = connection.execute(
            select(column).where(column.c.table_id == table_id).order_by(column.c.column_order)
        ).all()
        self._known: dict[tuple[int, ...], tuple[Column, ...]] = {}

    def at(self, snapshot_id: int) -> tuple[Column, ...]:
        """The columns at a snapshot; defaults are the values of rows without the column."""
        seen = [row for row in self._rows if _is_visible(row, snapshot_id)]
        key = tuple(id(row) for row in seen)
        if key not in self._known:
            self._known[key] = column_tree(seen, _initial)
        return self._known[key]


def _is_visible(row: Row[Any], at: int) -> bool:
    return bool(row.begin_snapshot <= at and (row.end_snapshot is None or row.end_snapshot > at))


def _initial(row: Row[Any]) -> Default | None:
    """The value in rows that are older than the column."""
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
        delete_file = LiveDeletes(
            row.delete_file_id,
            _path(table, row),
            row.delete_count,
            row.begin_snapshot,
            row.end_snapshot,
            row.partial_max,
            row.format,
        )
        found[row.data_file_id].append(delete_file)
    return found


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
    connection: Connection, tables: CatalogTables, table: Table, columns: _ColumnHistory
) -> tuple[InlinedTable, ...]:
    known, versions = tables.inlined_data_tables, tables.schema_versions
    rows = connection.execute(
        select(known.c.table_name, func.max(versions.c.begin_snapshot).label("begin_snapshot"))
        .join(
            versions,
            # The one created with the first rows has a schema version of its own.
            (versions.c.schema_version <= known.c.schema_version)
            & (versions.c.table_id == known.c.table_id),
        )
        .where(known.c.table_id == table.id)
        .group_by(known.c.table_name, known.c.schema_version)
        .order_by(known.c.schema_version)
    ).all()
    found = []
    for name, began in rows:
        if count := _count(connection, tables, name, table.snapshot_id):
            layout = _layout(connection, tables, table, columns, began)
            found.append(InlinedTable(name, count, layout))
    return tuple(found)


def _layout(
    connection: Connection, tables: CatalogTables, table: Table, columns: _ColumnHistory, at: int
) -> Table:
    """The table with an older version of its columns and partitioning."""
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

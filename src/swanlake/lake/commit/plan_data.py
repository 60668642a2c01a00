"""Plans inserts and inlined deletes: data files, inlined rows and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy.schema import CreateTable as MakeTable

from swanlake.lake.commit.changes import ChangeType
from swanlake.lake.commit.draft import Draft, update_by
from swanlake.lake.commit.state import LiveTable
from swanlake.lake.files.inlined_tables import (
    deletes_table,
    end_statement,
    inlined_name,
    insert_statement,
    rows_table,
    value_key,
)
from swanlake.lake.model.layout import Column, ColumnStats, Table
from swanlake.lake.model.operations import (
    CreateTable,
    InlineDelete,
    InlineInsert,
    Insert,
    PlacedDeletes,
    PlacedFile,
)
from swanlake.lake.model.stats import TableColumnStats, merge


def add_files(draft: Draft, operation: Insert) -> None:
    """Adds data files, and updates the table's statistics."""
    if not operation.files:
        return
    live, types = _target(draft, operation.table)
    row_id = live.next_row_id
    for file in operation.files:
        partition_id = _partition_id(draft, operation, live.id)
        new = PlacedFile(file, draft.snapshot_id, row_id, partition_id=partition_id)
        add_data_file(draft, live.id, new)
        row_id += file.record_count
    live = _with_stats(live, types, *(file.column_stats for file in operation.files))
    size = live.file_size_bytes + sum(file.file_size_bytes for file in operation.files)
    new_rows = row_id - live.next_row_id
    _count_rows(draft, replace(live, file_size_bytes=size), new_rows, new_rows)
    draft.add_change(ChangeType.INSERTED, live.id)


def add_inlined_rows(draft: Draft, operation: InlineInsert) -> None:
    """Adds inlined rows, and updates the table's statistics."""
    if not operation.rows:
        return
    live, types = _target(draft, operation.table)
    columns = operation.table.columns
    if live.id not in draft.inlined_versions:
        create_inlined_tables(draft, live.id, columns)
    name = inlined_name(live.id, draft.inlined_versions[live.id])
    new_ids = 0 if operation.row_ids else len(operation.rows)
    row_ids = operation.row_ids or range(live.next_row_id, live.next_row_id + new_ids)
    rows = [
        {"row_id": row_id, "begin_snapshot": draft.snapshot_id, "end_snapshot": None}
        | {value_key(index): value for index, value in enumerate(values)}
        for row_id, values in zip(row_ids, operation.rows, strict=True)
    ]
    draft.add_write(insert_statement(draft.tables, name, columns), rows)
    live = _with_stats(live, types, operation.column_stats)
    _count_rows(draft, live, len(rows), new_ids)
    draft.new_file_id()  # of no file: clients cache table statistics by the next one
    draft.add_change(ChangeType.INLINED_INSERT, live.id)


def create_inlined_tables(draft: Draft, table_id: int, columns: tuple[Column, ...]) -> None:
    """Creates a table's inlined tables, for rows and for deletes from its files.

    They raise the schema version: clients that cached the old one would not read them. Without a
    table for deletes, the stock extension checks for one before every query.
    """
    draft.change_schema()
    version = draft.inlined_versions[table_id] = draft.schema_version
    inlined = rows_table(draft.tables, table_id, version, columns)
    for table in (inlined, deletes_table(draft.tables, table_id)):
        draft.add_write(MakeTable(table, if_not_exists=True))
    draft.add_row(
        draft.tables.inlined_data_tables,
        table_id=table_id,
        table_name=inlined.name,
        schema_version=version,
    )


def _with_stats(live: LiveTable, types: dict[int, str], *added: Sequence[ColumnStats]) -> LiveTable:
    """The table with the statistics of new rows merged in."""
    stats = dict(live.columns)
    for columns in added:
        for column in columns:
            # A column that was added later has no statistics: older rows may be outside its bounds.
            if column.column_id in stats or not live.has_stats:
                known = stats.get(column.column_id)
                stats[column.column_id] = merge(types[column.column_id], known, column)
    return replace(live, columns=stats)


def _count_rows(draft: Draft, live: LiveTable, rows: int, ids: int) -> None:
    """Adds rows, replacing ones included, and newly assigned row ids to the totals."""
    write_stats(
        draft,
        replace(live, record_count=live.record_count + rows, next_row_id=live.next_row_id + ids),
    )


def _target(draft: Draft, table: Table | CreateTable) -> tuple[LiveTable, dict[int, str]]:
    """The live table, and the types of its columns."""
    if isinstance(table, CreateTable):
        leaves = [leaf for column in table.columns for leaf in column.leaves()]
        table_id = draft.new_tables[table]
        live = draft.live_tables.get(table_id) or LiveTable(table_id, "", True)
    else:
        leaves = list(table.leaves())
        live = draft.live_table(table)
    return live, {leaf.id: leaf.type for leaf in leaves}


def _partition_id(draft: Draft, operation: Insert, table_id: int) -> int | None:
    if isinstance(operation.table, Table):
        return operation.table.partition_id
    made = draft.rows.get(draft.tables.partition_info, [])
    return next((row["partition_id"] for row in made if row["table_id"] == table_id), None)


def add_data_file(draft: Draft, table_id: int, placed: PlacedFile) -> None:
    """The rows of one data file: itself, its columns, its partition and its deletes."""
    file, file_id = placed.file, draft.new_file_id()
    draft.add_row(
        draft.tables.data_file,
        data_file_id=file_id,
        table_id=table_id,
        begin_snapshot=placed.begin_snapshot,
        end_snapshot=placed.end_snapshot,
        path=file.path,
        path_is_relative=True,
        file_format="parquet",
        record_count=file.record_count,
        file_size_bytes=file.file_size_bytes,
        footer_size=file.footer_size,
        row_id_start=placed.row_id_start,
        partition_id=placed.partition_id,
        partial_max=placed.partial_max,
    )
    for column in file.column_stats:
        draft.add_row(
            draft.tables.file_column_stats,
            data_file_id=file_id,
            table_id=table_id,
            **_file_stats(column),
        )
        for field in column.variant_fields:
            draft.add_row(
                draft.tables.file_variant_stats,
                data_file_id=file_id,
                table_id=table_id,
                variant_path=field.path,
                shredded_type=field.type,
                **_file_stats(field.stats),
            )
    for index, value in enumerate(file.partition_values):
        draft.add_row(
            draft.tables.file_partition_value,
            data_file_id=file_id,
            table_id=table_id,
            partition_key_index=index,
            partition_value=value,
        )
    if placed.deletes is not None:
        _add_delete_file(draft, table_id, file_id, placed.deletes, placed.end_snapshot)


def write_stats(draft: Draft, live: LiveTable) -> None:
    """Writes the statistics of a table."""
    before = draft.live_tables.get(live.id)
    draft.live_tables[live.id] = replace(live, has_stats=True)
    totals = {
        "record_count": live.record_count,
        "next_row_id": live.next_row_id,
        "file_size_bytes": live.file_size_bytes,
    }
    if not live.has_stats or live.id in draft.first_stats:
        draft.first_stats.add(live.id)
        for table in (draft.tables.table_stats, draft.tables.table_column_stats):
            if table in draft.rows:  # from an earlier insert of the same commit
                draft.rows[table] = [r for r in draft.rows[table] if r["table_id"] != live.id]
        draft.add_row(draft.tables.table_stats, table_id=live.id, **totals)
        for column in live.columns.values():
            draft.add_row(
                draft.tables.table_column_stats, table_id=live.id, **_column_stats(column)
            )
        return
    statement = update_by(draft.tables.table_stats, "table_id")
    draft.add_write(statement, [{"of_table_id": live.id, **totals}])
    merged = [
        {"of_table_id": live.id, "of_column_id": column.column_id, **_column_stats(column)}
        for column in live.columns.values()
        if before is None or before.columns.get(column.column_id) != column
    ]
    if merged:
        statement = update_by(draft.tables.table_column_stats, "table_id", "column_id")
        draft.add_write(statement, merged)


def delete_inlined_rows(draft: Draft, operation: InlineDelete) -> None:
    """Ends inlined rows; a conflict check ensures that none changed since the base."""
    if not operation.row_ids:
        return
    table = draft.live_table(operation.table)
    ended = [{"of_row_id": id, "end_snapshot": draft.snapshot_id} for id in operation.row_ids]
    draft.add_write(end_statement(draft.tables, operation.table_name), ended)
    draft.add_change(ChangeType.INLINED_DELETE, table.id)


def _add_delete_file(
    draft: Draft, table_id: int, data_file_id: int, placed: PlacedDeletes, end: int | None = None
) -> None:
    file = placed.file
    draft.add_row(
        draft.tables.delete_file,
        delete_file_id=draft.new_file_id(),
        table_id=table_id,
        begin_snapshot=placed.begin_snapshot,
        end_snapshot=end,
        data_file_id=data_file_id,
        path=file.path,
        path_is_relative=True,
        format="parquet",
        delete_count=file.delete_count,
        file_size_bytes=file.file_size_bytes,
        footer_size=file.footer_size,
        partial_max=placed.partial_max,
    )


def _file_stats(stats: ColumnStats) -> dict[str, Any]:
    return {
        "column_id": stats.column_id,
        "column_size_bytes": stats.size_bytes,
        "value_count": stats.value_count,
        "null_count": stats.null_count,
        "min_value": stats.min,
        "max_value": stats.max,
        "contains_nan": stats.contains_nan,
        "extra_stats": stats.extra,
    }


def _column_stats(stats: TableColumnStats) -> dict[str, Any]:
    return {
        "column_id": stats.column_id,
        "contains_null": stats.contains_null,
        "contains_nan": stats.contains_nan,
        "min_value": stats.min,
        "max_value": stats.max,
        "extra_stats": stats.extra,
    }

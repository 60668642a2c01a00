"""The rows of data files, rows in the metadata, deleted rows and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy.schema import CreateTable as MakeTable

from swanlake.errors import CommitConflict
from swanlake.lake.changes import Change, ChangeType
from swanlake.lake.draft import Draft, update_by
from swanlake.lake.inlined_tables import (
    deletes_table,
    ending,
    inlined_name,
    insertion,
    rows_table,
    value_key,
)
from swanlake.lake.layout import Column, ColumnStats, DataFile, DeleteFile, Table
from swanlake.lake.operations import CreateTable, Delete, InlineDelete, InlineInsert, Insert
from swanlake.lake.state import LiveTable
from swanlake.lake.stats import TableColumnStats, merge
from swanlake.lake.store import Write


def add_files(draft: Draft, operation: Insert) -> None:
    """New data files, with the table's statistics brought up to date."""
    if not operation.files:
        return
    live, types = _target(draft, operation.table)
    row_id = live.next_row_id
    for file in operation.files:
        add_data_file(
            draft,
            live.id,
            draft.new_file_id(),
            file,
            begin_snapshot=draft.snapshot_id,
            row_id_start=row_id,
            partition_id=_partition_id(draft, operation, live.id),
        )
        row_id += file.record_count
    live = _with_stats(live, types, *(file.column_stats for file in operation.files))
    size = live.file_size_bytes + sum(file.file_size_bytes for file in operation.files)
    new_rows = row_id - live.next_row_id
    _count_rows(draft, replace(live, file_size_bytes=size), new_rows, new_rows)
    draft.changed(Change(ChangeType.INSERTED, live.id))


def add_inlined_rows(draft: Draft, operation: InlineInsert) -> None:
    """New rows in the metadata, with the table's statistics brought up to date."""
    if not operation.rows:
        return
    live, types = _target(draft, operation.table)
    columns = operation.table.columns
    if live.id not in draft.inlined_versions:
        make_inlined_tables(draft, live.id, columns)
    name = inlined_name(live.id, draft.inlined_versions[live.id])
    new_ids = 0 if operation.row_ids else len(operation.rows)
    row_ids = operation.row_ids or range(live.next_row_id, live.next_row_id + new_ids)
    rows = [
        {"row_id": row_id, "begin_snapshot": draft.snapshot_id, "end_snapshot": None}
        | {value_key(place): value for place, value in enumerate(values)}
        for row_id, values in zip(row_ids, operation.rows, strict=True)
    ]
    draft.also(Write(insertion(draft.tables, name, columns), rows))
    live = _with_stats(live, types, operation.column_stats)
    _count_rows(draft, live, len(rows), new_ids)
    draft.new_file_id()  # of no file: clients keep table statistics by it
    draft.changed(Change(ChangeType.INLINED_INSERT, live.id))


def make_inlined_tables(draft: Draft, table_id: int, columns: tuple[Column, ...]) -> None:
    """Tables of the metadata for rows of a table, and for deletes from its files.

    They are a new version of the schema: clients that keep the old one would not look into them.
    Without a table for deletes the stock extension asks before every query whether there is one.
    """
    draft.change_schema()
    version = draft.inlined_versions[table_id] = draft.schema_version
    made = rows_table(draft.tables, table_id, version, columns)
    for table in (made, deletes_table(draft.tables, table_id)):
        draft.also(Write(MakeTable(table, if_not_exists=True)))
    draft.add(
        draft.tables.inlined_data_tables,
        table_id=table_id,
        table_name=made.name,
        schema_version=version,
    )


def _with_stats(live: LiveTable, types: dict[int, str], *added: Sequence[ColumnStats]) -> LiveTable:
    """The table with what is known of new rows; of each file, or of what else they came in."""
    stats = dict(live.columns)
    for columns in added:
        for column in columns:
            # A column that was added later has no row: older rows may lie outside its bounds.
            if column.column_id in stats or not live.has_stats:
                known = stats.get(column.column_id)
                stats[column.column_id] = merge(types[column.column_id], known, column)
    return replace(live, columns=stats)


def _count_rows(draft: Draft, live: LiveTable, rows: int, ids: int) -> None:
    """Rows that came, those in place of others included, and the ids that were given to them."""
    write_stats(
        draft,
        replace(live, record_count=live.record_count + rows, next_row_id=live.next_row_id + ids),
    )


def _target(draft: Draft, table: Table | CreateTable) -> tuple[LiveTable, dict[int, str]]:
    """The table as it is now, and the types of its columns."""
    if isinstance(table, CreateTable):
        leaves = [leaf for column in table.columns for leaf in column.leaves()]
        table_id = draft.new_tables[table]
        live = draft.live_tables.get(table_id) or LiveTable(table_id, "", True)
    else:
        leaves = list(table.leaves())
        live = draft.live(table)
    return live, {leaf.id: leaf.type for leaf in leaves}


def _partition_id(draft: Draft, operation: Insert, table_id: int) -> int | None:
    if isinstance(operation.table, Table):
        return operation.table.partition_id
    made = draft.rows.get(draft.tables.partition_info, [])
    return next((row["partition_id"] for row in made if row["table_id"] == table_id), None)


def add_data_file(
    draft: Draft,
    table_id: int,
    file_id: int,
    file: DataFile,
    *,
    begin_snapshot: int,
    row_id_start: int | None,
    partition_id: int | None,
    partial_max: int | None = None,
    end_snapshot: int | None = None,
) -> None:
    """The rows of one data file: itself, its columns and its partition."""
    draft.add(
        draft.tables.data_file,
        data_file_id=file_id,
        table_id=table_id,
        begin_snapshot=begin_snapshot,
        end_snapshot=end_snapshot,
        file_order=None,
        path=file.path,
        path_is_relative=True,
        file_format="parquet",
        record_count=file.record_count,
        file_size_bytes=file.file_size_bytes,
        footer_size=file.footer_size,
        row_id_start=row_id_start,
        partition_id=partition_id,
        encryption_key=None,
        mapping_id=None,
        partial_max=partial_max,
    )
    for column in file.column_stats:
        draft.add(
            draft.tables.file_column_stats,
            data_file_id=file_id,
            table_id=table_id,
            column_id=column.column_id,
            column_size_bytes=column.size_bytes,
            value_count=column.value_count,
            null_count=column.null_count,
            min_value=column.min,
            max_value=column.max,
            contains_nan=column.contains_nan,
            extra_stats=column.extra,
        )
    for index, value in enumerate(file.partition_values):
        draft.add(
            draft.tables.file_partition_value,
            data_file_id=file_id,
            table_id=table_id,
            partition_key_index=index,
            partition_value=value,
        )


def write_stats(draft: Draft, live: LiveTable) -> None:
    """What is now known of all rows of a table."""
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
        draft.add(draft.tables.table_stats, table_id=live.id, **totals)
        for column in live.columns.values():
            draft.add(draft.tables.table_column_stats, table_id=live.id, **_column_stats(column))
        return
    draft.also(
        Write(update_by(draft.tables.table_stats, "table_id"), [{"of_table_id": live.id, **totals}])
    )
    merged = [
        {"of_table_id": live.id, "of_column_id": column.column_id, **_column_stats(column)}
        for column in live.columns.values()
        if before is None or before.columns.get(column.column_id) != column
    ]
    if merged:
        statement = update_by(draft.tables.table_column_stats, "table_id", "column_id")
        draft.also(Write(statement, merged))


def delete_rows(draft: Draft, operation: Delete) -> None:
    """New files of deleted rows, and data files that end."""
    if not operation.files and not operation.dropped:
        return
    table = draft.live(operation.table)
    for deleted in operation.files:
        draft.live_file(operation.table, deleted.data_file_id)
        current = draft.state.delete_files.get(deleted.data_file_id)
        if current != deleted.replaces:
            raise CommitConflict(
                f"Cannot delete from the table {operation.table.full_name}: data file "
                f"{deleted.data_file_id} has another delete file ({current}) than the one that "
                f"was read ({deleted.replaces}). Read the table again and repeat it."
            )
        if current is not None:
            draft.end(
                draft.tables.delete_file, draft.tables.delete_file.c.delete_file_id == current
            )
        add_delete_file(
            draft, table.id, deleted.data_file_id, deleted.file, begin_snapshot=draft.snapshot_id
        )
    for file_id in operation.dropped:
        draft.live_file(operation.table, file_id)
        draft.end(draft.tables.data_file, draft.tables.data_file.c.data_file_id == file_id)
        draft.end(draft.tables.delete_file, draft.tables.delete_file.c.data_file_id == file_id)
    draft.changed(Change(ChangeType.DELETED, table.id))
    if operation.excludes_inlined:
        draft.changed(Change(ChangeType.INLINED_DELETE, table.id))


def delete_inlined_rows(draft: Draft, operation: InlineDelete) -> None:
    """Rows in the metadata that end; nobody has touched any of the table's since the base."""
    if not operation.row_ids:
        return
    table = draft.live(operation.table)
    ended = [{"of_row_id": id, "end_snapshot": draft.snapshot_id} for id in operation.row_ids]
    draft.also(Write(ending(draft.tables, operation.table_name), ended))
    draft.changed(Change(ChangeType.INLINED_DELETE, table.id))


def add_delete_file(
    draft: Draft,
    table_id: int,
    data_file_id: int,
    file: DeleteFile,
    *,
    begin_snapshot: int,
    end_snapshot: int | None = None,
    partial_max: int | None = None,
) -> None:
    """The row of one file of deleted rows."""
    draft.add(
        draft.tables.delete_file,
        delete_file_id=draft.new_file_id(),
        table_id=table_id,
        begin_snapshot=begin_snapshot,
        end_snapshot=end_snapshot,
        data_file_id=data_file_id,
        path=file.path,
        path_is_relative=True,
        format="parquet",
        delete_count=file.delete_count,
        file_size_bytes=file.file_size_bytes,
        footer_size=file.footer_size,
        encryption_key=None,
        partial_max=partial_max,
    )


def _column_stats(stats: TableColumnStats) -> dict[str, Any]:
    return {
        "column_id": stats.column_id,
        "contains_null": stats.contains_null,
        "contains_nan": stats.contains_nan,
        "min_value": stats.min,
        "max_value": stats.max,
        "extra_stats": stats.extra,
    }

"""Plans compactions: other files, and the same rows in every snapshot.

Replaced files leave the catalog at once, as in a merge by the stock extension; no snapshot needs
them. Rewrites differ from the stock extension in two ways:

- It ends the old files and adds new ones, so its change feed shows an update of every
  remaining row. Here the new files replace the old ones in the past.
- It narrows the table's statistics to the remaining rows. Its optimizer trusts them for time travel
  and the change feed too, which read the other rows, and returns wrong values: an ORDER BY on a
  column that was 0 and now is at least 4 returns 256 for it. Here they are never narrowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, delete
from sqlalchemy import Table as SqlTable

from swanlake.errors import CommitConflict, InvalidRequest
from swanlake.lake.commit.changes import ChangeType
from swanlake.lake.commit.draft import Draft
from swanlake.lake.commit.plan_data import add_data_file, write_stats
from swanlake.lake.commit.state import LiveTable
from swanlake.lake.files.inlined_tables import deletes_table, inlined_table
from swanlake.lake.metastore.tables import batches
from swanlake.lake.model.layout import DataFile, Table
from swanlake.lake.model.operations import FlushInlined, Merge, PlacedFile, Rewrite
from swanlake.lake.model.stats import merge

#: The tables with rows of a data file.
_PARTS = ("data_file", "file_column_stats", "file_variant_stats", "file_partition_value")


def merge_files(draft: Draft, operation: Merge) -> None:
    """One file replaces several, in every snapshot that saw them."""
    table = draft.live_table(operation.table)
    sources = [draft.live_file(operation.table, file_id) for file_id in operation.sources]
    for source in sources:
        if (
            source.data_file_id in draft.state.delete_files
            or source.data_file_id in draft.state.inlined_deletes
        ):
            raise CommitConflict(
                f"Cannot merge files of the table {operation.table.full_name}: rows were "
                f"deleted from data file {source.data_file_id}. Read the table again and repeat it."
            )
    _remove_files(draft, table, sources)
    merged = PlacedFile(
        operation.file,
        operation.begin_snapshot,
        operation.row_id_start,
        operation.partial_max,
        partition_id=_one_partition(operation.table, sources),
    )
    add_data_file(draft, table.id, merged)
    _compacted(draft, table.id, ChangeType.MERGE_ADJACENT)


def rewrite_files(draft: Draft, operation: Rewrite) -> None:
    """Files without deleted rows replace files with them, in every snapshot."""
    table = draft.live_table(operation.table)
    sources = []
    for read in operation.sources:
        sources.append(draft.live_file(operation.table, read.data_file_id))
        current = draft.state.delete_files.get(read.data_file_id)
        if current != read.delete_file_id:
            raise CommitConflict(
                f"Cannot rewrite files of the table {operation.table.full_name}: data file "
                f"{read.data_file_id} has another delete file ({current}) than the one that was "
                f"read ({read.delete_file_id}). Read the table again and repeat it."
            )
    _remove_files(draft, table, sources)
    ids = {source.data_file_id for source in sources}
    _remove_deletes(draft, table, ids)
    for placed in operation.files:
        add_data_file(draft, table.id, placed)
    now = [placed.file for placed in operation.files if placed.end_snapshot is None]
    rows = table.record_count - sum(source.record_count for source in sources)
    size = table.file_size_bytes - sum(source.file_size_bytes for source in sources)
    # A fork has its parent's totals, which a rewrite of the parent may have made too small. The
    # stock extension cannot read a table with a negative total.
    write_stats(
        draft,
        replace(
            table,
            record_count=max(rows, 0) + sum(file.record_count for file in now),
            file_size_bytes=max(size, 0) + sum(file.file_size_bytes for file in now),
        ),
    )
    _compacted(draft, table.id, ChangeType.REWRITE_DELETE)


def flush_inlined_rows(draft: Draft, operation: FlushInlined) -> None:
    """Files replace inlined rows, in every snapshot that saw them."""
    table = draft.live_table(operation.table)
    for rows in operation.inlined:
        if draft.state.inlined_rows.get(rows.table_name) != rows.count:
            raise CommitConflict(
                f"Cannot flush the inlined rows of the table {operation.table.full_name}: "
                f"{rows.table_name} has changed since it was read. Read the table again and "
                "repeat it."
            )
        inlined = inlined_table(draft.tables, rows.table_name)
        known = inlined.c.begin_snapshot <= operation.table.snapshot_id
        draft.add_write(delete(inlined).where(known))
    for placed in operation.files:
        add_data_file(draft, table.id, placed)
    now = [placed.file for placed in operation.files if placed.end_snapshot is None]
    write_stats(draft, _with_files(table, operation.table, now))
    draft.add_change(ChangeType.INLINE_FLUSH, table.id)


def _compacted(draft: Draft, table_id: int, change: ChangeType) -> None:
    draft.add_change(change, table_id)
    # The stock extension does not check its inlined deletes against compactions: they would name
    # a replaced file and be lost. It does check against this change, and fails.
    draft.add_change(ChangeType.INLINE_FLUSH, table_id)


def _one_partition(table: Table, sources: Sequence[Row[Any]]) -> int | None:
    partitions = {source.partition_id for source in sources}
    if len(partitions) > 1:
        raise InvalidRequest(
            f"Files of different partitionings of the table {table.full_name} cannot be merged."
        )
    return next(iter(partitions), None)


def _remove_files(draft: Draft, table: LiveTable, sources: Sequence[Row[Any]]) -> None:
    """Removes data files from the catalog and lists them for deletion."""
    for source in sources:
        _schedule(draft, table, source.data_file_id, source)
    for name in _PARTS:
        _remove(draft, getattr(draft.tables, name), (source.data_file_id for source in sources))


def _remove_deletes(draft: Draft, table: LiveTable, ids: set[int]) -> None:
    """Removes the deletes of data files, in delete files and inlined, from the catalog."""
    for file in draft.state.all_delete_files:
        if file.data_file_id in ids:
            _schedule(draft, table, file.delete_file_id, file)
    _remove(draft, draft.tables.delete_file, ids)
    inlined = deletes_table(draft.tables, table.id)
    for batch in batches(sorted(ids & draft.state.inlined_deletes)):
        draft.add_write(delete(inlined).where(inlined.c.file_id.in_(batch)))


def _remove(draft: Draft, part: SqlTable, ids: Iterable[int]) -> None:
    for batch in batches(sorted(ids)):
        draft.add_write(delete(part).where(part.c.data_file_id.in_(batch)))


def _schedule(draft: Draft, table: LiveTable, file_id: int, file: Row[Any]) -> None:
    is_absolute = not file.path_is_relative
    draft.add_row(
        draft.tables.files_scheduled_for_deletion,
        data_file_id=file_id,
        path=file.path if is_absolute else table.path + file.path,
        path_is_relative=not is_absolute and table.path_is_relative,
    )


def _with_files(live: LiveTable, table: Table, files: Iterable[DataFile]) -> LiveTable:
    """The table's statistics with new files, whose rows were counted when they were inlined."""
    types = {leaf.id: leaf.type for leaf in table.leaves()}
    columns = dict(live.columns)
    size = live.file_size_bytes
    for file in files:
        size += file.file_size_bytes
        for column in file.column_stats:
            if column.column_id in columns and column.column_id in types:
                known = columns[column.column_id]
                columns[column.column_id] = merge(types[column.column_id], known, column)
    return replace(live, file_size_bytes=size, columns=columns)

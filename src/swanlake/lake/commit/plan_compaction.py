"""The rows of compactions: other files, and in every snapshot the same rows.

Files that are replaced leave the catalog at once, as in a merge by the stock extension; no snapshot
needs them. What the stock extension does otherwise when it rewrites files is not taken over:

- It ends the old files and begins new ones, and its change feed then shows an update of every row
  that was kept. Here new files take their places in the past.
- It narrows the statistics of the table to the rows that are left. Its optimizer trusts them for
  time travel and the change feed too, which read the others, and gives wrong values: an ORDER BY on
  a column that was 0 before and is at least 4 now returns 256 for it. Here they stay as wide.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row, delete
from sqlalchemy import Table as SqlTable

from swanlake.errors import CommitConflict, InvalidRequest
from swanlake.lake.changes import Change, ChangeType
from swanlake.lake.draft import Draft
from swanlake.lake.inlined_tables import deletes_table, inlined_table
from swanlake.lake.layout import DataFile, Table
from swanlake.lake.operations import Fold, Merge, PlacedFile, Rewrite
from swanlake.lake.plan_data import add_data_file, add_delete_file, write_stats
from swanlake.lake.state import LiveTable
from swanlake.lake.stats import merge
from swanlake.lake.store import Write

#: What the catalog knows of a data file by its id.
_PARTS = ("data_file", "file_column_stats", "file_variant_stats", "file_partition_value")
#: Databases limit how many parameters a statement takes.
_IDS_AT_ONCE = 500


def merge_files(draft: Draft, operation: Merge) -> None:
    """One file in the place of several, in every snapshot that saw them."""
    table = draft.live(operation.table)
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
    _forget(draft, table, sources)
    add_data_file(
        draft,
        table.id,
        draft.new_file_id(),
        operation.file,
        begin_snapshot=operation.begin_snapshot,
        row_id_start=operation.row_id_start,
        partition_id=_one_partition(operation.table, sources),
        partial_max=operation.partial_max,
    )
    _compacted(draft, table.id, ChangeType.MERGE_ADJACENT)


def rewrite_files(draft: Draft, operation: Rewrite) -> None:
    """Files without deleted rows in the place of some with them, in every snapshot."""
    table = draft.live(operation.table)
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
    _forget(draft, table, sources)
    ids = {source.data_file_id for source in sources}
    _forget_deletes(draft, table, ids)
    for placed in operation.files:
        _place(draft, table, placed)
    now = [placed.file for placed in operation.files if placed.end_snapshot is None]
    rows = table.record_count - sum(source.record_count for source in sources)
    size = table.file_size_bytes - sum(source.file_size_bytes for source in sources)
    # A fork has the numbers of its parent, whose rewrites may have left less than the fork still
    # sees. The stock extension cannot read a table with a negative one at all.
    write_stats(
        draft,
        replace(
            table,
            record_count=max(rows, 0) + sum(file.record_count for file in now),
            file_size_bytes=max(size, 0) + sum(file.file_size_bytes for file in now),
        ),
    )
    _compacted(draft, table.id, ChangeType.REWRITE_DELETE)


def fold_rows(draft: Draft, operation: Fold) -> None:
    """Files in the place of rows that the metadata kept."""
    table = draft.live(operation.table)
    for rows in operation.inlined:
        if draft.state.inlined_rows.get(rows.table_name) != rows.count:
            raise CommitConflict(
                f"Cannot fold the inlined rows of the table {operation.table.full_name}: others "
                f"are in {rows.table_name} than those that were read. Read the table again and "
                "repeat it."
            )
        inlined = inlined_table(draft.tables, rows.table_name)
        known = inlined.c.begin_snapshot <= operation.table.snapshot_id
        draft.also(Write(delete(inlined).where(known)))
    for placed in operation.files:
        _place(draft, table, placed)
    now = [placed.file for placed in operation.files if placed.end_snapshot is None]
    write_stats(draft, _with_files(table, operation.table, now))
    draft.changed(Change(ChangeType.INLINE_FLUSH, table.id))


def _compacted(draft: Draft, table_id: int, change: ChangeType) -> None:
    draft.changed(Change(change, table_id))
    # A delete that the stock extension inlines does not look for compactions, names a file that is
    # no longer there and is lost. It does look for this one, and fails.
    draft.changed(Change(ChangeType.INLINE_FLUSH, table_id))


def _one_partition(table: Table, sources: Sequence[Row[Any]]) -> int | None:
    partitions = {source.partition_id for source in sources}
    if len(partitions) > 1:
        raise InvalidRequest(
            f"Files of different partitionings of the table {table.full_name} cannot be merged."
        )
    return next(iter(partitions), None)


def _forget(draft: Draft, table: LiveTable, sources: Sequence[Row[Any]]) -> None:
    """Takes data files out of the catalog; they are deleted when nobody reads them any more."""
    for source in sources:
        _schedule(draft, table, source.data_file_id, source)
    for name in _PARTS:
        _remove(draft, getattr(draft.tables, name), (source.data_file_id for source in sources))


def _forget_deletes(draft: Draft, table: LiveTable, ids: set[int]) -> None:
    """Takes everything that says which rows of data files are deleted out of the catalog."""
    for file in draft.state.all_delete_files:
        if file.data_file_id in ids:
            _schedule(draft, table, file.delete_file_id, file)
    _remove(draft, draft.tables.delete_file, ids)
    inlined = deletes_table(draft.tables, table.id)
    for some in _some_at_once(ids & draft.state.inlined_deletes):
        draft.also(Write(delete(inlined).where(inlined.c.file_id.in_(some))))


def _remove(draft: Draft, part: SqlTable, ids: Iterable[int]) -> None:
    for some in _some_at_once(ids):
        draft.also(Write(delete(part).where(part.c.data_file_id.in_(some))))


def _some_at_once(ids: Iterable[int]) -> Iterator[list[int]]:
    every = sorted(ids)
    for start in range(0, len(every), _IDS_AT_ONCE):
        yield every[start : start + _IDS_AT_ONCE]


def _schedule(draft: Draft, table: LiveTable, file_id: int, file: Row[Any]) -> None:
    whole = not file.path_is_relative
    draft.add(
        draft.tables.files_scheduled_for_deletion,
        data_file_id=file_id,
        path=file.path if whole else table.path + file.path,
        path_is_relative=not whole and table.path_is_relative,
    )


def _place(draft: Draft, table: LiveTable, placed: PlacedFile) -> None:
    file_id = draft.new_file_id()
    add_data_file(
        draft,
        table.id,
        file_id,
        placed.file,
        begin_snapshot=placed.begin_snapshot,
        row_id_start=placed.row_id_start,
        partition_id=placed.partition_id,
        partial_max=placed.partial_max,
        end_snapshot=placed.end_snapshot,
    )
    if placed.deletes is not None:
        add_delete_file(
            draft,
            table.id,
            file_id,
            placed.deletes.file,
            begin_snapshot=placed.deletes.begin_snapshot,
            end_snapshot=placed.end_snapshot,
            partial_max=placed.deletes.partial_max,
        )


def _with_files(live: LiveTable, table: Table, files: Iterable[DataFile]) -> LiveTable:
    """The statistics of a table whose rows were counted when they were inlined."""
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

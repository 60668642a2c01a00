"""Decides what to compact: a pure function over the files of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from swanlake.lake.model.layout import Column, Table, TableOptions, folded
from swanlake.lake.model.table_files import InlinedTable, LiveFile, TableFiles

#: Internal columns of rows under compaction: the snapshot that deleted the row, the file it is from
#: and its position there.
DELETED_AT, SOURCE, POSITION = "_swanlake_dead", "_swanlake_source", "_swanlake_place"
#: The number of a deleted version of a row, from 1.
VERSION = "_swanlake_version"
INTERNAL_NAMES = frozenset({DELETED_AT, SOURCE, POSITION, VERSION})


@dataclass(frozen=True)
class CompactOptions:
    """When files are worth compacting."""

    target_file_size: int = 512 * 1024 * 1024
    #: Files of at least this fraction of the target size are not merged.
    small_file_ratio: float = 0.75
    #: Files with at least this fraction of deleted rows are rewritten.
    deleted_ratio: float = 0.25
    #: At most this many files are merged, and as many rewritten, in one run.
    max_files: int = 10_000

    def for_table(self, table: TableOptions) -> CompactOptions:
        """The options with the overrides of a table."""
        ratio = table.deleted_ratio
        return replace(
            self,
            target_file_size=table.target_file_size or self.target_file_size,
            deleted_ratio=self.deleted_ratio if ratio is None else ratio,
        )


@dataclass(frozen=True)
class SkippedFile:
    """A file that cannot be compacted, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True)
class FileGroup:
    """Files that become one file, in the order of their rows."""

    files: tuple[LiveFile, ...]

    @property
    def rows(self) -> int:
        """The number of rows that remain."""
        return sum(file.record_count - file.deleted_count for file in self.files)

    @property
    def size_bytes(self) -> int:
        """The estimated size of the new file."""
        return sum(_remaining_bytes(file) for file in self.files)


@dataclass(frozen=True)
class CompactionPlan:
    """Files to merge, files to rewrite without their deleted rows, and inlined rows to flush."""

    merges: tuple[FileGroup, ...] = ()
    rewrites: tuple[FileGroup, ...] = ()
    inlined: tuple[InlinedTable, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.merges or self.rewrites or self.inlined)


def _table_obstacle(table: Table) -> str | None:
    """Why no file of a table can be compacted; None if they can."""
    if table.encrypted:
        return "encrypted files cannot be written"
    if conflicts := {folded(column.name) for column in table.columns} & INTERNAL_NAMES:
        return f"compaction needs the name of its column {conflicts.pop()}"
    return None


def plan_compaction(table: TableFiles, options: CompactOptions) -> CompactionPlan:
    """The plan for the files of a table.

    Files are merged only if they are of one partition and have columns of the same ids and types.
    A file serves all snapshots that see its rows, and in older ones a column that was dropped or
    changed its type since is still there.
    """
    if (obstacle := _table_obstacle(table.table)) is not None:
        return CompactionPlan(skipped=(SkippedFile(table.table.directory, obstacle),))
    options = options.for_table(table.table.options)
    usable, skipped = [], []
    for file in table.files:
        reason = _file_obstacle(file)
        if reason is None:
            usable.append(file)
        elif _is_small(file, options) or file.deleted_count:
            skipped.append(SkippedFile(file.path, reason))
    # Independent of each other: if rewrites used what merges leave, a run would do more than its
    # dry run lists.
    merges = _limited(_merges(usable, options), options.max_files)
    rewrites = _limited(_rewrites(usable, options), options.max_files)
    inlined = tuple(rows for rows in table.inlined if rows.rows)
    return CompactionPlan(tuple(merges), tuple(rewrites), inlined, tuple(skipped))


def _file_obstacle(file: LiveFile) -> str | None:
    """Why a file cannot be compacted; None if it can."""
    if file.encrypted:
        return "it is encrypted"
    if file.format != "parquet":
        return f"it is a {file.format} file"
    if file.mapping_id is not None:
        return "it was added by name, and its columns have no ids"
    for deletes in file.deletes:
        if deletes.format != "parquet":
            return f"its deleted rows are in a {deletes.format} file"
    return None


def _is_small(file: LiveFile, options: CompactOptions) -> bool:
    return file.size_bytes < options.small_file_ratio * options.target_file_size


def _merges(files: Iterable[LiveFile], options: CompactOptions) -> Iterator[FileGroup]:
    small = (file for file in files if _is_small(file, options) and not file.deleted_count)
    for group in _groups(small, options):
        if len(group.files) > 1:
            yield group


def _rewrites(files: Iterable[LiveFile], options: CompactOptions) -> Iterator[FileGroup]:
    with_deletes = (
        file
        for file in files
        if file.deleted_count and file.deleted_count >= options.deleted_ratio * file.record_count
    )
    return _groups(with_deletes, options)


def _groups(files: Iterable[LiveFile], options: CompactOptions) -> Iterator[FileGroup]:
    """Groups files that may become one, each up to the target size.

    No group exceeds the file limit of a run: it would never be processed.
    """
    by_shape: dict[tuple[Any, ...], list[LiveFile]] = {}
    for file in files:
        shape = (file.partition_id, file.partition_values, _shape(file.columns))
        by_shape.setdefault(shape, []).append(file)
    for mergeable in by_shape.values():
        group: list[LiveFile] = []
        size = 0
        for file in mergeable:
            is_full = size + _remaining_bytes(file) > options.target_file_size
            if group and (is_full or len(group) >= options.max_files):
                yield FileGroup(tuple(group))
                group, size = [], 0
            group.append(file)
            size += _remaining_bytes(file)
        if group:
            yield FileGroup(tuple(group))


def _limited(groups: Iterable[FileGroup], max_files: int) -> Iterator[FileGroup]:
    for group in groups:
        max_files -= len(group.files)
        if max_files < 0:
            return
        yield group


def _remaining_bytes(file: LiveFile) -> int:
    if not file.deleted_count:
        return file.size_bytes
    return file.size_bytes * (file.record_count - file.deleted_count) // max(file.record_count, 1)


def _shape(columns: Iterable[Column]) -> tuple[Any, ...]:
    """The columns of a file without their names: a renamed column is the same column."""
    return tuple((column.id, column.type, _shape(column.children)) for column in columns)

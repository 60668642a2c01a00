"""What to compact: a decision over the files of a table, without any I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from swanlake.lake.layout import Column, Table, TableOptions, folded
from swanlake.lake.live_files import InlinedTable, LiveFile, TableFiles

#: How the rows that are compacted carry along what is not in their columns: when they died, and
#: from which file and which place of it they are.
DEAD, SOURCE, PLACE = "_swanlake_dead", "_swanlake_source", "_swanlake_place"
#: Which of the deleted versions of a row it is, from 1 on.
VERSION = "_swanlake_version"
INTERNAL_NAMES = frozenset({DEAD, SOURCE, PLACE, VERSION})


@dataclass(frozen=True)
class CompactOptions:
    """When files are worth the work."""

    #: How large merged files become, in bytes.
    target_file_size: int = 512 * 1024 * 1024
    #: Files of at least this part of the target size are left alone.
    small_file_ratio: float = 0.75
    #: Fewer small files than this are not merged.
    min_files: int = 2
    #: Files of which at least this part of the rows is deleted are rewritten.
    deleted_ratio: float = 0.25
    #: Fewer rows than this stay in the metadata.
    min_inlined_rows: int = 1
    #: No more files than this are merged, and no more rewritten, in one go.
    max_files: int = 10_000

    def of(self, table: TableOptions) -> CompactOptions:
        """With what a table's own options say."""
        return replace(
            self,
            target_file_size=table.target_file_size or self.target_file_size,
            deleted_ratio=self.deleted_ratio
            if table.deleted_ratio is None
            else table.deleted_ratio,
        )


@dataclass(frozen=True)
class Skipped:
    """A file that cannot be compacted, and why."""

    path: str
    reason: str


@dataclass(frozen=True)
class Group:
    """Files that become one, in the order of their rows."""

    files: tuple[LiveFile, ...]

    @property
    def rows(self) -> int:
        """How many rows there will be."""
        return sum(file.record_count - file.deleted_count for file in self.files)

    @property
    def size_bytes(self) -> int:
        """About how large it will be."""
        return sum(_remaining_bytes(file) for file in self.files)


@dataclass(frozen=True)
class CompactionPlan:
    """Files to merge, files to rewrite without their deleted rows, and inlined rows to fold in."""

    merges: tuple[Group, ...] = ()
    rewrites: tuple[Group, ...] = ()
    folds: tuple[InlinedTable, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.merges or self.rewrites or self.folds)


def _obstacle_of_all(table: Table) -> str | None:
    """Why nothing of a table can be compacted, if that is so."""
    if table.encrypted:
        return "encrypted files cannot be written"
    if taken := {folded(column.name) for column in table.columns} & INTERNAL_NAMES:
        return f"compaction needs the name of its column {taken.pop()}"
    return None


def plan_compaction(table: TableFiles, options: CompactOptions) -> CompactionPlan:
    """What to do with the files of a table.

    Files become one only if they are of one partition and have the same columns with the same
    types, whatever the names: a file must give its rows to every snapshot that sees them, and a
    column that was dropped or had another type then is still there in those.
    """
    if (obstacle := _obstacle_of_all(table.table)) is not None:
        return CompactionPlan(skipped=(Skipped(table.table.directory, obstacle),))
    options = options.of(table.table.options)
    usable, skipped = [], []
    for file in table.files:
        reason = _obstacle(file)
        if reason is None:
            usable.append(file)
        elif _is_small(file, options) or file.deleted_count:
            skipped.append(Skipped(file.path, reason))
    # Each by itself: were rewrites to get what merges leave, a run would do more than it lists.
    merges = _limited(_merges(usable, options), options.max_files)
    rewrites = _limited(_rewrites(usable, options), options.max_files)
    folds = tuple(one for one in table.inlined if one.rows)
    if table.inlined_rows < options.min_inlined_rows:
        folds = ()
    return CompactionPlan(tuple(merges), tuple(rewrites), folds, tuple(skipped))


def _obstacle(file: LiveFile) -> str | None:
    """Why a file cannot be read here; None if it can."""
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


def _merges(files: Iterable[LiveFile], options: CompactOptions) -> Iterator[Group]:
    small = (file for file in files if _is_small(file, options) and not file.deleted_count)
    for group in _groups(small, options):
        if len(group.files) >= max(2, options.min_files):
            yield group


def _rewrites(files: Iterable[LiveFile], options: CompactOptions) -> Iterator[Group]:
    worn = (
        file
        for file in files
        if file.deleted_count and file.deleted_count >= options.deleted_ratio * file.record_count
    )
    return _groups(worn, options)


def _groups(files: Iterable[LiveFile], options: CompactOptions) -> Iterator[Group]:
    """Files that may become one, filled up to the target size one after the other.

    No group is larger than what may be taken in one go, or it never would be.
    """
    by_kind: dict[tuple[Any, ...], list[LiveFile]] = {}
    for file in files:
        kind = (file.partition_id, file.partition_values, _shape(file.columns))
        by_kind.setdefault(kind, []).append(file)
    for alike in by_kind.values():
        some: list[LiveFile] = []
        size = 0
        for file in alike:
            full = size + _remaining_bytes(file) > options.target_file_size
            if some and (full or len(some) >= options.max_files):
                yield Group(tuple(some))
                some, size = [], 0
            some.append(file)
            size += _remaining_bytes(file)
        if some:
            yield Group(tuple(some))


def _limited(groups: Iterable[Group], most: int) -> Iterator[Group]:
    for group in groups:
        most -= len(group.files)
        if most < 0:
            return
        yield group


def _remaining_bytes(file: LiveFile) -> int:
    if not file.deleted_count:
        return file.size_bytes
    return file.size_bytes * (file.record_count - file.deleted_count) // max(file.record_count, 1)


def _shape(columns: Iterable[Column]) -> tuple[Any, ...]:
    """What a file holds, without names: a column that was renamed is the same one."""
    return tuple((column.id, column.type, _shape(column.children)) for column in columns)

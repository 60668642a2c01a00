"""The operations of a commit, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from swanlake.lake.model.ids import uuid7
from swanlake.lake.model.layout import (
    Column,
    ColumnStats,
    DataFile,
    DeleteFile,
    PartitionKey,
    SortKey,
    Table,
)

T = TypeVar("T")
#: A value of an inlined row, as drivers take it.
InlinedValue = bool | int | str | bytes | None


@dataclass(frozen=True)
class CreateSchema:
    """Creates an empty schema."""

    name: str
    uuid: UUID = field(default_factory=uuid7)


@dataclass(frozen=True)
class DropSchema:
    """Drops a schema; with ``cascade`` everything in it too."""

    name: str
    cascade: bool = False


@dataclass(frozen=True)
class CreateTable:
    """Creates a table. Its directory is known, so files can be written before the commit."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    partition_keys: tuple[PartitionKey, ...] = ()
    sort_keys: tuple[SortKey, ...] = ()
    uuid: UUID = field(default_factory=uuid7)


@dataclass(frozen=True)
class DropTable:
    """Drops a table; its files stay for time travel until its snapshots expire."""

    schema: str
    name: str


@dataclass(frozen=True)
class Insert:
    """Adds files to an existing table, or to one that the same commit creates.

    ``blind``: the rows do not depend on the lake, so concurrent deletes are no conflict.
    """

    table: Table | CreateTable
    files: tuple[DataFile, ...]
    blind: bool = False


@dataclass(frozen=True)
class InlineInsert:
    """Adds inlined rows; ``inlining.inline_rows`` creates it.

    ``column_stats`` are those of a file with these rows; ``blind`` is as for an Insert. ``row_ids``
    are those of the rows that these replace.
    """

    table: Table | CreateTable
    rows: tuple[tuple[InlinedValue, ...], ...]
    column_stats: tuple[ColumnStats, ...]
    blind: bool = False
    row_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class InlineDelete:
    """Deletes inlined rows."""

    table: Table
    table_name: str
    row_ids: tuple[int, ...]


@dataclass(frozen=True)
class Merge:
    """Replaces several files by one, in all snapshots that saw them.

    ``begin_snapshot`` is that of the oldest source and ``partial_max`` that of the newest; a file
    of several snapshots stores that of each row. Without a ``row_id_start`` it stores row ids.
    """

    table: Table
    sources: tuple[int, ...]
    file: DataFile
    begin_snapshot: int
    row_id_start: int | None
    partial_max: int | None = None


@dataclass(frozen=True)
class PlacedDeletes:
    """Deleted rows of a placed file, each with the snapshot in which it was deleted."""

    file: DeleteFile
    begin_snapshot: int
    partial_max: int | None = None


@dataclass(frozen=True)
class PlacedFile:
    """A data file that becomes part of existing snapshots.

    It stores the snapshot of each row if ``partial_max`` is set, and row ids unless
    ``row_id_start`` is. One with an end holds rows of the past only.
    """

    file: DataFile
    begin_snapshot: int
    row_id_start: int | None = None
    partial_max: int | None = None
    end_snapshot: int | None = None
    deletes: PlacedDeletes | None = None
    partition_id: int | None = None


@dataclass(frozen=True)
class RewriteSource:
    """A data file to rewrite, with the delete file that was read."""

    data_file_id: int
    delete_file_id: int | None = None


@dataclass(frozen=True)
class Rewrite:
    """Replaces files that have deleted rows by files without them, in all snapshots.

    Deleted rows go to files of the past, which end with the last of their deletes. Every snapshot
    reads the same rows as before, and the change feed shows no change: the stock extension's
    rewrite shows an update of every remaining row.
    """

    table: Table
    sources: tuple[RewriteSource, ...]
    files: tuple[PlacedFile, ...]


@dataclass(frozen=True)
class InlinedSource:
    """An inlined table to flush, and the number of its rows at the base."""

    table_name: str
    count: int


@dataclass(frozen=True)
class FlushInlined:
    """Replaces inlined rows by files, in all snapshots that saw them."""

    table: Table
    inlined: tuple[InlinedSource, ...]
    files: tuple[PlacedFile, ...]


@dataclass(frozen=True)
class SetProperty:
    """Sets a DuckLake option of the catalog, a schema or a table."""

    key: str
    value: str
    schema_id: int | None = None
    table_id: int | None = None


#: Operations that change files and no row; each is alone in its commit.
Compaction = Merge | Rewrite | FlushInlined

Operation = (
    CreateSchema
    | DropSchema
    | CreateTable
    | DropTable
    | Insert
    | InlineInsert
    | InlineDelete
    | Compaction
    | SetProperty
)


@dataclass(frozen=True)
class Commit:
    """Operations that become visible together, or not at all.

    ``base`` is the snapshot that the changes were computed from; None if nothing was read.
    ``by_name``: tables were named, so a rename since the base is a conflict.
    ``ledger`` names work that is committed once: if it was, the commit does nothing. ``notes`` are
    further ledger entries, for later queries.
    """

    operations: tuple[Operation, ...]
    base: int | None = None
    by_name: bool = False
    ledger: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    author: str | None = None
    message: str | None = None
    extra_info: str | None = None
    id: UUID = field(default_factory=uuid7)

    def of_type(self, kind: type[T]) -> list[T]:
        """Its operations of one type."""
        return [operation for operation in self.operations if isinstance(operation, kind)]

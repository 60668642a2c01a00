"""What a commit can do to a catalog, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from swanlake.lake.ids import uuid7
from swanlake.lake.layout import (
    Column,
    ColumnStats,
    DataFile,
    DeleteFile,
    PartitionKey,
    SortKey,
    Table,
)

#: A value as drivers take it for a table of the metadata that keeps rows.
InlinedValue = bool | int | str | bytes | None


@dataclass(frozen=True)
class CreateSchema:
    """A new, empty schema."""

    name: str
    uuid: UUID = field(default_factory=uuid7)


@dataclass(frozen=True)
class DropSchema:
    """The end of a schema; with ``cascade`` of everything in it too."""

    name: str
    cascade: bool = False


@dataclass(frozen=True)
class CreateTable:
    """A new table. Its files can be written before the commit: its directory is known already."""

    schema: str
    name: str
    columns: tuple[Column, ...]
    partition_keys: tuple[PartitionKey, ...] = ()
    sort_keys: tuple[SortKey, ...] = ()
    uuid: UUID = field(default_factory=uuid7)


@dataclass(frozen=True)
class DropTable:
    """The end of a table; its files stay for time travel until its snapshots expire."""

    schema: str
    name: str


@dataclass(frozen=True)
class Insert:
    """New files of a table that exists, or that the same commit creates.

    ``blind`` says that the rows do not depend on what the lake held: deletes by others are then no
    conflict.
    """

    table: Table | CreateTable
    files: tuple[DataFile, ...]
    blind: bool = False


@dataclass(frozen=True)
class InlineInsert:
    """New rows of a table that the metadata itself keeps; ``inlining.inlined`` makes these.

    ``column_stats`` is what a file of these rows would say; ``blind`` is as for an Insert. Rows in
    place of others have the ids of those.
    """

    table: Table | CreateTable
    rows: tuple[tuple[InlinedValue, ...], ...]
    column_stats: tuple[ColumnStats, ...]
    blind: bool = False
    row_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class InlineDelete:
    """Rows of a table, kept in a table of the metadata, that are no longer there."""

    table: Table
    table_name: str
    row_ids: tuple[int, ...]


@dataclass(frozen=True)
class FileDelete:
    """Rows of one data file that are no longer there.

    The new delete file holds all its deleted positions, those of the one it replaces included.
    """

    data_file_id: int
    file: DeleteFile
    replaces: int | None = None


@dataclass(frozen=True)
class Delete:
    """Deleted rows, and data files of which no row is left.

    The stock extension keeps its own small deletes in the metadata, and looks for those of others
    among their like only; ``excludes_inlined`` has it find these too.
    """

    table: Table
    files: tuple[FileDelete, ...] = ()
    dropped: tuple[int, ...] = ()
    excludes_inlined: bool = False


@dataclass(frozen=True)
class Merge:
    """One file that takes the place of several, in all snapshots that saw them.

    ``begin_snapshot`` is that of the oldest source and ``partial_max`` that of the newest; rows of
    a file that spans several snapshots carry the snapshot they came with. Without a
    ``row_id_start`` they carry their row ids too.
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
    """A data file that takes its place in snapshots that are there already.

    Its rows carry the snapshots they came with if ``partial_max`` is given, and their row ids
    unless they are those from ``row_id_start`` on. One with an end holds rows of the past only.
    """

    file: DataFile
    begin_snapshot: int
    row_id_start: int | None = None
    partial_max: int | None = None
    end_snapshot: int | None = None
    deletes: PlacedDeletes | None = None
    partition_id: int | None = None


@dataclass(frozen=True)
class DeletedFrom:
    """A data file as it was read: with the delete file it had, and inlined deletes if any."""

    data_file_id: int
    delete_file_id: int | None = None


@dataclass(frozen=True)
class Rewrite:
    """Files without deleted rows that take the place of some with them, in all snapshots.

    Rows that are deleted go to files of the past, which end with the last of their deletes. Every
    snapshot reads what it read before, and none shows these rows as changed: the stock extension's
    rewrite ends the old files and begins new ones, and to its change feed that is an update of
    every row that was kept.
    """

    table: Table
    sources: tuple[DeletedFrom, ...]
    files: tuple[PlacedFile, ...]


@dataclass(frozen=True)
class InlinedRows:
    """A table of the metadata that keeps rows, and how many it had at the base."""

    table_name: str
    count: int


@dataclass(frozen=True)
class Fold:
    """Files that take the place of rows kept in the metadata, in all snapshots that saw them."""

    table: Table
    inlined: tuple[InlinedRows, ...]
    files: tuple[PlacedFile, ...]


@dataclass(frozen=True)
class SetProperty:
    """A DuckLake option of the catalog, of a schema or of a table."""

    key: str
    value: str
    schema_id: int | None = None
    table_id: int | None = None


#: What changes files and no row; nothing else can be in a commit with it.
Compaction = Merge | Rewrite | Fold

Operation = (
    CreateSchema
    | DropSchema
    | CreateTable
    | DropTable
    | Insert
    | InlineInsert
    | InlineDelete
    | Delete
    | Compaction
    | SetProperty
)


@dataclass(frozen=True)
class Commit:
    """All that becomes visible at once, or not at all.

    ``base`` is the snapshot from which the changes were worked out; without one, nothing was read.
    ``by_name`` says that tables were meant by their names: one that got another since the base is
    another one.
    ``ledger`` names work that must be committed once: if it was, the commit does nothing. ``notes``
    are kept beside it, for whoever asks the ledger later.
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

"""What a commit can do to a catalog, as values."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from swanlake.lake.ids import uuid7
from swanlake.lake.layout import Column, DataFile, DeleteFile, PartitionKey, SortKey, Table


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
class FileDelete:
    """Rows of one data file that are no longer there.

    The new delete file holds all its deleted positions, those of the one it replaces included.
    """

    data_file_id: int
    file: DeleteFile
    replaces: int | None = None


@dataclass(frozen=True)
class Delete:
    """Deleted rows, and data files of which no row is left."""

    table: Table
    files: tuple[FileDelete, ...] = ()
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True)
class Merge:
    """One file that takes the place of several, in all snapshots that saw them.

    ``begin_snapshot`` is that of the oldest source and ``partial_max`` that of the newest; rows of
    a file that spans several snapshots carry the snapshot they came with.
    """

    table: Table
    sources: tuple[int, ...]
    file: DataFile
    begin_snapshot: int
    row_id_start: int
    partial_max: int | None = None


@dataclass(frozen=True)
class SetProperty:
    """A DuckLake option of the catalog, of a schema or of a table."""

    key: str
    value: str
    schema_id: int | None = None
    table_id: int | None = None


Operation = (
    CreateSchema | DropSchema | CreateTable | DropTable | Insert | Delete | Merge | SetProperty
)


@dataclass(frozen=True)
class Commit:
    """All that becomes visible at once, or not at all.

    ``base`` is the snapshot from which the changes were worked out; without one, nothing was read.
    ``ledger`` names work that must be committed once: if it was, the commit does nothing. ``notes``
    are kept beside it, for whoever asks the ledger later.
    """

    operations: tuple[Operation, ...]
    base: int | None = None
    ledger: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    author: str | None = None
    message: str | None = None
    extra_info: str | None = None
    id: UUID = field(default_factory=uuid7)

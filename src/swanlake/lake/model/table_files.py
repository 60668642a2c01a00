"""The files and inlined rows of a table, as values that units carry to Spark workers.

Workers import this module: it must not import SQLAlchemy.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from swanlake.lake.model.layout import Column, Table


@dataclass(frozen=True)
class LiveDeletes:
    """A delete file; an ended one lists what was deleted before the next one."""

    id: int
    path: str
    count: int
    begin_snapshot: int
    end_snapshot: int | None = None
    partial_max: int | None = None
    format: str = "parquet"


@dataclass(frozen=True)
class LiveFile:
    """A live data file of a table."""

    id: int
    #: Absolute, or a URL.
    path: str
    record_count: int
    size_bytes: int
    begin_snapshot: int
    #: None if the file stores the row ids.
    row_id_start: int | None = None
    partition_id: int | None = None
    partition_values: tuple[str | None, ...] = ()
    #: The newest snapshot of its rows, if they come from several.
    partial_max: int | None = None
    mapping_id: int | None = None
    format: str = "parquet"
    encrypted: bool = False
    #: All its delete files, ended ones included, oldest first.
    deletes: tuple[LiveDeletes, ...] = ()
    #: Inlined deletes: positions in the file, and since which snapshot.
    inlined_deletes: tuple[tuple[int, int], ...] = ()
    #: The table's columns at ``begin_snapshot``; defaults are the values in older files.
    columns: tuple[Column, ...] = ()

    @cached_property
    def current_deletes(self) -> LiveDeletes | None:
        """The live delete file; it lists all deleted rows but the inlined ones."""
        return next((each for each in self.deletes if each.end_snapshot is None), None)

    @property
    def deleted_count(self) -> int:
        """How many of its rows are deleted."""
        current = self.current_deletes
        return (current.count if current else 0) + len(self.inlined_deletes)


@dataclass(frozen=True)
class InlinedTable:
    """Inlined rows of a table, all with one version of its columns."""

    name: str
    rows: int
    #: The table with that version; columns as in ``LiveFile``.
    layout: Table


#: Row id, begin and end snapshot, and the values: bytes, or texts that DuckDB can cast.
InlinedRow = tuple[Any, ...]


@dataclass(frozen=True)
class TableFiles:
    """A table and all its rows, in files and inlined, at one snapshot."""

    table: Table
    #: In order of insertion.
    files: tuple[LiveFile, ...] = ()
    inlined: tuple[InlinedTable, ...] = ()
    #: The oldest snapshot that is not expired.
    oldest_snapshot: int = 0

    @property
    def snapshot_id(self) -> int:
        """The snapshot at which this was read."""
        return self.table.snapshot_id

    @property
    def inlined_rows(self) -> int:
        """The number of inlined rows, deleted ones included."""
        return sum(table.rows for table in self.inlined)

"""Where the rows of a table are at one snapshot, as values that the SQLite worker can send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from swanlake.lake.model.layout import Table

#: A number, or a text that DuckDB can cast to the column's type.
Value = str | int | None


@dataclass(frozen=True)
class InlinedScan:
    """A table and all its inlined rows."""

    table: Table
    #: The inlined table that has them; None if there never were any.
    source_table: str | None
    row_ids: Sequence[int]
    #: By column of the table.
    values: Sequence[Sequence[Value]]

    @cached_property
    def text_length(self) -> int:
        """The number of characters in all texts: one row may have megabytes."""
        return sum(len(value) for column in self.values for value in column if type(value) is str)


@dataclass(frozen=True)
class ScanFile:
    """A live data file, and what is deleted of it."""

    id: int
    #: Absolute, or a URL.
    path: str
    record_count: int
    #: The live delete file.
    delete_path: str | None = None
    #: Positions of rows whose deletes are inlined.
    deleted_positions: tuple[int, ...] = ()

    @property
    def has_deletes(self) -> bool:
        """True if some of its rows are deleted."""
        return self.delete_path is not None or bool(self.deleted_positions)


@dataclass(frozen=True)
class TableState:
    """All rows of a table at a snapshot, in files and inlined."""

    table: Table
    files: tuple[ScanFile, ...] = ()
    inlined: InlinedScan | None = None
    #: False if only DuckLake's extension knows how to read the rows.
    is_readable: bool = True

    @property
    def source_table(self) -> str | None:
        """The inlined table of the current columns."""
        return None if self.inlined is None else self.inlined.source_table


@dataclass(frozen=True)
class Head:
    """The newest snapshot of a catalog."""

    snapshot_id: int
    schema_version: int


@dataclass(frozen=True)
class HeadRead:
    """The head, and what led there from an earlier snapshot."""

    head: Head
    #: What each snapshot changed, in DuckLake's notation; None if some are no longer known.
    changes: tuple[str, ...] | None
    #: The live rows of inlined tables, by name.
    rows: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Bounds:
    """The bounds of a column in one file, as the catalog has them."""

    low: str | None
    high: str | None
    value_count: int | None
    null_count: int | None
    contains_nan: bool | None

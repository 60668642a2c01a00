"""Tables, columns and files of the lake as plain values.

The catalog, sessions and the workers that write files exchange them, so they depend on no database.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from uuid import UUID

#: Names that file systems accept as directories; most of them allow 255 bytes.
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,200}")


def folded(name: str) -> str:
    """A name as DuckDB compares it: ASCII letters in lower case."""
    return name.encode().lower().decode()


def directory_name(name: str, uuid: UUID) -> str:
    """The directory of a schema or table, as the stock extension chooses it.

    The extension also uses names that no file system accepts.
    """
    return f"{name}/" if _PLAIN.fullmatch(name) else f"{uuid}/"


class DefaultKind(Enum):
    """How a column's default is written in the catalog."""

    LITERAL = "literal"
    EXPRESSION = "expression"


@dataclass(frozen=True)
class Default:
    """A column's default: the text of a value, or an SQL expression such as ``now()``."""

    text: str
    kind: DefaultKind = DefaultKind.LITERAL


@dataclass(frozen=True)
class Column:
    """One column of a table, or one field of a nested column.

    ``type`` is DuckLake's name: ``int32``, ``decimal(10,2)``, ``struct``, ``list``, ``map``. The id
    is unique in the table for ever and is the Parquet field id.
    """

    id: int
    name: str
    type: str
    nullable: bool = True
    default: Default | None = None
    children: tuple[Column, ...] = ()

    def tree(self) -> Iterator[Column]:
        """This column and everything below it, parents first."""
        yield self
        for child in self.children:
            yield from child.tree()

    def leaves(self) -> Iterator[Column]:
        """The columns that hold values: this one, or those at the bottom of a nested one."""
        return (column for column in self.tree() if not column.children)


@dataclass(frozen=True)
class PartitionKey:
    """One key of a partitioned table: ``identity``, ``year``, ``month``, …, ``bucket(8)``."""

    column_id: int
    transform: str = "identity"


@dataclass(frozen=True)
class SortKey:
    """One key of the order in which rows are kept inside files."""

    expression: str
    descending: bool = False
    nulls_first: bool = False

    @property
    def sql(self) -> str:
        """As it stands behind ORDER BY."""
        direction = "DESC" if self.descending else "ASC"
        return f"{self.expression} {direction} NULLS {'FIRST' if self.nulls_first else 'LAST'}"


@dataclass(frozen=True)
class TableOptions:
    """DuckLake's options for a table; None leaves the choice to the writer."""

    compression: str | None = None
    compression_level: int | None = None
    #: Of Parquet: ``V1`` or ``V2``.
    version: str | None = None
    #: In rows.
    row_group_size: int | None = None
    #: In bytes.
    target_file_size: int | None = None
    #: Files with this fraction of deleted rows are rewritten.
    deleted_ratio: float | None = None
    #: Inserts of up to this many rows are inlined.
    inlined_rows: int | None = None
    #: False if files of all partitions are in the table's directory.
    partition_folders: bool = True
    #: False if rows are sorted only when files are compacted.
    sort_inserts: bool = True
    #: False if it is compacted only when it is named.
    auto_compact: bool = True
    #: True if the catalog refuses commits without a message.
    requires_message: bool = False


@dataclass(frozen=True)
class Table:
    """A table at one snapshot, with all that is needed to write its files."""

    id: int
    schema: str
    name: str
    #: Where its files go: absolute (or a URL), with a slash at the end.
    directory: str
    columns: tuple[Column, ...]
    partition_id: int | None = None
    partition_keys: tuple[PartitionKey, ...] = ()
    sort_keys: tuple[SortKey, ...] = ()
    encrypted: bool = False
    #: The current ones; options have no history.
    options: TableOptions = field(default_factory=TableOptions)
    #: The snapshot at which this was read; commits of its files are checked against it.
    snapshot_id: int = field(default=0, compare=False)

    @property
    def full_name(self) -> str:
        """``schema.table``, for messages."""
        return f"{self.schema}.{self.name}"

    def leaves(self) -> Iterator[Column]:
        """Every column that holds values, nested ones included."""
        for column in self.columns:
            yield from column.leaves()


@dataclass(frozen=True)
class ColumnStats:
    """Statistics of one column in one file; None is unknown."""

    column_id: int
    size_bytes: int | None = None
    #: Values that are not NULL.
    value_count: int | None = None
    null_count: int | None = None
    min: str | None = None
    max: str | None = None
    contains_nan: bool | None = None
    #: JSON, of a geometry or a VARIANT.
    extra: str | None = None
    #: What ``extra`` says of a VARIANT.
    variant_fields: tuple[VariantFieldStats, ...] = ()


@dataclass(frozen=True)
class VariantFieldStats:
    """Statistics of one field of a VARIANT column whose values are all of one type, or NULL."""

    #: ``root``, the value itself; ``"a"."b"`` in objects; ``"a".element`` in a list.
    path: str
    #: DuckLake's name.
    type: str
    stats: ColumnStats


@dataclass(frozen=True)
class DataFile:
    """A written Parquet file that is not yet part of the lake."""

    #: Relative to the table's directory, with forward slashes.
    path: str
    record_count: int
    file_size_bytes: int
    footer_size: int
    column_stats: tuple[ColumnStats, ...] = ()
    #: One text (or None for NULL) per partition key of the table.
    partition_values: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class DeleteFile:
    """A written delete file of one data file that is not yet part of the lake."""

    #: Relative to the table's directory, with forward slashes.
    path: str
    delete_count: int
    file_size_bytes: int
    footer_size: int

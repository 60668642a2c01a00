"""The partition keys of a table, and the folders of its files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from swanlake.errors import Unsupported
from swanlake.lake.model.layout import Column, PartitionKey, Table
from swanlake.sql.quoting import identifier

_CALENDAR = ("year", "month", "day", "hour")
_BUCKET = re.compile(r"bucket\((\d+)\)", re.IGNORECASE)


@dataclass(frozen=True)
class Partition:
    """One partition key as COPY needs it."""

    #: The name of the column that COPY partitions by.
    column: str
    #: The name before the ``=`` of the folder.
    folder: str
    #: The SQL that computes it; None if it is a column of the table.
    expression: str | None = None


def partitions(table: Table) -> tuple[Partition, ...]:
    """The partition keys of a table, none if it is not partitioned."""
    columns = [_column(table, key) for key in table.partition_keys]
    if all(_transform(key) == "identity" for key in table.partition_keys):
        return tuple(Partition(column.name, column.name) for column in columns)
    folders: list[str] = []
    found = []
    taken = {column.name.lower() for column in table.columns}
    for key, column in zip(table.partition_keys, columns, strict=True):
        folder = _folder(key, column, folders)
        folders.append(folder)
        name = folder
        # COPY leaves computed keys out of the files, so they must not be mistaken for columns.
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        found.append(Partition(name, folder, _expression(key, column, table)))
    return tuple(found)


def folder_path(path: str, keys: Sequence[Partition]) -> str:
    """The path of a written file, relative to its table, with the folders' final names."""
    *folders, file = path.split("/")
    named = (
        f"{quote(key.folder, safe='')}={folder.partition('=')[2]}"
        for key, folder in zip(keys, folders, strict=True)
    )
    return "/".join((*named, file))


def _column(table: Table, key: PartitionKey) -> Column:
    for column in table.columns:
        if column.id == key.column_id:
            return column
    raise Unsupported(
        f"The table {table.full_name} is partitioned by something that is not one of its columns "
        f"(id {key.column_id}); SwanLake cannot write to it."
    )


def _transform(key: PartitionKey) -> str:
    return "bucket" if _BUCKET.fullmatch(key.transform) else key.transform.lower()


def _folder(key: PartitionKey, column: Column, used: Sequence[str]) -> str:
    transform = _transform(key)
    name = column.name if transform == "identity" else transform
    return f"{name}_{column.name}" if name.lower() in map(str.lower, used) else name


def _expression(key: PartitionKey, column: Column, table: Table) -> str:
    name = identifier(column.name)
    transform = _transform(key)
    if transform == "identity":
        return name
    if transform in _CALENDAR:
        return f"{transform}({name})"
    if bucket := _BUCKET.fullmatch(key.transform):
        # Iceberg's rule; the hash is a function of the ducklake extension.
        return f"(murmur3_32({name}) & 2147483647) % {int(bucket[1])}"
    raise Unsupported(
        f"The table {table.full_name} is partitioned by {key.transform!r}, which this version of "
        "SwanLake does not know."
    )

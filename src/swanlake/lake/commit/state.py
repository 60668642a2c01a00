"""What a commit must know of the catalog, read under the lock in as few queries as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy import inspect as inspect_database

from swanlake.errors import CatalogNotWritable
from swanlake.lake.commit.queries import (
    COLUMN_STATS,
    inlining_query,
    objects_query,
    options_query,
    schemas_query,
    tables_query,
    visible_rows,
)
from swanlake.lake.commit.snapshot_history import SnapshotHistory
from swanlake.lake.files.inlined_tables import deletes_table, inlined_table
from swanlake.lake.metastore.store import LockedTransaction
from swanlake.lake.metastore.tables import FORMAT_VERSION
from swanlake.lake.model.layout import folded
from swanlake.lake.model.options import StoredOptions, stored_options
from swanlake.lake.model.stats import TableColumnStats


@dataclass(frozen=True)
class Head:
    """The newest snapshot, and the id allocated for the next one."""

    next_snapshot_id: int
    snapshot_id: int
    snapshot_time: datetime
    schema_version: int
    next_catalog_id: int
    next_file_id: int


@dataclass(frozen=True)
class LiveTable:
    """A table at the head: its path and statistics."""

    id: int
    #: Relative to the data path, or absolute if an ancestor's path is.
    path: str
    path_is_relative: bool
    has_stats: bool = False
    record_count: int = 0
    next_row_id: int = 0
    file_size_bytes: int = 0
    columns: dict[int, TableColumnStats] = field(default_factory=dict)
    #: The snapshot that gave it its name; a rename writes nothing but this row.
    named_at: int = 0


def read_head(transaction: LockedTransaction, history: SnapshotHistory) -> Head:
    """The head; the history then knows all changes up to it."""
    catalog = transaction.store.name
    rows = transaction.run(history.query(transaction.store))
    if not rows:
        raise CatalogNotWritable(f"The catalog {catalog} has no snapshot: its metadata is damaged.")
    last = rows[-1]
    _check_fence(catalog, last)
    history.add(rows)
    return Head(**{each.name: getattr(last, each.name) for each in fields(Head)})


def _check_fence(catalog: str, newest: Row[Any]) -> None:
    if newest.version != FORMAT_VERSION:
        raise CatalogNotWritable(
            f"The catalog {catalog} has the format {newest.version!r}; this version of SwanLake "
            f"writes {FORMAT_VERSION!r} and leaves others alone."
        )
    if newest.fenced == newest.snapshot_id:
        return
    reason = "its fence has no head"
    if newest.fenced is not None:
        reason = (
            f"its fence is at snapshot {newest.fenced} and the newest one is "
            f"{newest.snapshot_id}, so a writer bypassed the fence"
        )
    raise CatalogNotWritable(
        f"The catalog {catalog} refuses writes: {reason}. Run `swanlake catalog check "
        f"{catalog}`; `swanlake catalog adopt {catalog}` installs the fence again."
    )


def read_tables(transaction: LockedTransaction, ids: Sequence[int]) -> dict[int, LiveTable]:
    """The tables with these ids that are live, with their statistics."""
    if not ids:
        return {}
    rows = transaction.run(tables_query(transaction.tables, ids))
    live_tables: dict[int, LiveTable] = {}
    for row in rows:
        live = live_tables.get(row.table_id)
        if live is None:
            relative = row.path_is_relative
            live = live_tables[row.table_id] = LiveTable(
                id=row.table_id,
                path=(row.schema_path if relative else "") + row.path,
                path_is_relative=relative and row.schema_is_relative,
                named_at=row.begin_snapshot,
                has_stats=row.record_count is not None,
                record_count=row.record_count or 0,
                next_row_id=row.next_row_id or 0,
                file_size_bytes=row.file_size_bytes or 0,
            )
        if row.column_id is not None:
            live.columns[row.column_id] = TableColumnStats(*row[-len(COLUMN_STATS) :])
    return live_tables


def read_inlined_versions(transaction: LockedTransaction, ids: Sequence[int]) -> dict[int, int]:
    """The schema version of each table's inlined table, if that has the current columns.

    The stock extension creates none when it alters a table without inlining, and rows of the new
    columns do not fit into the old one.
    """
    if not ids:
        return {}
    rows = transaction.run(inlining_query(transaction.tables, ids))
    return {row.table_id: row.version for row in rows}


def read_schemas(transaction: LockedTransaction, at: int | None = None) -> dict[str, Row[Any]]:
    """The schemas at the head, or at a snapshot, by name in lower case."""
    rows = transaction.run(schemas_query(transaction.tables, at))
    return {folded(row.schema_name): row for row in rows}


def read_objects(
    transaction: LockedTransaction, at: int | None = None
) -> dict[tuple[int, str], tuple[str, int]]:
    """Tables and views at the head, or at a snapshot, by schema id and lower-case name."""
    rows = transaction.run(objects_query(transaction.tables, at))
    return {(row.schema_id, folded(row.name)): (row.kind, row.id) for row in rows}


def read_options(transaction: LockedTransaction) -> StoredOptions:
    """All options of the catalog."""
    return stored_options(transaction.run(options_query(transaction.tables)))


def read_macros(transaction: LockedTransaction) -> list[tuple[int, int, str]]:
    """The live macros: schema id, macro id, and ``scalar`` or ``table``."""
    macro, body = transaction.tables.macro, transaction.tables.macro_impl
    rows = transaction.read(
        select(macro.c.schema_id, macro.c.macro_id, body.c.type)
        .join(body, body.c.macro_id == macro.c.macro_id)
        .where(visible_rows(macro, now=True))
        .distinct()
    )
    return [(row.schema_id, row.macro_id, row.type) for row in rows]


def read_inlined_deletes(transaction: LockedTransaction, table_id: int) -> set[int]:
    """The data files with inlined deletes."""
    inlined = deletes_table(transaction.tables, table_id)
    if not inspect_database(transaction.connection).has_table(inlined.name, inlined.schema):
        return set()
    rows = transaction.read(select(inlined.c.file_id).distinct())
    return {row.file_id for row in rows}


def read_files(
    transaction: LockedTransaction, ids: Sequence[int]
) -> tuple[dict[int, Row[Any]], dict[int, int]]:
    """The live ones of these data files, and their live delete files (by data file id)."""
    if not ids:
        return {}, {}
    data, deletes = transaction.tables.data_file, transaction.tables.delete_file
    rows = transaction.read(
        select(data, deletes.c.delete_file_id)
        .join(
            deletes,
            (deletes.c.data_file_id == data.c.data_file_id) & deletes.c.end_snapshot.is_(None),
            isouter=True,
        )
        .where(data.c.data_file_id.in_(ids), data.c.end_snapshot.is_(None))
    )
    return (
        {row.data_file_id: row for row in rows},
        {row.data_file_id: row.delete_file_id for row in rows if row.delete_file_id is not None},
    )


def read_delete_files(transaction: LockedTransaction, ids: Sequence[int]) -> list[Row[Any]]:
    """All delete files of these data files, ended ones included."""
    deletes = transaction.tables.delete_file
    return list(transaction.read(select(deletes).where(deletes.c.data_file_id.in_(ids))))


def count_inlined_rows(transaction: LockedTransaction, name: str, base: int) -> int:
    """How many rows an inlined table held at the base; 0 if it no longer exists."""
    inlined = inlined_table(transaction.tables, name)
    if not inspect_database(transaction.connection).has_table(name, inlined.schema):
        return 0
    counted = select(func.count()).select_from(inlined).where(inlined.c.begin_snapshot <= base)
    return int(transaction.read(counted)[0][0])

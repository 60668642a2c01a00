"""What people look at in a catalog: its contents, file sizes and latest snapshots.

Each query reads a bounded number of rows, or lets the database count: a table may have a million
files, and a catalog as many snapshots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select
from sqlalchemy import case as when

from swanlake.lake.commit.changes import Change, UnreadableChanges, parse_changes
from swanlake.lake.metastore.tables import CatalogTables, batches
from swanlake.lake.model.layout import Table
from swanlake.lake.read import metadata
from swanlake.lake.read.metadata import Snapshot

_KIB = 1024
#: The upper bounds of the classes of file sizes; the last class has none.
SIZE_BOUNDS = tuple(_KIB * size for size in (16, 128, 1024, 8 << 10, 64 << 10, 256 << 10, 1 << 20))


@dataclass(frozen=True)
class View:
    """A view and the query that defines it."""

    schema: str
    name: str
    sql: str


@dataclass(frozen=True)
class Contents:
    """The schemas and views of a catalog at its head; its survey has the tables."""

    schemas: tuple[str, ...]
    views: tuple[View, ...]


@dataclass(frozen=True)
class SizeClass:
    """The live data files of a table that are smaller than a bound, and not in a smaller class."""

    #: In bytes; None for the largest class.
    below: int | None
    files: int
    bytes: int


@dataclass(frozen=True)
class TableProfile:
    """A table, and how large its live data files are."""

    table: Table
    sizes: tuple[SizeClass, ...]


@dataclass(frozen=True)
class SnapshotSummary:
    """One snapshot and what it changed, in words: ``inserted into main.events``."""

    snapshot: Snapshot
    changes: tuple[str, ...]


def read_contents(connection: Connection, tables: CatalogTables) -> Contents:
    """The schemas and views at the head."""
    schema, view = tables.schema, tables.view
    schemas = connection.execute(
        select(schema.c.schema_id, schema.c.schema_name)
        .where(schema.c.end_snapshot.is_(None))
        .order_by(schema.c.schema_name)
    ).all()
    names = {row.schema_id: row.schema_name for row in schemas}
    views = connection.execute(
        select(view).where(view.c.end_snapshot.is_(None)).order_by(view.c.view_name)
    )
    return Contents(
        tuple(names.values()),
        tuple(View(names[row.schema_id], row.view_name, row.sql) for row in views),
    )


def read_profile(
    connection: Connection, tables: CatalogTables, schema: str, name: str
) -> TableProfile:
    """A table at the head and the sizes of its files; raises NotFound."""
    table = metadata.read_table(connection, tables, schema, name)
    data = tables.data_file
    number = when(
        *((data.c.file_size_bytes < bound, place) for place, bound in enumerate(SIZE_BOUNDS)),
        else_=len(SIZE_BOUNDS),
    )
    counted = connection.execute(
        select(
            number.label("place"),
            func.count().label("files"),
            func.sum(data.c.file_size_bytes).label("bytes"),
        )
        .where(data.c.table_id == table.id, data.c.end_snapshot.is_(None))
        .group_by(number)
    )
    found = {row.place: row for row in counted}
    sizes = tuple(
        SizeClass(bound, found[place].files, int(found[place].bytes))
        if place in found
        else SizeClass(bound, 0, 0)
        for place, bound in enumerate((*SIZE_BOUNDS, None))
    )
    return TableProfile(table, sizes)


def read_latest_snapshots(
    connection: Connection, tables: CatalogTables, limit: int
) -> list[SnapshotSummary]:
    """The newest snapshots, newest first."""
    latest = metadata.snapshots(connection, tables, limit)
    changes = [_parse(snapshot.changes) for snapshot in latest]
    ids = {change.id for each in changes for change in each if change.id is not None}
    names = _names(connection, tables, sorted(ids))
    return [
        SnapshotSummary(
            snapshot, tuple(describe(change, names) for change in each) or _raw(snapshot.changes)
        )
        for snapshot, each in zip(reversed(latest), reversed(changes), strict=True)
    ]


def describe(change: Change, names: Mapping[int, str]) -> str:
    """A change in words, with the name of the table in place of its id."""
    verb = change.type.value.removesuffix("_table").replace("_", " ")
    if change.id is None:
        return f"{verb} {'.'.join(change.name)}"
    return f"{verb} {names.get(change.id, f'#{change.id}')}"


def _parse(text: str) -> tuple[Change, ...]:
    try:
        return parse_changes(text)
    except UnreadableChanges:
        return ()


def _raw(text: str) -> tuple[str, ...]:
    """The changes of a newer program, as they are."""
    return (text,) if text else ()


def _names(connection: Connection, tables: CatalogTables, ids: Sequence[int]) -> dict[int, str]:
    """The newest names of tables, views and schemas, dropped ones included."""
    schema = tables.schema
    schemas = {
        row.schema_id: row.schema_name
        for row in connection.execute(
            select(schema.c.schema_id, schema.c.schema_name).order_by(schema.c.begin_snapshot)
        )
    }
    names = {id: name for id, name in schemas.items() if id in ids}
    for table, id, name in (
        (tables.table, tables.table.c.table_id, tables.table.c.table_name),
        (tables.view, tables.view.c.view_id, tables.view.c.view_name),
    ):
        for batch in batches(ids):
            rows = connection.execute(
                select(id, name, table.c.schema_id)
                .where(id.in_(batch))
                .order_by(table.c.begin_snapshot)
            )
            names |= {row[0]: f"{schemas.get(row[2], '?')}.{row[1]}" for row in rows}
    return names

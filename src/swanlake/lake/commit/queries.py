"""The queries that a commit runs under the lock, as statements that are built once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Executable,
    any_,
    bindparam,
    func,
    literal_column,
    select,
    true,
    union_all,
)
from sqlalchemy import Table as SqlTable
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from swanlake.lake.metastore.store import CatalogStore, Query
from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.options import options_statement

#: The columns that are a TableColumnStats.
COLUMN_STATS = tuple("column_id contains_null contains_nan min_value max_value extra_stats".split())


def head_query(store: CatalogStore, base: int | None) -> Query:
    """The newest snapshot and all since ``base``, with what each changed; allocates the next id."""
    statement = _head_statement(store.tables, store.next_snapshot_id, based=base is not None)
    return Query(statement, {} if base is None else {"base": base})


def tables_query(tables: CatalogTables, ids: Sequence[int]) -> Query:
    """Live tables by id, with their statistics."""
    return Query(_tables_statement(tables), {"ids": list(ids)})


def inlining_query(tables: CatalogTables, ids: Sequence[int]) -> Query:
    """The inlined table of the newest columns, by table id."""
    return Query(_inlining_statement(tables), {"ids": list(ids)})


def schemas_query(tables: CatalogTables, at: int | None) -> Query:
    """The schemas that are live, or were at a snapshot."""
    return Query(_schemas_statement(tables, now=at is None), {} if at is None else {"at": at})


def objects_query(tables: CatalogTables, at: int | None) -> Query:
    """The tables and views that are live, or were at a snapshot."""
    return Query(_objects_statement(tables, now=at is None), {} if at is None else {"at": at})


def options_query(tables: CatalogTables) -> Query:
    """All options of the catalog."""
    return Query(options_statement(tables), {})


@lru_cache(maxsize=512)
def _head_statement(
    tables: CatalogTables, next_snapshot_id: ColumnElement[int], *, based: bool
) -> Executable:
    snapshot, changes, head = tables.snapshot, tables.snapshot_changes, tables.head
    newest = select(func.max(snapshot.c.snapshot_id)).scalar_subquery()
    metadata = tables.metadata
    version = (
        select(func.max(metadata.c.value))
        .where(metadata.c.key == "version", metadata.c.scope.is_(None))
        .scalar_subquery()
    )
    wanted = snapshot.c.snapshot_id == newest
    if based:
        # Always the newest, too: a base may be newer than a catalog restored from a backup.
        wanted |= snapshot.c.snapshot_id >= bindparam("base")
    return (
        select(
            snapshot,
            changes.c.changes_made,
            head.c.snapshot_id.label("fenced"),
            version.label("version"),
            next_snapshot_id.label("next_snapshot_id"),
        )
        .join(changes, changes.c.snapshot_id == snapshot.c.snapshot_id, isouter=True)
        .join(head, true(), isouter=True)
        .where(wanted)
        .order_by(snapshot.c.snapshot_id)
    )


class InList(ColumnElement[bool]):
    """True if a column's value is in a list parameter; one statement serves all lists."""

    inherit_cache = False
    type = Boolean()

    def __init__(self, member: ColumnElement[int], name: str) -> None:
        self.member = member
        self.name = name


@compiles(InList)
def _in_list(element: InList, compiler: SQLCompiler, **options: Any) -> str:
    listed = element.member.in_(bindparam(element.name, expanding=True))
    return compiler.process(listed, **options)


@compiles(InList, "postgresql")
def _in_array(element: InList, compiler: SQLCompiler, **options: Any) -> str:
    listed = element.member == any_(bindparam(element.name, type_=ARRAY(BigInteger())))
    return compiler.process(listed, **options)


@lru_cache(maxsize=256)
def _tables_statement(tables: CatalogTables) -> Executable:
    table, schema = tables.table, tables.schema
    stats, columns = tables.table_stats, tables.table_column_stats
    return (
        select(
            table.c.table_id,
            table.c.path,
            table.c.path_is_relative,
            table.c.begin_snapshot,
            schema.c.path.label("schema_path"),
            schema.c.path_is_relative.label("schema_is_relative"),
            stats.c.record_count,
            stats.c.next_row_id,
            stats.c.file_size_bytes,
            *(columns.c[name] for name in COLUMN_STATS),
        )
        .join(schema, schema.c.schema_id == table.c.schema_id)
        .join(stats, stats.c.table_id == table.c.table_id, isouter=True)
        .join(columns, columns.c.table_id == table.c.table_id, isouter=True)
        .where(InList(table.c.table_id, "ids"))
        .where(table.c.end_snapshot.is_(None))
    )


@lru_cache(maxsize=256)
def _inlining_statement(tables: CatalogTables) -> Executable:
    known, versions = tables.inlined_data_tables, tables.schema_versions
    altered = (
        select(func.max(versions.c.schema_version))
        .where(versions.c.table_id == known.c.table_id)
        .scalar_subquery()
    )
    newest = func.max(known.c.schema_version)
    return (
        select(known.c.table_id, newest.label("version"))
        .where(InList(known.c.table_id, "ids"))
        .group_by(known.c.table_id)
        .having(newest >= func.coalesce(altered, 0))
    )


@lru_cache(maxsize=512)
def _schemas_statement(tables: CatalogTables, *, now: bool) -> Executable:
    return select(tables.schema).where(visible_rows(tables.schema, now=now))


@lru_cache(maxsize=512)
def _objects_statement(tables: CatalogTables, *, now: bool) -> Executable:
    table, view = tables.table, tables.view
    return union_all(
        select(table.c.schema_id, table.c.table_name.label("name"), table.c.table_id.label("id"))
        .add_columns(literal_column("'table'").label("kind"))
        .where(visible_rows(table, now=now)),
        select(view.c.schema_id, view.c.view_name, view.c.view_id)
        .add_columns(literal_column("'view'"))
        .where(visible_rows(view, now=now)),
    )


def visible_rows(table: SqlTable, *, now: bool) -> ColumnElement[bool]:
    """Rows that are live, or were at the snapshot ``at``."""
    if now:
        return table.c.end_snapshot.is_(None)
    at = bindparam("at", type_=BigInteger())
    return (table.c.begin_snapshot <= at) & (
        table.c.end_snapshot.is_(None) | (table.c.end_snapshot > at)
    )

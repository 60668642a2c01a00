"""Tables and snapshots as the catalog describes them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Row, Select, bindparam, func, select
from sqlalchemy import Table as SqlTable

from swanlake.errors import Code, LakeError, NotFound
from swanlake.lake.metastore.tables import CatalogTables, batches
from swanlake.lake.model.layout import (
    Column,
    Default,
    DefaultKind,
    PartitionKey,
    SortKey,
    Table,
    directory_name,
    folded,
)
from swanlake.lake.model.operations import CreateTable
from swanlake.lake.model.options import read_options

#: The id of a table that is not created yet.
_NO_ID = -1
#: Parameters of statements that are built once: building takes longer than executing.
_AT, _TABLE = bindparam("at", type_=BigInteger()), bindparam("table", type_=BigInteger())


@dataclass(frozen=True)
class Snapshot:
    """One snapshot of a catalog."""

    id: int
    time: datetime
    schema_version: int
    changes: str
    author: str | None = None
    message: str | None = None
    extra_info: str | None = None


def newest_snapshot(connection: Connection, tables: CatalogTables) -> int:
    """The id of the head."""
    newest = connection.execute(_newest(tables)).scalar_one()
    if newest is None:
        raise LakeError(
            "The catalog has no snapshot: its metadata is damaged.",
            identifier="CATALOG_UNREADABLE",
            code=Code.INTERNAL,
        )
    return int(newest)


@lru_cache(maxsize=256)
def _newest(tables: CatalogTables) -> Select[Any]:
    return select(func.max(tables.snapshot.c.snapshot_id))


def snapshots(
    connection: Connection, tables: CatalogTables, last: int | None = None
) -> list[Snapshot]:
    """Every snapshot that is not expired, or the last ones, oldest first."""
    snapshot, changes = tables.snapshot, tables.snapshot_changes
    newest_first = connection.execute(
        select(snapshot, changes)
        .join(changes, changes.c.snapshot_id == snapshot.c.snapshot_id, isouter=True)
        .order_by(snapshot.c.snapshot_id.desc())
        .limit(last)
    ).all()
    return [
        Snapshot(
            row[0],
            row.snapshot_time,
            row.schema_version,
            row.changes_made or "",
            row.author,
            row.commit_message,
            row.commit_extra_info,
        )
        for row in reversed(newest_first)
    ]


def changes_since(connection: Connection, tables: CatalogTables, base: int) -> list[str]:
    """The changes of each snapshot after the base, in DuckLake's notation, oldest first."""
    changes = tables.snapshot_changes
    rows = connection.execute(
        select(changes.c.changes_made)
        .where(changes.c.snapshot_id > base)
        .order_by(changes.c.snapshot_id)
    )
    return [row.changes_made or "" for row in rows]


def read_catalog_option(connection: Connection, tables: CatalogTables, key: str) -> str | None:
    """A DuckLake option of the whole catalog, such as ``data_path``."""
    metadata = tables.metadata
    return connection.execute(
        select(metadata.c.value).where(metadata.c.key == key, metadata.c.scope.is_(None))
    ).scalar()


def has_macros(connection: Connection, tables: CatalogTables) -> bool:
    """True if the catalog has macros now."""
    return connection.execute(_macros(tables)).first() is not None


@lru_cache(maxsize=256)
def _macros(tables: CatalogTables) -> Select[Any]:
    return select(tables.macro.c.macro_id).where(tables.macro.c.end_snapshot.is_(None)).limit(1)


def requires_message(connection: Connection, tables: CatalogTables) -> bool:
    """True if the catalog refuses commits without a message."""
    return read_options(connection, tables).requires_message


def columns_with_initial_values(
    connection: Connection, tables: CatalogTables, table_id: int
) -> set[int]:
    """The ids of a table's columns that are not NULL in rows older than the column."""
    column = tables.column
    found = select(column.c.column_id).where(
        column.c.table_id == table_id,
        column.c.end_snapshot.is_(None),
        column.c.initial_default.is_not(None),
    )
    return set(connection.execute(found).scalars())


def read_table(
    connection: Connection, tables: CatalogTables, schema: str, name: str, at: int | None = None
) -> Table:
    """A table at the head or at a snapshot, by name without regard to case; raises NotFound."""
    snapshot_id = newest_snapshot(connection, tables) if at is None else at
    row = _find(connection, tables, schema, name, snapshot_id)
    return _table(connection, tables, row, snapshot_id)


def read_table_by_id(
    connection: Connection, tables: CatalogTables, table_id: int, at: int | None = None
) -> Table:
    """A table at the head or at a snapshot, by its id; raises NotFound."""
    snapshot_id = newest_snapshot(connection, tables) if at is None else at
    found = live_tables(tables, snapshot_id).where(tables.table.c.table_id == table_id)
    row = connection.execute(found).first()
    if row is None:
        raise NotFound(
            f"The table with the id {table_id} does not exist at snapshot {snapshot_id}.",
            identifier="TABLE_NOT_FOUND",
        )
    return _table(connection, tables, row, snapshot_id)


def read_new_table(connection: Connection, tables: CatalogTables, operation: CreateTable) -> Table:
    """The table that an operation will create, so that its files can be written before.

    It has no id yet. Raises NotFound for a missing schema.
    """
    snapshot_id = newest_snapshot(connection, tables)
    schemas = connection.execute(
        select(tables.schema).where(_visible(tables.schema, snapshot_id))
    ).all()
    for row in schemas:
        if folded(row.schema_name) == folded(operation.schema):
            break
    else:
        raise NotFound(f"There is no schema {operation.schema}.", identifier="SCHEMA_NOT_FOUND")
    stored = read_options(connection, tables)
    data_path = stored.catalog_option("data_path") or ""
    inside = f"{row.path}{directory_name(operation.name, operation.uuid)}"
    return Table(
        id=_NO_ID,
        schema=row.schema_name,
        name=operation.name,
        directory=f"{data_path}{inside}" if row.path_is_relative else inside,
        columns=operation.columns,
        partition_keys=operation.partition_keys,
        sort_keys=operation.sort_keys,
        encrypted=stored.catalog_option("encrypted") == "true",
        options=stored.table_options(row.schema_id, _NO_ID),
        snapshot_id=snapshot_id,
    )


def find_in_ledger(
    connection: Connection, tables: CatalogTables, entries: list[str]
) -> dict[str, int]:
    """The entries that are in the ledger, with the snapshots that added them."""
    known = tables.swanlake_ledger
    found: dict[str, int] = {}
    for batch in batches(entries):
        rows = connection.execute(select(known).where(known.c.entry.in_(batch)))
        found |= {row.entry: int(row.snapshot_id) for row in rows}
    return found


def list_ledger(connection: Connection, tables: CatalogTables, prefix: str) -> list[str]:
    """The ledger entries with a prefix."""
    known = tables.swanlake_ledger
    rows = connection.execute(
        select(known.c.entry).where(known.c.entry.startswith(prefix, autoescape=True))
    )
    return [row.entry for row in rows]


def _table(connection: Connection, tables: CatalogTables, row: Row[Any], snapshot_id: int) -> Table:
    which = {"table": row.table_id, "at": snapshot_id}
    keys = connection.execute(_partitioning_of(tables), which).all()
    sort_keys = connection.execute(_sorting_of(tables), which)
    stored = read_options(connection, tables)
    return Table(
        id=row.table_id,
        schema=row.schema_name,
        name=row.table_name,
        directory=_directory(row, stored.catalog_option("data_path") or ""),
        columns=column_tree(connection.execute(_columns_of(tables), which), _default),
        partition_id=keys[0].partition_id if keys else None,
        partition_keys=tuple(PartitionKey(key.column_id, key.transform) for key in keys),
        sort_keys=tuple(
            SortKey(key.expression, key.sort_direction == "DESC", key.null_order == "NULLS_FIRST")
            for key in sort_keys
        ),
        encrypted=stored.catalog_option("encrypted") == "true",
        options=stored.table_options(row.schema_id, row.table_id),
        snapshot_id=snapshot_id,
    )


def _find(
    connection: Connection, tables: CatalogTables, schema: str, name: str, at: int
) -> Row[Any]:
    # Databases differ in folding letters beyond ASCII, and DuckDB does not fold them.
    names = {
        "schema": folded(schema),
        "lower_schema": schema.lower(),
        "name": folded(name),
        "lower_name": name.lower(),
    }
    rows = connection.execute(_by_name(tables), {"at": at, **names}).all()
    for row in rows:
        if folded(row.schema_name) == folded(schema) and folded(row.table_name) == folded(name):
            return row
    raise NotFound(
        f"There is no table {schema}.{name} at snapshot {at}.", identifier="TABLE_NOT_FOUND"
    )


@lru_cache(maxsize=256)
def _by_name(tables: CatalogTables) -> Select[Any]:
    schema, name = tables.schema.c.schema_name, tables.table.c.table_name
    return live_tables(tables, _AT).where(
        func.lower(schema).in_([bindparam("schema"), bindparam("lower_schema")]),
        func.lower(name).in_([bindparam("name"), bindparam("lower_name")]),
    )


def live_tables(tables: CatalogTables, at: int | ColumnElement[int]) -> Select[Any]:
    """The query for the tables that are visible at a snapshot."""
    return _all_tables(tables).where(_visible(tables.table, at), _visible(tables.schema, at))


def _all_tables(tables: CatalogTables) -> Select[Any]:
    table, schemas = tables.table, tables.schema
    return select(
        table.c.table_id,
        table.c.table_name,
        table.c.path,
        table.c.path_is_relative,
        schemas.c.schema_id,
        schemas.c.schema_name,
        schemas.c.path.label("schema_path"),
        schemas.c.path_is_relative.label("schema_is_relative"),
    ).join(schemas, schemas.c.schema_id == table.c.schema_id)


def table_directories(connection: Connection, tables: CatalogTables) -> dict[int, str]:
    """The directory of every table, dropped ones included."""
    data_path = read_catalog_option(connection, tables, "data_path") or ""
    rows = connection.execute(_all_tables(tables))
    return {row.table_id: _directory(row, data_path) for row in rows}


def absolute_path(file: Row[Any], directories: Mapping[int, str]) -> str:
    """The absolute path of a data or delete file; raises LakeError if its table is unknown."""
    if not file.path_is_relative:
        return str(file.path)
    if file.table_id not in directories:
        raise LakeError(
            f"The file {file.path} belongs to table {file.table_id}, which the catalog does not "
            "know: its metadata is damaged.",
            identifier="CATALOG_UNREADABLE",
            code=Code.INTERNAL,
        )
    return directories[file.table_id] + str(file.path)


def _directory(row: Row[Any], data_path: str) -> str:
    if not row.path_is_relative:
        return str(row.path)
    inside = f"{row.schema_path}{row.path}"
    return f"{data_path}{inside}" if row.schema_is_relative else inside


@lru_cache(maxsize=256)
def _columns_of(tables: CatalogTables) -> Select[Any]:
    column = tables.column
    return (
        select(column)
        .where(column.c.table_id == _TABLE, _visible(column, _AT))
        .order_by(column.c.column_order)
    )


def column_tree(
    rows: Iterable[Row[Any]], default: Callable[[Row[Any]], Default | None]
) -> tuple[Column, ...]:
    """The columns with their fields, from metadata rows in column order."""
    children: dict[int | None, list[Row[Any]]] = defaultdict(list)
    for row in rows:
        children[row.parent_column].append(row)

    def below(parent: int | None) -> tuple[Column, ...]:
        return tuple(
            Column(
                row.column_id,
                row.column_name,
                row.column_type,
                row.nulls_allowed,
                default(row),
                below(row.column_id),
            )
            for row in children[parent]
        )

    return below(None)


def _default(row: Row[Any]) -> Default | None:
    if row.default_value_type == DefaultKind.EXPRESSION.value:
        return Default(row.default_value, DefaultKind.EXPRESSION)
    # The stock extension writes a missing or dropped default as this word.
    if row.default_value in (None, "NULL"):
        return None
    return Default(row.default_value)


@lru_cache(maxsize=256)
def _partitioning_of(tables: CatalogTables) -> Select[Any]:
    info, keys = tables.partition_info, tables.partition_column
    return (
        select(info.c.partition_id, keys.c.column_id, keys.c.transform)
        .join(keys, keys.c.partition_id == info.c.partition_id)
        .where(info.c.table_id == _TABLE, _visible(info, _AT))
        .order_by(keys.c.partition_key_index)
    )


@lru_cache(maxsize=256)
def _sorting_of(tables: CatalogTables) -> Select[Any]:
    info, keys = tables.sort_info, tables.sort_expression
    return (
        select(keys)
        .join(info, info.c.sort_id == keys.c.sort_id)
        .where(info.c.table_id == _TABLE, _visible(info, _AT))
        .order_by(keys.c.sort_key_index)
    )


def _visible(table: SqlTable, at: int | ColumnElement[int]) -> ColumnElement[bool]:
    """Rows of a versioned table that are visible at a snapshot."""
    return (table.c.begin_snapshot <= at) & (
        table.c.end_snapshot.is_(None) | (table.c.end_snapshot > at)
    )

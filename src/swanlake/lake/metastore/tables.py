"""The tables of a DuckLake 1.0 catalog, and those that SwanLake adds.

Names, column order and types are those of the stock extension. It creates five primary keys and no
index; the indexes and tables that SwanLake adds are listed separately.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

from sqlalchemy import (
    JSON,
    UUID,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Index,
    MetaData,
    String,
    Table,
    TypeDecorator,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeEngine

FORMAT_VERSION = "1.0"


class _SqliteBoolean(TypeDecorator[bool]):
    """The stock extension stores booleans in SQLite as 0 and 1."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: bool | None, dialect: Dialect) -> int | None:
        return None if value is None else int(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> bool | None:
        return None if value is None else bool(value)


class _SqliteTimestamp(TypeDecorator[datetime]):
    """The stock extension stores times in SQLite as text: ``2026-11-15 18:42:50.305168+00``."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f+00")

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        return None if value is None else datetime.fromisoformat(value)


_TYPES: dict[str, TypeEngine[Any]] = {
    "int": BigInteger(),
    "text": String(),
    "bool": Boolean().with_variant(_SqliteBoolean(), "sqlite"),
    "uuid": UUID(as_uuid=False).with_variant(String(), "sqlite"),
    "time": DateTime(timezone=True).with_variant(_SqliteTimestamp(), "sqlite"),
    "json": JSON(none_as_null=True),
}

#: One line per table: columns with types, ``*`` for the primary key, ``!`` for NOT NULL.
_DUCKLAKE = """
metadata: key text!, value text!, scope text, scope_id int
snapshot: snapshot_id int*, snapshot_time time, schema_version int, next_catalog_id int, next_file_id int
snapshot_changes: snapshot_id int*, changes_made text, author text, commit_message text, commit_extra_info text
schema: schema_id int*, schema_uuid uuid, begin_snapshot int, end_snapshot int, schema_name text, path text, path_is_relative bool
table: table_id int, table_uuid uuid, begin_snapshot int, end_snapshot int, schema_id int, table_name text, path text, path_is_relative bool
view: view_id int, view_uuid uuid, begin_snapshot int, end_snapshot int, schema_id int, view_name text, dialect text, sql text, column_aliases text
tag: object_id int, begin_snapshot int, end_snapshot int, key text, value text
column_tag: table_id int, column_id int, begin_snapshot int, end_snapshot int, key text, value text
data_file: data_file_id int*, table_id int, begin_snapshot int, end_snapshot int, file_order int, path text, path_is_relative bool, file_format text, record_count int, file_size_bytes int, footer_size int, row_id_start int, partition_id int, encryption_key text, mapping_id int, partial_max int
file_column_stats: data_file_id int, table_id int, column_id int, column_size_bytes int, value_count int, null_count int, min_value text, max_value text, contains_nan bool, extra_stats text
file_variant_stats: data_file_id int, table_id int, column_id int, variant_path text, shredded_type text, column_size_bytes int, value_count int, null_count int, min_value text, max_value text, contains_nan bool, extra_stats text
delete_file: delete_file_id int*, table_id int, begin_snapshot int, end_snapshot int, data_file_id int, path text, path_is_relative bool, format text, delete_count int, file_size_bytes int, footer_size int, encryption_key text, partial_max int
column: column_id int, begin_snapshot int, end_snapshot int, table_id int, column_order int, column_name text, column_type text, initial_default text, default_value text, nulls_allowed bool, parent_column int, default_value_type text, default_value_dialect text
table_stats: table_id int, record_count int, next_row_id int, file_size_bytes int
table_column_stats: table_id int, column_id int, contains_null bool, contains_nan bool, min_value text, max_value text, extra_stats text
partition_info: partition_id int, table_id int, begin_snapshot int, end_snapshot int
partition_column: partition_id int, table_id int, partition_key_index int, column_id int, transform text
file_partition_value: data_file_id int, table_id int, partition_key_index int, partition_value text
files_scheduled_for_deletion: data_file_id int, path text, path_is_relative bool, schedule_start time
inlined_data_tables: table_id int, table_name text, schema_version int
column_mapping: mapping_id int, table_id int, type text
name_mapping: mapping_id int, column_id int, source_name text, target_field_id int, parent_column int, is_partition bool
schema_versions: begin_snapshot int, schema_version int, table_id int
macro: schema_id int, macro_id int, macro_name text, begin_snapshot int, end_snapshot int
macro_impl: macro_id int, impl_id int, dialect text, sql text, type text
macro_parameters: macro_id int, impl_id int, column_id int, parameter_name text, parameter_type text, default_value text, default_value_type text
sort_info: sort_id int, table_id int, begin_snapshot int, end_snapshot int
sort_expression: sort_id int, table_id int, sort_key_index int, expression text, dialect text, sort_direction text, null_order text
"""  # noqa: E501

#: For the fence, exactly-once commits and forks.
_SWANLAKE = """
ducklake_head: one int*, snapshot_id int!, next_catalog_id int!, next_file_id int!
swanlake_ledger: entry text*, snapshot_id int!, committed_at time!
swanlake_shared_file: path text*
swanlake_deferred_file: path text*, since time!
"""

#: Without these, which the stock extension lacks, every query and commit scans whole tables.
_INDEXES = {
    "data_file": ("table_id",),
    "delete_file": ("data_file_id",),
    "file_column_stats": ("table_id", "column_id"),
    "file_partition_value": ("data_file_id",),
    "column": ("table_id",),
    "table_stats": ("table_id",),
    "table_column_stats": ("table_id",),
}

#: Unique among live rows. The stock extension can commit two delete files for one data file, or
#: assign one id to two tables; with these indexes it fails instead.
_GUARDS = {
    "ducklake_delete_file_active_uidx": ("delete_file", "data_file_id"),
    "ducklake_table_active_uidx": ("table", "table_id"),
}


T = TypeVar("T")


def batches(keys: Sequence[T], size: int = 500) -> Iterator[Sequence[T]]:
    """Keys in portions: databases limit the parameters of a statement."""
    for start in range(0, len(keys), size):
        yield keys[start : start + size]


class CatalogTables:
    """The tables of one catalog by their names without the prefix: ``tables.data_file``."""

    def __init__(self, schema: str | None) -> None:
        self.schema_name = schema
        metadata = MetaData(schema=schema)
        self._tables = {
            name.removeprefix("ducklake_"): table
            for name, table in (
                *(_define(f"ducklake_{line}", metadata) for line in _lines(_DUCKLAKE)),
                *(_define(line, metadata) for line in _lines(_SWANLAKE)),
            )
        }
        self.everything = metadata
        self.indexes = [
            Index(f"swanlake_{name}_idx", *(self._tables[name].c[column] for column in columns))
            for name, columns in _INDEXES.items()
        ]
        self.guards = [
            _unique_among_live(name, self._tables[table], column)
            for name, (table, column) in _GUARDS.items()
        ]
        self.stock = tuple(self._tables[line.partition(":")[0]] for line in _lines(_DUCKLAKE))
        self.ours = tuple(table for table in self._tables.values() if table not in self.stock)

    def __getattr__(self, name: str) -> Table:
        try:
            return self._tables[name]
        except KeyError:
            raise AttributeError(name) from None


@lru_cache(maxsize=256)
def tables_in(schema: str | None) -> CatalogTables:
    """The tables of the catalog in a PostgreSQL schema, or in the SQLite file itself (None)."""
    return CatalogTables(schema)


def _lines(text: str) -> list[str]:
    return text.strip().splitlines()


def _define(line: str, metadata: MetaData) -> tuple[str, Table]:
    name, _, columns = line.partition(": ")
    return name, Table(name, metadata, *(_column(text) for text in columns.split(", ")))


def _column(text: str) -> Column[Any]:
    name, kind = text.split()
    return Column(
        name,
        _TYPES[kind.rstrip("*!")],
        primary_key=kind.endswith("*"),
        autoincrement=False,
        nullable=not kind.endswith(("*", "!")),
    )


def registry_table(schema: str | None) -> Table:
    """The registry of all catalogs, dropped ones included."""
    _, table = _define(
        "swanlake_catalog: id uuid*, name text!, place text!, data_path text!, family uuid!, "
        "parent uuid, parent_snapshot int, created_at time!, dropped_at time",
        MetaData(schema=schema),
    )
    _unique_where("swanlake_catalog_name", table.c.name, table.c.dropped_at.is_(None))
    return table


def maintenance_table(schema: str | None) -> Table:
    """The maintenance history, next to the registry."""
    _, table = _define(
        "swanlake_maintenance: id uuid*, catalog text!, job text!, table_name text, "
        "started_at time!, finished_at time, outcome text, server text!, report json",
        MetaData(schema=schema),
    )
    Index("swanlake_maintenance_newest", table.c.catalog, table.c.started_at)
    return table


def credential_table(schema: str | None) -> Table:
    """The credentials of callers, next to the registry."""
    _, table = _define(
        "swanlake_credential: name text*, kind text!, verifier text!, role text!, grants json!, "
        "expires_at time, created_at time!",
        MetaData(schema=schema),
    )
    return table


def store_table(schema: str | None) -> Table:
    """The id of the lake, and the data paths with its marker, next to the registry.

    The row with the id has an empty location.
    """
    _, table = _define(
        "swanlake_store: location text*, lake uuid!, marked_at time!", MetaData(schema=schema)
    )
    return table


def _unique_among_live(name: str, table: Table, column: str) -> Index:
    return _unique_where(name, table.c[column], table.c.end_snapshot.is_(None))


def _unique_where(name: str, column: Column[Any], condition: ColumnElement[bool]) -> Index:
    return Index(name, column, unique=True, sqlite_where=condition, postgresql_where=condition)

"""The inlined tables: metadata tables that hold rows of the lake's tables.

There is one per version of a table's columns, with the name and types that the stock extension
chooses in that database. Drivers of both databases take the same values: booleans, integers, bytes
for texts and blobs, and DuckDB's text for everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    REAL,
    UUID,
    BigInteger,
    Boolean,
    ClauseElement,
    Column,
    ColumnElement,
    Double,
    Executable,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    String,
    Table,
    TableClause,
    Time,
    bindparam,
    cast,
    update,
)
from sqlalchemy import column as named_column
from sqlalchemy import table as lightweight_table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.layout import Column as LakeColumn
from swanlake.lake.model.layout import Table as LakeTable
from swanlake.lake.model.layout import folded
from swanlake.lake.model.operations import CreateTable
from swanlake.lake.model.type_registry import decimal_size, find_type

#: The columns before those of the lake's table.
OWN_COLUMNS = ("row_id", "begin_snapshot", "end_snapshot")
#: PostgreSQL truncates longer names, limits the columns, and reserves names.
_MAX_NAME_BYTES = 63
_MAX_COLUMNS = 1000
_RESERVED_NAMES = {*OWN_COLUMNS, "tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}


_BIGINT = BigInteger()
#: The SQL types that hold inlined values, by the names in the registry.
_SQL_TYPES: dict[str, TypeEngine[Any]] = {
    "boolean": Boolean(),
    "smallint": SmallInteger(),
    "integer": Integer(),
    "bigint": _BIGINT,
    "real": REAL(),
    "double precision": Double(),
    "time": Time(),
    "varchar": String(),
    "bytea": LargeBinary(),
    "blob": LargeBinary(),
    "uuid": UUID(),
}


@lru_cache(maxsize=1024)
def inlined_type(name: str) -> TypeEngine[Any] | None:
    """The SQL type of inlined values of a DuckLake type; None if they cannot be inlined."""
    known = find_type(name)
    if known is None or known.inlined is None:
        return None
    size = decimal_size(name)
    type_ = Numeric(*size) if size else _SQL_TYPES[known.inlined.postgres]
    in_sqlite = _SQL_TYPES[known.inlined.sqlite]
    return type_ if type_ is in_sqlite else type_.with_variant(in_sqlite, "sqlite")


def can_inline(table: LakeTable | CreateTable) -> bool:
    """True if rows of the table can be inlined: its types and names are safe in both databases.

    Rows of a sorted table cannot, unless they are sorted only by compaction.
    """
    if isinstance(table, LakeTable) and (
        table.encrypted or (table.sort_keys and table.options.sort_inserts)
    ):
        return False
    if isinstance(table, CreateTable) and table.sort_keys:
        return False
    return len(table.columns) <= _MAX_COLUMNS and all(map(_is_safe, table.columns))


def _is_safe(column: LakeColumn) -> bool:
    return (
        inlined_type(column.type) is not None
        and folded(column.name) not in _RESERVED_NAMES
        and len(column.name.encode()) <= _MAX_NAME_BYTES
    )


def inlined_name(table_id: int, version: int) -> str:
    """The name of the inlined table for one version of a table's columns."""
    return f"ducklake_inlined_data_{table_id}_{version}"


def value_key(index: int) -> str:
    """The parameter name of a column's value; column names may hold any character."""
    return f"value_{index}"


def rows_table(
    tables: CatalogTables, table_id: int, version: int, columns: tuple[LakeColumn, ...]
) -> Table:
    """The inlined table for one version of a table's columns."""
    own = [Column(name, BigInteger()) for name in OWN_COLUMNS]
    values = [Column(column.name, inlined_type(column.type)) for column in columns]
    name = inlined_name(table_id, version)
    return Table(name, MetaData(), *own, *values, schema=tables.schema_name)


def inlined_table(tables: CatalogTables, name: str) -> TableClause:
    """An inlined table by name, without the columns of the lake's table."""
    return lightweight_table(name, *map(named_column, OWN_COLUMNS), schema=tables.schema_name)


def deletes_name(table_id: int) -> str:
    """The name of the table of inlined deletes from a table's files."""
    return f"ducklake_inlined_delete_{table_id}"


def deletes_table(tables: CatalogTables, table_id: int) -> Table:
    """The table of inlined deletes; the stock extension creates it with the first delete."""
    return Table(
        deletes_name(table_id),
        MetaData(),
        Column("file_id", BigInteger()),
        Column("row_id", BigInteger()),
        Column("begin_snapshot", BigInteger()),
        schema=tables.schema_name,
    )


class _PositionalInsert(Executable, ClauseElement):
    """An INSERT without column names, which SQLAlchemy does not offer."""

    inherit_cache = False

    def __init__(self, table: TableClause, values: Sequence[ColumnElement[Any]]) -> None:
        self.table = table
        self.values = values


@compiles(_PositionalInsert)
def _compile_insert(element: _PositionalInsert, compiler: SQLCompiler, **options: Any) -> str:
    table = compiler.preparer.format_table(element.table)
    values = ", ".join(compiler.process(value, **options) for value in element.values)
    return f"INSERT INTO {table} VALUES ({values})"


@lru_cache(maxsize=2048)
def insert_statement(
    tables: CatalogTables, name: str, columns: tuple[LakeColumn, ...]
) -> Executable:
    """The statement that inserts a row by position; it is built once.

    Not by name: the stock extension leaves names unquoted that DuckDB need not quote, and
    PostgreSQL then folds them to lower case.
    """
    return _PositionalInsert(
        inlined_table(tables, name), _values(tuple(column.type for column in columns))
    )


@lru_cache(maxsize=256)
def _values(types: tuple[str, ...]) -> Sequence[ColumnElement[Any]]:
    """The values of a row; in SQLite the cast turns bytes into text, zero bytes included."""
    values: list[ColumnElement[Any]] = [
        cast(bindparam(name, type_=_BIGINT), _BIGINT) for name in OWN_COLUMNS
    ]
    for index, name in enumerate(types):
        type_ = inlined_type(name)
        assert type_ is not None, name  # can_inline() refused such a column
        values.append(cast(bindparam(value_key(index), type_=type_), type_))
    return values


@lru_cache(maxsize=2048)
def end_statement(tables: CatalogTables, name: str) -> Executable:
    """The statement that ends an inlined row; it is built once."""
    rows = inlined_table(tables, name)
    which = (rows.c.row_id == bindparam("of_row_id"), rows.c.end_snapshot.is_(None))
    return update(rows).where(*which).values(end_snapshot=bindparam("end_snapshot"))

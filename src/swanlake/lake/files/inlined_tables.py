"""Tables of the metadata that keep rows of the lake's tables: DuckLake's inlined data.

There is one for every version of a table's columns, with the name and the types that the stock
extension gives it in that database. What a driver is given for a value is the same in both: a
boolean, an integer, bytes for a text or a blob, and DuckDB's own text for everything else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    REAL,
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
from sqlalchemy.dialects.postgresql import UUID
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

from swanlake.lake.layout import Column as LakeColumn
from swanlake.lake.layout import Table as LakeTable
from swanlake.lake.layout import folded
from swanlake.lake.operations import CreateTable
from swanlake.lake.tables import CatalogTables

#: The columns that stand before those of the lake's table.
OWN_COLUMNS = ("row_id", "begin_snapshot", "end_snapshot")
_NAME = re.compile(r"ducklake_inlined_data_\d+_\d+")
#: PostgreSQL cuts longer names off, has no room for more columns, and keeps names for itself.
_LONGEST_NAME = 63
_MOST_COLUMNS = 1000
_TAKEN = {*OWN_COLUMNS, "tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)", re.IGNORECASE)


def _kept(type_: TypeEngine[Any], in_sqlite: TypeEngine[Any]) -> TypeEngine[Any]:
    return type_.with_variant(in_sqlite, "sqlite")


_NUMBER, _WORDS = BigInteger(), String()
#: By DuckLake's word. Types that are not here do not survive, or have statistics that may not.
_TYPES: dict[str, TypeEngine[Any]] = {
    "boolean": _kept(Boolean(), _NUMBER),
    "int8": _kept(SmallInteger(), _NUMBER),
    "int16": _kept(SmallInteger(), _NUMBER),
    "int32": _kept(Integer(), _NUMBER),
    "int64": _NUMBER,
    "uint8": _kept(Integer(), _NUMBER),
    "uint16": _kept(Integer(), _NUMBER),
    "uint32": _NUMBER,
    "uint64": _WORDS,
    "float32": _kept(REAL(), _WORDS),
    "float64": _kept(Double(), _WORDS),
    "date": _WORDS,
    "time": _kept(Time(), _WORDS),
    "timestamp": _WORDS,
    "timestamp_s": _WORDS,
    "timestamp_ms": _WORDS,
    "timestamp_ns": _WORDS,
    "timestamptz": _WORDS,
    "varchar": _kept(LargeBinary(), _WORDS),
    "json": _kept(LargeBinary(), _WORDS),
    "blob": LargeBinary(),
    "uuid": _kept(UUID(), _WORDS),
}


def kept_type(word: str) -> TypeEngine[Any] | None:
    """How databases keep a DuckLake type; None for one that is not safe with them."""
    if found := _DECIMAL.fullmatch(word):
        return _kept(Numeric(int(found[1]), int(found[2])), _WORDS)
    return _TYPES.get(word)


def can_inline(table: LakeTable | CreateTable) -> bool:
    """True if the metadata can keep rows of the table: all its columns are of safe types.

    A sorted table says no, unless its rows are sorted only when files are compacted.
    """
    if isinstance(table, LakeTable) and (
        table.encrypted or (table.sort_keys and table.options.sort_inserts)
    ):
        return False
    if isinstance(table, CreateTable) and table.sort_keys:
        return False
    return len(table.columns) <= _MOST_COLUMNS and all(map(_is_safe, table.columns))


def _is_safe(column: LakeColumn) -> bool:
    return (
        kept_type(column.type) is not None
        and folded(column.name) not in _TAKEN
        and len(column.name.encode()) <= _LONGEST_NAME
    )


def inlined_name(table_id: int, version: int) -> str:
    """The name of the table that keeps rows of one version of a table."""
    return f"{inlined_prefix(table_id)}{version}"


def inlined_prefix(table_id: int) -> str:
    """How the names of all tables begin that keep rows of a table."""
    return f"ducklake_inlined_data_{table_id}_"


def is_inlined_name(name: str) -> bool:
    """True for the name of a table that keeps rows, as against the path of a file."""
    return _NAME.fullmatch(name) is not None


def value_key(place: int) -> str:
    """What a statement calls the value of a column: a name of its own may hold anything."""
    return f"value_{place}"


def rows_table(
    tables: CatalogTables, table_id: int, version: int, columns: tuple[LakeColumn, ...]
) -> Table:
    """The table that keeps rows of one version of a table."""
    own = [Column(name, BigInteger()) for name in OWN_COLUMNS]
    values = [Column(column.name, kept_type(column.type)) for column in columns]
    name = inlined_name(table_id, version)
    return Table(name, MetaData(), *own, *values, schema=tables.schema_name)


def inlined_table(tables: CatalogTables, name: str) -> TableClause:
    """A table of the metadata that keeps rows, without the columns of the lake's table."""
    return lightweight_table(name, *map(named_column, OWN_COLUMNS), schema=tables.schema_name)


def deletes_table(tables: CatalogTables, table_id: int) -> Table:
    """The table that keeps deletes from files of a table; the stock extension makes it late."""
    return Table(
        f"ducklake_inlined_delete_{table_id}",
        MetaData(),
        Column("file_id", BigInteger()),
        Column("row_id", BigInteger()),
        Column("begin_snapshot", BigInteger()),
        schema=tables.schema_name,
    )


class _InsertByPlace(Executable, ClauseElement):
    """An INSERT without names of columns, which SQLAlchemy does not offer."""

    inherit_cache = False

    def __init__(self, table: TableClause, values: Sequence[ColumnElement[Any]]) -> None:
        self.table = table
        self.values = values


@compiles(_InsertByPlace)
def _by_place(element: _InsertByPlace, compiler: SQLCompiler, **options: Any) -> str:
    table = compiler.preparer.format_table(element.table)
    values = ", ".join(compiler.process(value, **options) for value in element.values)
    return f"INSERT INTO {table} VALUES ({values})"


@lru_cache(maxsize=2048)
def insertion(tables: CatalogTables, name: str, columns: tuple[LakeColumn, ...]) -> Executable:
    """What inserts a row by the places of its values; it is built once.

    Not by their names: the stock extension does not quote those that DuckDB does not need quoted,
    and PostgreSQL then keeps them in lower case.
    """
    return _InsertByPlace(
        inlined_table(tables, name), _values(tuple(column.type for column in columns))
    )


@lru_cache(maxsize=256)
def _values(types: tuple[str, ...]) -> Sequence[ColumnElement[Any]]:
    """The values of a row; in SQLite the cast makes a text of bytes, zeros among them too."""
    values: list[ColumnElement[Any]] = [
        cast(bindparam(name, type_=_NUMBER), _NUMBER) for name in OWN_COLUMNS
    ]
    for place, word in enumerate(types):
        type_ = kept_type(word)
        assert type_ is not None, word  # who has such a column was told that it cannot be kept
        values.append(cast(bindparam(value_key(place), type_=type_), type_))
    return values


@lru_cache(maxsize=2048)
def ending(tables: CatalogTables, name: str) -> Executable:
    """What ends a row of a table of the metadata; it is built once."""
    rows = inlined_table(tables, name)
    which = (rows.c.row_id == bindparam("of_row_id"), rows.c.end_snapshot.is_(None))
    return update(rows).where(*which).values(end_snapshot=bindparam("end_snapshot"))

"""DuckDB's types and DuckLake's names for them, in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import cast

import duckdb
from duckdb.sqltypes import DuckDBPyType

from swanlake.errors import InvalidRequest
from swanlake.lake.layout import Column, Default, DefaultKind
from swanlake.sql.quoting import identifier, literal
from swanlake.sql.tokens import tokenize

#: DuckLake's word for every type without children, and how DuckDB spells it.
_SQL_BY_WORD = {
    "boolean": "BOOLEAN",
    "int8": "TINYINT",
    "int16": "SMALLINT",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "int128": "HUGEINT",
    "uint8": "UTINYINT",
    "uint16": "USMALLINT",
    "uint32": "UINTEGER",
    "uint64": "UBIGINT",
    "uint128": "UHUGEINT",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timetz": "TIME WITH TIME ZONE",
    "timestamp": "TIMESTAMP",
    "timestamp_s": "TIMESTAMP_S",
    "timestamp_ms": "TIMESTAMP_MS",
    "timestamp_ns": "TIMESTAMP_NS",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "interval": "INTERVAL",
    "varchar": "VARCHAR",
    "json": "JSON",
    "blob": "BLOB",
    "uuid": "UUID",
    "variant": "VARIANT",
    "geometry": "GEOMETRY",
}
_WORD_BY_SQL = {sql: word for word, sql in _SQL_BY_WORD.items()}
#: Words that only catalogs written by others hold.
_OTHER_WORDS = {"timestamp_us": "TIMESTAMP", "time_ns": "TIME_NS"}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)", re.IGNORECASE)
_NESTED = ("struct", "list", "map")


class UnsupportedType(InvalidRequest):
    """A column has a type that a table of the lake cannot hold."""

    identifier = "UNSUPPORTED_TYPE"


@dataclass(frozen=True)
class ColumnSpec:
    """A column as it is asked for; ``type`` is DuckDB's: ``STRUCT(a INTEGER, b VARCHAR[])``."""

    name: str
    type: str
    nullable: bool = True
    default: Default | None = None


def number_columns(specs: Iterable[ColumnSpec]) -> tuple[Column, ...]:
    """The columns of a new table, with ids from 1 on: every parent before its children."""
    specs = tuple(specs)
    if not specs:
        raise InvalidRequest("A table needs at least one column.", identifier="NO_COLUMNS")
    taken: set[bytes] = set()
    for spec in specs:
        if not spec.name:
            raise InvalidRequest("A column needs a name.", identifier="INVALID_COLUMN")
        folded = spec.name.encode().lower()  # as DuckDB folds names: ASCII letters only
        if folded in taken:
            raise InvalidRequest(
                f"The column {spec.name!r} is there twice; names differ in more than their case.",
                identifier="DUPLICATE_COLUMN",
            )
        taken.add(folded)
    return number_from(specs, 1)


def number_from(specs: Iterable[ColumnSpec], first_id: int) -> tuple[Column, ...]:
    """The columns with ids from a given one on, as a table that exists gets new columns."""
    ids = count(first_id)
    columns = []
    for spec in specs:
        column = _column(spec.name, parse_type(spec.type), ids, spec)
        if spec.default is not None and column.children:
            raise UnsupportedType(
                f"The column {spec.name!r} is a {column.type} and cannot have a default."
            )
        columns.append(column)
    return tuple(columns)


def parse_type(text: str) -> DuckDBPyType:
    """The type that DuckDB reads from the text."""
    # DuckDB's type object forgets collations, and DuckLake has no place for them.
    if any(token.is_kw("collate") for token in tokenize(text)):
        raise UnsupportedType(f"The type {text!r} has a collation, which the lake cannot keep.")
    try:
        return duckdb.sqltype(text)
    except duckdb.Error as unreadable:
        reason = " ".join(str(unreadable).split("\n")[0].split())
        raise UnsupportedType(f"The type {text!r} cannot be used: {reason}") from None


def duckdb_type(column: Column) -> str:
    """The column's type as SQL that a CAST understands."""
    if column.type == "struct":
        fields = (f"{identifier(child.name)} {duckdb_type(child)}" for child in column.children)
        return f"STRUCT({', '.join(fields)})"
    if column.type == "list":
        (element,) = column.children
        return f"{duckdb_type(element)}[]"
    if column.type == "map":
        key, value = column.children
        return f"MAP({duckdb_type(key)}, {duckdb_type(value)})"
    if found := _DECIMAL.fullmatch(column.type):
        return f"DECIMAL({found[1]},{found[2]})"
    word = column.type.lower()
    sql = _SQL_BY_WORD.get(word) or _OTHER_WORDS.get(word)
    if sql is None:
        raise UnsupportedType(
            f"The column {column.name!r} has the type {column.type!r}, which this version of "
            "SwanLake does not know."
        )
    return sql


def default_sql(column: Column) -> str:
    """The column's default as SQL; NULL if it has none."""
    if column.default is None:
        return "NULL"
    if column.default.kind is DefaultKind.EXPRESSION:
        return f"({column.default.text})"
    return literal(column.default.text)


def _column(
    name: str, type_: DuckDBPyType, ids: Iterator[int], spec: ColumnSpec, *, nested: bool = False
) -> Column:
    id_ = next(ids)
    word = _word(type_, name, nested=nested)
    return Column(
        id_,
        name,
        word,
        nullable=nested or spec.nullable,
        default=None if nested else spec.default,
        children=tuple(
            _column(child, child_type, ids, spec, nested=True)
            for child, child_type in _children(word, type_)
        ),
    )


def _children(word: str, type_: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    if word not in _NESTED:
        return []
    children = cast("list[tuple[str, DuckDBPyType]]", type_.children)
    return [("element", children[0][1])] if word == "list" else children


def _word(type_: DuckDBPyType, name: str, *, nested: bool) -> str:
    if type_.id in _NESTED:
        return str(type_.id)
    if type_.id == "decimal":
        (_, precision), (_, scale) = type_.children
        return f"decimal({precision},{scale})"
    # A geometry's reference system is not kept by DuckLake.
    text = "GEOMETRY" if type_.id == "geometry" else str(type_)
    word = _WORD_BY_SQL.get(text)
    if word is None:
        # TIME_NS ends here too: DuckLake names it, and nothing can write it to Parquet.
        raise UnsupportedType(f"A table of the lake cannot hold the type {text} of {name!r}.")
    if word == "variant" and nested:
        raise UnsupportedType(f"A VARIANT cannot stand inside another type, as {name!r} does.")
    return word

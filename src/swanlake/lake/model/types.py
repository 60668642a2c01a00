"""Columns of new tables, and how their types are written in SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import cast

import duckdb
from duckdb.sqltypes import DuckDBPyType

from swanlake.errors import InvalidRequest
from swanlake.lake.model.layout import Column, Default, DefaultKind, folded
from swanlake.lake.model.type_registry import CREATABLE_TYPES, NESTED, LakeType, find_type
from swanlake.sql.quoting import identifier, literal
from swanlake.sql.tokens import tokenize


class UnsupportedType(InvalidRequest):
    """A column has a type that a table of the lake cannot hold."""

    identifier = "UNSUPPORTED_TYPE"


@dataclass(frozen=True)
class ColumnSpec:
    """A column of a new table; ``type`` is DuckDB's: ``STRUCT(a INTEGER, b VARCHAR[])``."""

    name: str
    type: str
    nullable: bool = True
    default: Default | None = None


def number_columns(specs: Iterable[ColumnSpec]) -> tuple[Column, ...]:
    """The columns of a new table, with ids from 1 on: every parent before its children."""
    specs = tuple(specs)
    if not specs:
        raise InvalidRequest("A table needs at least one column.", identifier="NO_COLUMNS")
    taken: set[str] = set()
    for spec in specs:
        if not spec.name:
            raise InvalidRequest("A column needs a name.", identifier="INVALID_COLUMN")
        if folded(spec.name) in taken:
            raise InvalidRequest(
                f"The column {spec.name!r} is there twice; names must differ beyond their case.",
                identifier="DUPLICATE_COLUMN",
            )
        taken.add(folded(spec.name))
    ids = count(1)
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
    # DuckDB's type object drops collations, and DuckLake cannot store them.
    if any(token.is_kw("collate") for token in tokenize(text)):
        raise UnsupportedType(f"The type {text!r} has a collation, which the lake cannot keep.")
    try:
        return duckdb.sqltype(text)
    except duckdb.Error as unreadable:
        reason = " ".join(str(unreadable).split("\n")[0].split())
        raise UnsupportedType(f"The type {text!r} cannot be used: {reason}") from None


def duckdb_type(column: Column) -> str:
    """The column's type as SQL for a CAST."""
    return _sql_type(column, lambda type_: type_.duckdb)


def stored_type(column: Column) -> str:
    """The type that the column has in files, as SQL for a CAST."""
    return _sql_type(column, lambda type_: type_.stored_as or type_.duckdb)


def _sql_type(column: Column, leaf: Callable[[LakeType], str]) -> str:
    if column.type == "struct":
        fields = (f"{identifier(child.name)} {_sql_type(child, leaf)}" for child in column.children)
        return f"STRUCT({', '.join(fields)})"
    if column.type == "list":
        (element,) = column.children
        return f"{_sql_type(element, leaf)}[]"
    if column.type == "map":
        key, value = column.children
        return f"MAP({_sql_type(key, leaf)}, {_sql_type(value, leaf)})"
    known = find_type(column.type.lower())
    if known is None:
        raise UnsupportedType(
            f"The column {column.name!r} has the type {column.type!r}, which this version of "
            "SwanLake does not know."
        )
    return leaf(known)


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
    lake_type = _lake_type(type_, name, nested=nested)
    return Column(
        id_,
        name,
        lake_type,
        nullable=nested or spec.nullable,
        default=None if nested else spec.default,
        children=tuple(
            _column(child, child_type, ids, spec, nested=True)
            for child, child_type in _children(lake_type, type_)
        ),
    )


def _children(name: str, type_: DuckDBPyType) -> list[tuple[str, DuckDBPyType]]:
    if name not in NESTED:
        return []
    children = cast("list[tuple[str, DuckDBPyType]]", type_.children)
    return [("element", children[0][1])] if name == "list" else children


def _lake_type(type_: DuckDBPyType, column: str, *, nested: bool) -> str:
    """DuckLake's name of a DuckDB type."""
    if type_.id in NESTED:
        return str(type_.id)
    if type_.id == "decimal":
        (_, precision), (_, scale) = type_.children
        return f"decimal({precision},{scale})"
    # DuckLake does not keep a geometry's reference system.
    text = "GEOMETRY" if type_.id == "geometry" else str(type_)
    known = CREATABLE_TYPES.get(text)
    if known is None:
        raise UnsupportedType(f"A table of the lake cannot hold the type {text} of {column!r}.")
    if known.name == "variant" and nested:
        raise UnsupportedType(f"A VARIANT cannot stand inside another type, as {column!r} does.")
    return known.name

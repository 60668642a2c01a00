"""Rows of files that were written when the table had other columns.

A column is found in a file by its id, whatever it was called and whatever type it had then. One
that the file does not have gets the value that the table gave to older rows when it was added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from swanlake.lake.layout import Column, folded
from swanlake.lake.types import duckdb_type
from swanlake.sql.quoting import identifier, literal

_SCHEMA = (
    "SELECT file_name, name, field_id, num_children, converted_type, repetition_type "
    "FROM parquet_schema(?)"
)


@dataclass(frozen=True)
class Field:
    """A column as it is in a file; of lists and maps without the groups that are only form."""

    name: str
    id: int | None
    children: tuple[Field, ...] = ()


def read_fields(
    connection: duckdb.DuckDBPyConnection, paths: Sequence[str]
) -> dict[str, tuple[Field, ...]]:
    """The columns of Parquet files, by path."""
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for path, *row in connection.execute(_SCHEMA, [list(paths)]).fetchall():
        rows.setdefault(path, []).append(tuple(row))
    return {path: _field(iter(one)).children for path, one in rows.items()}


def _field(rows: Iterator[tuple[Any, ...]]) -> Field:
    """The next field and everything below it."""
    name, id_, count, converted, _ = next(rows)
    children = tuple(_field(rows) for _ in range(count or 0))
    if converted in ("LIST", "MAP", "MAP_KEY_VALUE") and children[0].children:
        (repeated,) = children
        children = repeated.children
    return Field(name, id_, children)


def field_of(column: Column) -> Field:
    """What a column would be in a file."""
    return Field(column.name, column.id, tuple(map(field_of, column.children)))


def find(fields: Sequence[Field], id_: int) -> Field | None:
    """The field with an id; None if there is none."""
    return next((field for field in fields if field.id == id_), None)


def value(field: Field | None, column: Column, expression: str) -> str:
    """SQL for the value of a column, given that of the field that holds it."""
    type_ = duckdb_type(column)
    if field is None:
        return (
            f"CAST({'NULL' if column.default is None else literal(column.default.text)} AS {type_})"
        )
    if not column.children or _is_as(field, column):
        return f"CAST({expression} AS {type_})"
    if column.type == "struct":
        made = _struct(field, column, expression)
    elif column.type == "list":
        element = _below(field, column.children[0], "x")
        made = f"list_transform({expression}, lambda x: {element})"
    else:
        key, content = (
            _below(field, child, f"x.{identifier(name)}")
            for child, name in zip(column.children, ("key", "value"), strict=True)
        )
        entry = f"struct_pack(key := {key}, value := {content})"
        made = f"map_from_entries(list_transform(map_entries({expression}), lambda x: {entry}))"
    return f"CAST({made} AS {type_})"


def _struct(field: Field, column: Column, expression: str) -> str:
    parts = []
    for child in column.children:
        found = find(field.children, child.id)
        inner = f"struct_extract({expression}, {literal(found.name)})" if found else ""
        parts.append(f"{identifier(child.name)} := {value(found, child, inner)}")
    return f"CASE WHEN {expression} IS NULL THEN NULL ELSE struct_pack({', '.join(parts)}) END"


def _below(field: Field, child: Column, expression: str) -> str:
    return value(find(field.children, child.id), child, expression)


def _is_as(field: Field, column: Column) -> bool:
    """True if a field has just the parts of a column, under the same names."""
    if len(field.children) != len(column.children):
        return False
    return all(
        below.id == child.id
        and (column.type != "struct" or below.name == child.name)
        and _is_as(below, child)
        for below, child in zip(field.children, column.children, strict=True)
    )


def named_as(now: Sequence[Column], then: Sequence[Column]) -> tuple[Column, ...]:
    """Columns as they were, under the names that they have now.

    Readers do not look at the names in files; the sort order of the table does.
    """
    current = {column.id: column for column in now}
    taken = {folded(current[column.id].name) for column in then if column.id in current}
    named = []
    for column in then:
        known = current.get(column.id)
        if known is not None:
            children = named_as(known.children, column.children)
            named.append(replace(column, name=known.name, children=children))
            continue
        name = column.name
        while folded(name) in taken:
            name += "_"
        taken.add(folded(name))
        named.append(replace(column, name=name))
    return tuple(named)

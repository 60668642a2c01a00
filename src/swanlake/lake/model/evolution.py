"""Reads files that were written when the table had other columns.

A column is found in a file by its id, whatever its name and type were then. A column that the file
lacks gets the value that older rows got when it was added.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import duckdb

from swanlake.lake.model.layout import Column, folded
from swanlake.lake.model.types import duckdb_type
from swanlake.sql.quoting import identifier, literal

_SCHEMA = (
    "SELECT file_name, name, field_id, num_children, converted_type, repetition_type "
    "FROM parquet_schema(?)"
)


@dataclass(frozen=True)
class Field:
    """A column in a file, without the wrapper groups of lists and maps."""

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
    return {path: _field(iter(fields)).children for path, fields in rows.items()}


def _field(rows: Iterator[tuple[Any, ...]]) -> Field:
    """The next field and everything below it."""
    name, id_, count, converted, _ = next(rows)
    children = tuple(_field(rows) for _ in range(count or 0))
    if converted in ("LIST", "MAP", "MAP_KEY_VALUE") and children[0].children:
        (repeated,) = children
        children = repeated.children
    return Field(name, id_, children)


def expected_field(column: Column) -> Field:
    """The field of a column in a file with the current columns."""
    return Field(column.name, column.id, tuple(map(expected_field, column.children)))


def find_field(fields: Sequence[Field], id_: int) -> Field | None:
    """The field with an id; None if there is none."""
    return next((field for field in fields if field.id == id_), None)


def value_sql(field: Field | None, column: Column, expression: str) -> str:
    """SQL for the value of a column, from the SQL of the field that holds it."""
    type_ = duckdb_type(column)
    if field is None:
        return (
            f"CAST({'NULL' if column.default is None else literal(column.default.text)} AS {type_})"
        )
    if not column.children or _is_same_shape(field, column):
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
        found = find_field(field.children, child.id)
        inner = f"struct_extract({expression}, {literal(found.name)})" if found else ""
        parts.append(f"{identifier(child.name)} := {value_sql(found, child, inner)}")
    return f"CASE WHEN {expression} IS NULL THEN NULL ELSE struct_pack({', '.join(parts)}) END"


def _below(field: Field, child: Column, expression: str) -> str:
    return value_sql(find_field(field.children, child.id), child, expression)


def _is_same_shape(field: Field, column: Column) -> bool:
    """True if a field has exactly the children of a column, with the same names."""
    if len(field.children) != len(column.children):
        return False
    return all(
        below.id == child.id
        and (column.type != "struct" or below.name == child.name)
        and _is_same_shape(below, child)
        for below, child in zip(field.children, column.children, strict=True)
    )


def rename_to_current(now: Sequence[Column], then: Sequence[Column]) -> tuple[Column, ...]:
    """Older columns under their current names.

    Readers ignore the names in files; the table's sort order uses them.
    """
    current = {column.id: column for column in now}
    taken = {folded(current[column.id].name) for column in then if column.id in current}
    named = []
    for column in then:
        known = current.get(column.id)
        if known is not None:
            children = rename_to_current(known.children, column.children)
            named.append(replace(column, name=known.name, children=children))
            continue
        name = column.name
        while folded(name) in taken:
            name += "_"
        taken.add(folded(name))
        named.append(replace(column, name=name))
    return tuple(named)

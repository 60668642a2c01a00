"""SQL conditions on the values inside a column, however deep they are nested."""

from __future__ import annotations

from collections.abc import Callable

from swanlake.lake.model.layout import Column
from swanlake.sql.quoting import literal

#: SQL that is true for some values of a column without children; None if it is so for none.
LeafCondition = Callable[[Column, str], str | None]


def any_value_sql(column: Column, value: str, condition: LeafCondition) -> str | None:
    """SQL that is true if a value inside this one meets the condition; None if none can."""
    if column.type == "struct":
        parts = [
            any_value_sql(child, f"struct_extract({value}, {literal(child.name)})", condition)
            for child in column.children
        ]
    elif column.type in ("list", "map"):
        lists = [value] if column.type == "list" else [f"map_keys({value})", f"map_values({value})"]
        parts = [
            _any_element(child, elements, condition)
            for child, elements in zip(column.children, lists, strict=True)
        ]
    else:
        return condition(column, value)
    return " OR ".join(part for part in parts if part) or None


def _any_element(child: Column, elements: str, condition: LeafCondition) -> str | None:
    # The names of nested lambdas must differ.
    name = f"x{child.id}"
    inner = any_value_sql(child, name, condition)
    return None if inner is None else f"len(list_filter({elements}, lambda {name}: {inner})) > 0"

"""Casts for rows that pass through Spark, which has fewer types than the lake.

A type that Spark lacks is cast to the nearest one that keeps every value, most often text, and cast
back when the rows are written.
"""

from __future__ import annotations

from dataclasses import replace

from swanlake.lake.model.layout import Column
from swanlake.lake.model.type_registry import find_type


def spark_column(column: Column) -> Column:
    """The column, cast to types that Spark has."""
    name = column.type.lower()
    known = find_type(name)
    children = tuple(map(spark_column, column.children))
    return replace(column, type=(known and known.spark_as) or name, children=children)

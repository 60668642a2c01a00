"""Types for rows that pass through Spark, which has fewer of them than the lake.

What it lacks travels as the nearest type that keeps every value, most often as text, and is cast
back when it is written.
"""

from __future__ import annotations

from dataclasses import replace

from swanlake.lake.layout import Column

#: What stands in for a type that Spark does not have.
_STAND_IN = {
    "uint8": "int16",
    "uint16": "int32",
    "uint32": "int64",
    "uint64": "decimal(20,0)",
    "int128": "varchar",
    "uint128": "varchar",
    "time": "varchar",
    "timetz": "varchar",
    "timestamp_s": "timestamp",
    "timestamp_ms": "timestamp",
    "timestamp_us": "timestamp",
    "timestamp_ns": "varchar",
    "interval": "varchar",
    "json": "varchar",
    "uuid": "varchar",
}


def for_spark(column: Column) -> Column:
    """The column with types that Spark has."""
    word = column.type.lower()
    children = tuple(map(for_spark, column.children))
    return replace(column, type=_STAND_IN.get(word, word), children=children)

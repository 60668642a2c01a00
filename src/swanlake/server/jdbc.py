"""Schemas in the types that the Arrow Flight SQL JDBC driver handles.

The driver fills parameters by the announced schema, and reads values by the announced type of their
column:

- It puts milliseconds into every TIMESTAMP and TIME parameter, whatever its unit.
- It cannot bind intervals, structs, maps and unions; it can bind text, which DuckDB casts.
- Its getObject() takes unsigned integers for signed ones of the same width, and does not implement
  TIMESTAMP WITH TIME ZONE, though it reads such values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa

_WIDER = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def parameter_schema(schema: Any) -> Any:
    """The parameters to announce."""
    return _with_types(schema, _parameter_type)


def result_schema(schema: Any) -> Any:
    """The columns to send: unsigned integers as the next wider signed type."""
    return _with_types(schema, lambda kind: _WIDER.get(kind, kind))


def announced_schema(schema: Any) -> Any:
    """The columns to announce: those to send, TIMESTAMP WITH TIME ZONE as TIMESTAMP."""
    return _with_types(result_schema(schema), _without_zone)


def _with_types(schema: Any, convert: Callable[[Any], Any]) -> Any:
    """The schema with converted types; the same object if none changes."""
    types = [convert(kind) for kind in schema.types]
    if types == schema.types:
        return schema
    return pa.schema([field.with_type(kind) for field, kind in zip(schema, types, strict=True)])


def _parameter_type(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("ms", kind.tz)
    if pa.types.is_time(kind):
        return pa.time32("ms")
    if pa.types.is_interval(kind) or pa.types.is_struct(kind) or pa.types.is_map(kind):
        return pa.string()
    return pa.string() if pa.types.is_union(kind) else kind


def _without_zone(kind: Any) -> Any:
    return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind

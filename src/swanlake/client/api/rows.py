"""Converts Arrow columns to Python values, a column at a time."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa

from swanlake.errors import InvalidValue

_EPOCH = dt.datetime(1970, 1, 1)
#: Microseconds of the units that Python's datetime represents. Nanoseconds are left to pyarrow.
_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def row_tuples(rows: Any) -> list[tuple[Any, ...]]:
    """The rows of a table or a batch as tuples of Python values."""
    fields = zip(rows.schema.names, rows.columns, strict=True)
    return list(zip(*(_values(name, column) for name, column in fields), strict=True))


def row_dicts(rows: Any) -> list[dict[str, Any]]:
    """The rows of a table or a batch as dicts of Python values."""
    names = rows.schema.names
    return [dict(zip(names, row, strict=True)) for row in row_tuples(rows)]


def _values(name: str, column: Any) -> list[Any]:
    try:
        return column_values(column)
    except OverflowError:
        raise InvalidValue(
            f"Column {name} has a {column.type} outside of Python's years 1 to 9999; "
            "cast the column to VARCHAR or fetch it as Arrow.",
            identifier="OUT_OF_RANGE_ERROR",
        ) from None


def column_values(column: Any) -> list[Any]:
    """The values of an array, equal to those of its ``to_pylist()``.

    pyarrow converts dates, timestamps and dictionaries one scalar at a time, which takes 3 to 20
    times as long.
    """
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column_values(column.cast(kind.value_type))
    if pa.types.is_date32(kind):
        epoch, delta = _EPOCH.date(), dt.timedelta
        days = column.cast(pa.int32()).to_pylist()
        return [None if day is None else epoch + delta(day) for day in days]
    if pa.types.is_timestamp(kind) and kind.unit in _MICROSECONDS:
        return _datetimes(column.cast(pa.int64()).to_pylist(), kind)
    return list(column.to_pylist())


def _datetimes(counts: list[int | None], kind: Any) -> list[dt.datetime | None]:
    delta, scale = dt.timedelta, _MICROSECONDS[kind.unit]
    if kind.tz is None:
        return [None if count is None else _EPOCH + delta(0, 0, count * scale) for count in counts]
    zone = pa.scalar(0, kind).as_py().tzinfo
    epoch, from_utc = _EPOCH.replace(tzinfo=zone), zone.fromutc
    return [
        None if count is None else from_utc(epoch + delta(0, 0, count * scale)) for count in counts
    ]

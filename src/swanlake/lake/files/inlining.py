"""Small inserts that are kept in the metadata, and cost no file: DuckLake's data inlining.

>>> small = inlined(table, rows)
>>> catalog.commit(Commit((small,), base=table.snapshot_id)) if small else write_a_file(rows)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from math import isnan
from typing import Any
from uuid import UUID

import pyarrow as pa

from swanlake.lake.inlined_tables import can_inline
from swanlake.lake.layout import Column, ColumnStats, Table
from swanlake.lake.operations import CreateTable, InlineInsert
from swanlake.lake.stats import text_bounds

#: Bounds of texts are cut here, as in files.
_BOUND_LENGTH = 256
_EPOCH = date(1970, 1, 1)
#: What DuckDB takes for an infinite timestamp, in units of its type; with a minus, too.
_INFINITY = 2**63 - 1
_FIRST_DAY, _LAST_DAY = date.min.toordinal(), date.max.toordinal()
_PER_SECOND = {
    "timestamp_s": 1,
    "timestamp_ms": 10**3,
    "timestamp": 10**6,
    "timestamptz": 10**6,
    "timestamp_ns": 10**9,
}


class _NotKept(Exception):
    """A value that the metadata cannot keep."""


def inlined(
    table: Table | CreateTable,
    rows: pa.Table,
    *,
    blind: bool = False,
    row_ids: Sequence[int] | None = None,
) -> InlineInsert | None:
    """What inserts the rows without a file; None if the metadata cannot keep some value of them.

    The columns are those of the table in its order, as DuckDB gives them to Arrow with
    ``arrow_lossless_conversion``. Ask ``can_inline`` first, and keep to the table's
    ``inlined_rows``, or whatever number is small. Rows in place of others have the ids of those.
    """
    if not can_inline(table):
        return None
    try:
        kept = [
            _keep(column, values)
            for column, values in zip(table.columns, rows.columns, strict=True)
        ]
    except _NotKept:
        return None
    return InlineInsert(
        table,
        tuple(zip(*(column.values for column in kept), strict=True)),
        tuple(column.stats for column in kept),
        blind,
        None if row_ids is None else tuple(row_ids),
    )


@dataclass(frozen=True)
class _Kept:
    """One column as drivers take it, and what is known of it."""

    values: list[Any]
    stats: ColumnStats


def _keep(column: Column, values: pa.ChunkedArray) -> _Kept:
    type_ = column.type
    if isinstance(values.type, pa.BaseExtensionType):  # UUID, JSON, and booleans of a byte
        values = values.cast(values.type.storage_type)
    native = _native(type_, values)
    present = [value for value in native if value is not None]
    shown = _shown(type_)
    floats = type_ in ("float32", "float64")
    ordered = [value for value in present if not isnan(value)] if floats else present
    low, high = _bounds(type_, ordered, shown)
    stats = ColumnStats(
        column.id,
        value_count=len(present),
        null_count=len(native) - len(present),
        min=low,
        max=high,
        contains_nan=len(ordered) < len(present) if floats else None,
    )
    given = _given(type_, shown)
    return _Kept([None if value is None else given(value) for value in native], stats)


def _native(type_: str, values: pa.ChunkedArray) -> list[Any]:
    """The values as something that has their order; of dates and times their number."""
    if type_ == "date":
        values = values.cast(pa.int32())
    elif type_ == "time" or type_ in _PER_SECOND:
        values = values.cast(pa.int64())
    elif type_ == "float32":
        # The shortest text that means this number and no other; Python would show a double.
        values = values.cast(pa.string())
    read = {"boolean": bool, "float32": float}.get(type_, _as_it_is)
    return [None if value is None else read(value) for value in values.to_pylist()]


def _given(type_: str, shown: Callable[[Any], str]) -> Callable[[Any], Any]:
    """What makes of a value what drivers take."""
    if type_ in ("varchar", "json"):
        return str.encode
    if type_ in ("boolean", "blob") or (type_ != "uint64" and type_.startswith(("int", "uint"))):
        return _as_it_is
    return shown


def _shown(type_: str) -> Callable[[Any], str]:
    """What makes of a value the text that DuckDB shows for it."""
    if type_ == "boolean":
        return lambda value: "true" if value else "false"
    if type_ == "blob":
        return lambda value: value.hex().upper()
    if type_ == "uuid":
        return lambda value: str(UUID(bytes=value))
    if type_ == "date":
        return _date
    if type_ == "time":
        return lambda value: _time(*divmod(value, 10**6), digits=6)
    if type_ in _PER_SECOND:
        zone = "+00" if type_ == "timestamptz" else ""
        return lambda value: _timestamp(value, _PER_SECOND[type_]) + zone
    if type_.startswith("decimal"):
        return _decimal
    return str


def _date(days: int) -> str:
    ordinal = days + _EPOCH.toordinal()
    if not _FIRST_DAY <= ordinal <= _LAST_DAY:
        raise _NotKept  # other years and the infinities
    return date.fromordinal(ordinal).isoformat()


def _timestamp(number: int, per_second: int) -> str:
    if abs(number) == _INFINITY:
        raise _NotKept  # in nanoseconds it would be a day of the year 2262
    seconds, rest = divmod(number, per_second)
    days, second = divmod(seconds, 86400)
    return f"{_date(days)} {_time(second, rest, digits=len(str(per_second)) - 1)}"


def _time(second: int, rest: int, *, digits: int) -> str:
    minute, second = divmod(second, 60)
    hour, minute = divmod(minute, 60)
    fraction = f".{rest:0{digits}}".rstrip("0") if rest else ""
    return f"{hour:02}:{minute:02}:{second:02}{fraction}"


def _decimal(value: Decimal) -> str:
    return f"{value:f}"


def _as_it_is(value: Any) -> Any:
    return value


def _bounds(
    type_: str, values: Iterable[Any], shown: Callable[[Any], str]
) -> tuple[str | None, str | None]:
    low, high = min(values, default=None), max(values, default=None)
    if low is None or high is None:
        return None, None
    if type_ in ("varchar", "json"):
        return text_bounds(low[:_BOUND_LENGTH], high if len(high) <= _BOUND_LENGTH else None)
    return shown(low), shown(high)

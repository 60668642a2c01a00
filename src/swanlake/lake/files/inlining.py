"""Small inserts that are stored in the metadata instead of a file: DuckLake's data inlining.

>>> small = inlined(table, rows)
>>> catalog.commit(Commit((small,), base=table.snapshot_id)) if small else write_a_file(rows)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date
from math import isnan
from typing import Any
from uuid import UUID

import pyarrow as pa

from swanlake.lake.files.inlined_tables import can_inline
from swanlake.lake.model.layout import Column, ColumnStats, Table
from swanlake.lake.model.operations import CreateTable, InlineInsert
from swanlake.lake.model.stats import text_bounds
from swanlake.lake.model.type_registry import Inlined, LakeType, StatsOrder, find_type

#: Longer bounds of texts are cut, as in files.
_BOUND_LENGTH = 256
_EPOCH = date(1970, 1, 1)
#: DuckDB's infinite timestamp, in units of its type; the negative one is its opposite.
_INFINITY = 2**63 - 1
_FIRST_DAY, _LAST_DAY = date.min.toordinal(), date.max.toordinal()


class _CannotInline(Exception):
    """The metadata cannot store a value."""


def inline_rows(
    table: Table | CreateTable,
    rows: pa.Table,
    *,
    blind: bool = False,
    row_ids: Sequence[int] | None = None,
) -> InlineInsert | None:
    """The operation that inlines the rows; None if the metadata cannot store one of the values.

    The columns are those of the table in its order, as DuckDB exports them to Arrow with
    ``arrow_lossless_conversion``. The caller limits the number of rows, as the table's option
    ``inlined_rows`` does. ``row_ids`` are the ids of the rows that these replace.
    """
    if not can_inline(table):
        return None
    try:
        columns = [
            _inline_column(column, values)
            for column, values in zip(table.columns, rows.columns, strict=True)
        ]
    except _CannotInline:
        return None
    return InlineInsert(
        table,
        tuple(zip(*(values for values, _ in columns), strict=True)),
        tuple(stats for _, stats in columns),
        blind,
        None if row_ids is None else tuple(row_ids),
    )


def _inline_column(column: Column, values: pa.ChunkedArray) -> tuple[list[Any], ColumnStats]:
    """The values of one column as drivers take them, and its statistics."""
    type_ = find_type(column.type)
    if type_ is None or type_.inlined is None:
        raise _CannotInline
    if isinstance(values.type, pa.BaseExtensionType):  # UUID, JSON, and booleans of a byte
        values = values.cast(values.type.storage_type)
    sortable = _sortable_values(type_, values)
    present = [value for value in sortable if value is not None]
    is_float = type_.order is StatsOrder.FLOAT
    bounded = [value for value in present if not isnan(value)] if is_float else present
    to_text = _text_encoder(type_)
    low, high = _bounds(type_, bounded, to_text)
    stats = ColumnStats(
        column.id,
        value_count=len(present),
        null_count=len(sortable) - len(present),
        min=low,
        max=high,
        contains_nan=len(bounded) < len(present) if is_float else None,
    )
    encode = _driver_encoder(type_, type_.inlined, to_text)
    return [None if value is None else encode(value) for value in sortable], stats


def _sortable_values(type_: LakeType, values: pa.ChunkedArray) -> list[Any]:
    """Python values that sort as the type does; dates and times are integers."""
    if type_.name == "date":
        values = values.cast(pa.int32())
    elif type_.order is StatsOrder.TIME:
        values = values.cast(pa.int64())
    elif type_.name == "float32":
        # The shortest text that means this number and no other; Python would show a double.
        values = values.cast(pa.string())
    read = {"boolean": bool, "float32": float}.get(type_.name, _identity)
    return [None if value is None else read(value) for value in values.to_pylist()]


def _driver_encoder(
    type_: LakeType, inlined: Inlined, to_text: Callable[[Any], str]
) -> Callable[[Any], Any]:
    """Converts a value to what both databases' drivers take."""
    if type_.order is StatsOrder.TEXT:
        return str.encode
    if inlined.is_integer or inlined.postgres in ("boolean", "bytea"):
        return _identity
    return to_text


def _text_encoder(type_: LakeType) -> Callable[[Any], str]:
    """Converts a value to the text that DuckDB prints for it."""
    if type_.order is StatsOrder.DECIMAL:
        return "{:f}".format
    if type_.units_per_second is not None:
        units = type_.units_per_second
        zone = "+00" if type_.name == "timestamptz" else ""
        return lambda value: _timestamp(value, units) + zone
    return _TEXT_ENCODERS.get(type_.name, str)


def _date(days: int) -> str:
    ordinal = days + _EPOCH.toordinal()
    if not _FIRST_DAY <= ordinal <= _LAST_DAY:
        raise _CannotInline  # the infinities, and years that Python has no date for
    return date.fromordinal(ordinal).isoformat()


def _timestamp(number: int, per_second: int) -> str:
    if abs(number) == _INFINITY:
        raise _CannotInline  # as nanoseconds it would read as a day in 2262
    seconds, rest = divmod(number, per_second)
    days, second = divmod(seconds, 86400)
    return f"{_date(days)} {_time(second, rest, digits=len(str(per_second)) - 1)}"


def _time(second: int, rest: int, *, digits: int) -> str:
    minute, second = divmod(second, 60)
    hour, minute = divmod(minute, 60)
    fraction = f".{rest:0{digits}}".rstrip("0") if rest else ""
    return f"{hour:02}:{minute:02}:{second:02}{fraction}"


def _identity(value: Any) -> Any:
    return value


_TEXT_ENCODERS: dict[str, Callable[[Any], str]] = {
    "boolean": lambda value: "true" if value else "false",
    "blob": lambda value: value.hex().upper(),
    "uuid": lambda value: str(UUID(bytes=value)),
    "date": _date,
    "time": lambda value: _time(*divmod(value, 10**6), digits=6),
}


def _bounds(
    type_: LakeType, values: Iterable[Any], to_text: Callable[[Any], str]
) -> tuple[str | None, str | None]:
    low, high = min(values, default=None), max(values, default=None)
    if low is None or high is None:
        return None, None
    if type_.order is StatsOrder.TEXT:
        return text_bounds(low[:_BOUND_LENGTH], high if len(high) <= _BOUND_LENGTH else None)
    return to_text(low), to_text(high)

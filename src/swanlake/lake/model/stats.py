"""Column statistics of files and tables: counts and bounds, as text in the catalog.

Readers skip files and simplify queries by them: a bound that is too narrow gives wrong answers; one
that is too wide or unknown (None) only costs time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from decimal import Decimal
from math import isnan
from typing import Any

from swanlake.lake.model import geometry, variant_stats
from swanlake.lake.model.layout import ColumnStats, VariantFieldStats
from swanlake.lake.model.type_registry import StatsOrder, find_type

_TIME = re.compile(
    r"(?:(?P<year>\d{4,})-(?P<month>\d\d)-(?P<day>\d\d)(?P<bc> \(BC\))?)?"
    r"(?: ?(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d+))?)?"
    r"(?:\+00)?"
)
#: As bounds of files are written, and bounds of inlined rows.
_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}
_Key = Callable[[str], Any]
_Bounds = tuple[str | None, str | None]


@dataclass(frozen=True)
class TableColumnStats:
    """Statistics of one column in all files of a table; None is unknown."""

    column_id: int
    contains_null: bool | None = None
    contains_nan: bool | None = None
    min: str | None = None
    max: str | None = None
    extra: str | None = None


def from_file(file: ColumnStats) -> TableColumnStats:
    """The statistics of a table with this file only."""
    return TableColumnStats(
        file.column_id,
        None if file.null_count is None else file.null_count > 0,
        file.contains_nan,
        file.min,
        file.max,
        file.extra,
    )


def merge(type_: str, known: TableColumnStats | None, file: ColumnStats) -> TableColumnStats:
    """The table's statistics of a column, with those of a file merged in."""
    new = from_file(file)
    if known is None:
        return new
    low, high = _merged_bounds(type_, known, file)
    return TableColumnStats(
        known.column_id,
        _either(known.contains_null, new.contains_null),
        _either(known.contains_nan, new.contains_nan),
        low,
        high,
        _merged_extra(type_, known, file),
    )


def _merged_extra(type_: str, known: TableColumnStats, file: ColumnStats) -> str | None:
    if type_ == "geometry":
        return geometry.merge(known.extra, file.extra)
    if type_ != "variant":
        return None
    added = {(field.path, field.type): field for field in file.variant_fields}
    fields = variant_stats.decode(known.extra, known.column_id)
    # A field that is not in every file, with one type, is unknown in the table.
    return variant_stats.encode(
        [
            _merged_field(field, added[field.path, field.type])
            for field in fields
            if (field.path, field.type) in added
        ]
    )


def _merged_field(known: VariantFieldStats, new: VariantFieldStats) -> VariantFieldStats:
    old, file = known.stats, new.stats
    low, high = old.min, old.max
    if file.value_count != 0:
        # Bounds that are unknown stay so, even after files of NULL, as in the stock extension.
        low, high = _wider_bounds(known.type, (low, high), (file.min, file.max))
    stats = replace(
        old,
        size_bytes=_sum(old.size_bytes, file.size_bytes),
        value_count=_sum(old.value_count, file.value_count),
        null_count=_sum(old.null_count, file.null_count),
        min=low,
        max=high,
        contains_nan=_either(old.contains_nan, file.contains_nan),
    )
    return replace(known, stats=stats)


def text_bounds(low: str | None, high: str | None) -> tuple[str, str | None]:
    """Bounds of a text column that is not all NULL: there is always a lower one.

    DuckDB has none for long texts without ASCII letters, and a catalog cannot store U+0000. The
    stock extension then stores two unknown bounds, reads them as "all NULL so far", and skips the
    rows. The empty text, a valid lower bound, prevents that.
    """
    if high is not None and "\0" in high:
        high = None
    return (low or "").partition("\0")[0], high


def _merged_bounds(type_: str, known: TableColumnStats, file: ColumnStats) -> _Bounds:
    bounds = known.min, known.max
    if _has_no_bounded_value(file):
        return bounds
    new = file.min, file.max
    if bounds == (None, None):
        if is_text(type_):
            # All NULL so far, or texts for which the stock extension found no bounds.
            return text_bounds(None, None)
        all_null = known.contains_null and not known.contains_nan
        return new if all_null else (None, None)
    return _wider_bounds(type_, bounds, new)


def _wider_bounds(type_: str, known: _Bounds, new: _Bounds) -> _Bounds:
    key = _KEYS[stats_order(type_)]
    low, high = _bound(min, key, known[0], new[0]), _bound(max, key, known[1], new[1])
    if not is_text(type_) and (low is None or high is None):
        return None, None  # the stock extension misreads a single bound of numbers
    return low, high


def _has_no_bounded_value(file: ColumnStats) -> bool:
    """True if the file cannot widen a bound: it holds only NULL and NaN."""
    if file.min is not None or file.max is not None:
        return False
    return file.value_count == 0 or bool(file.contains_nan)


def _bound(choose: Callable[..., str], key: _Key, known: str | None, new: str | None) -> str | None:
    if known is None or new is None:
        return None
    try:
        return choose(known, new, key=key)
    except (ValueError, KeyError, ArithmeticError):
        return None


def _sum(known: int | None, new: int | None) -> int | None:
    return None if known is None or new is None else known + new


def _either(known: bool | None, new: bool | None) -> bool | None:
    return None if known is None or new is None else known or new


def stats_order(type_: str) -> StatsOrder:
    """How bounds of a type are compared."""
    known = find_type(type_)
    return StatsOrder.NONE if known is None else known.order


def is_text(type_: str) -> bool:
    """True if bounds of a type are texts, which may be cut off."""
    return stats_order(type_) is StatsOrder.TEXT


def parse_bound(type_: str, bound: str | None) -> Any:
    """A bound in a form that can be compared; None if it is unknown, or not a bound of the type."""
    if bound is None:
        return None
    try:
        return _KEYS[stats_order(type_)](bound)
    except (ValueError, KeyError, ArithmeticError):
        return None


def _float_key(text: str) -> tuple[bool, float]:
    """Sorts NaN, which the stock extension writes as a bound of inlined rows, above all numbers."""
    number = float(text)
    return (True, 0.0) if isnan(number) else (False, number)


def _time_key(text: str) -> tuple[float, ...]:
    """Dates, times and timestamps in order of time, any era and the infinities included."""
    if text in ("infinity", "-infinity"):
        return (float(text),)
    found = _TIME.fullmatch(text)
    if not found or not text:
        raise ValueError(f"{text!r} is not a date or time.")
    parts = found.groupdict()
    year = int(parts["year"] or 0)
    fraction = (parts["fraction"] or "").ljust(9, "0")
    rest = (int(parts[name] or 0) for name in ("month", "day", "hour", "minute", "second"))
    return (1 - year if parts["bc"] else year, *rest, int(fraction))


def _incomparable(text: str) -> str:
    raise ValueError(f"{text!r} has no order.")


#: The sort keys of bounds; they fail for a text that they cannot parse.
_KEYS: dict[StatsOrder, _Key] = {
    StatsOrder.INTEGER: int,
    StatsOrder.BOOLEAN: _BOOLEANS.__getitem__,
    StatsOrder.FLOAT: _float_key,
    StatsOrder.DECIMAL: Decimal,
    StatsOrder.TIME: _time_key,
    StatsOrder.TEXT: str,
    StatsOrder.BYTES: str,
    StatsOrder.NONE: _incomparable,
}

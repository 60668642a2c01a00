"""What files and tables say about their columns: counts and bounds, as text in the catalog.

Readers skip files and simplify queries by these numbers, so a bound that is too narrow is a wrong
answer, and one that is too wide or unknown (None) only costs time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import isnan
from typing import Any

from swanlake.lake import geometry
from swanlake.lake.layout import Column, ColumnStats, Table

_TEXT = ("varchar", "json")
_FLOATS = ("float32", "float64")
_INTEGER = re.compile(r"u?int(8|16|32|64|128)")
_MOMENT = re.compile(
    r"(?:(?P<year>\d{4,})-(?P<month>\d\d)-(?P<day>\d\d)(?P<bc> \(BC\))?)?"
    r"(?: ?(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d+))?)?"
    r"(?:\+00)?"
)
#: As the bounds of files are written, and those of rows in the metadata.
_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}
_Key = Callable[[str], Any]


@dataclass(frozen=True)
class TableColumnStats:
    """What is known of one column in all files of a table; None is unknown."""

    column_id: int
    contains_null: bool | None = None
    contains_nan: bool | None = None
    min: str | None = None
    max: str | None = None
    extra: str | None = None


def file_column_stats(
    returned: Mapping[str, Mapping[str, str]], table: Table
) -> tuple[ColumnStats, ...]:
    """The statistics of a file, from the ``column_statistics`` that COPY … RETURN_STATS gives.

    There is one entry for every column that holds values, nested ones included.
    """
    by_path = {_path(name): stats for name, stats in returned.items()}
    return tuple(
        _column_stats(column, by_path.get(path, {})) for path, column in _leaf_paths(table.columns)
    )


def from_file(file: ColumnStats) -> TableColumnStats:
    """The statistics of a table whose only file this is."""
    return TableColumnStats(
        file.column_id,
        None if file.null_count is None else file.null_count > 0,
        file.contains_nan,
        file.min,
        file.max,
        file.extra,
    )


def merge(type_: str, known: TableColumnStats | None, file: ColumnStats) -> TableColumnStats:
    """What is known of a table's column of that DuckLake type once the file is part of it."""
    if known is None:
        return from_file(file)
    new = from_file(file)
    low, high = _merged_bounds(type_, known, file)
    return TableColumnStats(
        known.column_id,
        _either(known.contains_null, new.contains_null),
        _either(known.contains_nan, new.contains_nan),
        low,
        high,
        geometry.merge(known.extra, new.extra) if type_ == "geometry" else None,
    )


def _column_stats(column: Column, stats: Mapping[str, str]) -> ColumnStats:
    if column.type == "variant" or not stats:
        # The bounds of a variant's parts are an optional extra that this writer does not offer.
        return ColumnStats(column.id)
    size, values, nulls = (
        int(stats[name]) if name in stats else None
        for name in ("column_size_bytes", "num_values", "null_count")
    )
    if values is None or nulls is None or nulls > values or (values == 0 and size == 0):
        # Of intervals and times with a zone DuckDB reports zero values in zero bytes, whatever
        # was written. No file is empty, so that means nobody counted.
        values = nulls = None
    low, high = stats.get("min"), stats.get("max")
    if column.type in _TEXT and values != nulls:
        low, high = text_bounds(low, high)
    return ColumnStats(
        column.id,
        size,
        None if values is None or nulls is None else values - nulls,
        nulls,
        low,
        high,
        {"true": True, "false": False}.get(stats.get("has_nan", "")),
        geometry.extra(stats) if column.type == "geometry" else None,
    )


def text_bounds(low: str | None, high: str | None) -> tuple[str, str | None]:
    """Bounds of a text column that is not all NULL: there is always a lower one.

    DuckDB gives none for long texts without ASCII letters, and a catalog cannot hold U+0000. The
    stock extension then stores two unknown bounds, which it later takes for "all NULL so far", and
    loses these rows. A lower bound that is true and useless, the empty text, prevents that.
    """
    if high is not None and "\0" in high:
        high = None
    return (low or "").partition("\0")[0], high


def _merged_bounds(
    type_: str, known: TableColumnStats, file: ColumnStats
) -> tuple[str | None, str | None]:
    bounds = known.min, known.max
    if _has_no_bounded_value(file):
        return bounds
    new = file.min, file.max
    if bounds == (None, None):
        if type_ in _TEXT:
            # All NULL so far, or texts that the stock extension could not find bounds for.
            return text_bounds(None, None)
        all_null = known.contains_null and not known.contains_nan
        return new if all_null else (None, None)
    key = _key(type_)
    low, high = _bound(min, key, known.min, file.min), _bound(max, key, known.max, file.max)
    if type_ not in _TEXT and (low is None or high is None):
        return None, None  # of numbers, the stock extension misreads a bound that stands alone
    return low, high


def _has_no_bounded_value(file: ColumnStats) -> bool:
    """True if the file cannot widen any bound: it holds NULL only, or NULL and NaN."""
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


def _either(known: bool | None, new: bool | None) -> bool | None:
    return None if known is None or new is None else known or new


def _key(type_: str) -> _Key:
    """What bounds of the type are compared by; the key fails for a text it cannot read."""
    if _INTEGER.fullmatch(type_):
        return int
    if type_ == "boolean":
        return _BOOLEANS.__getitem__
    if type_ in _FLOATS:
        return _number
    if type_.startswith("decimal"):
        return Decimal
    if type_ == "date" or (type_.startswith("time") and type_ != "timetz"):
        return _moment
    if type_ in (*_TEXT, "blob", "uuid"):
        return str  # Python's order of code points is the order of UTF-8 bytes
    return _incomparable


def _number(text: str) -> tuple[bool, float]:
    """Of rows in the metadata the stock extension takes NaN for a bound: above all numbers."""
    number = float(text)
    return (True, 0.0) if isnan(number) else (False, number)


def _moment(text: str) -> tuple[float, ...]:
    """Dates, times and timestamps in the order of time: any era, any year, and the infinities."""
    if text in ("infinity", "-infinity"):
        return (float(text),)
    found = _MOMENT.fullmatch(text)
    if not found or not text:
        raise ValueError(f"{text!r} is no date or time.")
    parts = found.groupdict()
    year = int(parts["year"] or 0)
    fraction = (parts["fraction"] or "").ljust(9, "0")
    rest = (int(parts[name] or 0) for name in ("month", "day", "hour", "minute", "second"))
    return (1 - year if parts["bc"] else year, *rest, int(fraction))


def _incomparable(text: str) -> str:
    raise ValueError(f"{text!r} has no order.")


def _leaf_paths(
    columns: tuple[Column, ...], above: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Column]]:
    for column in columns:
        path = (*above, column.name)
        if column.children:
            yield from _leaf_paths(column.children, path)
        else:
            yield path, column


def _path(name: str) -> tuple[str, ...]:
    """``"a"."b""c"`` as ``("a", 'b"c')``."""
    return tuple(part.replace('""', '"') for part in re.findall(r'"((?:[^"]|"")*)"', name))

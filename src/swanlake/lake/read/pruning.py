"""Which files of a table can have rows that satisfy the conditions of a query.

A file is left out only if its statistics say with certainty that it has none: an unknown bound, or
a value that cannot be compared with it, keeps the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from math import isnan
from typing import Any, Self

from swanlake.lake.model.layout import Column
from swanlake.lake.model.stats import parse_bound, stats_order
from swanlake.lake.model.table_state import Bounds, ScanFile
from swanlake.lake.model.type_registry import StatsOrder
from swanlake.sql.filters import Comparison, Filter, Value, parse_date, parse_timestamp

#: Decimal digits that a DOUBLE holds exactly.
_EXACT_DIGITS = 15
#: The bounds of other types are not compared: texts of these types have several forms.
_DATES, _TIMESTAMPS = frozenset({"date"}), frozenset({"timestamp", "timestamp_us"})


@dataclass(frozen=True)
class FileBounds:
    """The bounds of a column in one file, in a form that can be compared."""

    #: None is unknown.
    low: Any
    high: Any
    #: False if the file certainly has no value but NULL.
    has_values: bool
    #: False if the file certainly has no NULL.
    has_null: bool
    #: False if the file certainly has no NaN, which is greater than all numbers.
    has_nan: bool

    @classmethod
    def parse(cls, type_: str, bounds: Bounds) -> Self:
        """The bounds that the catalog has as text."""
        is_float = stats_order(type_) is StatsOrder.FLOAT
        return cls(
            parse_bound(type_, bounds.low),
            parse_bound(type_, bounds.high),
            has_values=bounds.value_count != 0,
            has_null=bounds.null_count != 0,
            has_nan=is_float and bounds.contains_nan is not False,
        )

    def may_satisfy(self, comparison: Comparison, keys: Sequence[Any]) -> bool:
        """True if one of the rows may compare with one of the keys in this way."""
        if comparison is Comparison.IS_NULL:
            return self.has_null
        return self.has_values and any(self._may_be(comparison, key) for key in keys)

    def _may_be(self, comparison: Comparison, key: Any) -> bool:
        low, high = self.low, self.high
        may_be_less = low is None or low < key
        may_be_equal = (low is None or low <= key) and (high is None or key <= high)
        if comparison is Comparison.EQUAL:
            return may_be_equal
        if comparison is Comparison.LESS:
            return may_be_less
        if comparison is Comparison.LESS_OR_EQUAL:
            return may_be_less or may_be_equal
        may_be_greater = high is None or high > key or self.has_nan
        return may_be_greater or (comparison is Comparison.GREATER_OR_EQUAL and may_be_equal)


@dataclass(frozen=True)
class ColumnBounds:
    """The bounds of one column in the files of a table."""

    #: By file; a file that is not there has unknown bounds.
    by_file: Mapping[int, FileBounds]
    #: The largest id of a file whose bounds were read.
    newest_file: int

    def __len__(self) -> int:
        return len(self.by_file)

    @classmethod
    def parse(cls, type_: str, bounds: Mapping[int, Bounds], newest_file: int) -> Self:
        """The bounds that the catalog has as text."""
        parsed = {file: FileBounds.parse(type_, one) for file, one in bounds.items()}
        return cls(parsed, newest_file)

    def extended(self, added: ColumnBounds, files: Iterable[ScanFile]) -> ColumnBounds:
        """These bounds and those of new files, without those of files that are gone."""
        everything = {**self.by_file, **added.by_file}
        live = {file.id: everything[file.id] for file in files if file.id in everything}
        return ColumnBounds(live, max(self.newest_file, added.newest_file))


def select_files(
    files: Sequence[ScanFile],
    conditions: Iterable[tuple[Column, Filter]],
    bounds: Callable[[Column], ColumnBounds | None],
    parameters: Mapping[str, Any],
) -> Sequence[ScanFile]:
    """The files that may have rows for a query, in their order."""
    chosen = files
    for column, condition in conditions:
        if len(chosen) <= 1:
            break  # DuckDB reads its own statistics in the file
        values = condition.values(parameters)
        keys = None if values is None else comparable_keys(column.type, values)
        known = None if keys is None else bounds(column)
        if keys is None or known is None:
            continue
        chosen = [
            file
            for file in chosen
            if (one := known.by_file.get(file.id)) is None
            or one.may_satisfy(condition.comparison, keys)
        ]
    return chosen


def comparable_keys(type_: str, values: Sequence[Value]) -> list[Any] | None:
    """Values in the form of the bounds of a type; None if DuckDB may compare one otherwise."""
    keys = [_key(type_, value) for value in values]
    return None if any(key is None for key in keys) else keys


def _key(type_: str, value: Value) -> Any:
    order = stats_order(type_)
    if order is StatsOrder.INTEGER:
        return value if isinstance(value, int) else None
    if order is StatsOrder.DECIMAL:
        return Decimal(value) if isinstance(value, int | Decimal) else None
    if type_ == "float64":  # DuckDB compares FLOAT with rounded values
        return _float_key(value)
    if type_ == "varchar":
        return value if isinstance(value, str) else None
    return _time_key(type_, value)


def _float_key(value: Value) -> Any:
    if isinstance(value, Decimal) and len(value.as_tuple().digits) > _EXACT_DIGITS:
        return None  # DuckDB may round it otherwise
    if not isinstance(value, int | float | Decimal) or isnan(value):
        return None
    return parse_bound("float64", repr(float(value)))


def _time_key(type_: str, value: Value) -> Any:
    if type_ not in _DATES | _TIMESTAMPS:
        return None
    if isinstance(value, str):  # DuckDB casts a text to the type of the column
        parsed = parse_date(value) if type_ in _DATES else parse_timestamp(value)
        return None if parsed is None else _time_key(type_, parsed)
    if not isinstance(value, date) or getattr(value, "tzinfo", None) is not None:
        return None
    text = value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
    return parse_bound(type_, text)

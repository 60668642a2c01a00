"""Column statistics hold for every value: bounds cover all, and None means unknown."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.lake.model.layout import ColumnStats, VariantFieldStats
from swanlake.lake.model.stats import TableColumnStats, from_file, merge
from swanlake.lake.model.variant_stats import decode, encode

#: A type, its values, and how a value is written in the catalog.
TYPES: dict[str, tuple[st.SearchStrategy[Any], Callable[[Any], str]]] = {
    "int64": (st.integers(-(2**63), 2**63 - 1), str),
    "uint64": (st.integers(0, 2**64 - 1), str),
    "boolean": (st.booleans(), lambda value: str(int(value))),
    "float64": (st.floats(allow_nan=False), repr),
    "decimal(38,10)": (
        st.integers(-(10**38) + 1, 10**38 - 1).map(lambda digits: Decimal(digits).scaleb(-10)),
        lambda value: f"{value:f}",
    ),
    "date": (st.dates(), date.isoformat),
    "timestamp": (st.datetimes(), lambda value: value.isoformat(" ")),
    "timestamptz": (
        st.datetimes(max_value=datetime(9999, 12, 31)),
        lambda value: value.isoformat(" ") + "+00",
    ),
    "time": (st.times(), lambda value: value.isoformat()),
    "uuid": (st.uuids(), str),
    "varchar": (st.text(st.characters(exclude_characters="\0", codec="utf-8")), str),
}


def file_of(type_: str, values: list[Any]) -> ColumnStats:
    """The statistics of a file with these values; None is NULL."""
    write = TYPES[type_][1]
    non_null = sorted(
        (value for value in values if value is not None),
        key=(lambda text: text.encode()) if type_ == "varchar" else None,
    )
    bounds = (write(non_null[0]), write(non_null[-1])) if non_null else (None, None)
    return ColumnStats(1, 10, len(non_null), len(values) - len(non_null), *bounds)


@given(st.data())
def test_merged_bounds_are_the_extremes_of_all_files(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from(list(TYPES)))
    values, _ = TYPES[type_]
    files = data.draw(
        st.lists(st.lists(values | st.none(), min_size=1, max_size=4), min_size=1, max_size=5)
    )
    merged: TableColumnStats | None = None
    for file in files:
        merged = merge(type_, merged, file_of(type_, file))
    assert merged is not None
    everything = [value for file in files for value in file]
    assert merged.contains_null == (None in everything)
    non_null = [value for value in everything if value is not None]
    expected = file_of(type_, non_null)
    if (merged.min, merged.max) == ("", None):
        assert type_ == "varchar"
        assert set(files[0]) == {None}
    else:
        # 0.0 and -0.0 are equal, so either may be the bound.
        zero = {"-0.0": "0.0"}
        assert zero.get(str(merged.min), merged.min) == zero.get(str(expected.min), expected.min)
        assert zero.get(str(merged.max), merged.max) == zero.get(str(expected.max), expected.max)


@given(st.data())
def test_merge_is_independent_of_file_order(data: st.DataObject) -> None:
    type_ = data.draw(st.sampled_from([name for name in TYPES if name != "float64"]))
    values, _ = TYPES[type_]
    files = data.draw(st.lists(st.lists(values, min_size=1, max_size=3), min_size=1, max_size=5))
    stats = [file_of(type_, file) for file in files]
    shuffled = data.draw(st.permutations(stats))

    def all_of(these: list[ColumnStats]) -> TableColumnStats:
        return reduce(lambda known, file: merge(type_, known, file), these[1:], from_file(these[0]))

    assert all_of(stats) == all_of(shuffled)
    assert merge(type_, all_of(stats), stats[0]) == all_of(stats)


@pytest.mark.parametrize(
    ("type_", "in_order"),
    [
        ("int32", ["-10", "-9", "9", "10"]),
        ("float64", ["-inf", "-1e+300", "-0.5", "9.5", "10.0", "1e+22", "inf", "nan"]),
        ("decimal(10,2)", ["-10.00", "-9.50", "9.50", "10.00"]),
        ("boolean", ["0", "1"]),
        ("boolean", ["false", "1"]),
        ("boolean", ["0", "true"]),
        ("varchar", ["", "B", "a", "\u00e9", "\uffff", "\U0001f600"]),
        ("blob", ["", "00FF", "61", "FF"]),
        (
            "date",
            [
                "-infinity",
                "0045-03-15 (BC)",
                "0044-03-15 (BC)",
                "0001-01-01",
                "9999-12-31",
                "12024-01-01",
                "infinity",
            ],
        ),
        (
            "timestamp",
            [
                "-infinity",
                "290309-12-22 (BC) 00:00:00",
                "0001-12-31 (BC) 23:59:59",
                "0001-01-01 00:00:00",
                "2024-01-01 00:00:00",
                "2024-01-01 00:00:00.05",
                "2024-01-01 00:00:00.5",
                "2024-01-01 00:00:01",
                "294247-01-10 04:00:54.775806",
                "infinity",
            ],
        ),
        ("timestamptz", ["0044-03-15 (BC) 00:00:00+00", "9999-01-01 00:00:00+00", "infinity"]),
        ("timestamp_ns", ["2024-01-01 00:00:00.12345678", "2024-01-01 00:00:00.123456789"]),
        ("time", ["00:00:00", "00:00:00.1", "09:00:00", "24:00:00"]),
    ],
)
def test_bounds_are_compared_as_values_of_their_type(type_: str, in_order: list[str]) -> None:
    for position, low in enumerate(in_order):
        for high in in_order[position:]:
            for first, second in ((low, high), (high, low)):
                merged = merge(
                    type_,
                    TableColumnStats(1, False, None, first, first),
                    ColumnStats(1, 1, 1, 0, second, second),
                )
                assert (merged.min, merged.max) == (low, high)


@pytest.mark.parametrize(
    ("type_", "unreadable"),
    [
        ("int32", "x"),
        ("float64", "x"),
        ("boolean", "2"),
        ("decimal(5,2)", ""),
        ("date", "yesterday"),
        ("date", ""),
        ("timestamptz", "2024-01-01 00:00:00+05"),
        ("timetz", "10:00:00+00"),
        ("interval", "1 day"),
        ("no_such_type", "1"),
    ],
)
def test_incomparable_bound_becomes_unknown(type_: str, unreadable: str) -> None:
    merged = merge(
        type_,
        TableColumnStats(1, False, None, "1", "1"),
        ColumnStats(1, 1, 1, 0, unreadable, unreadable),
    )
    assert (merged.min, merged.max) == (None, None)


def test_unknown_statistics_stay_unknown() -> None:
    file = ColumnStats(1, 1, 1, 0, "1", "2")
    assert merge("int32", TableColumnStats(1, None), file) == TableColumnStats(1)
    assert merge("int32", TableColumnStats(1, False), file) == TableColumnStats(1, False)
    known = TableColumnStats(1, False, None, "1", "2")
    assert merge("int32", known, ColumnStats(1)) == TableColumnStats(1)
    # Stock DuckDB misreads a single bound of finite.
    assert merge("int32", known, ColumnStats(1, 1, 1, 0, "1")).min is None


def test_nan_is_merged_and_not_a_bound() -> None:
    nan = ColumnStats(1, 1, 1, 0, contains_nan=True)
    finite = ColumnStats(1, 1, 2, 0, "1.0", "2.0", False)
    assert merge("float64", from_file(finite), nan) == TableColumnStats(
        1, False, True, "1.0", "2.0"
    )
    assert merge("float64", from_file(nan), finite) == TableColumnStats(1, False, True)


def variant(path: str, type_: str, *stats: Any) -> VariantFieldStats:
    return VariantFieldStats(path, type_, ColumnStats(1, 10, *stats))


def variant_file(*fields: VariantFieldStats) -> ColumnStats:
    return ColumnStats(1, 20, 2, 0, extra=encode(fields), variant_fields=fields)


def test_variant_fields_are_merged_if_every_file_has_them_with_one_type() -> None:
    first = variant_file(
        variant('"a"', "int32", 2, 0, "9", "10"),
        variant('"b"', "varchar", 2, 0, "x", "y"),
        variant('"c"', "date", 2, 0, "2024-01-01", "2024-01-02"),
    )
    second = variant_file(
        variant('"c"', "timestamp", 1, 0, "2024-01-01 00:00:00", "2024-01-01 00:00:00"),
        variant('"a"', "int32", 1, 3, "100", "100"),
    )
    merged = merge("variant", from_file(first), second)
    (field,) = decode(merged.extra, 1)
    assert field == VariantFieldStats('"a"', "int32", ColumnStats(1, 20, 3, 3, "9", "100"))
    assert merge("variant", merged, variant_file()) == TableColumnStats(1, False)
    assert merge("variant", TableColumnStats(1, False), first) == TableColumnStats(1, False)


@pytest.mark.parametrize(
    ("files", "bounds"),
    [
        ([(0, 1), (1, 0, "a", "b")], (None, None)),
        ([(1, 0, "a", "b"), (0, 1)], ("a", "b")),
        ([(1, 0, "a", "b"), (1, 0)], (None, None)),
        ([(1, 0), (1, 0, "a", "b")], (None, None)),
    ],
    ids=["null first", "null second", "unknown second", "unknown first"],
)
def test_unknown_bounds_of_a_variant_field_stay_unknown(
    files: list[Any], bounds: tuple[str | None, str | None]
) -> None:
    first, second = (variant_file(variant("root", "varchar", *stats)) for stats in files)
    (field,) = decode(merge("variant", from_file(first), second).extra, 1)
    assert (field.stats.min, field.stats.max) == bounds


def test_variant_field_without_counts_is_unknown() -> None:
    added = '[{"field_name":"root","shredded_type":"int32","min":"1","max":"2","any_valid":true}]'
    assert decode(added, 1) == ()

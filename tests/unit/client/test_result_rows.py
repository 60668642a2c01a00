"""Conversion of Arrow columns to Python values."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from swanlake.client.api.rows import column_values, row_dicts, row_tuples
from swanlake.errors import DataError

MOMENTS = [
    dt.datetime(1, 1, 1),
    dt.datetime(1969, 12, 31, 23, 59, 59),
    None,
    dt.datetime(2024, 3, 31, 1),  # Berlin's clocks go forward
    dt.datetime(2024, 10, 27, 1, 30),  # and back: the second half past two
    dt.datetime(9999, 12, 30),
]
MICROSECONDS = [dt.datetime(1600, 2, 29, 1, 2, 3, 456789), *MOMENTS]
COLUMNS = [
    pa.array([1, None, -1], pa.int64()),
    pa.array(["ü", None]),
    pa.array([Decimal("1.500"), None], pa.decimal128(10, 3)),
    pa.array([dt.time(1, 2, 3, 4), None]),
    pa.array([[dt.datetime(2020, 1, 1)], None]),
    pa.array([dt.date.min, dt.date(1969, 12, 31), None, dt.date.max]),
    pa.array(["a", "b", None, "a"]).dictionary_encode(),
    pa.array([dt.date(2020, 1, 1), None]).dictionary_encode(),
    pa.array(MOMENTS, pa.timestamp("s")),
    pa.array(MOMENTS, pa.timestamp("ms")),
    pa.array(MICROSECONDS, pa.timestamp("us")),
    *(
        pa.array(MICROSECONDS[:-1], pa.timestamp("us", zone))
        for zone in ("UTC", "Etc/UTC", "Europe/Berlin", "America/St_Johns", "+05:30")
    ),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_values_equal_those_of_pyarrow(column: Any) -> None:
    if getattr(column.type, "tz", None) == "America/St_Johns":
        column = column[2:]  # pyarrow cannot represent the year 0
    for array in (column, column[1:], pa.chunked_array([column, column]), column[:0]):
        values, expected = column_values(array), array.to_pylist()
        assert values == expected
        assert [_zone(value) for value in values] == [_zone(value) for value in expected]


def _zone(value: Any) -> Any:
    return (value.tzinfo, value.fold) if isinstance(value, dt.datetime) else None


def test_rows_are_tuples_or_dicts() -> None:
    rows = pa.table({"i": [1, 2], "s": ["a", None]})
    assert row_tuples(rows) == [(1, "a"), (2, None)]
    assert row_dicts(rows.to_batches()[0]) == [{"i": 1, "s": "a"}, {"i": 2, "s": None}]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**63 - 1]).cast(pa.timestamp("us")),
        pa.array([-(2**62)]).cast(pa.timestamp("s", "UTC")),
        pa.array([2**31 - 1], pa.int32()).cast(pa.date32()),
        pa.array([-800_000], pa.int32()).cast(pa.date32()),
        pa.array([[2**31 - 1]], pa.list_(pa.int32())).cast(pa.list_(pa.date32())),
    ],
    ids=lambda column: str(column.type),
)
def test_value_outside_of_pythons_years_is_a_data_error(column: Any) -> None:
    with pytest.raises(DataError, match=r"Column end has a .* outside of Python's years 1 to 9999"):
        row_tuples(pa.table({"end": column}))

"""Conversion of rows and values to the columns and types of a table."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pandas
import polars
import pyarrow as pa
import pytest

from swanlake.client.writer.rows import Column, TargetTable, arrow_batches, target_table
from swanlake.errors import RowRefused

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901)
ID = UUID("12345678-1234-5678-1234-567812345678")


def table(**types: Any) -> TargetTable:
    return TargetTable("swans", [Column(name, type_) for name, type_ in types.items()])


def sent(target: TargetTable, *rows: Any, columns: Any = None) -> list[dict[str, Any]]:
    """The rows as one batch would send them."""
    chunks = [target.convert_row(row, columns) for row in rows]
    assert len({chunk.shape for chunk in chunks}) == 1
    encoded: list[dict[str, Any]] = (
        chunks[0].shape.encode([chunk.content for chunk in chunks]).to_pylist()
    )
    return encoded


SWANS = table(id=pa.int64(), name=pa.string())


@dataclass
class Swan:
    id: int
    name: str | None = None


SwanTuple = namedtuple("SwanTuple", "name id")


@pytest.mark.parametrize(
    "row",
    [
        {"id": 1, "name": "a"},
        {"name": "a", "id": 1},
        {"ID": 1, "Name": "a"},
        (1, "a"),
        [1, "a"],
        Swan(1, "a"),
        SwanTuple("a", 1),
    ],
)
def test_convert_row_takes_all_kinds_of_rows(row: Any) -> None:
    assert sent(SWANS, row) == [{"id": 1, "name": "a"}]


def test_tuples_use_the_columns_option() -> None:
    assert sent(SWANS, ("a", 1), columns=["name", "id"]) == [{"id": 1, "name": "a"}]
    assert sent(SWANS, (1,), columns=["id"]) == [{"id": 1, "name": None}]


def test_row_is_copied_when_taken() -> None:
    target = table(values=pa.list_(pa.int64()))
    row = {"values": [1, 2]}
    chunk = target.convert_row(row)
    row["values"].append(3)
    assert chunk.shape.encode([chunk.content]).to_pylist() == [{"values": [1, 2]}]


# ---- missing columns -----------------------------------------------------------------------------

DEFAULTS = TargetTable(
    "swans",
    [
        Column("id", pa.int64(), nullable=False),
        Column("name", pa.string()),
        Column("seen", pa.timestamp("us"), has_default=True),
    ],
)


def test_missing_column_is_null_or_default() -> None:
    bare, named, full, null = (
        DEFAULTS.convert_row(row)
        for row in (
            {"id": 1},
            {"id": 2, "name": "a"},
            {"id": 3, "seen": NOW},
            {"id": 4, "seen": None},
        )
    )
    assert bare.shape is named.shape  # the same default is left to the server
    assert full.shape is null.shape is not bare.shape
    assert bare.shape.encode([bare.content, named.content]).to_pylist() == [
        {"id": 1, "name": None},
        {"id": 2, "name": "a"},
    ]
    assert full.shape.encode([full.content, null.content]).to_pylist() == [
        {"id": 3, "name": None, "seen": NOW},
        {"id": 4, "name": None, "seen": None},
    ]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"name": "a"}, "'id' takes no NULL and has no default"),
        ({"id": None}, "'id' takes no NULL"),
        ({"id": 1, "nam": "a"}, "swans has no column 'nam', only id, name, seen"),
        ({"id": 1, "ID": 2}, "named twice"),
        ({"id": "x"}, "'id' (int64) does not take 'x'"),
        ((1, 2), "2 values for 3 columns: id, name, seen"),
        ("abc", "not str"),
        (7, "not int"),
        (Swan, "not type"),
    ],
)
def test_unfitting_rows_are_refused(row: Any, words: str) -> None:
    with pytest.raises(RowRefused) as refused:
        DEFAULTS.convert_row(row)
    assert words in str(refused.value)


def test_row_without_columns_is_refused() -> None:
    target = TargetTable("t", [Column("a", pa.int64(), has_default=True)])
    with pytest.raises(RowRefused, match="at least one column"):
        target.convert_row({})


def test_target_table_from_describe() -> None:
    described: list[dict[str, Any]] = [
        {"column_name": "a", "null": "NO", "default": None},
        {"column_name": "b", "null": "YES", "default": "now()"},
        {"column_name": "c", "null": "YES", "default": "NULL"},
        {"column_name": "new", "null": "YES", "default": None},
    ]
    schema = pa.schema([(name, pa.int64()) for name in "abc"])
    columns = target_table("t", schema, described).columns
    assert [(column.name, column.nullable, column.has_default) for column in columns] == [
        ("a", False, False),
        ("b", True, True),
        ("c", True, False),
    ]


# ---- values --------------------------------------------------------------------------------------

STRUCT = pa.struct([("x", pa.int32()), ("y", pa.string())])
FITS: list[tuple[Any, Any, Any]] = [
    (pa.int64(), 2**63 - 1, 2**63 - 1),
    (pa.int8(), -128, -128),
    (pa.int64(), 3.0, 3),
    (pa.float64(), 3, 3.0),
    (pa.float64(), 1.5, 1.5),
    (pa.float32(), 1.5, 1.5),
    (pa.bool_(), True, True),
    (pa.string(), "schön", "schön"),
    (pa.string(), ID, str(ID)),  # the server returns UUIDs as text
    (pa.string(), 2**127, str(2**127)),
    (pa.string(), {"a": [1, None], "u": ID}, f'{{"a": [1, null], "u": "{ID}"}}'),
    (pa.string(), True, "true"),
    (pa.binary(), b"\0", b"\0"),
    (pa.date32(), date(2026, 1, 2), date(2026, 1, 2)),
    (pa.date32(), "2026-01-02", date(2026, 1, 2)),
    (pa.timestamp("us"), NOW, NOW),
    (pa.timestamp("us"), NOW.isoformat(), NOW),
    (pa.timestamp("us", "UTC"), NOW.replace(tzinfo=UTC), NOW.replace(tzinfo=UTC)),
    (pa.time64("us"), time(1, 2, 3), time(1, 2, 3)),
    (pa.decimal128(10, 2), Decimal("1.5"), Decimal("1.50")),
    (pa.decimal128(10, 2), 0.1, Decimal("0.10")),
    (pa.decimal128(10, 2), "2.25", Decimal("2.25")),
    (pa.decimal128(38, 0), 10**30, Decimal(10**30)),
    (pa.month_day_nano_interval(), timedelta(days=1), pa.MonthDayNano([0, 1, 0])),
    (pa.list_(pa.int32()), [1, None], [1, None]),
    (pa.list_(pa.string()), (ID,), [str(ID)]),
    (STRUCT, {"x": 1, "y": ID}, {"x": 1, "y": str(ID)}),
    (STRUCT, {"x": 1}, {"x": 1, "y": None}),
    (pa.map_(pa.string(), pa.int32()), {"a": 1}, [("a", 1)]),
    (pa.map_(pa.string(), pa.int32()), [("a", 1)], [("a", 1)]),
]


@pytest.mark.parametrize(("type_", "value", "expected"), FITS)
def test_fitting_values_are_converted(type_: Any, value: Any, expected: Any) -> None:
    rows = sent(table(v=type_), {"v": value}, {"v": None}, {"v": value})
    assert [row["v"] for row in rows] == [expected, None, expected]


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (pa.int64(), 2**63),
        (pa.uint8(), -1),
        (pa.int64(), 1.5),
        (pa.int64(), "5"),
        (pa.int64(), True),
        (pa.bool_(), 1),
        (pa.string(), "\ud800"),
        (pa.string(), object()),
        (pa.date32(), "yesterday"),
        (pa.decimal128(10, 2), Decimal("1.555")),
        (pa.decimal128(4, 2), Decimal(1000)),
        (pa.list_(pa.int32()), "123"),
        (pa.list_(pa.int32()), 5),
        (STRUCT, {"x": 1, "z": 2}),
        (STRUCT, [1]),
        (pa.map_(pa.string(), pa.int32()), 5),
    ],
)
def test_unfitting_values_are_refused(type_: Any, value: Any) -> None:
    with pytest.raises(RowRefused, match="The column 'v'"):
        table(v=type_).convert_row({"v": value})


# ---- Arrow ---------------------------------------------------------------------------------------


def from_arrow(target: TargetTable, rows: Any, max_rows: int = 100, max_bytes: int = 10**6) -> Any:
    batches = arrow_batches(rows)
    assert batches is not None
    return [
        chunk for batch in batches for chunk in target.convert_arrow(batch, max_rows, max_bytes)
    ]


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"name": ["a"], "id": pa.array([1], pa.int32())}),
        pa.record_batch({"NAME": ["a"], "id": [1]}),
        pa.table({"name": pa.array(["a"]).dictionary_encode(), "id": ["1"]}),
        polars.DataFrame({"name": ["a"], "id": [1]}),
    ],
)
def test_arrow_is_cast_to_table_types(rows: Any) -> None:
    [chunk] = from_arrow(SWANS, rows)
    row = SWANS.convert_row((2, "b"))
    assert chunk.shape is row.shape  # so that they share a batch
    assert chunk.shape.encode([row.content, chunk.content, row.content]).to_pylist() == [
        {"id": 2, "name": "b"},
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
    ]


def test_arrow_is_split_by_rows_and_bytes() -> None:
    rows = pa.table({"id": range(100)})
    assert [chunk.rows for chunk in from_arrow(SWANS, rows, max_rows=40)] == [40, 40, 20]
    assert max(chunk.bytes for chunk in from_arrow(SWANS, rows, max_bytes=200)) <= 200
    assert from_arrow(SWANS, rows.slice(0, 0)) == []


def test_arrow_omits_columns_with_defaults() -> None:
    [chunk] = from_arrow(DEFAULTS, pa.table({"id": [1]}))
    assert chunk.content.column_names == ["id"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (pa.table({"id": [1], "nam": [1]}), "no column 'nam'"),
        (pa.table({"name": ["a"]}), "'id' takes no NULL and has no default"),
        (pa.table({"id": [None]}), "'id' takes no NULL"),
        (pa.table({"id": ["x"]}), "'id' (int64) does not take string"),
        (pa.table({"id": [1.5]}), "'id' (int64) does not take double"),
    ],
)
def test_unfitting_arrow_is_refused(rows: Any, words: str) -> None:
    with pytest.raises(RowRefused) as refused:
        from_arrow(DEFAULTS, rows)
    assert words in str(refused.value)


def test_individual_rows_are_not_arrow() -> None:
    assert arrow_batches([{"id": 1}]) is None
    assert arrow_batches(iter([])) is None


@pytest.mark.parametrize("view", [bytearray, lambda data: memoryview(bytearray(data))])
def test_bytearray_is_copied_when_taken(view: Any) -> None:
    data = view(b"before")
    chunk = table(data=pa.binary()).convert_row({"data": data})
    data[:] = b"after!"
    assert chunk.content == (b"before",)


def test_data_frame_is_copied_when_taken() -> None:
    frame = pandas.DataFrame({"id": [1, 2, 3]})
    batches = arrow_batches(frame)
    assert batches is not None
    [batch] = list(batches)
    frame.loc[:, "id"] = 0
    assert batch.column("id").to_pylist() == [1, 2, 3]

"""Rows of every kind in the columns and types of a table."""

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

from swanlake.client.rows import Column, TargetTable, arrow_batches, target_table
from swanlake.errors import RowRefused

NOW = datetime(2026, 1, 2, 3, 4, 5, 678901)
ID = UUID("12345678-1234-5678-1234-567812345678")


def table(**types: Any) -> TargetTable:
    return TargetTable("swans", [Column(name, type_) for name, type_ in types.items()])


def sent(target: TargetTable, *rows: Any, columns: Any = None) -> list[dict[str, Any]]:
    """The rows as they would be sent, together."""
    pieces = [target.take(row, columns) for row in rows]
    assert len({piece.shape for piece in pieces}) == 1
    found: list[dict[str, Any]] = (
        pieces[0].shape.encode([one.content for one in pieces]).to_pylist()
    )
    return found


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
def test_rows_of_all_kinds(row: Any) -> None:
    assert sent(SWANS, row) == [{"id": 1, "name": "a"}]


def test_tuples_of_chosen_columns() -> None:
    assert sent(SWANS, ("a", 1), columns=["name", "id"]) == [{"id": 1, "name": "a"}]
    assert sent(SWANS, (1,), columns=["id"]) == [{"id": 1, "name": None}]


def test_a_row_is_taken_as_it_is_at_the_moment() -> None:
    target = table(values=pa.list_(pa.int64()))
    row = {"values": [1, 2]}
    piece = target.take(row)
    row["values"].append(3)
    assert piece.shape.encode([piece.content]).to_pylist() == [{"values": [1, 2]}]


# ---- columns that are not given ------------------------------------------------------------------

DEFAULTS = TargetTable(
    "swans",
    [
        Column("id", pa.int64(), nullable=False),
        Column("name", pa.string()),
        Column("seen", pa.timestamp("us"), has_default=True),
    ],
)


def test_a_missing_column_is_null_or_left_to_the_default() -> None:
    bare, named, full, null = (
        DEFAULTS.take(row)
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
def test_rows_that_do_not_fit(row: Any, words: str) -> None:
    with pytest.raises(RowRefused) as refused:
        DEFAULTS.take(row)
    assert words in str(refused.value)


def test_a_row_of_defaults_alone() -> None:
    target = TargetTable("t", [Column("a", pa.int64(), has_default=True)])
    with pytest.raises(RowRefused, match="at least one column"):
        target.take({})


def test_what_a_server_says_of_a_table() -> None:
    described: list[dict[str, Any]] = [
        {"column_name": "a", "null": "NO", "default": None},
        {"column_name": "b", "null": "YES", "default": "now()"},
        {"column_name": "c", "null": "YES", "default": "NULL"},
        {"column_name": "new", "null": "YES", "default": None},
    ]
    schema = pa.schema([(name, pa.int64()) for name in "abc"])
    found = target_table("t", schema, described)
    assert [(one.name, one.nullable, one.has_default) for one in found.columns] == [
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
    (pa.string(), ID, str(ID)),  # a column of UUIDs is shown as text
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


@pytest.mark.parametrize(("type_", "given", "expected"), FITS)
def test_values_that_fit(type_: Any, given: Any, expected: Any) -> None:
    found = sent(table(v=type_), {"v": given}, {"v": None}, {"v": given})
    assert [row["v"] for row in found] == [expected, None, expected]


@pytest.mark.parametrize(
    ("type_", "given"),
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
def test_values_that_do_not_fit(type_: Any, given: Any) -> None:
    with pytest.raises(RowRefused, match="The column 'v'"):
        table(v=type_).take({"v": given})


# ---- Arrow ---------------------------------------------------------------------------------------


def from_arrow(target: TargetTable, rows: Any, max_rows: int = 100, max_bytes: int = 10**6) -> Any:
    batches = arrow_batches(rows)
    assert batches is not None
    return [piece for batch in batches for piece in target.take_arrow(batch, max_rows, max_bytes)]


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"name": ["a"], "id": pa.array([1], pa.int32())}),
        pa.record_batch({"NAME": ["a"], "id": [1]}),
        pa.table({"name": pa.array(["a"]).dictionary_encode(), "id": ["1"]}),
        polars.DataFrame({"name": ["a"], "id": [1]}),
    ],
)
def test_arrow_is_cast_to_the_table(rows: Any) -> None:
    [piece] = from_arrow(SWANS, rows)
    row = SWANS.take((2, "b"))
    assert piece.shape is row.shape  # so that they travel together
    assert piece.shape.encode([row.content, piece.content, row.content]).to_pylist() == [
        {"id": 2, "name": "b"},
        {"id": 1, "name": "a"},
        {"id": 2, "name": "b"},
    ]


def test_arrow_is_cut_by_rows_and_bytes() -> None:
    rows = pa.table({"id": range(100)})
    assert [piece.rows for piece in from_arrow(SWANS, rows, max_rows=40)] == [40, 40, 20]
    assert max(piece.bytes for piece in from_arrow(SWANS, rows, max_bytes=200)) <= 200
    assert from_arrow(SWANS, rows.slice(0, 0)) == []


def test_arrow_leaves_defaults_to_the_server() -> None:
    [piece] = from_arrow(DEFAULTS, pa.table({"id": [1]}))
    assert piece.content.column_names == ["id"]


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
def test_arrow_that_does_not_fit(rows: Any, words: str) -> None:
    with pytest.raises(RowRefused) as refused:
        from_arrow(DEFAULTS, rows)
    assert words in str(refused.value)


def test_rows_one_by_one_are_not_arrow() -> None:
    assert arrow_batches([{"id": 1}]) is None
    assert arrow_batches(iter([])) is None


@pytest.mark.parametrize("view", [bytearray, lambda data: memoryview(bytearray(data))])
def test_bytes_that_are_changed_later_are_sent_as_they_were(view: Any) -> None:
    data = view(b"before")
    piece = table(data=pa.binary()).take({"data": data})
    data[:] = b"after!"
    assert piece.content == (b"before",)


def test_a_frame_that_is_changed_later_is_sent_as_it_was() -> None:
    frame = pandas.DataFrame({"id": [1, 2, 3]})
    found = arrow_batches(frame)
    assert found is not None
    [batch] = list(found)
    frame.loc[:, "id"] = 0
    assert batch.column("id").to_pylist() == [1, 2, 3]

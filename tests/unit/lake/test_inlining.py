"""Inlined rows: which rows qualify, their encoding, and what a commit writes."""

from __future__ import annotations

import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pytest
from sqlalchemy import bindparam, make_url
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import CreateTable as MakeTable

from swanlake.lake.catalog import new_table
from swanlake.lake.commit.conflicts import Action, TableIntent
from swanlake.lake.commit.footprint import inlining_tables, table_intents
from swanlake.lake.commit.planning import plan
from swanlake.lake.commit.state import LiveTable
from swanlake.lake.files.inlined_tables import can_inline, rows_table
from swanlake.lake.files.inlining import inline_rows
from swanlake.lake.metastore.store import Write
from swanlake.lake.metastore.tables import tables_in
from swanlake.lake.model.layout import Column, ColumnStats, SortKey, Table, TableOptions
from swanlake.lake.model.operations import Commit, InlineInsert
from swanlake.lake.model.options import StoredOptions
from swanlake.lake.model.stats import TableColumnStats
from swanlake.lake.model.types import ColumnSpec
from tests.unit.lake.test_planning import NOON, TABLES, T, state


def table_of(*types: str) -> Table:
    columns = tuple(Column(n, f"c{n}", type_) for n, type_ in enumerate(types, 1))
    return Table(5, "main", "t", "/data/main/t/", columns)


def inlined(type_: str, *values: Any, arrow: pa.DataType | None = None) -> InlineInsert:
    made = inline_rows(table_of(type_), pa.table({"c": pa.array(values, arrow)}))
    assert made is not None
    return made


# ---- values ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("type_", "arrow", "values", "expected", "bounds"),
    [
        ("boolean", pa.bool8(), [1, 0], [True, False], ("false", "true")),
        ("int8", pa.int8(), [9, -10], [9, -10], ("-10", "9")),
        ("uint64", pa.uint64(), [9, 2**64 - 1], ["9", str(2**64 - 1)], ("9", str(2**64 - 1))),
        ("float32", pa.float32(), [0.1, -0.0], ["0.1", "-0.0"], ("-0.0", "0.1")),
        ("float64", pa.float64(), [1e22, 0.1], ["1e+22", "0.1"], ("0.1", "1e+22")),
        (
            "decimal(5,2)",
            pa.decimal128(5, 2),
            [Decimal("10.5"), Decimal(9)],
            ["10.50", "9.00"],
            ("9.00", "10.50"),
        ),
        ("date", pa.date32(), [0, -1], ["1970-01-01", "1969-12-31"], ("1969-12-31", "1970-01-01")),
        ("time", pa.time64("us"), [86_400_000_000], ["24:00:00"], ("24:00:00", "24:00:00")),
        (
            "timestamp",
            pa.timestamp("us"),
            [-500_000, 1],
            ["1969-12-31 23:59:59.5", "1970-01-01 00:00:00.000001"],
            ("1969-12-31 23:59:59.5", "1970-01-01 00:00:00.000001"),
        ),
        (
            "timestamptz",
            pa.timestamp("us", "Europe/Berlin"),
            [0],
            ["1970-01-01 00:00:00+00"],
            ("1970-01-01 00:00:00+00", "1970-01-01 00:00:00+00"),
        ),
        (
            "timestamp_ns",
            pa.timestamp("ns"),
            [10],
            ["1970-01-01 00:00:00.00000001"],
            ("1970-01-01 00:00:00.00000001", "1970-01-01 00:00:00.00000001"),
        ),
        ("varchar", pa.string(), ["b", "é", ""], [b"b", "é".encode(), b""], ("", "é")),
        ("json", pa.json_(), ["{}"], [b"{}"], ("{}", "{}")),
        ("blob", pa.binary(), [b"\x00\xff"], [b"\x00\xff"], ("00FF", "00FF")),
        ("uuid", pa.uuid(), [UUID(int=1).bytes], [str(UUID(int=1))], (str(UUID(int=1)),) * 2),
    ],
)
def test_values_are_converted_with_bounds(
    type_: str, arrow: pa.DataType, values: list[Any], expected: list[Any], bounds: tuple[str, str]
) -> None:
    storage = arrow.storage_type if isinstance(arrow, pa.BaseExtensionType) else arrow
    array = pa.array([*values, None], storage)
    if storage is not arrow:
        array = pa.ExtensionArray.from_storage(arrow, array)
    made = inline_rows(table_of(type_), pa.table({"c": array}))
    assert made is not None
    assert made.rows == tuple((value,) for value in [*expected, None])
    nan = False if type_.startswith("float") else None
    assert made.column_stats == (ColumnStats(1, None, len(values), 1, *bounds, nan),)
    assert pickle.loads(pickle.dumps(made)) == made


def test_arrow_extension_types_of_duckdb_are_read() -> None:
    with duckdb.connect() as duck:
        duck.execute("SET arrow_lossless_conversion = true")
        rows = duck.execute(
            "SELECT true, 'x', uuid '00000000-0000-0000-0000-000000000001', '1'::JSON, 1.5::FLOAT, "
            "timestamp_s '2024-01-01 00:00:01', now() IS NULL"
        ).to_arrow_table()
    types = ("boolean", "varchar", "uuid", "json", "float32", "timestamp_s", "boolean")
    made = inline_rows(table_of(*types), rows, blind=True)
    assert made is not None
    assert made.blind
    uuid = "00000000-0000-0000-0000-000000000001"
    assert made.rows == ((True, b"x", uuid, b"1", "1.5", "2024-01-01 00:00:01", False),)


def test_nan_is_recorded_and_not_a_bound() -> None:
    made = inlined("float64", float("nan"), 1.0)
    assert made.rows == (("nan",), ("1.0",))
    assert made.column_stats == (ColumnStats(1, None, 2, 0, "1.0", "1.0", True),)
    (stats,) = inlined("float32", float("nan"), arrow=pa.float32()).column_stats
    assert stats == ColumnStats(1, None, 1, 0, None, None, True)


def test_text_bounds_are_cut_at_zero_bytes_and_256_characters() -> None:
    (stats,) = inlined("varchar", "z" * 1000).column_stats
    assert (stats.min, stats.max) == ("z" * 256, None)
    (stats,) = inlined("varchar", "a\0b", "a\0c").column_stats
    assert (stats.min, stats.max) == ("a", None)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("date", 2**31 - 1),  # infinity
        ("date", -2_000_000),
        ("date", 2932897),
        ("timestamp", 2**63 - 1),
        ("timestamptz", -(2**63 - 1)),
    ],
)
def test_times_outside_the_range_of_python_are_not_inlined(type_: str, value: int) -> None:
    arrow = {"date": pa.date32(), "timestamp": pa.timestamp("us")}.get(
        type_, pa.timestamp("us", "UTC")
    )
    rows = pa.table({"c": pa.array([0, value], pa.int64()).cast(_number(type_)).cast(arrow)})
    assert inline_rows(table_of(type_), rows) is None


def _number(type_: str) -> pa.DataType:
    return pa.int32() if type_ == "date" else pa.int64()


# ---- tables ------------------------------------------------------------------------------------


@pytest.mark.parametrize("type_", "int128 uint128 interval timetz variant geometry".split())
def test_unsafe_types_are_not_inlined(type_: str) -> None:
    assert not can_inline(table_of("int32", type_))


def test_can_inline_depends_on_table_layout() -> None:
    safe = table_of("int32", "varchar", "decimal(38,10)")
    assert can_inline(safe)
    assert not can_inline(replace(safe, encrypted=True))
    by_id = (SortKey("c1"),)
    assert not can_inline(replace(safe, sort_keys=by_id))
    assert can_inline(replace(safe, sort_keys=by_id, options=TableOptions(sort_inserts=False)))
    columns = [ColumnSpec("i", "INTEGER")]
    assert can_inline(new_table("main", "t", columns, partition_by=["i"]))
    assert not can_inline(new_table("main", "t", columns, sort_by=by_id))
    nested = Column(1, "l", "list", children=(Column(2, "element", "int32"),))
    assert not can_inline(replace(safe, columns=(nested,)))
    for name in ("ROW_ID", "end_snapshot", "ctid", "é" * 32):
        assert not can_inline(replace(safe, columns=(Column(1, name, "int32"),)))
    assert not can_inline(table_of(*["int32"] * 1001))


@pytest.mark.parametrize(
    ("database", "types"),
    [
        (
            "postgresql+psycopg://",
            "BOOLEAN, SMALLINT, INTEGER, BIGINT, INTEGER, VARCHAR, REAL, DOUBLE PRECISION, "
            "NUMERIC(9, 2), VARCHAR, TIME WITHOUT TIME ZONE, VARCHAR, BYTEA, BYTEA, UUID",
        ),
        (
            "sqlite://",
            "BIGINT, BIGINT, BIGINT, BIGINT, BIGINT, VARCHAR, VARCHAR, VARCHAR, "
            "VARCHAR, VARCHAR, VARCHAR, VARCHAR, VARCHAR, BLOB, VARCHAR",
        ),
    ],
)
def test_column_types_match_the_stock_extension(database: str, types: str) -> None:
    words = (
        "boolean int8 int32 int64 uint16 uint64 float32 float64 decimal(9,2) date time timestamptz "
        "varchar blob uuid"
    )
    dialect: Dialect = make_url(database).get_dialect()()
    made = rows_table(tables_in(None), 5, 3, table_of(*words.split()).columns)
    sql = " ".join(str(MakeTable(made).compile(dialect=dialect)).split())
    columns = sql.partition("end_snapshot BIGINT, ")[2]
    expected = types.replace("(9, 2)", "(9; 2)").split(", ")
    assert (
        columns
        == ", ".join(f"c{n} {type_.replace(';', ',')}" for n, type_ in enumerate(expected, 1))
        + " )"
    )


# ---- commits -----------------------------------------------------------------------------------


def writes(*operations: Any, **current: Any) -> list[Write]:
    return plan(Commit(operations), state(**current), TABLES, bindparam("earliest"), NOON).writes


def rows_into(written: list[Write], name: str) -> list[Any]:
    rows = [
        write.rows or []
        for write in written
        if getattr(getattr(write.statement, "table", None), "name", "") == name
    ]
    return [row for written_rows in rows for row in written_rows]


def made_by(written: list[Write]) -> list[str]:
    return [
        str(write.statement.element.name)
        for write in written
        if isinstance(write.statement, MakeTable)
    ]


def test_inlined_rows_get_ids_and_update_statistics() -> None:
    insert = InlineInsert(T, ((1,), (3,)), (ColumnStats(1, None, 2, 0, "1", "3"),))
    live = LiveTable(
        5, "main/t/", True, True, 10, 12, 900, {1: TableColumnStats(1, False, None, "2", "2")}
    )
    written = writes(insert, tables={5: live}, inlined_versions={5: 2})
    assert rows_into(written, "ducklake_inlined_data_5_2") == [
        {"row_id": 12, "begin_snapshot": 8, "end_snapshot": None, "value_0": 1},
        {"row_id": 13, "begin_snapshot": 8, "end_snapshot": None, "value_0": 3},
    ]
    (totals,) = rows_into(written, "ducklake_table_stats")
    assert totals == {
        "of_table_id": 5,
        "record_count": 12,
        "next_row_id": 14,
        "file_size_bytes": 900,
    }
    (column,) = rows_into(written, "ducklake_table_column_stats")
    assert (column["min_value"], column["max_value"]) == ("1", "3")
    (snapshot,) = rows_into(written, "ducklake_snapshot")
    assert (snapshot["schema_version"], snapshot["next_file_id"]) == (4, 31)
    (changed,) = rows_into(written, "ducklake_snapshot_changes")
    assert changed["changes_made"] == "inlined_insert:5"
    assert not any(isinstance(write.statement, MakeTable) for write in written)


def test_column_stats_are_written_only_if_changed() -> None:
    insert = InlineInsert(T, ((5,),), (ColumnStats(1, None, 1, 0, "5", "5"),))
    known = {1: TableColumnStats(1, False, None, "1", "9")}
    live = LiveTable(5, "main/t/", True, True, 10, 10, 900, known)
    written = writes(insert, tables={5: live}, inlined_versions={5: 2})
    assert rows_into(written, "ducklake_table_column_stats") == []
    outside = InlineInsert(T, ((10,),), (ColumnStats(1, None, 1, 0, "10", "10"),))
    written = writes(insert, outside, tables={5: live}, inlined_versions={5: 2})
    (column,) = rows_into(written, "ducklake_table_column_stats")
    assert (column["min_value"], column["max_value"]) == ("1", "10")


def test_inlined_data_table_is_created_once() -> None:
    insert = InlineInsert(T, ((1,),), (ColumnStats(1, None, 1, 0, "1", "1"),))
    written = writes(insert, insert)
    assert made_by(written) == ["ducklake_inlined_data_5_5", "ducklake_inlined_delete_5"]
    assert rows_into(written, "ducklake_inlined_data_tables") == [
        {"table_id": 5, "table_name": "ducklake_inlined_data_5_5", "schema_version": 5}
    ]
    rows = rows_into(written, "ducklake_inlined_data_5_5")
    assert [row["row_id"] for row in rows] == [0, 1]
    (snapshot,) = rows_into(written, "ducklake_snapshot")
    assert snapshot["schema_version"] == 5


LIMIT = "data_inlining_row_limit"


@pytest.mark.parametrize(
    ("options", "columns", "is_made"),
    [
        ({(LIMIT, None, None): "10"}, "BIGINT", True),
        ({(LIMIT, None, None): "10", (LIMIT, "schema", 0): "0"}, "BIGINT", False),
        ({(LIMIT, None, None): "0", (LIMIT, "schema", 0): "1"}, "BIGINT", True),
        ({(LIMIT, "schema", 3): "1"}, "BIGINT", False),
        ({(LIMIT, None, None): "10", ("encrypted", None, None): "true"}, "BIGINT", False),
        ({(LIMIT, None, None): "10"}, "BIGINT[]", False),
        ({}, "BIGINT", False),
    ],
)
def test_new_table_gets_an_inlined_data_table_if_options_allow(
    options: dict[Any, str], columns: str, is_made: bool
) -> None:
    made = new_table("main", "new", [ColumnSpec("id", columns)])
    written = writes(made, options=StoredOptions(options))
    names = ["ducklake_inlined_data_20_5", "ducklake_inlined_delete_20"]
    assert made_by(written) == (names if is_made else [])
    registered = {"table_id": 20, "table_name": names[0], "schema_version": 5}
    assert rows_into(written, "ducklake_inlined_data_tables") == ([registered] if is_made else [])
    (snapshot,) = rows_into(written, "ducklake_snapshot")
    assert snapshot["schema_version"] == 5


def test_new_table_with_first_rows_creates_the_inlined_data_table_once() -> None:
    made = new_table("main", "new", [ColumnSpec("id", "BIGINT")])
    insert = InlineInsert(made, ((1,),), (ColumnStats(1, None, 1, 0, "1", "1"),))
    written = writes(made, insert, options=StoredOptions({(LIMIT, None, None): "10"}))
    assert made_by(written) == ["ducklake_inlined_data_20_5", "ducklake_inlined_delete_20"]
    assert len(rows_into(written, "ducklake_inlined_data_20_5")) == 1


def test_inlined_inserts_have_intents_of_inserts() -> None:
    made = new_table("main", "new", [ColumnSpec("id", "BIGINT")])
    commit = Commit(
        (InlineInsert(T, (), (), blind=True), InlineInsert(T, (), ()), InlineInsert(made, (), ()))
    )
    assert table_intents(commit) == [
        TableIntent(Action.APPEND, 5, "main.t"),
        TableIntent(Action.INSERT, 5, "main.t"),
    ]
    assert inlining_tables(commit) == [5]

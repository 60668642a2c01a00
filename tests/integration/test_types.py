"""Every DuckDB type as stock clients see it: as a result, in a table, and as a bound parameter."""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.server_process import ServerProcess

UUID_TEXT = "e9a1c0f2-7f3b-4d7c-8a11-0123456789ab"
UTC = zoneinfo.ZoneInfo("UTC")
MONTH_DAY_NANO = pa.month_day_nano_interval()
HUGEINT_MAX = 2**127 - 1
LONG_TEXT = "swan-" * 200_000

_numbers = itertools.count()


@pytest.fixture(scope="module")
def cursor(shared_server: ServerProcess) -> Iterator[Any]:
    """One session for all types, so that a type that breaks the session is noticed."""
    with (
        adbc.connect(shared_server.url, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        yield cursor


def fresh(name: str) -> str:
    """A table name that no other test uses."""
    return f"types_{name}_{next(_numbers)}"


@dataclass(frozen=True)
class Case:
    """A type, values of it as SQL writes them, and what a client gets for them.

    ``in_lake`` is false for types that DuckLake refuses and for values that Parquet cannot store: a
    HUGEINT of 39 digits, the offset of a TIMETZ, a negative INTERVAL.
    """

    sql_type: str
    literals: list[str]
    wire_type: Any
    values: list[Any]
    in_lake: bool = True

    @property
    def expressions(self) -> list[str]:
        return [f"({literal})::{self.sql_type}" for literal in self.literals]


def integers(sql_type: str, wire_type: Any, low: int, high: int) -> Case:
    return Case(sql_type, [str(low), str(high)], wire_type, [low, high])


CASES = [
    integers("TINYINT", pa.int8(), -(2**7), 2**7 - 1),
    integers("SMALLINT", pa.int16(), -(2**15), 2**15 - 1),
    integers("INTEGER", pa.int32(), -(2**31), 2**31 - 1),
    integers("BIGINT", pa.int64(), -(2**63), 2**63 - 1),
    integers("UTINYINT", pa.uint8(), 0, 2**8 - 1),
    integers("USMALLINT", pa.uint16(), 0, 2**16 - 1),
    integers("UINTEGER", pa.uint32(), 0, 2**32 - 1),
    integers("UBIGINT", pa.uint64(), 0, 2**64 - 1),
    Case(
        "HUGEINT",
        ["0", "-7", "9" * 38, "-" + "9" * 38, f"'{HUGEINT_MAX}'", f"'{-HUGEINT_MAX - 1}'"],
        pa.decimal128(38, 0),
        [
            Decimal(0),
            Decimal(-7),
            Decimal("9" * 38),
            Decimal("-" + "9" * 38),
            Decimal(HUGEINT_MAX),
            Decimal(-HUGEINT_MAX - 1),
        ],
        in_lake=False,
    ),
    Case("UHUGEINT", ["0", f"'{2**128 - 1}'"], pa.string(), ["0", str(2**128 - 1)], in_lake=False),
    Case(
        "FLOAT",
        ["1.5", "'nan'", "'inf'", "'-inf'"],
        pa.float32(),
        [1.5, float("nan"), float("inf"), float("-inf")],
    ),
    Case(
        "DOUBLE",
        ["0.1", "1e308", "'nan'", "'inf'", "'-inf'"],
        pa.float64(),
        [0.1, 1e308, float("nan"), float("inf"), float("-inf")],
    ),
    Case("DECIMAL(4,1)", ["-999.9"], pa.decimal128(4, 1), [Decimal("-999.9")]),
    Case("DECIMAL(9,9)", ["0.123456789"], pa.decimal128(9, 9), [Decimal("0.123456789")]),
    Case(
        "DECIMAL(18,3)",
        ["'1.500'", "0"],
        pa.decimal128(18, 3),
        [Decimal("1.500"), Decimal("0.000")],
    ),
    Case(
        "DECIMAL(38,10)",
        ["'" + "9" * 28 + "." + "9" * 10 + "'", "1"],
        pa.decimal128(38, 10),
        [Decimal("9" * 28 + "." + "9" * 10), Decimal("1.0000000000")],
    ),
    Case("BOOLEAN", ["true", "false"], pa.bool_(), [True, False]),
    Case("VARCHAR", ["''", "'Zürich 🦢'", "'it''s'"], pa.string(), ["", "Zürich 🦢", "it's"]),
    Case("BLOB", ["''", r"'\x00\xFF'"], pa.binary(), [b"", b"\x00\xff"]),
    Case(
        "DATE",
        ["'0001-01-01'", "'2024-02-29'", "'9999-12-31'"],
        pa.date32(),
        [dt.date.min, dt.date(2024, 2, 29), dt.date.max],
    ),
    Case(
        "TIME",
        ["'00:00:00'", "'23:59:59.999999'"],
        pa.time64("us"),
        [dt.time.min, dt.time.max],
    ),
    Case(
        "TIME_NS",
        ["'12:34:56.123456'"],
        pa.time64("ns"),
        [dt.time(12, 34, 56, 123456)],
        in_lake=False,
    ),
    Case(
        "TIMETZ",
        ["'12:00:00+02:30'", "'23:59:59.5-08'", "'00:00:00+00'"],
        pa.string(),
        ["12:00:00+02:30", "23:59:59.5-08", "00:00:00+00"],
        in_lake=False,
    ),
    Case(
        "TIMESTAMP",
        ["'1969-07-20 20:17:40.000001'", "'0001-01-01'"],
        pa.timestamp("us"),
        [dt.datetime(1969, 7, 20, 20, 17, 40, 1), dt.datetime.min],
    ),
    Case(
        "TIMESTAMP_S",
        ["'2024-02-29 01:02:03'"],
        pa.timestamp("s"),
        [dt.datetime(2024, 2, 29, 1, 2, 3)],
    ),
    Case(
        "TIMESTAMP_MS",
        ["'2024-02-29 01:02:03.004'"],
        pa.timestamp("ms"),
        [dt.datetime(2024, 2, 29, 1, 2, 3, 4000)],
    ),
    Case(
        "TIMESTAMP_NS",
        ["'2024-02-29 01:02:03.004005006'"],
        pa.timestamp("ns"),
        [pd.Timestamp("2024-02-29 01:02:03.004005006")],
    ),
    Case(
        "TIMESTAMPTZ",
        ["'2024-02-29 01:02:03.000004+02'"],
        pa.timestamp("us", "UTC"),
        [dt.datetime(2024, 2, 28, 23, 2, 3, 4, UTC)],
    ),
    Case(
        "INTERVAL",
        ["'14 months 3 days 4 microseconds'", "'-1 month -2 days -00:00:03'", "'0 days'"],
        MONTH_DAY_NANO,
        [
            pa.MonthDayNano([14, 3, 4000]),
            pa.MonthDayNano([-1, -2, -3 * 10**9]),
            pa.MonthDayNano([0, 0, 0]),
        ],
        in_lake=False,
    ),
    Case(
        "UUID",
        [f"'{UUID_TEXT}'", f"'{uuid.UUID(int=0)}'"],
        pa.string(),
        [UUID_TEXT, str(uuid.UUID(int=0))],
    ),
    Case(
        "BIT",
        ["'0'", "'10101'", "'1111111100000000'"],
        pa.string(),
        ["0", "10101", "1111111100000000"],
        in_lake=False,
    ),
    Case(
        "BIGNUM",
        ["0", "'-1'", f"'{10**60}'", f"'-{7**200}'"],
        pa.string(),
        ["0", "-1", str(10**60), f"-{7**200}"],
        in_lake=False,
    ),
    Case("JSON", ["""'{"a": [1, null]}'""", "'null'"], pa.string(), ['{"a": [1, null]}', "null"]),
    Case(
        "ENUM('small', 'large')",
        ["'large'", "'small'"],
        pa.string(),
        ["large", "small"],
        in_lake=False,
    ),
    Case("INTEGER[]", ["[1, NULL]", "[]"], pa.list_(pa.int32()), [[1, None], []]),
    Case(
        "VARCHAR[][]", ["[['a'], [], NULL]"], pa.list_(pa.list_(pa.string())), [[["a"], [], None]]
    ),
    Case(
        "INTEGER[2]", ["[1, 2]", "[3, NULL]"], pa.list_(pa.int32(), 2), [[1, 2], [3, None]], False
    ),
    Case(
        "STRUCT(a INTEGER, b VARCHAR)",
        ["{'a': 1, 'b': 'x'}", "{'a': NULL, 'b': NULL}"],
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        [{"a": 1, "b": "x"}, {"a": None, "b": None}],
    ),
    Case(
        "MAP(VARCHAR, INTEGER)",
        ["MAP {'a': 1, 'b': NULL}", "MAP {}"],
        pa.map_(pa.string(), pa.int32()),
        [[("a", 1), ("b", None)], []],
    ),
    Case(
        "UNION(n INTEGER, s VARCHAR)",
        ["union_value(n := 1)", "union_value(s := 'x')"],
        pa.sparse_union([pa.field("n", pa.int32()), pa.field("s", pa.string())]),
        [1, "x"],
        in_lake=False,
    ),
    Case("BOOLEAN[]", ["[true, NULL, false]"], pa.list_(pa.bool_()), [[True, None, False]]),
    Case(
        "HUGEINT[]",
        ["[1, NULL, -2]"],
        pa.list_(pa.decimal128(38, 0)),
        [[Decimal(1), None, Decimal(-2)]],
    ),
    Case(
        "UUID[2]", [f"['{UUID_TEXT}', NULL]"], pa.list_(pa.string(), 2), [[UUID_TEXT, None]], False
    ),
    Case(
        "ENUM('small', 'large')[]",
        ["['large', NULL]"],
        pa.list_(pa.string()),
        [["large", None]],
        in_lake=False,
    ),
    Case(
        "STRUCT(u UUID, t TIMETZ, h HUGEINT[])",
        [f"{{'u': '{UUID_TEXT}', 't': '12:00:00+01', 'h': [7]}}"],
        pa.struct([("u", pa.string()), ("t", pa.string()), ("h", pa.list_(pa.decimal128(38, 0)))]),
        [{"u": UUID_TEXT, "t": "12:00:00+01", "h": [Decimal(7)]}],
        in_lake=False,
    ),
    Case(
        "MAP(UUID, HUGEINT)",
        [f"MAP {{'{UUID_TEXT}': 1}}"],
        pa.map_(pa.string(), pa.decimal128(38, 0)),
        [[(UUID_TEXT, Decimal(1))]],
    ),
    Case(
        "UNION(u UUID, h HUGEINT)",
        ["union_value(h := 1::HUGEINT)", f"union_value(u := '{UUID_TEXT}'::UUID)"],
        pa.sparse_union([pa.field("u", pa.string()), pa.field("h", pa.decimal128(38, 0))]),
        [Decimal(1), UUID_TEXT],
        in_lake=False,
    ),
]

every_type = pytest.mark.parametrize("case", CASES, ids=[case.sql_type for case in CASES])


def fetch(cursor: Any, sql: str, parameters: Any = None) -> Any:
    cursor.execute(sql, parameters)
    return cursor.fetch_arrow_table()


def assert_column(column: Any, wire_type: Any, values: list[Any]) -> None:
    assert column.type == wire_type
    assert repr(column.to_pylist()) == repr(values)  # NaN equals itself only as text


@every_type
def test_result_has_the_values_and_null(cursor: Any, case: Case) -> None:
    rows = ", ".join(f"({i}, {value})" for i, value in enumerate([*case.expressions, "NULL"]))
    table = fetch(cursor, f"SELECT v FROM (VALUES {rows}) t(i, v) ORDER BY i")
    assert_column(table["v"], case.wire_type, [*case.values, None])


@every_type
def test_all_null_and_empty_results_keep_the_type(cursor: Any, case: Case) -> None:
    nulls = fetch(cursor, f"SELECT NULL::{case.sql_type} AS v FROM range(3)")
    assert_column(nulls["v"], case.wire_type, [None, None, None])
    nothing = fetch(cursor, f"SELECT NULL::{case.sql_type} AS v WHERE false")
    assert_column(nothing["v"], case.wire_type, [])


@every_type
def test_nested_values_equal_the_plain_ones(cursor: Any, case: Case) -> None:
    elements = ", ".join([*case.expressions, "NULL"])
    first = case.expressions[0]
    size = len(case.values) + 1
    row = fetch(
        cursor,
        f"SELECT [{elements}] AS list, [{elements}]::{case.sql_type}[{size}] AS array, "
        f"{{'a': 1, 'b': {first}}} AS struct, MAP {{'k': {first}}} AS map, "
        f"[{{'deep': [{first}]}}] AS deep",
    )
    values = [*case.values, None]
    assert_column(row["list"], pa.list_(case.wire_type), [values])
    assert_column(row["array"], pa.list_(case.wire_type, size), [values])
    assert row["struct"][0]["b"].type == case.wire_type
    assert repr(row["struct"][0]["b"].as_py()) == repr(values[0])
    assert repr(row["map"].to_pylist()) == repr([[("k", values[0])]])
    assert repr(row["deep"].to_pylist()) == repr([[{"deep": [values[0]]}]])


@every_type
def test_values_round_trip_through_a_table_and_parameters(cursor: Any, case: Case) -> None:
    original, copy = fresh("original"), fresh("copy")
    kind = "TABLE" if case.in_lake else "TEMP TABLE"
    cursor.execute(f"CREATE {kind} {original} (i INTEGER, v {case.sql_type})")
    cursor.execute(f"CREATE {kind} {copy} (i INTEGER, v {case.sql_type})")
    rows = [f"({i}, {value})" for i, value in enumerate([*case.expressions, "NULL"])]
    cursor.execute(f"INSERT INTO {original} VALUES {', '.join(rows)}")

    read = fetch(cursor, f"SELECT i, v FROM {original} ORDER BY i")
    assert_column(read["v"], case.wire_type, [*case.values, None])

    cursor.executemany(f"INSERT INTO {copy} VALUES (?, ?)", read)
    assert cursor.rowcount == len(rows)
    again = fetch(cursor, f"SELECT i, v FROM {copy} ORDER BY i")
    assert_column(again["v"], case.wire_type, [*case.values, None])
    missing = f"FROM {original} o LEFT JOIN {copy} c USING (i) WHERE o.v IS DISTINCT FROM c.v"
    assert fetch(cursor, f"SELECT count(*) AS n {missing}")["n"].to_pylist() == [0]


@pytest.mark.parametrize(
    "literal", ["'it''s'", "DATE '2024-02-29'", r"'\x00'::BLOB", f"'{UUID_TEXT}'::UUID", "now()"]
)
def test_struct_column_keeps_its_fields(cursor: Any, literal: str) -> None:
    name = fresh("struct")
    cursor.execute(
        f"CREATE TABLE {name} AS SELECT {literal} AS plain, {{'a': {literal}}} AS s LIMIT 0"
    )
    cursor.execute(f"INSERT INTO {name} SELECT v, {{'a': v}} FROM (SELECT {literal} AS v)")
    assert fetch(cursor, f"SELECT s.a = plain AS same FROM {name}")["same"].to_pylist() == [True]


@every_type
def test_parameter_round_trips_through_a_query(cursor: Any, case: Case) -> None:
    for expression, value in zip(
        [*case.expressions, f"NULL::{case.sql_type}"], [*case.values, None], strict=True
    ):
        bound = fetch(cursor, f"SELECT {expression} AS v")
        sql = f"SELECT $1 AS v, $1 IS NOT DISTINCT FROM {expression} AS same"
        echo = fetch(cursor, sql, bound)
        assert_column(echo["v"], case.wire_type, [value])
        assert echo["same"].to_pylist() == [True]


@every_type
def test_described_schema_equals_the_result_schema(cursor: Any, case: Case) -> None:
    schema = cursor.adbc_execute_schema(f"SELECT {case.expressions[0]} AS v")
    assert schema.field("v").type == case.wire_type


def test_types_sent_as_text_use_duckdbs_text(cursor: Any) -> None:
    plain = duckdb.connect()
    for case in CASES:
        if case.sql_type in ("UHUGEINT", "TIMETZ", "UUID", "BIT", "BIGNUM", "JSON"):
            elements = ", ".join(case.expressions)
            expected = plain.sql(f"SELECT unnest([{elements}])::VARCHAR").fetchall()
            cursor.execute(f"SELECT unnest([{elements}])")
            assert cursor.fetchall() == expected


def test_values_equal_those_of_an_in_process_duckdb(cursor: Any) -> None:
    sql = """
        SELECT range::TINYINT AS a, range * 1.5 AS b, range::VARCHAR AS c, range % 2 = 0 AS h,
               DATE '2024-01-01' + range::INTEGER AS d, [range, NULL] AS e,
               {'x': range, 'y': 'z'} AS f, TIMESTAMP '2024-01-01' + INTERVAL (range) HOUR AS g
        FROM range(100)
    """
    expected = duckdb.sql(sql).to_arrow_table()
    assert fetch(cursor, sql).equals(expected)


def test_long_text_and_blob_round_trip(cursor: Any) -> None:
    echo = fetch(cursor, "SELECT ? AS t, ?::BLOB AS b", (LONG_TEXT, LONG_TEXT.encode()))
    assert echo["t"][0].as_py() == LONG_TEXT
    assert echo["b"][0].as_py() == LONG_TEXT.encode()
    name = fresh("long")
    cursor.execute(f"CREATE TABLE {name} (t VARCHAR)")
    cursor.execute(f"INSERT INTO {name} VALUES (?)", (LONG_TEXT,))
    assert fetch(cursor, f"SELECT t FROM {name}")["t"][0].as_py() == LONG_TEXT


def test_nanoseconds_round_trip(cursor: Any) -> None:
    values = fetch(
        cursor,
        "SELECT TIME_NS '23:59:59.999999999' AS t, "
        "TIMESTAMP_NS '2024-01-01 00:00:00.000000001' AS s",
    )
    assert values["t"].cast(pa.int64()).to_pylist() == [86_399_999_999_999]
    assert values["s"].cast(pa.int64()).to_pylist() == [1_704_067_200_000_000_001]
    assert fetch(cursor, "SELECT ? AS t, ? AS s", values).equals(values)


@pytest.mark.parametrize("sql_type", ["DATE", "TIMESTAMP"])
def test_dates_outside_pythons_range_can_be_bound(cursor: Any, sql_type: str) -> None:
    for literal in ("infinity", "-infinity", "0044-03-15 (BC)"):
        values = fetch(cursor, f"SELECT '{literal}'::{sql_type} AS v")
        assert fetch(cursor, "SELECT ?::VARCHAR AS v", values)["v"].to_pylist() == [
            duckdb.sql(f"SELECT '{literal}'::{sql_type}::VARCHAR").fetchall()[0][0]
        ]


def test_infinite_values_round_trip_through_a_table(cursor: Any) -> None:
    name = fresh("infinite")
    cursor.execute(
        f"CREATE TABLE {name} AS SELECT DATE 'infinity' AS d, TIMESTAMPTZ '-infinity' AS t"
    )
    sql = f"SELECT isinf(d) AS d, isinf(t) AS t, d::VARCHAR AS text FROM {name}"
    assert fetch(cursor, sql).to_pylist() == [{"d": True, "t": True, "text": "infinity"}]


@pytest.mark.parametrize(
    "sql", ["SELECT 1::VARIANT AS v", "SELECT [1::VARIANT] AS v", "SELECT {'a': 1::VARIANT} AS v"]
)
def test_variant_result_is_refused(cursor: Any, sql: str) -> None:
    with pytest.raises(
        adbc_driver_manager.NotSupportedError, match="Unsupported Arrow type VARIANT"
    ) as caught:
        cursor.execute(sql)
    assert "Traceback" not in str(caught.value)
    assert fetch(cursor, "SELECT 1 AS one")["one"].to_pylist() == [1]


def test_variant_column_accepts_parameters_and_casts_to_text(cursor: Any) -> None:
    name = fresh("variant")
    cursor.execute(f"CREATE TABLE {name} (i INTEGER, v VARIANT)")
    cursor.executemany(f"INSERT INTO {name} VALUES (?, ?)", [(1, "x"), (2, "y")])
    read = fetch(cursor, f"SELECT v::VARCHAR AS v FROM {name} ORDER BY i")
    assert read["v"].to_pylist() == ["x", "y"]


@dataclass(frozen=True)
class Parameter:
    """An Arrow column a client may bind, the type DuckDB sees, and its values as text."""

    column: Any
    sql_type: str
    texts: list[str | None]


def column(values: list[Any], arrow_type: Any) -> Any:
    return pa.array([*values, None], arrow_type)


MOMENT = dt.datetime(2024, 2, 29, 1, 2, 3)
MOMENT_TEXT = "2024-02-29 01:02:03"
PARAMETERS = [
    Parameter(column([MOMENT.date()], pa.date32()), "DATE", ["2024-02-29"]),
    Parameter(column([MOMENT.date()], pa.date64()), "DATE", ["2024-02-29"]),
    Parameter(column([MOMENT.time()], pa.time32("s")), "TIME", ["01:02:03"]),
    Parameter(column([dt.time(1, 2, 3, 4000)], pa.time32("ms")), "TIME", ["01:02:03.004"]),
    Parameter(column([dt.time(1, 2, 3, 4)], pa.time64("us")), "TIME", ["01:02:03.000004"]),
    Parameter(column([1], pa.time64("ns")), "TIME_NS", ["00:00:00.000000001"]),
    Parameter(
        column([(1, -2, 3000)], MONTH_DAY_NANO), "INTERVAL", ["1 month -2 days 00:00:00.000003"]
    ),
    Parameter(column([5], pa.duration("s")), "INTERVAL", ["00:00:05"]),
    Parameter(column([5], pa.duration("ms")), "INTERVAL", ["00:00:00.005"]),
    Parameter(column([-5], pa.duration("us")), "INTERVAL", ["-00:00:00.000005"]),
    Parameter(column([5000], pa.duration("ns")), "INTERVAL", ["00:00:00.000005"]),
    Parameter(column([MOMENT], pa.timestamp("s")), "TIMESTAMP_S", [MOMENT_TEXT]),
    Parameter(column([MOMENT], pa.timestamp("ms")), "TIMESTAMP_MS", [MOMENT_TEXT]),
    Parameter(column([MOMENT], pa.timestamp("us")), "TIMESTAMP", [MOMENT_TEXT]),
    Parameter(column([1], pa.timestamp("ns")), "TIMESTAMP_NS", ["1970-01-01 00:00:00.000000001"]),
    *(
        Parameter(
            column([MOMENT], pa.timestamp(unit, zone)),
            "TIMESTAMP WITH TIME ZONE",
            [f"{MOMENT_TEXT}+00"],
        )
        for unit, zone in [("s", "UTC"), ("ms", "Europe/Berlin"), ("us", "+02:00"), ("ns", "UTC")]
    ),
    Parameter(column([Decimal("1.50")], pa.decimal128(10, 2)), "DECIMAL(10,2)", ["1.50"]),
    Parameter(column([Decimal("1500")], pa.decimal128(5, -2)), "DECIMAL(7,0)", ["1500"]),
    Parameter(column([Decimal("1.50")], pa.decimal256(10, 2)), "DECIMAL(10,2)", ["1.50"]),
    Parameter(column([Decimal(10**50)], pa.decimal256(60, 0)), "VARCHAR", [str(10**50)]),
    Parameter(column([np.float16(1.5), np.float16("nan")], pa.float16()), "FLOAT", ["1.5", "nan"]),
    Parameter(column([[np.float16(1.5)]], pa.list_(pa.float16())), "FLOAT[]", ["[1.5]"]),
    Parameter(
        column([{"d": Decimal(1)}], pa.struct([("d", pa.decimal256(50, 0))])),
        "STRUCT(d VARCHAR)",
        ["{'d': 1}"],
    ),
    Parameter(column(["a", "b", "a"], pa.string()).dictionary_encode(), "VARCHAR", ["a", "b", "a"]),
    Parameter(column([7, 8], pa.int64()).dictionary_encode(), "BIGINT", ["7", "8"]),
    Parameter(column(["", "ü"], pa.large_string()), "VARCHAR", ["", "ü"]),
    Parameter(
        column(["", "longer than twelve"], pa.string_view()), "VARCHAR", ["", "longer than twelve"]
    ),
    Parameter(column([b"\x00a"], pa.binary_view()), "BLOB", [r"\x00a"]),
    Parameter(column([b"\x00a"], pa.large_binary()), "BLOB", [r"\x00a"]),
    Parameter(column([b"ab"], pa.binary(2)), "BLOB", ["ab"]),
    Parameter(column([uuid.UUID(UUID_TEXT).bytes], pa.uuid()), "UUID", [UUID_TEXT]),
    Parameter(column(["{}"], pa.json_()), "JSON", ["{}"]),
    Parameter(column([1, 0], pa.bool8()), "BOOLEAN", ["true", "false"]),
    Parameter(column([[1], []], pa.large_list(pa.int32())), "INTEGER[]", ["[1]", "[]"]),
    Parameter(
        column([[("a", 1)]], pa.map_(pa.string(), pa.int8())), "MAP(VARCHAR, TINYINT)", ["{a=1}"]
    ),
    Parameter(column([[1, 2]], pa.list_(pa.int16(), 2)), "SMALLINT[2]", ["[1, 2]"]),
    Parameter(pa.nulls(2), '"NULL"', [None]),
]
every_parameter = pytest.mark.parametrize(
    "parameter", PARAMETERS, ids=[str(parameter.column.type) for parameter in PARAMETERS]
)


@every_parameter
def test_arrow_parameter_round_trips_through_a_query(cursor: Any, parameter: Parameter) -> None:
    for row, text in enumerate([*parameter.texts, None]):
        bound = pa.table({"p": parameter.column.slice(row, 1)})
        seen = fetch(cursor, "SELECT typeof($1) AS kind, $1::VARCHAR AS v", bound)
        assert seen.to_pylist() == [{"kind": parameter.sql_type, "v": text}]


@every_parameter
def test_arrow_parameter_is_inserted_in_bulk(cursor: Any, parameter: Parameter) -> None:
    name = fresh("parameter")
    cursor.execute(f"CREATE TEMP TABLE {name} (kind VARCHAR, v VARCHAR)")
    bound = pa.table({"p": parameter.column})
    cursor.executemany(f"INSERT INTO {name} VALUES (typeof($1), $1::VARCHAR)", bound)
    assert cursor.rowcount == len(parameter.column)
    cursor.execute(f"SELECT kind, v FROM {name}")
    assert cursor.fetchall() == [(parameter.sql_type, text) for text in [*parameter.texts, None]]


PYTHON_VALUES: list[Any] = [
    *(True, 7, -(2**63), 1.5, "x", "", b"\x00", Decimal("12.340"), None),
    *(dt.date(2024, 2, 29), dt.time(1, 2, 3, 4), MOMENT, MOMENT.replace(tzinfo=UTC)),
    *([1, None, 3], [["a"], []], {"a": 1, "b": [2.5]}),
]


@pytest.mark.parametrize("value", PYTHON_VALUES, ids=repr)
def test_python_value_round_trips(cursor: Any, value: Any) -> None:
    cursor.execute("SELECT ?", (value,))
    assert cursor.fetchone() == (value,)


def test_timedelta_is_an_interval(cursor: Any) -> None:
    cursor.execute("SELECT DATE '2024-01-01' + ?", (dt.timedelta(days=1, seconds=2),))
    assert cursor.fetchone() == (dt.datetime(2024, 1, 2, 0, 0, 2),)

"""The wire format against DuckDB's own text: whole arrays, slices, NULLs, and nested values."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swanlake.sessions.results.wire import (
    WireFormat,
    bignum_text,
    bit_text,
    column_name,
    timetz_text,
    uhugeint_text,
)

ZERO = "00000000-0000-0000-0000-000000000000"
ONES = "ffffffff-ffff-ffff-ffff-ffffffffffff"


@pytest.fixture(scope="module")
def duck() -> Iterator[duckdb.DuckDBPyConnection]:
    """A plain DuckDB that exports to Arrow as the engine does."""
    with duckdb.connect() as connection:
        connection.execute("SET arrow_lossless_conversion = true")
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


def exported(duck: duckdb.DuckDBPyConnection, sql: str) -> Any:
    """The one batch that DuckDB gives for a query, before conversion."""
    duck.execute(sql)
    [batch] = duck.to_arrow_reader(1_000_000)
    return batch


def wired(batch: Any) -> Any:
    converted = WireFormat(batch.schema).convert(batch)
    converted.validate(full=True)
    assert converted.schema == WireFormat(batch.schema).schema
    return converted


def raw_bytes(duck: duckdb.DuckDBPyConnection, text: str, sql_type: str) -> bytes:
    duck.execute(f"SELECT CAST(? AS {sql_type}) AS v", [text])
    value: bytes = duck.to_arrow_reader().read_all()["v"].chunk(0).storage[0].as_py()
    return value


# ---- one value -----------------------------------------------------------------------------------


def same_as_duckdb(duck: duckdb.DuckDBPyConnection, text: str, sql_type: str) -> str:
    """DuckDB's text of a value, checked to be that of the wire."""
    row = duck.execute(f"SELECT CAST(CAST(? AS {sql_type}) AS VARCHAR)", [text]).fetchone()
    assert row is not None
    batch = exported(duck, f"SELECT CAST('{text}' AS {sql_type}) AS v")
    assert wired(batch)["v"].to_pylist() == [row[0]]
    return str(row[0])


@settings(max_examples=50)
@given(value=st.uuids())
def test_uuid_is_converted_to_text(duck: duckdb.DuckDBPyConnection, value: uuid.UUID) -> None:
    assert same_as_duckdb(duck, str(value), "UUID") == str(value)


@settings(max_examples=50)
@given(value=st.integers(0, 2**128 - 1))
def test_uhugeint_is_converted_to_digits(duck: duckdb.DuckDBPyConnection, value: int) -> None:
    assert same_as_duckdb(duck, str(value), "UHUGEINT") == str(value)
    assert uhugeint_text(raw_bytes(duck, str(value), "UHUGEINT")) == str(value)


@settings(max_examples=50)
@given(value=st.integers(-(2**127), 2**127 - 1))
def test_hugeint_is_converted_to_decimal(duck: duckdb.DuckDBPyConnection, value: int) -> None:
    batch = exported(duck, f"SELECT CAST('{value}' AS HUGEINT) AS v")
    converted = WireFormat(batch.schema).convert(batch)["v"]
    assert converted.type == pa.decimal128(38, 0)
    assert converted.to_pylist() == [Decimal(value)]


@settings(max_examples=50)
@given(value=st.text("01", min_size=1, max_size=70))
def test_bit_is_converted_to_digits(duck: duckdb.DuckDBPyConnection, value: str) -> None:
    assert same_as_duckdb(duck, value, "BIT") == value
    assert bit_text(raw_bytes(duck, value, "BIT")) == value


@settings(max_examples=50)
@given(value=st.integers() | st.integers(-(10**200), 10**200))
def test_bignum_is_converted_to_digits(duck: duckdb.DuckDBPyConnection, value: int) -> None:
    assert same_as_duckdb(duck, str(value), "BIGNUM") == str(value)
    assert bignum_text(raw_bytes(duck, str(value), "BIGNUM")) == str(value)


@settings(max_examples=100)
@given(
    time=st.times(),
    sign=st.sampled_from("+-"),
    hours=st.integers(0, 15),
    minutes=st.sampled_from([0, 1, 30, 59]),
    seconds=st.sampled_from([0, 7, 59]),
)
def test_timetz_matches_duckdb_text(
    duck: duckdb.DuckDBPyConnection, time: Any, sign: str, hours: int, minutes: int, seconds: int
) -> None:
    # DuckDB prints an offset of seven seconds like one of seven minutes.
    seconds = seconds if minutes else 0
    text = f"{time.isoformat('microseconds')}{sign}{hours:02}:{minutes:02}:{seconds:02}"
    expected = same_as_duckdb(duck, text, "TIMETZ")
    assert timetz_text(raw_bytes(duck, text, "TIMETZ")) == expected


@pytest.mark.parametrize("text", ["24:00:00+00", "00:00:00+15:59:59", "23:59:59.999999-15:59:59"])
def test_timetz_at_its_limits(duck: duckdb.DuckDBPyConnection, text: str) -> None:
    assert same_as_duckdb(duck, text, "TIMETZ") == text


@pytest.mark.parametrize("text", ["10:00:00+00:00:07", "10:00:00.5-01:00:59"])
def test_timetz_text_is_read_back_as_the_same_value(
    duck: duckdb.DuckDBPyConnection, text: str
) -> None:
    assert timetz_text(raw_bytes(duck, text, "TIMETZ")) == text


# ---- whole arrays --------------------------------------------------------------------------------

#: For each type an expression over ``i``.
EXPRESSIONS = {
    "UUID": "md5(i::VARCHAR)",
    "UHUGEINT": "i::UHUGEINT * 12345678901234567890::UHUGEINT",
    "TIMETZ": "'10:00:' || (i % 60) || '+01:' || (i % 60)",
    "BIT": "bin(i)",
    "BIGNUM": "(i - 25)",
    "JSON": "to_json([i])",
    "ENUM('even', 'odd')": "CASE i % 2 WHEN 0 THEN 'even' ELSE 'odd' END",
    "BOOLEAN": "(i % 2 = 0)",
    "HUGEINT": "(i - 25)",
}
every_type = pytest.mark.parametrize("sql_type", EXPRESSIONS)


def with_nulls(sql_type: str) -> str:
    return f"CASE WHEN i % 3 = 1 THEN NULL ELSE CAST({EXPRESSIONS[sql_type]} AS {sql_type}) END"


def in_words(value: Any) -> Any:
    """A value as DuckDB's text has it, whatever its Python type."""
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def texts(duck: duckdb.DuckDBPyConnection, expression: str) -> list[Any]:
    found = duck.execute(f"SELECT CAST({expression} AS VARCHAR) FROM range(50) t(i) ORDER BY i")
    return [row[0] for row in found.fetchall()]


@every_type
@pytest.mark.parametrize(("start", "length"), [(0, 50), (7, 20), (49, 1), (1, 1), (0, 0), (50, 0)])
def test_slices_convert_like_the_whole(
    duck: duckdb.DuckDBPyConnection, sql_type: str, start: int, length: int
) -> None:
    expression = with_nulls(sql_type)
    batch = exported(duck, f"SELECT {expression} AS v FROM range(50) t(i) ORDER BY i")
    column = wired(batch.slice(start, length))["v"]
    expected = texts(duck, expression)[start : start + length]
    assert [in_words(value) for value in column.to_pylist()] == expected


@every_type
def test_column_of_nulls_keeps_its_type(duck: duckdb.DuckDBPyConnection, sql_type: str) -> None:
    batch = exported(duck, f"SELECT NULL::{sql_type} AS v FROM range(3)")
    column = wired(batch)["v"]
    assert column.to_pylist() == [None, None, None]
    assert not isinstance(column.type, pa.BaseExtensionType)
    assert not pa.types.is_dictionary(column.type)


@every_type
@pytest.mark.parametrize(("start", "length"), [(0, 50), (7, 20), (3, 0)])
def test_nested_slices_convert_like_the_whole(
    duck: duckdb.DuckDBPyConnection, sql_type: str, start: int, length: int
) -> None:
    duck.execute(
        f"CREATE OR REPLACE TABLE plain (i INTEGER, v {sql_type}, u UNION(v {sql_type}, n INTEGER))"
    )
    duck.execute(f"INSERT INTO plain (i, v) SELECT i, {EXPRESSIONS[sql_type]} FROM range(50) t(i)")
    duck.execute("UPDATE plain SET u = union_value(v := v) WHERE i % 3 = 0")
    duck.execute("UPDATE plain SET u = union_value(n := i) WHERE i % 3 = 1")
    batch = exported(
        duck,
        f"""
        SELECT v, u, [{{'m': MAP {{i: [v]}}}}, NULL] AS deep,
               CASE i % 4 WHEN 0 THEN [] WHEN 1 THEN NULL ELSE [v, NULL] END AS list,
               CASE WHEN i % 5 = 1 THEN NULL ELSE [v, NULL] END::{sql_type}[2] AS array,
               CASE WHEN i % 5 = 1 THEN NULL ELSE {{'a': i, 'b': v}} END AS struct,
               CASE WHEN i % 5 = 1 THEN NULL ELSE MAP {{'k': v, 'n': NULL}} END AS map
        FROM plain ORDER BY i
        """,
    )
    converted = wired(batch.slice(start, length))
    for number, row in zip(range(start, start + length), converted.to_pylist(), strict=True):
        plain = row["v"]
        assert row["list"] == {0: [], 1: None}.get(number % 4, [plain, None])
        assert row["array"] == (None if number % 5 == 1 else [plain, None])
        assert row["struct"] == (None if number % 5 == 1 else {"a": number, "b": plain})
        assert row["map"] == (None if number % 5 == 1 else [("k", plain), ("n", None)])
        assert row["deep"] == [{"m": [(number, [plain])]}, None]
        assert row["u"] == {0: plain, 1: number}.get(number % 3)


def test_map_keys_are_converted(duck: duckdb.DuckDBPyConnection) -> None:
    batch = exported(duck, f"SELECT MAP {{'{ZERO}'::UUID: 1, '{ONES}'::UUID: 2}} AS m")
    assert wired(batch)["m"].to_pylist() == [[(ZERO, 1), (ONES, 2)]]


def test_sliced_pyarrow_uuid_is_converted() -> None:
    column = pa.array([uuid.UUID(ZERO).bytes, None, uuid.UUID(ONES).bytes], pa.uuid())
    for start in range(4):
        batch = pa.record_batch({"u": column.slice(start)})
        assert wired(batch)["u"].to_pylist() == [ZERO, None, ONES][start:]
    nulls = pa.record_batch({"u": pa.nulls(2, pa.uuid())})
    assert wired(nulls)["u"].to_pylist() == [None, None]


# ---- what stays ----------------------------------------------------------------------------------


def test_plain_types_are_unchanged(duck: duckdb.DuckDBPyConnection) -> None:
    batch = exported(
        duck,
        "SELECT 1 AS i, 'x' AS s, 1.5 AS d, [1] AS l, {'a': 'b'} AS r, MAP {'k': 1} AS m, "
        "INTERVAL 1 MONTH AS v, now() AS t, [1, 2]::INTEGER[2] AS a",
    )
    format = WireFormat(batch.schema)
    assert format.is_identity
    assert format.convert(batch) is batch


def test_opaque_types_of_other_vendors_are_unchanged() -> None:
    kind = pa.opaque(pa.int64(), "point", "Other")
    batch = pa.record_batch({"o": pa.ExtensionArray.from_storage(kind, pa.array([1]))})
    assert WireFormat(batch.schema).convert(batch) is batch


def test_unchanged_columns_mix_with_converted_ones(duck: duckdb.DuckDBPyConnection) -> None:
    batch = exported(duck, f"SELECT 7 AS i, '{ZERO}'::UUID AS u, 'x' AS s")
    assert wired(batch).to_pylist() == [{"i": 7, "u": ZERO, "s": "x"}]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("getvariable('__swanlake_bound_1')", "$1"),
        ("(getvariable('__swanlake_bound_a') + getvariable('__swanlake_bound_b'))", "($a + $b)"),
        ("getvariable('mine')", "getvariable('mine')"),
        ("plain", "plain"),
    ],
)
def test_bound_variables_are_named_as_parameters(name: str, expected: str) -> None:
    assert column_name(name) == expected
    batch = pa.record_batch([pa.array([1])], names=[name])
    assert wired(batch).schema.names == [expected]

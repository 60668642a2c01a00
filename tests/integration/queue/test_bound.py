"""Bound rows and uploads into the queue, as they are or cast by DuckDB."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from swanlake.protocol import messages
from tests.flight import FlightSql
from tests.integration.queue.queries import Connect, count, flush, ingested, refused, written
from tests.queries import rows

SWANS = pa.table({"i": pa.array([1, 2, 3], pa.int32()), "s": ["a", None, "c"]})
BAD_TEXT = pa.array([b"fine", b"\xff"]).view(pa.string())


@pytest.fixture
def swans(cursor: Any, name: str) -> str:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER, s VARCHAR DEFAULT 'unknown', n DOUBLE)")
    return name


def bound(cursor: Any, sql: str, parameters: Any) -> int:
    """A prepared statement with many rows of parameters."""
    cursor.executemany(sql, parameters)
    affected: int = cursor.rowcount
    return affected


# ---- prepared statements -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 2, 5000])
def test_any_number_of_bound_rows(cursor: Any, swans: str, number: int) -> None:
    sent = [(i, f"row {i}", i / 2) for i in range(number)]
    sql = f"INSERT INTO duckling_queue.{swans} VALUES (?, ?, ?)"
    assert bound(cursor, sql, sent) == number
    assert rows(cursor, f"FROM duckling_queue.{swans}") == sent


def test_bound_rows_may_be_empty_or_in_several_batches(
    flight_sql: Callable[..., FlightSql], cursor: Any, swans: str
) -> None:
    client = flight_sql()
    request = messages.ActionCreatePreparedStatementRequest(
        query=f"INSERT INTO duckling_queue.{swans} (i, s) VALUES (?, ?)"
    )
    answer = client.action_result("CreatePreparedStatement", request)
    command = messages.CommandPreparedStatementUpdate(
        prepared_statement_handle=answer.prepared_statement_handle
    )

    def put(table: Any) -> int:
        result = messages.DoPutUpdateResult()
        result.ParseFromString(client.put(command, table))
        return result.record_count

    assert put(SWANS.slice(0, 0)) == 0
    assert put(pa.Table.from_batches([SWANS.to_batches()[0]] * 3)) == 9
    assert put(SWANS) == 3
    assert rows(
        cursor, f"SELECT i, count(*) FROM duckling_queue.{swans} GROUP BY i ORDER BY i"
    ) == [
        (1, 4),
        (2, 4),
        (3, 4),
    ]


@pytest.mark.parametrize(
    ("form", "sent", "kept"),
    [
        ("VALUES (?, ?, ?)", [(1, "a", 0.5), (2, None, None)], [(1, "a", 0.5), (2, None, None)]),
        ("VALUES ($3, $1, $2)", [("a", 0.5, 1)], [(1, "a", 0.5)]),
        ("(n, i) VALUES (?, ?)", [(0.5, 1), (1.5, 2)], [(1, "unknown", 0.5), (2, "unknown", 1.5)]),
        ("(i) VALUES (? + 1)", [(1,), (2,)], [(2, "unknown", None), (3, "unknown", None)]),
        ("(i, s) VALUES (?, DEFAULT)", [(1,), (2,)], [(1, "unknown", None), (2, "unknown", None)]),
        ("(i, s) VALUES (?, upper(?))", [(1, "a"), (2, "b")], [(1, "A", None), (2, "B", None)]),
        ("(i) VALUES (?), (?)", [(1, 2), (3, 4)], [(i, "unknown", None) for i in (1, 2, 3, 4)]),
        ("(i) VALUES (?), (10)", [(1,)], [(1, "unknown", None), (10, "unknown", None)]),
        ("(i, s) SELECT ? + range, 'x' FROM range(2)", [(1,)], [(1, "x", None), (2, "x", None)]),
        ("(i) SELECT ?", [(1,)], [(1, "unknown", None)]),
        ("VALUES (?, 'x', ?)", [("7", "0.5"), (" 8 ", "1e1")], [(7, "x", 0.5), (8, "x", 10.0)]),
        ("(i, n) VALUES (?, ?)", [(7.0, 1), (8.4, 2)], [(7, "unknown", 1.0), (8, "unknown", 2.0)]),
        ("(s) VALUES (?)", [(1,), (2,)], [(None, "1", None), (None, "2", None)]),
    ],
)  # fmt: skip
def test_every_form_with_parameters(
    cursor: Any, swans: str, form: str, sent: list[Any], kept: list[Any]
) -> None:
    assert bound(cursor, f"INSERT INTO duckling_queue.{swans} {form}", sent) == len(kept)
    if len(sent) == 1:  # one row goes another way
        assert written(cursor, f"INSERT INTO duckling_queue.{swans} {form}", sent[0]) == len(kept)
        kept = kept * 2
    assert rows(cursor, f"FROM duckling_queue.{swans}") == kept


def test_prepared_insert_evaluates_now_on_execution(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER, t TIMESTAMPTZ)")
    before = datetime.now(UTC)
    sql = f"INSERT INTO duckling_queue.{name} VALUES (?, now())"
    assert bound(cursor, sql, [(1,), (2,), (3,)]) == 3
    assert written(cursor, sql, (4,)) == 1
    after = datetime.now(UTC)
    assert all(before <= t <= after for _, t in rows(cursor, f"FROM duckling_queue.{name}"))


ARROW_COLUMNS = {
    "BOOLEAN": pa.array([True, None, False]),
    "TINYINT": pa.array([-128, None, 127], pa.int8()),
    "SMALLINT": pa.array([-128, None, 127], pa.int8()),
    "INTEGER": pa.array([-1, None, 40_000], pa.int32()),
    "BIGINT": pa.array([-(2**63), None, 2**63 - 1]),
    "UTINYINT": pa.array([0, None, 255], pa.uint8()),
    "UBIGINT": pa.array([0, None, 2**64 - 1], pa.uint64()),
    "HUGEINT": pa.array([Decimal(-(2**70)), None, Decimal(2**70)], pa.decimal128(38, 0)),
    "FLOAT": pa.array([1.5, None, float("inf")], pa.float32()),
    "DOUBLE": pa.array([0.1, None, float("-inf")], pa.float32()),
    "DECIMAL(10,2)": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
    "DECIMAL(5,1)": pa.array([1.25, None, -3.5]),
    "VARCHAR": pa.array(["a", None, "longer than twelve bytes"], pa.string_view()),
    "BLOB": pa.array([b"\x00\xff", None, b""], pa.large_binary()),
    "UUID": pa.array(["e9a1c0f2-7f3b-4d7c-8a11-0123456789ab", None, "0" * 32]),
    "JSON": pa.array(['{"a": 1}', None, "[]"]),
    "DATE": pa.array([0, None, 19_000], pa.date32()),
    "TIME": pa.array([0, None, 86_399_999_999], pa.time64("us")),
    "TIMETZ": pa.array(["12:00:00+00", None, "23:59:59+00"]),
    "TIMESTAMP": pa.array([0, None, 1], pa.timestamp("us")),
    "TIMESTAMP_S": pa.array([0, None, 1], pa.timestamp("s")),
    "TIMESTAMP_MS": pa.array([0, None, 1], pa.timestamp("ms")),
    "TIMESTAMP_NS": pa.array([0, None, 1], pa.timestamp("ns")),
    "TIMESTAMPTZ": pa.array([0, None, 1], pa.timestamp("us", "Asia/Tokyo")),
    "INTERVAL": pa.array([(1, 2, 3_000_000), None, (0, 0, 0)], pa.month_day_nano_interval()),
    "INTEGER[]": pa.array([[1, None], None, []], pa.list_(pa.int64())),
    "STRUCT(a INTEGER, b VARCHAR)": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": None}]),
    "MAP(VARCHAR, INTEGER)": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int32())),
}


@pytest.mark.parametrize("way", ["bound", "ingested"])
def test_columns_of_every_type_arrive_as_in_a_direct_insert(
    cursor: Any, name: str, way: str
) -> None:
    names = [f"c{i}" for i in range(len(ARROW_COLUMNS))]
    sent = pa.table(dict(zip(names, ARROW_COLUMNS.values(), strict=True)))
    columns = ", ".join(f"{c} {kind}" for c, kind in zip(names, ARROW_COLUMNS, strict=True))
    for table in (f"{name}_direct", f"{name}_queued"):
        cursor.execute(f"CREATE TABLE {table} ({columns})")
    if way == "bound":
        marks = ", ".join("?" for _ in names)
        [batch] = sent.to_batches()
        assert bound(cursor, f"INSERT INTO {name}_direct VALUES ({marks})", batch) == 3
        assert (
            bound(cursor, f"INSERT INTO duckling_queue.{name}_queued VALUES ({marks})", batch) == 3
        )
    else:
        cursor.adbc_ingest(f"{name}_direct", sent, mode="append")
        assert ingested(cursor, f"{name}_queued", sent) == 3
    cursor.execute(f"FROM {name}_direct ORDER BY ALL")
    expected = cursor.fetch_arrow_table()
    cursor.execute(f"FROM duckling_queue.{name}_queued ORDER BY ALL")
    assert cursor.fetch_arrow_table() == expected
    flush(cursor, f"{name}_queued")
    cursor.execute(f"FROM {name}_queued ORDER BY ALL")
    assert cursor.fetch_arrow_table() == expected


@pytest.mark.parametrize(
    ("form", "sent"),
    [
        ("(i) VALUES (?)", [("1",), ("2",), ("three",)]),
        ("(i) VALUES (?)", [(1,), (2**40,)]),
        ("(i) VALUES (?), (1)", [("1",), ("x",)]),
        ("(i) SELECT ?", [("1",), ("x",)]),
    ],
)
def test_one_bad_row_fails_the_insert(cursor: Any, swans: str, form: str, sent: list[Any]) -> None:
    names = [f"c{i}" for i in range(len(sent[0]))]
    batch = pa.record_batch([[str(row[i]) for row in sent] for i in range(len(names))], names)
    with refused("CONVERSION_ERROR"):
        bound(cursor, f"INSERT INTO duckling_queue.{swans} {form}", batch)
    assert count(cursor, f"duckling_queue.{swans}") == 0


def test_null_is_refused_in_a_not_null_column(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER NOT NULL, s VARCHAR)")
    insert = f"INSERT INTO duckling_queue.{name}"
    with refused("CONSTRAINT_ERROR", "NOT NULL", name):
        bound(cursor, f"{insert} VALUES (?, ?)", [(1, "a"), (None, "b")])
    with refused("CONSTRAINT_ERROR", "NOT NULL", name):
        bound(cursor, f"{insert} VALUES (?, upper(?))", [(1, "a"), (None, "b")])
    with refused("CONSTRAINT_ERROR", "NOT NULL", name):
        bound(cursor, f"{insert} (s) VALUES (?)", [("a",)])
    with refused("CONSTRAINT_ERROR", "NOT NULL", name):
        ingested(cursor, name, pa.table({"i": pa.array([1, None], pa.int32())}))
    with refused("CONSTRAINT_ERROR", "NOT NULL", name):
        ingested(cursor, name, pa.table({"s": ["a"]}))
    assert count(cursor, f"duckling_queue.{name}") == 0


def test_wrong_numbers_of_parameters_are_refused(cursor: Any, swans: str) -> None:
    with refused("INVALID_REQUEST", "3 parameters"):
        bound(cursor, f"INSERT INTO duckling_queue.{swans} VALUES (?, ?, ?)", [(1,)])
    with refused("BINDER_ERROR", f"duckling_queue.main.{swans}", "3 columns"):
        bound(cursor, f"INSERT INTO duckling_queue.{swans} VALUES (?)", [(1,), (2,)])
    assert count(cursor, f"duckling_queue.{swans}") == 0


def test_prepared_insert_survives_a_schema_change(
    flight_sql: Callable[..., FlightSql], cursor: Any, swans: str
) -> None:
    client = flight_sql()
    request = messages.ActionCreatePreparedStatementRequest(
        query=f"INSERT INTO duckling_queue.{swans} (i, s) VALUES (?, ?)"
    )
    handle = client.action_result("CreatePreparedStatement", request).prepared_statement_handle
    command = messages.CommandPreparedStatementUpdate(prepared_statement_handle=handle)
    client.put(command, SWANS)
    cursor.execute(f"ALTER TABLE {swans} DROP COLUMN n")
    cursor.execute(f"ALTER TABLE {swans} ADD COLUMN extra INTEGER DEFAULT 5")
    client.put(command, SWANS)
    # Rows with the old columns are sealed, and may be in the table already.
    everywhere = f"FROM duckling_queue.{swans} UNION ALL FROM {swans}"
    assert rows(cursor, f"FROM ({everywhere}) WHERE i = 1") == [(1, "a", 5)] * 2


# ---- bulk ingestion ------------------------------------------------------------------------------


def test_ingestion_matches_columns_by_name(cursor: Any, swans: str) -> None:
    assert ingested(cursor, swans, pa.table({"n": [0.5], "i": pa.array([1], pa.int32())})) == 1
    assert ingested(cursor, swans, pa.table({"S": ["x"], "I": [2]})) == 1
    assert ingested(cursor, swans, pa.RecordBatch.from_pylist([], SWANS.schema)) == 0
    kept = [(1, "unknown", 0.5), (2, "x", None)]
    assert rows(cursor, f"FROM duckling_queue.{swans} ORDER BY i") == kept
    flush(cursor, swans)
    assert rows(cursor, f"FROM {swans} ORDER BY i") == kept


@pytest.mark.parametrize("mode", ["create", "create_append"])
def test_ingestion_creates_the_table(cursor: Any, name: str, mode: str) -> None:
    assert ingested(cursor, name, SWANS, mode) == 3
    assert count(cursor, name) == 0
    assert ingested(cursor, name, SWANS, "create_append") == 3
    with refused("CATALOG_ERROR", "already exists"):
        ingested(cursor, name, SWANS, "create")
    flush(cursor, name)
    cursor.execute(f"FROM {name} LIMIT 3")
    assert cursor.fetch_arrow_table() == SWANS
    assert count(cursor, name) == 6


def test_ingestion_creates_the_table_in_its_schema_and_catalog(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE SCHEMA pond_{name}")
    assert ingested(cursor, name, SWANS, "create", schema=f"pond_{name}") == 3
    assert count(cursor, f"duckling_queue.pond_{name}.{name}") == 3
    cursor.execute("USE memory")
    assert ingested(cursor, name, SWANS, "create") == 3
    assert ingested(cursor, name, SWANS, "create_append") == 3
    assert count(cursor, f"duckling_queue.{name}") == 6
    flush(cursor, name)
    assert count(cursor, f"swanlake.main.{name}") == 6
    sql = f"SELECT database_name FROM duckdb_tables() WHERE table_name = '{name}'"
    assert rows(cursor, sql) == [("swanlake",)] * 2


def test_ingestion_cannot_replace_or_be_temporary(cursor: Any, swans: str) -> None:
    with refused("QUEUE_REFUSED", "append", "replace"):
        ingested(cursor, swans, SWANS, "replace")
    with cursor.connection.cursor() as own, refused("QUEUE_REFUSED"):
        own.adbc_ingest(swans, SWANS, mode="append", catalog_name="duckling_queue", temporary=True)
    with refused("TABLE_NOT_FOUND", "nowhere"):
        ingested(cursor, "nowhere", SWANS)
    assert count(cursor, f"duckling_queue.{swans}") == 0


def test_mismatched_ingestion_is_refused_completely(cursor: Any, swans: str) -> None:
    with refused("BINDER_ERROR", "stranger", f"duckling_queue.main.{swans}"):
        ingested(cursor, swans, pa.table({"i": [1], "stranger": [2]}))
    with refused("CONVERSION_ERROR"):
        ingested(cursor, swans, pa.table({"i": ["1", "x"]}))
    batches = [pa.record_batch({"i": [1]}), pa.record_batch({"i": [2**40]})]
    with refused("CONVERSION_ERROR"):
        ingested(cursor, swans, pa.Table.from_batches(batches))
    for broken in (pa.table({"s": BAD_TEXT}), pa.table({"i": ["1", "2"], "s": BAD_TEXT})):
        with refused("INVALID_(REQUEST|INPUT_ERROR)"):
            ingested(cursor, swans, broken)
    assert count(cursor, f"duckling_queue.{swans}") == 0
    assert ingested(cursor, swans, SWANS) == 3


def test_large_uploads_are_atomic(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER, s VARCHAR)")
    size, batches = 20_000, 20
    text = pa.array(["some text to make it large"] * size)

    def reader(last: Any) -> Any:
        schema = pa.schema([("i", pa.int64()), ("s", pa.string())])
        numbers = [np.arange(b * size, (b + 1) * size) for b in range(batches)]
        made = [pa.record_batch([pa.array(n), text], schema=schema) for n in numbers]
        return pa.RecordBatchReader.from_batches(
            schema, [*made, pa.record_batch([pa.array([last]), pa.array(["last"])], schema=schema)]
        )

    with refused("CONVERSION_ERROR"):
        ingested(cursor, name, reader(2**40))
    assert count(cursor, f"duckling_queue.{name}") == 0
    assert ingested(cursor, name, reader(-1)) == batches * size + 1
    assert count(cursor, f"duckling_queue.{name}") in (0, batches * size + 1)
    flush(cursor, name)
    assert rows(cursor, f"SELECT count(DISTINCT i), min(i) FROM {name}") == [
        (batches * size + 1, -1)
    ]


def test_pandas_and_polars_frames(connect: Connect, name: str) -> None:
    frame = pd.DataFrame({"i": [1, 2], "t": pd.to_datetime(["2024-02-29", None])})
    with connect().cursor() as cursor:
        assert ingested(cursor, name, pa.Table.from_pandas(frame), "create") == 2
        polars = pl.DataFrame({"i": [3], "t": [None]}, schema={"i": pl.Int64, "t": pl.Datetime})
        assert ingested(cursor, name, polars) == 1
        flush(cursor, name)
        assert rows(cursor, f"SELECT i, t::VARCHAR FROM {name} ORDER BY i") == [
            (1, "2024-02-29 00:00:00"),
            (2, None),
            (3, None),
        ]


def test_dictionaries_and_views_are_unpacked(cursor: Any, swans: str) -> None:
    words = pa.array(["x", "y", "x"])
    for column in (words.dictionary_encode(), words.cast(pa.large_string())):
        assert ingested(cursor, swans, pa.table({"s": column})) == 3
    assert rows(cursor, f"SELECT s FROM duckling_queue.{swans}") == [("x",), ("y",), ("x",)] * 2

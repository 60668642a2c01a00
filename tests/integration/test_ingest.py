"""Bulk ingestion through stock clients: ADBC, pandas and Polars."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import adbc_driver_manager
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.protocol import encode, messages
from tests.flight import FlightSql
from tests.queries import rows
from tests.waiting import eventually

SWANS = pa.table({"i": [1, 2, 3], "s": ["a", None, "c"]})
HOSTILE_NAMES = [
    'say "swan"; DROP TABLE x; --',
    "with space",
    "it's",
    "SELECT",
    "a.b",
    "ünï🦢",
    "?",
    "$1",
]

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A table name that no other test uses."""
    return f"ingested_{next(_numbers)}"


# ---- modes ---------------------------------------------------------------------------------------


def test_create_makes_the_table_and_counts_the_rows(cursor: Any, name: str) -> None:
    assert cursor.adbc_ingest(name, SWANS, mode="create") == 3
    cursor.execute(f"SELECT * FROM {name} ORDER BY i")
    assert cursor.fetch_arrow_table().equals(SWANS)
    assert rows(cursor, f"SELECT current_catalog(), count(*) FROM swanlake.main.{name}") == [
        ("swanlake", 3)
    ]


def test_create_over_an_existing_table_is_refused(cursor: Any, name: str) -> None:
    cursor.adbc_ingest(name, SWANS, mode="create")
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="already exists"):
        cursor.adbc_ingest(name, SWANS, mode="create")
    assert rows(cursor, f"SELECT count(*) FROM {name}") == [(3,)]


def test_append_adds_to_an_existing_table(cursor: Any, name: str) -> None:
    cursor.adbc_ingest(name, SWANS, mode="create")
    assert cursor.adbc_ingest(name, SWANS, mode="append") == 3
    assert rows(cursor, f"SELECT count(*) FROM {name}") == [(6,)]


def test_append_to_a_missing_table_is_refused(cursor: Any, name: str) -> None:
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="does not exist"):
        cursor.adbc_ingest(name, SWANS, mode="append")
    assert rows(cursor, f"SELECT * FROM duckdb_tables() WHERE table_name = '{name}'") == []


def test_replace_leaves_nothing_of_the_old_table(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE TABLE {name} AS SELECT 'old' AS other, range AS r FROM range(10)")
    assert cursor.adbc_ingest(name, SWANS, mode="replace") == 3
    cursor.execute(f"SELECT * FROM {name} ORDER BY i")
    assert cursor.fetch_arrow_table().equals(SWANS)


def test_replace_makes_a_missing_table(cursor: Any, name: str) -> None:
    assert cursor.adbc_ingest(name, SWANS, mode="replace") == 3
    assert rows(cursor, f"SELECT count(*) FROM {name}") == [(3,)]


def test_create_append_makes_the_table_once(cursor: Any, name: str) -> None:
    assert cursor.adbc_ingest(name, SWANS, mode="create_append") == 3
    assert cursor.adbc_ingest(name, SWANS.slice(0, 1), mode="create_append") == 1
    assert rows(cursor, f"SELECT count(*), sum(i)::INTEGER FROM {name}") == [(4, 7)]


@pytest.mark.parametrize("mode", ["create", "append", "replace", "create_append"])
def test_ingesting_no_rows_succeeds(cursor: Any, name: str, mode: str) -> None:
    empty = pa.RecordBatch.from_pylist([], schema=SWANS.schema)
    if mode == "append":
        cursor.adbc_ingest(name, empty, mode="create")
    assert cursor.adbc_ingest(name, empty, mode=mode) == 0
    cursor.execute(f"SELECT * FROM {name}")
    assert cursor.fetch_arrow_table().equals(SWANS.slice(0, 0))


# ---- where the rows go ---------------------------------------------------------------------------


def test_temporary_table_belongs_to_the_session(connect: Callable[..., Any], name: str) -> None:
    with connect().cursor() as owner, connect().cursor() as other:
        assert owner.adbc_ingest(name, SWANS, mode="create", temporary=True) == 3
        assert owner.adbc_ingest(name, SWANS, mode="append", temporary=True) == 3
        assert rows(owner, f"SELECT count(*) FROM temp.main.{name}") == [(6,)]
        assert owner.adbc_ingest(name, SWANS, mode="replace", temporary=True) == 3
        assert owner.adbc_ingest(name, SWANS, mode="create_append", temporary=True) == 3
        assert rows(owner, f"SELECT count(*) FROM {name}") == [(6,)]
        with pytest.raises(adbc_driver_manager.ProgrammingError, match="does not exist"):
            other.execute(f"SELECT * FROM {name}")


def test_temporary_and_lake_table_of_one_name_are_separate(cursor: Any, name: str) -> None:
    cursor.adbc_ingest(name, SWANS, mode="create")
    cursor.adbc_ingest(name, SWANS.slice(0, 1), mode="create", temporary=True)
    cursor.adbc_ingest(name, SWANS.slice(0, 1), mode="append", temporary=True)
    assert rows(cursor, f"SELECT count(*) FROM swanlake.main.{name}") == [(3,)]
    assert rows(cursor, f"SELECT count(*) FROM temp.main.{name}") == [(2,)]


def test_rows_go_to_the_named_catalog_and_schema(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE SCHEMA pond_{name}")
    target = {"catalog_name": "swanlake", "db_schema_name": f"pond_{name}"}
    for mode, count in [("create", 3), ("append", 6), ("create_append", 9), ("replace", 3)]:
        assert cursor.adbc_ingest(name, SWANS, mode=mode, **target) == 3
        assert rows(cursor, f"SELECT count(*) FROM swanlake.pond_{name}.{name}") == [(count,)]
    assert cursor.adbc_ingest(name, SWANS, db_schema_name=f"pond_{name}", mode="append") == 3
    other = {"catalog_name": "memory", "db_schema_name": "main"}
    assert cursor.adbc_ingest(name, SWANS, mode="create", **other) == 3
    assert rows(cursor, f"SELECT count(*) FROM memory.main.{name}") == [(3,)]
    missing = f"SELECT count(*) FROM duckdb_tables() WHERE table_name = '{name}'"
    assert rows(cursor, f"{missing} AND schema_name = 'main' AND database_name = 'swanlake'") == [
        (0,)
    ]
    cursor.execute(f"DROP TABLE memory.main.{name}")


def test_unqualified_name_means_the_current_schema(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE SCHEMA current_{name}")
    cursor.execute(f"USE swanlake.current_{name}")
    for mode, count in [("create", 3), ("append", 6), ("create_append", 9), ("replace", 3)]:
        cursor.adbc_ingest(name, SWANS, mode=mode)
        assert rows(cursor, f"SELECT count(*) FROM swanlake.current_{name}.{name}") == [(count,)]


def test_missing_schema_is_refused(cursor: Any, name: str) -> None:
    with pytest.raises(adbc_driver_manager.ProgrammingError):
        cursor.adbc_ingest(name, SWANS, mode="create", db_schema_name="no_such_schema")


def test_temporary_table_in_a_chosen_schema_is_refused(cursor: Any, name: str) -> None:
    with pytest.raises(adbc_driver_manager.Error):
        cursor.adbc_ingest(name, SWANS, mode="create", temporary=True, db_schema_name="main")


@pytest.mark.parametrize("table_name", HOSTILE_NAMES)
def test_names_with_special_characters_are_quoted(cursor: Any, table_name: str) -> None:
    quoted = '"' + table_name.replace('"', '""') + '"'
    data = pa.table({table_name: [1, 2]})
    for mode, count in [("create", 2), ("append", 4), ("create_append", 6), ("replace", 2)]:
        assert cursor.adbc_ingest(table_name, data, mode=mode) == 2
        assert rows(cursor, f"SELECT count({quoted}) FROM {quoted}") == [(count,)]
    assert cursor.adbc_ingest(table_name, data, mode="create", temporary=True) == 2
    assert rows(cursor, f"SELECT count({quoted}) FROM temp.{quoted}") == [(2,)]


# ---- columns -------------------------------------------------------------------------------------


def test_append_matches_columns_by_name(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER, s VARCHAR DEFAULT 'unknown', n DOUBLE)")
    cursor.adbc_ingest(name, pa.table({"n": [0.5], "i": [1]}), mode="append")
    cursor.adbc_ingest(name, pa.table({"S": ["x"], "I": [2]}), mode="append")
    assert rows(cursor, f"SELECT * FROM {name} ORDER BY i") == [
        (1, "unknown", 0.5),
        (2, "x", None),
    ]


def test_unknown_column_is_refused_and_nothing_is_written(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER)")
    for mode in ("append", "create_append"):
        with pytest.raises(adbc_driver_manager.ProgrammingError, match="BINDER_ERROR: ") as caught:
            cursor.adbc_ingest(name, pa.table({"i": [1], "stranger": [2]}), mode=mode)
        assert "stranger" in str(caught.value)
        assert "Traceback" not in str(caught.value)
    assert rows(cursor, f"SELECT count(*) FROM {name}") == [(0,)]


def test_value_out_of_range_is_refused_and_nothing_is_written(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE TABLE {name} (i TINYINT)")
    batches = [pa.record_batch({"i": [1, 2]}), pa.record_batch({"i": [3, 300]})]
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="CONVERSION_ERROR: "):
        cursor.adbc_ingest(name, pa.Table.from_batches(batches), mode="append")
    assert rows(cursor, f"SELECT count(*) FROM {name}") == [(0,)]


@pytest.mark.parametrize("exists", [False, True])
def test_aborted_upload_leaves_nothing_behind(
    flight_sql: Callable[..., FlightSql], cursor: Any, name: str, exists: bool
) -> None:
    if exists:
        cursor.adbc_ingest(name, SWANS, mode="create")
    client = flight_sql()
    options = messages.CommandStatementIngest.TableDefinitionOptions
    command = messages.CommandStatementIngest(
        table=name,
        table_definition_options=options(
            if_not_exist=options.TABLE_NOT_EXIST_OPTION_CREATE,
            if_exists=options.TABLE_EXISTS_OPTION_APPEND,
        ),
    )
    descriptor = flight.FlightDescriptor.for_command(encode(command))
    writer, answers = client.client.do_put(
        descriptor, SWANS.schema, flight.FlightCallOptions(timeout=1)
    )
    writer.write_table(SWANS)
    assert answers.read() is None
    with pytest.raises(flight.FlightTimedOutError):
        writer.close()
    assert client.query("SELECT 1 AS one")["one"].to_pylist() == [1]
    sizes = rows(cursor, f"SELECT estimated_size FROM duckdb_tables() WHERE table_name = '{name}'")
    assert sizes == ([(3,)] if exists else [])


def test_columns_of_unusual_arrow_types_are_stored(cursor: Any, name: str) -> None:
    data = pa.table(
        {
            "half": pa.array([np.float16(1.5)], pa.float16()),
            "wide": pa.array([Decimal(10**50)], pa.decimal256(60, 0)),
            "round": pa.array([Decimal(1500)], pa.decimal128(5, -2)),
            "word": pa.array(["x"]).dictionary_encode(),
            "view": pa.array(["longer than twelve bytes"], pa.string_view()),
            "list": pa.array([[{"a": 1, "b": None}]]),
            "span": pa.array([(1, 2, 3000)], pa.month_day_nano_interval()),
            "at": pa.array([0], pa.timestamp("ns", "Europe/Berlin")),
            "none": pa.nulls(1),
        }
    )
    assert cursor.adbc_ingest(name, data, mode="create", temporary=True) == 1
    cursor.execute(f'SELECT * REPLACE (span::VARCHAR AS span, "at"::VARCHAR AS "at") FROM {name}')
    assert cursor.fetchone() == (
        *(1.5, str(10**50), Decimal(1500), "x", "longer than twelve bytes"),
        *([{"a": 1, "b": None}], "1 month 2 days 00:00:00.000003", "1970-01-01 00:00:00+00", None),
    )


# ---- transactions --------------------------------------------------------------------------------


def test_ingestion_is_part_of_the_transaction(connect: Callable[..., Any], name: str) -> None:
    connection = connect(autocommit=False)
    with connection.cursor() as cursor, connect().cursor() as other:
        cursor.adbc_ingest(name, SWANS, mode="create")
        assert rows(cursor, f"SELECT count(*) FROM {name}") == [(3,)]
        with pytest.raises(adbc_driver_manager.ProgrammingError, match="does not exist"):
            other.execute(f"SELECT * FROM {name}")
        connection.commit()
        assert rows(other, f"SELECT count(*) FROM {name}") == [(3,)]

        cursor.adbc_ingest(name, SWANS, mode="append")
        assert rows(cursor, f"SELECT count(*) FROM {name}") == [(6,)]
        connection.rollback()
        assert rows(cursor, f"SELECT count(*) FROM {name}") == [(3,)]

        cursor.adbc_ingest(name, SWANS, mode="replace")
        connection.rollback()
        assert rows(other, f"SELECT count(*) FROM {name}") == [(3,)]


def test_ingestion_makes_one_snapshot(cursor: Any, name: str) -> None:
    before = rows(cursor, "SELECT count(*) FROM swanlake.snapshots()")[0][0]
    table = pa.Table.from_batches([pa.record_batch({"i": [n]}) for n in range(20)])
    cursor.adbc_ingest(name, table, mode="create_append")
    assert rows(cursor, "SELECT count(*) FROM swanlake.snapshots()") == [(before + 1,)]


# ---- size ----------------------------------------------------------------------------------------


def test_million_rows_in_many_batches_are_stored(cursor: Any, name: str) -> None:
    size = 10_000
    schema = pa.schema([("i", pa.int64()), ("s", pa.string())])
    text = pa.array([f"row {n}" for n in range(size)])

    def batches() -> Iterator[Any]:
        for start in range(0, 1_000_000, size):
            numbers = pa.array(np.arange(start, start + size))
            yield pa.RecordBatch.from_arrays([numbers, text], schema=schema)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    assert cursor.adbc_ingest(name, reader, mode="create") == 1_000_000
    sql = f"SELECT count(*), count(DISTINCT i), min(i), max(i), count(DISTINCT s) FROM {name}"
    assert rows(cursor, sql) == [(1_000_000, 1_000_000, 0, 999_999, size)]


# ---- pandas and Polars ---------------------------------------------------------------------------


def test_pandas_writes_and_reads(connect: Callable[..., Any], name: str) -> None:
    frame = pd.DataFrame(
        {
            "i": [1, 2],
            "f": [0.5, float("nan")],
            "s": ["a", None],
            "t": pd.to_datetime(["2024-02-29 01:02:03.000004", None]),
            "c": pd.Categorical(["x", "y"]),
        }
    )
    connection = connect()
    with connection.cursor() as cursor:
        assert cursor.adbc_ingest(name, pa.Table.from_pandas(frame), mode="create") == 2
    read = pd.read_sql(f"SELECT * FROM {name} ORDER BY i", connection)
    assert read["i"].tolist() == [1, 2]
    assert read["s"].tolist() == ["a", None]
    assert read["t"][0] == pd.Timestamp("2024-02-29 01:02:03.000004")
    assert read["t"].isna().tolist() == [False, True]
    assert read["c"].tolist() == ["x", "y"]


def test_pandas_to_sql(connect: Callable[..., Any], name: str) -> None:
    frame = pd.DataFrame({"i": [1, 2, 3], "s": ["a", "b", "c"]})
    connection = connect()
    assert frame.to_sql(name, connection, index=False) == 3
    assert frame.to_sql(name, connection, index=False, if_exists="append") == 3
    assert len(pd.read_sql(f"SELECT * FROM {name}", connection)) == 6
    assert frame.to_sql(name, connection, index=False, if_exists="replace") == 3
    pd.testing.assert_frame_equal(
        pd.read_sql(f"SELECT * FROM {name} ORDER BY i", connection), frame, check_dtype=False
    )
    with pytest.raises(ValueError, match="already exists"):
        frame.to_sql(name, connection, index=False, if_exists="fail")


def test_polars_writes_and_reads(connect: Callable[..., Any], name: str) -> None:
    frame = pl.DataFrame(
        {
            "i": [1, 2, 3],
            "s": ["a", None, "longer than twelve bytes"],
            "l": [[1, 2], [], None],
            "d": [Decimal("1.50"), None, Decimal("2.25")],
        }
    )
    connection = connect()
    assert frame.write_database(name, connection, engine="adbc") == 3
    written = frame.write_database(name, connection, engine="adbc", if_table_exists="append")
    assert written == 3
    assert pl.read_database(f"SELECT count(*) AS n FROM {name}", connection)["n"].to_list() == [6]
    frame.write_database(name, connection, engine="adbc", if_table_exists="replace")
    read = pl.read_database(f"SELECT * FROM {name} ORDER BY i", connection)
    assert read.to_dicts() == frame.to_dicts()


def test_polars_frame_is_ingested_without_conversion(cursor: Any, name: str) -> None:
    frame = pl.DataFrame({"i": [1, 2], "c": pl.Series(["x", "y"], dtype=pl.Categorical)})
    assert cursor.adbc_ingest(name, frame, mode="create") == 2
    assert rows(cursor, f"SELECT * FROM {name} ORDER BY i") == [(1, "x"), (2, "y")]


def test_polars_reads_with_parameters_and_types(connect: Callable[..., Any]) -> None:
    read = pl.read_database(
        "SELECT ? AS n, true AS b, 1::HUGEINT AS h, "
        "'e9a1c0f2-7f3b-4d7c-8a11-0123456789ab'::UUID AS u",
        connect(),
        execute_options={"parameters": (7,)},
    )
    assert read.schema["b"] == pl.Boolean
    assert read.rows() == [(7, True, Decimal(1), "e9a1c0f2-7f3b-4d7c-8a11-0123456789ab")]


def test_concurrent_uploads_all_succeed(
    connect: Callable[..., Any], cursor: Any, name: str
) -> None:
    """Each is one transaction that takes the writer lock first; otherwise most would conflict."""
    cursor.execute(f"CREATE TABLE {name} (writer INTEGER, i INTEGER)")
    writers, each = 6, 4

    def write(writer: int) -> None:
        with connect().cursor() as own:
            for i in range(each):
                rows = pa.table({"writer": pa.array([writer], pa.int32()), "i": [i]})
                if writer % 2:
                    own.adbc_ingest(name, rows, mode="append")
                else:
                    own.executemany(f"INSERT INTO {name} VALUES (?, ?)", [(writer, i)])

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    cursor.execute(f"SELECT count(*), count(DISTINCT (writer, i)) FROM {name}")
    assert cursor.fetchall() == [(writers * each, writers * each)]


def test_stalled_upload_does_not_block_other_writers(
    flight_sql: Callable[..., FlightSql], cursor: Any, name: str
) -> None:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER)")
    stalled = flight_sql()
    kind = messages.CommandStatementIngest.TableDefinitionOptions
    append = kind(if_exists=kind.TABLE_EXISTS_OPTION_APPEND)
    command = messages.CommandStatementIngest(table=name, table_definition_options=append)
    descriptor = flight.FlightDescriptor.for_command(encode(command))
    rows = pa.table({"i": pa.array([1], pa.int32())})
    writer, reader = stalled.client.do_put(descriptor, rows.schema, stalled.options())
    writer.write_table(rows)
    eventually(lambda: flight_sql().status()["sessions"]["active"] >= 2)
    cursor.execute(f"INSERT INTO {name} VALUES (2)")
    with writer:
        writer.done_writing()
        reader.read()
    cursor.execute(f"SELECT i FROM {name} ORDER BY i")
    assert cursor.fetchall() == [(1,), (2,)]

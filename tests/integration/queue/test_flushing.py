"""Flushes by request, size and age; pauses, retention, layouts."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.lake.lake import Lake
from swanlake.protocol import messages
from tests.flight import FlightSql
from tests.integration.queue.queries import (
    Start,
    count,
    cursor_on,
    dead_letters,
    flush,
    ingested,
    refused,
    status,
    written,
)
from tests.queries import rows
from tests.server_process import ServerProcess
from tests.waiting import eventually


@pytest.fixture
def swans(cursor: Any, name: str) -> str:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER, s VARCHAR)")
    return name


def files_of(cursor: Any, table: str) -> list[tuple[Any, ...]]:
    return rows(cursor, f"SELECT data_file FROM ducklake_list_files('swanlake', '{table}')")


# ---- by request ----------------------------------------------------------------------------------


def test_flush_returns_a_report(cursor: Any, swans: str) -> None:
    for i in range(5):
        cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES ({i}, 'x')")
    [report] = flush(cursor, swans)
    assert report["catalog_name"] == "swanlake"
    assert (report["schema_name"], report["table_name"]) == ("main", swans)
    assert (report["rows"], report["files"], report["dead_letters"]) == (5, 1, 0)
    assert report["bytes"] > 0
    assert report["milliseconds"] > 0
    [(newest,)] = rows(cursor, "SELECT max(snapshot_id) FROM swanlake.snapshots()")
    assert report["snapshot_id"] == newest
    assert len(files_of(cursor, swans)) == 1
    assert flush(cursor, swans) == []


def test_flush_respects_table_options(metabase: str | Path, start_server: Start) -> None:
    url = metabase if isinstance(metabase, str) else ""
    with cursor_on(start_server(SWANLAKE_METABASE_URL=url)) as cursor:
        for table in ("plain", "packed"):
            cursor.execute(f"CREATE TABLE {table} (i INTEGER)")
        for option, value in {"compression": "'zstd'", "row_group_size": "2048"}.items():
            cursor.execute(
                f"CALL swanlake.set_option('parquet_{option}', {value}, table_name => 'packed')"
            )
        for table, expected in {"plain": ("SNAPPY", 5000), "packed": ("ZSTD", 2048)}.items():
            cursor.execute(f"INSERT INTO duckling_queue.{table} SELECT range FROM range(5000)")
            flush(cursor, table)
            [(path,)] = files_of(cursor, table)
            found = rows(
                cursor,
                "SELECT compression, max(row_group_num_rows) "
                f"FROM parquet_metadata('{path}') GROUP BY ALL",
            )
            assert found == [expected]


@pytest.mark.parametrize(
    "request_",
    [
        "PRAGMA duckling_queue.flush",
        "pragma DUCKLING_QUEUE.flush();",
        "CALL duckling_queue_flush()",
    ],
)
def test_flush_all_tables(cursor: Any, swans: str, request_: str) -> None:
    cursor.execute(f"CREATE TABLE {swans}_2 (i INTEGER)")
    cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES (1, 'x')")
    cursor.execute(f"INSERT INTO duckling_queue.{swans}_2 VALUES (1), (2)")
    flushed = {row[2]: row[3] for row in rows(cursor, request_)}
    assert {swans: 1, f"{swans}_2": 2}.items() <= flushed.items()
    assert (count(cursor, swans), count(cursor, f"{swans}_2")) == (1, 2)


def test_flush_of_one_table_leaves_the_others(cursor: Any, swans: str) -> None:
    cursor.execute(f"CREATE TABLE {swans}_2 (i INTEGER)")
    for wanted in (swans, f"main.{swans}", f"swanlake.main.{swans}", f'"{swans.upper()}"'):
        cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES (1, 'x')")
        cursor.execute(f"INSERT INTO duckling_queue.{swans}_2 VALUES (1)")
        [report] = flush(cursor, wanted)
        assert (report["table_name"], report["rows"]) == (swans, 1)
    assert count(cursor, f"duckling_queue.{swans}_2") == 4
    assert flush(cursor, f"nowhere.{swans}") == []
    assert [report["rows"] for report in flush(cursor, f"{swans}_2")] == [4]


def test_flush_is_refused_in_a_transaction(cursor: Any, swans: str) -> None:
    cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES (1, 'x')")
    cursor.execute("BEGIN")
    with refused("TRANSACTION_ACTIVE", "duckling_queue_flush"):
        flush(cursor, swans)
    cursor.execute("ROLLBACK")
    assert count(cursor, f"duckling_queue.{swans}") == 1


def test_status_and_segments(start_server: Start) -> None:
    # A separate server: segments are retained for transactions of other tests.
    with cursor_on(start_server()) as cursor:
        cursor.execute("CREATE TABLE swans (i INTEGER, s VARCHAR)")
        assert status(cursor, "swans") is None
        cursor.execute("INSERT INTO duckling_queue.swans VALUES (1, 'x'), (2, 'y')")
        found = status(cursor, "swans")
        assert found is not None
        assert (found["state"], found["rows"], found["segments"], found["failures"]) == (
            "open",
            2,
            1,
            0,
        )
        assert found["last_error"] is None
        cursor.execute("CALL duckling_queue_segments('swans')")
        [segment] = cursor.fetch_arrow_table().to_pylist()
        assert (segment["state"], segment["rows"], segment["bytes"]) == ("open", 2, found["bytes"])
        assert Path(segment["path"]).stat().st_size == segment["bytes"]
        flush(cursor, "swans")
        assert not Path(segment["path"]).exists()
        assert rows(cursor, "CALL duckling_queue_segments('swans')") == []


@pytest.mark.parametrize("name_", ["a.b.c.d", "a..b", ".", 'a."b'])
def test_invalid_table_name_is_refused(cursor: Any, name_: str) -> None:
    with refused("INVALID_REQUEST", "catalog.schema.table"):
        flush(cursor, name_)
    with refused("INVALID_REQUEST", "catalog.schema.table"):
        cursor.execute(f"CALL duckling_queue_segments('{name_}')")


def test_unknown_pragma_is_refused(cursor: Any) -> None:
    with refused("CATALOG_ERROR", "duckling_queue_flash", "duckling_queue_flush"):
        cursor.execute("PRAGMA duckling_queue.flash")


# ---- what the table wants ------------------------------------------------------------------------


def test_flush_writes_a_file_per_partition(cursor: Any, swans: str) -> None:
    cursor.execute(f"ALTER TABLE {swans} SET PARTITIONED BY (s)")
    for i in range(6):
        cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES ({i}, 'part {i % 3}')")
    [report] = flush(cursor, swans)
    assert (report["rows"], report["files"]) == (6, 3)
    assert sorted(path.split("/")[-2] for (path,) in files_of(cursor, swans)) == [
        "s=part%200",
        "s=part%201",
        "s=part%202",
    ]
    assert rows(cursor, f"SELECT i FROM {swans} WHERE s = 'part 1' ORDER BY i") == [(1,), (4,)]


def test_flush_sorts_files_of_a_sorted_table(cursor: Any, swans: str) -> None:
    cursor.execute(f"ALTER TABLE {swans} SET SORTED BY (i DESC)")
    for i in (3, 1, 2):
        cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES ({i}, 'x')")
    flush(cursor, swans)
    [(path,)] = files_of(cursor, swans)
    with duckdb.connect() as duck:
        assert duck.sql(f"SELECT i FROM '{path}'").fetchall() == [(3,), (2,), (1,)]


def test_stock_duckdb_reads_flushed_rows(
    server: ServerProcess, cursor: Any, swans: str, duck: duckdb.DuckDBPyConnection
) -> None:
    cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES (1, 'ünï'), (2, NULL)")
    flush(cursor, swans)
    with Lake.open(server.home / "catalogs", server.home / "data") as lake:
        lake.location(lake.catalog("swanlake").info).attach(duck)
        found = duck.sql(f"FROM swanlake.main.{swans} ORDER BY i").fetchall()
        duck.execute("DETACH swanlake")
    assert found == [(1, "ünï"), (2, None)]


# ---- pause and resume ----------------------------------------------------------------------------


def test_paused_queue_accepts_rows_until_full(start_server: Start) -> None:
    server = start_server(
        DUCKLING_QUEUE_BUFFER_MAX_ROWS="2",
        DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS="0.1",
        DUCKLING_QUEUE_MAX_BYTES="20000",
    )
    with cursor_on(server) as cursor:
        cursor.execute("CREATE TABLE t (i INTEGER, s VARCHAR)")
        assert rows(cursor, "CALL duckling_queue_pause()") == [("paused",)]
        cursor.execute("INSERT INTO duckling_queue.t (i) VALUES (1), (2), (3)")
        with refused("QUEUE_PAUSED", "duckling_queue_resume"):
            flush(cursor)
    assert server.stop() == 0
    server.start()
    with cursor_on(server) as cursor:
        with refused("QUEUE_PAUSED"):
            cursor.execute("PRAGMA duckling_queue.flush")
        cursor.execute("INSERT INTO duckling_queue.t SELECT 4, repeat('x', 30000)")
        with refused("QUEUE_FULL", "duckling_queue_max_bytes", "Nothing was written"):
            cursor.execute("INSERT INTO duckling_queue.t (i) VALUES (5)")
        found = status(cursor, "t")
        assert found is not None
        assert (found["state"], found["rows"]) == ("paused", 4)
        assert (count(cursor, "t"), count(cursor, "duckling_queue.t")) == (0, 4)
        assert rows(cursor, "CALL duckling_queue_resume()") == [("running",)]
        flush(cursor)
        assert written(cursor, "INSERT INTO duckling_queue.t (i) VALUES (5)") == 1
        flush(cursor)
        assert rows(cursor, "SELECT i FROM t ORDER BY i") == [(1,), (2,), (3,), (4,), (5,)]


def test_full_table_and_caller_leave_room_for_others(start_server: Start) -> None:
    server = start_server(DUCKLING_QUEUE_MAX_BYTES="100000")
    mallory, alice = (
        FlightSql(server.url, authorization=f"Basic {b64encode(name).decode()}")
        for name in (b"mallory:", b"alice:")
    )

    def queue_rows(connection: FlightSql, table: str, size: int) -> None:
        sql = f"INSERT INTO duckling_queue.{table} SELECT repeat('x', {size})"
        connection.put(messages.CommandStatementUpdate(query=sql))

    for table in ("a", "b", "c"):
        mallory.query(f"CREATE TABLE {table} (s VARCHAR)")
    mallory.query("CALL duckling_queue_pause()")
    queue_rows(mallory, "a", 85_000)
    with pytest.raises(flight.FlightUnavailableError, match=r"QUEUE_FULL: .* for swanlake.main.a"):
        queue_rows(alice, "a", 1)
    with pytest.raises(flight.FlightUnavailableError, match=r"QUEUE_FULL: .* from mallory"):
        queue_rows(mallory, "b", 1)
    queue_rows(alice, "b", 20_000)
    with pytest.raises(flight.FlightUnavailableError, match="QUEUE_FULL"):
        queue_rows(alice, "c", 1)  # now it is full
    mallory.query("CALL duckling_queue_resume(); CALL duckling_queue_flush()")
    queue_rows(mallory, "a", 1)
    counts = mallory.query("SELECT (SELECT count(*) FROM a) AS a, (SELECT count(*) FROM b) AS b")
    assert counts.to_pylist() == [{"a": 1, "b": 1}]


# ---- by themselves -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with a small queue and a retention for flushed segments."""
    home = tmp_path_factory.mktemp("hasty") / "home"
    with ServerProcess(
        home,
        DUCKLING_QUEUE_BUFFER_MAX_ROWS="10",
        DUCKLING_QUEUE_ROTATE_SIZE_BYTES="100000",
        DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS="0.1",
        DUCKLING_QUEUE_RETENTION_SECONDS="3600",
        DUCKLING_QUEUE_DLQ_TARGET=str(home.parent / "letters of the dead"),
    ) as server:
        yield server


@pytest.mark.parametrize(
    "insert",
    [
        "SELECT range, 'x' FROM range(10)",
        "SELECT range, 'x' FROM range(1000)",
        "SELECT 1, repeat('x', 100000)",
        "SELECT range, repeat('x', 1000000) FROM range(8)",
    ],
)
def test_full_segment_is_flushed_at_once(hasty: ServerProcess, name: str, insert: str) -> None:
    with cursor_on(hasty) as cursor:
        cursor.execute(f"CREATE TABLE {name} (i INTEGER, s VARCHAR)")
        cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES (-1, 'alone')")
        assert status(cursor, name) is not None
        number = written(cursor, f"INSERT INTO duckling_queue.{name} {insert}")
        eventually(lambda: count(cursor, name) >= number)
        flush(cursor, name)
        assert count(cursor, name) == number + 1


def test_small_inserts_fill_a_segment(hasty: ServerProcess, name: str) -> None:
    with cursor_on(hasty) as cursor:
        cursor.execute(f"CREATE TABLE {name} (i INTEGER)")
        for i in range(25):
            cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES ({i})")
        eventually(lambda: count(cursor, name) >= 20)
        flush(cursor, name)
        assert rows(cursor, f"SELECT count(*), count(DISTINCT i) FROM {name}") == [(25, 25)]


def test_flushed_segments_are_kept_for_the_retention(hasty: ServerProcess, name: str) -> None:
    with cursor_on(hasty) as cursor:
        cursor.execute(f"CREATE TABLE {name} (i INTEGER)")
        cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES (1)")
        flush(cursor, name)
        [kept] = (hasty.home / "queue" / "flushed").glob(f"swanlake/main.{name}/*.arrows")
        assert kept.stat().st_size > 0
        assert count(cursor, f"duckling_queue.{name}") == 0
        assert count(cursor, name) == 1


def test_dead_letter_target_setting(hasty: ServerProcess) -> None:
    letters = hasty.home.parent / "letters of the dead"
    with cursor_on(hasty) as cursor:
        cursor.execute("CREATE TABLE dead (i INTEGER)")
        cursor.execute("INSERT INTO duckling_queue.dead VALUES (1)")
        cursor.execute("DROP TABLE dead")
        flush(cursor)
        [letter] = dead_letters(cursor, "dead")
        assert Path(letter["path"]).is_relative_to(letters)
        kept = [path for path in letters.rglob("*") if path.is_file()]
        assert {path.suffix for path in kept} == {".arrows", ".json"}
        cursor.execute("CREATE TABLE dead (i INTEGER)")
        cursor.execute("CALL duckling_queue_replay()")
        assert not [path for path in letters.rglob("*") if path.is_file()]
        flush(cursor)
        assert rows(cursor, "FROM dead") == [(1,)]


def test_old_rows_are_flushed_and_expired_segments_removed(start_server: Start) -> None:
    server = start_server(
        DUCKLING_QUEUE_ROTATE_INTERVAL_SECONDS="0.2",
        DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS="0.1",
        DUCKLING_QUEUE_RETENTION_SECONDS="0.5",
    )
    with cursor_on(server) as cursor:
        cursor.execute("CREATE TABLE t (i INTEGER)")
        cursor.execute("INSERT INTO duckling_queue.t VALUES (1)")
        eventually(lambda: count(cursor, "t") == 1)
        kept = server.home / "queue" / "flushed"
        eventually(kept.exists)
        eventually(lambda: not list(kept.rglob("*.arrows")))
        assert rows(cursor, "FROM t") == [(1,)]


def test_rows_survive_a_kill(start_server: Start) -> None:
    server = start_server()
    with cursor_on(server) as cursor:
        cursor.execute("CREATE TABLE t (i INTEGER, s VARCHAR)")
        cursor.execute("INSERT INTO duckling_queue.t VALUES (1, 'before the kill')")
        ingested(cursor, "t", pa.table({"i": pa.array([2], pa.int32()), "s": ["uploaded"]}))
    server.kill()
    server.start()
    with cursor_on(server) as cursor:
        cursor.execute("INSERT INTO duckling_queue.t VALUES (3, 'after')")
        both = "SELECT i FROM t UNION ALL SELECT i FROM duckling_queue.t ORDER BY i"
        assert rows(cursor, both) == [(1,), (2,), (3,)]
        flush(cursor)
        assert rows(cursor, "SELECT i FROM t ORDER BY i") == [(1,), (2,), (3,)]

"""Idempotent producers: a batch that is sent again is not written again."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from swanlake.protocol import messages
from tests.flight import FlightSql
from tests.integration.queue.queries import Connect, Start, count, cursor_on, flush, ingested
from tests.queries import rows

Flights = Callable[..., FlightSql]
ID = "adbc.flight.sql.rpc.call_header.x-swanlake-ingest-id"
SEQUENCE = "adbc.flight.sql.rpc.call_header.x-swanlake-ingest-sequence"


@pytest.fixture
def swans(cursor: Any, name: str) -> str:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER)")
    return name


def sent(client: FlightSql, sql: str, producer: str, sequence: int | str) -> int:
    """Sends one insert with a batch id; returns the row count of the server."""
    info = client.execute(
        sql, x_swanlake_ingest_id=producer, x_swanlake_ingest_sequence=str(sequence)
    )
    number: int = info.total_records
    return number


def test_retried_batch_is_not_written_before_or_after_the_flush(
    flight_sql: Flights, cursor: Any, swans: str
) -> None:
    client, insert = flight_sql(), f"INSERT INTO duckling_queue.{swans} VALUES (1), (2)"
    for _ in range(3):
        assert sent(client, insert, "p", 1) == 2
    assert count(cursor, f"duckling_queue.{swans}") == 2
    flush(cursor, swans)
    assert sent(client, insert, "p", 1) == 2
    assert sent(flight_sql(), insert, "p", 1) == 2
    assert count(cursor, f"duckling_queue.{swans}") == 0
    assert sent(client, insert, "p", 2) == 2
    assert sent(client, insert, "other", 1) == 2
    flush(cursor, swans)
    assert count(cursor, swans) == 6


def test_sequence_numbers_in_any_order(flight_sql: Flights, cursor: Any, swans: str) -> None:
    client = flight_sql()
    order = [5, 3, 4, 1, 9, 0, 3, 5, 2**63 - 1, 9, 2, 2, 0]
    for place, sequence in enumerate(order):
        sent(client, f"INSERT INTO duckling_queue.{swans} VALUES ({sequence % 100})", "p", sequence)
        if place % 4 == 3:
            flush(cursor, swans)
    flush(cursor, swans)
    assert rows(cursor, f"FROM {swans} ORDER BY i") == sorted((s % 100,) for s in set(order))


def test_batch_ids_are_per_table(flight_sql: Flights, cursor: Any, swans: str) -> None:
    cursor.execute(f"CREATE TABLE {swans}_2 (i INTEGER)")
    client = flight_sql()
    for table in (swans, f"{swans}_2", swans):
        assert sent(client, f"INSERT INTO duckling_queue.{table} VALUES (1)", "p", 1) == 1
    for table in (swans, f"{swans}_2"):
        assert count(cursor, f"duckling_queue.{table}") == 1


def test_batch_id_for_two_inserts_is_refused(flight_sql: Flights, cursor: Any, swans: str) -> None:
    insert = f"INSERT INTO duckling_queue.{swans} VALUES (1)"
    with pytest.raises(pa.ArrowInvalid, match="INGEST_AMBIGUOUS"):
        sent(flight_sql(), f"{insert}; {insert}", "p", 1)
    assert count(cursor, f"duckling_queue.{swans}") == 0


@pytest.mark.parametrize("sequence", ["", "minus one", "-1", "1.5", str(2**63)])
def test_producer_without_sequence_is_refused(
    flight_sql: Flights, cursor: Any, swans: str, sequence: str
) -> None:
    insert = f"INSERT INTO duckling_queue.{swans} VALUES (1)"
    with pytest.raises(pa.ArrowInvalid, match="INVALID_REQUEST: x-swanlake-ingest-id requires"):
        sent(flight_sql(), insert, "p", sequence)
    with pytest.raises(pa.ArrowInvalid, match="INVALID_REQUEST"):
        flight_sql().execute(insert, x_swanlake_ingest_id="p")
    with pytest.raises(pa.ArrowInvalid, match="longer than"):
        sent(flight_sql(), insert, "p" * 300, 1)
    assert count(cursor, f"duckling_queue.{swans}") == 0


def test_refused_batch_can_be_sent_again(flight_sql: Flights, cursor: Any, swans: str) -> None:
    client, insert = flight_sql(), f"INSERT INTO duckling_queue.{swans} VALUES"
    with pytest.raises(pa.ArrowInvalid, match="CONVERSION_ERROR"):
        sent(client, f"{insert} ('x')", "p", 1)
    assert sent(client, f"{insert} (1)", "p", 1) == 1
    assert count(cursor, f"duckling_queue.{swans}") == 1


def test_batch_ids_of_bound_rows_and_uploads(connect: Connect, cursor: Any, swans: str) -> None:
    rows_ = pa.table({"i": pa.array([1, 2, 3], pa.int32())})
    for _ in range(2):
        with connect(**{ID: "bound", SEQUENCE: "1"}).cursor() as producer:
            producer.executemany(f"INSERT INTO duckling_queue.{swans} VALUES (?)", [(1,), (2,)])
            assert producer.rowcount == 2
        with connect(**{ID: "row by row", SEQUENCE: "1"}).cursor() as producer:
            producer.executemany(f"INSERT INTO duckling_queue.{swans} SELECT ?", [(1,), (2,)])
            assert producer.rowcount == 2
        with connect(**{ID: "upload", SEQUENCE: "1"}).cursor() as producer:
            assert ingested(producer, swans, rows_) == 3
    assert count(cursor, f"duckling_queue.{swans}") == 7
    flush(cursor, swans)
    assert count(cursor, swans) == 7


def test_large_upload_has_one_batch_id(connect: Connect, cursor: Any, swans: str) -> None:
    many = pa.table({"i": pa.array(range(2_000_000), pa.int32())})
    for _ in range(2):
        with connect(**{ID: "large", SEQUENCE: "7"}).cursor() as producer:
            assert ingested(producer, swans, many) == 2_000_000
        flush(cursor, swans)
    assert count(cursor, swans) == 2_000_000


def test_batch_id_from_session_options(flight_sql: Flights, cursor: Any, swans: str) -> None:
    client = flight_sql()

    def call_it(producer: str, sequence: int) -> None:
        request = messages.SetSessionOptionsRequest()
        request.session_options["x-swanlake-ingest-id"].string_value = producer
        request.session_options["x-swanlake-ingest-sequence"].int64_value = sequence
        client.action("SetSessionOptions", request, bare=True)

    insert = f"INSERT INTO duckling_queue.{swans} VALUES (1)"
    for sequence in (1, 1, 2, 1, 2):
        call_it("optional", sequence)
        client.execute(insert)
    assert count(cursor, f"duckling_queue.{swans}") == 2
    assert sent(client, insert, "a header counts more", 1) == 1
    assert count(cursor, f"duckling_queue.{swans}") == 3


def test_concurrent_retries_write_once(flight_sql: Flights, cursor: Any, swans: str) -> None:
    clients = [flight_sql() for _ in range(8)]

    def send(client: FlightSql) -> None:
        for sequence in range(10):
            sql = f"INSERT INTO duckling_queue.{swans} VALUES ({sequence})"
            assert sent(client, sql, "crowd", sequence) == 1

    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(send, clients))
    flush(cursor, swans)
    assert rows(cursor, f"FROM {swans} ORDER BY i") == [(i,) for i in range(10)]


def test_retry_after_a_restart_writes_nothing(start_server: Start, flight_sql: Flights) -> None:
    server = start_server()
    with cursor_on(server) as cursor:
        cursor.execute("CREATE TABLE flushed (i INTEGER)")
        cursor.execute("CREATE TABLE waiting (i INTEGER)")
        client = flight_sql(server.url)
        sent(client, "INSERT INTO duckling_queue.flushed VALUES (1)", "p", 1)
        flush(cursor, "flushed")
        sent(client, "INSERT INTO duckling_queue.waiting VALUES (1)", "p", 1)
    server.kill()
    server.start()
    with cursor_on(server) as cursor:
        client = flight_sql(server.url)
        for table in ("flushed", "waiting"):
            insert = f"INSERT INTO duckling_queue.{table} VALUES"
            assert sent(client, f"{insert} (1)", "p", 1) == 1
            assert sent(client, f"{insert} (2)", "p", 2) == 1
        flush(cursor)
        for table in ("flushed", "waiting"):
            assert rows(cursor, f"FROM {table} ORDER BY i") == [(1,), (2,)]


def test_batch_id_is_ignored_for_direct_inserts(flight_sql: Flights, swans: str) -> None:
    client = flight_sql()
    for _ in range(2):
        assert sent(client, f"INSERT INTO {swans} VALUES (1)", "p", 1) == 1
    assert client.query(f"SELECT count(*) AS n FROM {swans}")["n"].to_pylist() == [2]

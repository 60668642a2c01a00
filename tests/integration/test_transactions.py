"""Transactions: begin, commit, roll back, abort, and their effect on other writers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.protocol import messages
from tests.flight import FlightSql
from tests.queries import ENDLESS_QUERY
from tests.waiting import eventually

Open = Callable[..., FlightSql]


def count(connection: FlightSql, table: str) -> int:
    number: int = connection.query(f"SELECT count(*) AS n FROM {table}")["n"][0].as_py()
    return number


def test_commit_and_rollback_by_stock_adbc(connect: Callable[..., Any]) -> None:
    connection = connect(autocommit=False)
    observer = connect()
    with connection.cursor() as cursor, observer.cursor() as other:
        cursor.execute("CREATE TABLE tx_adbc (i INTEGER)")
        connection.commit()
        cursor.execute("INSERT INTO tx_adbc VALUES (1)")
        other.execute("SELECT count(*) FROM tx_adbc")
        assert other.fetchall() == [(0,)]
        connection.commit()
        other.execute("SELECT count(*) FROM tx_adbc")
        assert other.fetchall() == [(1,)]
        cursor.execute("INSERT INTO tx_adbc VALUES (2)")
        connection.rollback()
        cursor.execute("SELECT i FROM tx_adbc")
        assert cursor.fetchall() == [(1,)]


def test_begin_and_commit_by_action(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    connection.query("CREATE TABLE tx_action (i INTEGER)")
    transaction = connection.begin()
    connection.query("INSERT INTO tx_action VALUES (1)", transaction)
    assert count(other, "tx_action") == 0
    connection.end(transaction, commit=True)
    assert count(other, "tx_action") == 1


def test_begin_and_commit_by_sql(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    connection.query("CREATE TABLE tx_sql (i INTEGER)")
    connection.query("BEGIN; INSERT INTO tx_sql VALUES (1)")
    assert count(other, "tx_sql") == 0
    connection.query("COMMIT")
    assert count(other, "tx_sql") == 1


def test_aborted_transaction_refuses_statements_until_rollback(flight_sql: Open) -> None:
    connection = flight_sql()
    connection.query("CREATE TABLE tx_aborted (i INTEGER)")
    connection.query("BEGIN")
    connection.query("INSERT INTO tx_aborted VALUES (1)")
    with pytest.raises(pa.ArrowInvalid, match="CONVERSION_ERROR"):
        connection.query("INSERT INTO tx_aborted SELECT 'x'::INTEGER")
    for sql in ("INSERT INTO tx_aborted VALUES (2)", "SELECT 1", "COMMIT"):
        with pytest.raises(pa.ArrowInvalid, match=r"TRANSACTION_ABORTED.*ROLLBACK"):
            connection.query(sql)
    connection.query("ROLLBACK")
    assert count(connection, "tx_aborted") == 0
    connection.query("INSERT INTO tx_aborted VALUES (3)")
    assert count(connection, "tx_aborted") == 1


def test_commit_action_of_an_aborted_transaction_is_refused(flight_sql: Open) -> None:
    connection = flight_sql()
    transaction = connection.begin()
    with pytest.raises(pa.ArrowInvalid):
        connection.query("SELECT error('boom')", transaction)
    with pytest.raises(pa.ArrowInvalid, match="TRANSACTION_ABORTED"):
        connection.end(transaction, commit=True)
    connection.end(transaction, commit=False)
    assert connection.query("SELECT 1").num_rows == 1


def test_binding_error_does_not_abort_the_transaction(flight_sql: Open) -> None:
    connection = flight_sql()
    connection.query("CREATE TABLE tx_typo (i INTEGER)")
    connection.query("BEGIN; INSERT INTO tx_typo VALUES (1)")
    with pytest.raises(pa.ArrowKeyError, match="CATALOG_ERROR"):
        connection.query("SELECT * FROM tx_tpyo")
    connection.query("COMMIT")
    assert count(connection, "tx_typo") == 1


def test_unknown_ended_and_foreign_transactions_are_refused(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    connection.query("CREATE TABLE tx_refused (i INTEGER)")
    insert = "INSERT INTO tx_refused VALUES (1)"
    ended = connection.begin()
    connection.end(ended, commit=True)
    foreign = other.begin()
    for handle in (b"no such transaction", b"", ended, foreign):
        with pytest.raises(pa.ArrowKeyError, match="TRANSACTION_NOT_FOUND"):
            connection.query(insert, handle)
        with pytest.raises(pa.ArrowKeyError, match="TRANSACTION_NOT_FOUND"):
            connection.end(handle, commit=True)
        with pytest.raises(pa.ArrowKeyError, match="TRANSACTION_NOT_FOUND"):
            connection.put(messages.CommandStatementUpdate(query=insert, transaction_id=handle))
    other.end(foreign, commit=False)
    assert count(connection, "tx_refused") == 0


def test_second_begin_is_refused_and_the_first_continues(flight_sql: Open) -> None:
    connection = flight_sql()
    connection.query("CREATE TABLE tx_twice (i INTEGER)")
    transaction = connection.begin()
    connection.query("INSERT INTO tx_twice VALUES (1)", transaction)
    with pytest.raises(pa.ArrowInvalid, match="TRANSACTION_ACTIVE"):
        connection.begin()
    connection.end(transaction, commit=True)
    assert count(connection, "tx_twice") == 1


def test_end_transaction_without_action_is_refused(flight_sql: Open) -> None:
    connection = flight_sql()
    transaction = connection.begin()
    with pytest.raises(pa.ArrowInvalid, match="INVALID_REQUEST"):
        connection.action(
            "EndTransaction", messages.ActionEndTransactionRequest(transaction_id=transaction)
        )
    connection.end(transaction, commit=False)


def test_closing_a_session_rolls_back(flight_sql: Open) -> None:
    connection, other = flight_sql(), flight_sql()
    connection.query("CREATE TABLE tx_closed (i INTEGER)")
    connection.query("BEGIN; INSERT INTO tx_closed VALUES (1)")
    connection.close_session()
    assert count(other, "tx_closed") == 0


def test_rollback_undoes_ddl(flight_sql: Open) -> None:
    connection = flight_sql()
    connection.query("BEGIN; CREATE TABLE tx_ddl (i INTEGER); ROLLBACK")
    with pytest.raises(pa.ArrowKeyError, match="CATALOG_ERROR"):
        connection.query("FROM tx_ddl")


def test_concurrent_autocommit_writers_all_succeed(flight_sql: Open) -> None:
    """Without the commit queue, three in four of these writes fail on SQLite metadata."""
    from concurrent.futures import ThreadPoolExecutor

    flight_sql().query("CREATE TABLE tx_writers (writer INTEGER, i INTEGER)")
    writers, each = 8, 10

    def write(writer: int) -> None:
        connection = flight_sql()
        for i in range(each):
            connection.query(f"INSERT INTO tx_writers VALUES ({writer}, {i})")

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(write, range(writers)))
    counted = flight_sql().query(
        "SELECT count(*) AS n, count(DISTINCT (writer, i)) AS d FROM tx_writers"
    )
    assert counted.to_pylist() == [{"n": writers * each, "d": writers * each}]


def test_writes_to_temporary_tables_need_no_lock(
    start_server: Callable[..., Any], flight_sql: Open
) -> None:
    server = start_server("--commit-lock-timeout-seconds", "0.5")
    writer, other = flight_sql(server.url), flight_sql(server.url)
    other.query("CREATE TEMP TABLE own (i INTEGER)")
    writer.query("CREATE TABLE lake_table AS SELECT 0::BIGINT AS i")
    slow = f"UPDATE lake_table SET i = ({ENDLESS_QUERY}) FROM (SELECT 1)"

    def write() -> None:
        with pytest.raises(flight.FlightTimedOutError):
            writer.query(slow, x_swanlake_query_timeout_seconds="6")

    thread = threading.Thread(target=write)
    thread.start()
    eventually(lambda: flight_sql(server.url).status()["writers"] != [])
    assert other.execute("INSERT INTO own VALUES (1), (2)").total_records == 2
    with pytest.raises(flight.FlightUnavailableError, match="COMMIT_LOCK_TIMEOUT"):
        other.query("INSERT INTO lake_table VALUES (1)")
    thread.join()
    assert count(other, "lake_table") == 1


def test_long_insert_does_not_block_other_writers(
    start_server: Callable[..., Any], flight_sql: Open
) -> None:
    server = start_server("--commit-lock-timeout-seconds", "0.5")
    writer, other = flight_sql(server.url), flight_sql(server.url)
    writer.query("CREATE TABLE long_insert (i BIGINT)")
    slow = f"INSERT INTO long_insert {ENDLESS_QUERY}"

    def write() -> None:
        with pytest.raises(flight.FlightTimedOutError):
            writer.query(slow, x_swanlake_query_timeout_seconds="3")

    thread = threading.Thread(target=write)
    thread.start()
    eventually(lambda: flight_sql(server.url).status()["statements_running"] == 1)
    other.query("INSERT INTO long_insert VALUES (1)")
    other.query("UPDATE long_insert SET i = 2")
    thread.join()
    assert other.query("FROM long_insert").to_pylist() == [{"i": 2}]

"""The server's memory does not grow with its age: with changes, catalogs, sessions, statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from tests.flight import FlightSql
from tests.server_process import ServerProcess

MEGABYTE = 1024 * 1024

StartServer = Callable[..., ServerProcess]


def slow(count: int) -> object:
    return pytest.param(count, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])


@contextmanager
def flight(server: ServerProcess) -> Iterator[FlightSql]:
    connection = FlightSql(server.url)
    yield connection
    connection.close_session()
    connection.close()


def assert_growth_below(
    limit: int, server: ServerProcess, step: Callable[[int], None], count: int
) -> None:
    """Repeats a step; what the last nine tenths of the repetitions cost must be below the limit."""
    process = psutil.Process(server.process.pid)
    warm_up = count // 10
    for number in range(warm_up):
        step(number)
    before = process.memory_info().rss
    for number in range(warm_up, count):
        step(number)
    grown = process.memory_info().rss - before
    assert grown < limit, f"{grown / MEGABYTE:.0f} MB"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_schema_changes(start_server: StartServer) -> None:
    server = start_server()
    with flight(server) as changing, flight(server) as reading, flight(server) as idle:
        tables = (f"CREATE TABLE t{i} (a INT, b VARCHAR, c DOUBLE, d DATE)" for i in range(500))
        changing.query("; ".join(["BEGIN", *tables, "COMMIT"]))
        idle.query("FROM t0")

        def change(number: int) -> None:
            changing.query(f"CREATE OR REPLACE TABLE changed AS SELECT {number} AS i")
            reading.query("SELECT i, a FROM changed, t0")

        assert_growth_below(150 * MEGABYTE, server, change, 2000)
        engines = idle.status()["memory"]["engines"]
        assert sum(engine["cached_bytes"] for engine in engines) < 150 * MEGABYTE


@pytest.mark.parametrize("count", [30, slow(500)])
def test_forgotten_catalogs(start_server: StartServer, count: int) -> None:
    server = start_server()
    with flight(server) as connection:

        def attach(number: int) -> None:
            connection.query(f"CALL swanlake_create_catalog('c{number}')")
            connection.query(f"CREATE TABLE c{number}.t AS SELECT 1 AS i; FROM c{number}.t")

        assert_growth_below((20 + count // 5) * MEGABYTE, server, attach, count)


@pytest.mark.parametrize("count", [200, slow(5000)])
def test_closed_sessions(start_server: StartServer, count: int) -> None:
    server = start_server()

    def use_and_close(number: int) -> None:
        with flight(server) as session:
            session.query("CREATE TEMP TABLE t AS SELECT x FROM range(100) r(x)")
            session.query("SET VARIABLE v = 1; SELECT count(*) FROM t")

    assert_growth_below(30 * MEGABYTE, server, use_and_close, count)


@pytest.mark.parametrize("count", [500, slow(20_000)])
def test_statements_of_distinct_text(start_server: StartServer, count: int) -> None:
    server = start_server()
    with flight(server) as session:
        session.query("CREATE TABLE t AS SELECT x AS i FROM range(1000) r(x)")

        def read(number: int) -> None:
            session.query(f"SELECT count(*) AS n{number} FROM t WHERE i <> {number}")

        assert_growth_below(30 * MEGABYTE, server, read, count)


@pytest.mark.parametrize("count", [500, slow(50_000)])
def test_queue_traffic(start_server: StartServer, count: int) -> None:
    server = start_server()
    with flight(server) as session:
        for table in range(20):
            session.query(f"CREATE TABLE q{table} (i INTEGER, s VARCHAR)")

        def enqueue(number: int) -> None:
            table = number % 20
            session.query(f"INSERT INTO duckling_queue.q{table} VALUES ({number}, 'row')")
            if number % 100 == 99:
                session.query("CALL duckling_queue_flush()")
                session.query(f"SELECT count(*) FROM q{table}")

        assert_growth_below(50 * MEGABYTE, server, enqueue, count)
        rows = sum(session.query(f"FROM q{table}").num_rows for table in range(20))
        assert rows == count

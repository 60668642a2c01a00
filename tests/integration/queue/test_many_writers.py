"""Sixteen stock clients write row by row while another one counts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import duckdb
import pytest

from swanlake.lake.lake import Lake
from tests.integration.queue.queries import Start, count, cursor_on, flush
from tests.queries import rows
from tests.server_process import ServerProcess


@pytest.mark.parametrize("each", [25, pytest.param(500, marks=pytest.mark.slow)])
def test_concurrent_writers_and_a_reader(
    start_server: Start, duck: duckdb.DuckDBPyConnection, each: int
) -> None:
    server = start_server(
        DUCKLING_QUEUE_BUFFER_MAX_ROWS="100", DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS="0.1"
    )
    writers = 16
    acknowledged = [0] * writers
    with cursor_on(server) as cursor:
        cursor.execute("CREATE TABLE t (writer INTEGER, i INTEGER)")

        def write(writer: int) -> None:
            with cursor_on(server) as own:
                for i in range(each):
                    if i % 2:
                        own.execute(f"INSERT INTO duckling_queue.t VALUES ({writer}, {i})")
                    else:
                        own.execute("INSERT INTO duckling_queue.t VALUES (?, ?)", (writer, i))
                    assert own.rowcount == 1
                    acknowledged[writer] = i + 1

        everything = "SELECT count(*) FROM (FROM t UNION ALL FROM duckling_queue.t)"
        with ThreadPoolExecutor(writers) as pool:
            work = [pool.submit(write, writer) for writer in range(writers)]
            seen, finished = 0, threading.Event()
            while not finished.is_set():
                if all(one.done() for one in work):
                    finished.set()  # and look once more
                at_least = sum(acknowledged)
                [(found,)] = rows(cursor, everything)
                assert max(seen, at_least) <= found <= sum(acknowledged) + writers
                seen = found
            for one in work:
                one.result()
        assert seen == writers * each
        flush(cursor)
        assert count(cursor, "duckling_queue.t") == 0
        assert count(cursor, "t") == writers * each
    assert _by_stock_duckdb(server, duck) == [(writers * each, writers * each, writers)]


def _by_stock_duckdb(server: ServerProcess, duck: duckdb.DuckDBPyConnection) -> list[Any]:
    assert server.stop() == 0
    with Lake.open(server.home / "catalogs", server.home / "data") as lake:
        lake.location(lake.catalog("swanlake").info).attach(duck)
        found = duck.sql(
            "SELECT count(*), count(DISTINCT (writer, i)), count(DISTINCT writer) "
            "FROM swanlake.main.t"
        ).fetchall()
        duck.execute("DETACH swanlake")
        return found

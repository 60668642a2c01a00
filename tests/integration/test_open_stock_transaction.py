"""A transaction that stock DuckDB leaves open blocks sessions for a bounded time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow.flight as flight
import pytest
from psycopg.conninfo import make_conninfo

from swanlake.lake.lake import Lake
from tests.flight import FlightSql
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb

#: Holds locks on rows of the metadata, on SQLite on the whole file, until its transaction ends.
HOLDS_LOCKS = """
    BEGIN;
    CALL ducklake_flush_inlined_data('swanlake');
    CALL swanlake.set_option('data_inlining_row_limit', 7)
"""
#: Each needs a lock that the open transaction holds; the first is native.
BLOCKED = {
    "postgres": {
        "DELETE FROM t WHERE i = 1": "COMMIT_LOCK_TIMEOUT",
        "UPDATE t SET i = 3 FROM (SELECT 1)": "COMMIT_LOCK_TIMEOUT",
        "CALL swanlake.set_option('data_inlining_row_limit', 6)": "COMMIT_LOCK_TIMEOUT",
    },
    "sqlite": {
        "INSERT INTO t VALUES (2)": "COMMIT_LOCK_TIMEOUT",
        "UPDATE t SET i = 3 FROM (SELECT 1)": "COMMIT_CONFLICT",
        "CALL swanlake.set_option('data_inlining_row_limit', 6)": "COMMIT_CONFLICT",
    },
}


@pytest.fixture
def server(
    metabase: str | Path, tmp_path: Path, start_server: Callable[..., ServerProcess]
) -> ServerProcess:
    """A server that waits for locks for a second, not for half a minute."""
    environment = {"SWANLAKE_DATA_PATH": str(tmp_path / "data")}
    home = tmp_path / "home"
    if isinstance(metabase, str):
        url = make_conninfo(metabase, options="-c lock_timeout=1s")
        environment["SWANLAKE_METABASE_URL"] = url
    else:
        metabase.mkdir()
        home.mkdir()
        (home / "catalogs").symlink_to(metabase)
    return start_server("--commit-lock-timeout-seconds", "1", home=home, **environment)


@pytest.fixture
def stock(server: ServerProcess, lake: Lake) -> Iterator[duckdb.DuckDBPyConnection]:
    """Stock DuckDB attached to the server's catalog."""
    with stock_duckdb() as connection:
        connection.execute(lake.location(lake.catalog("swanlake").info).statement)
        yield connection


def test_open_stock_transaction_blocks_writers_for_a_bounded_time(
    server: ServerProcess,
    stock: duckdb.DuckDBPyConnection,
    flight_sql: Callable[..., FlightSql],
    metabase: str | Path,
) -> None:
    session = flight_sql(server.url)
    session.query("CREATE TABLE t (i INTEGER)")
    session.query("CALL swanlake.set_option('data_inlining_row_limit', 5)")
    session.query("INSERT INTO t VALUES (1)")
    blocked = BLOCKED["postgres" if isinstance(metabase, str) else "sqlite"]
    stock.execute(HOLDS_LOCKS)
    for sql, identifier in blocked.items():
        with pytest.raises(flight.FlightUnavailableError, match=f"^{identifier}: "):
            session.query(sql)
    assert session.query("FROM t")["i"].to_pylist() == [1]  # readers do not wait
    stock.execute("ROLLBACK")
    for sql in blocked:
        session.query(sql)

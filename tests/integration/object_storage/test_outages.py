"""A store that is gone, or accepts connections and answers nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pyarrow import flight

from swanlake import FlightSQLClient
from swanlake.errors import SwanLakeError
from tests.flight import FlightSql
from tests.object_store import S3Server, gateway_program
from tests.server_process import ServerProcess

#: Longer than any test: only the limit of a statement can end its wait.
PATIENT = {"SWANLAKE_STORAGE_TIMEOUT_SECONDS": "600"}
LIMITED = {"x_swanlake_query_timeout_seconds": "3"}


@pytest.fixture
def store() -> Iterator[S3Server]:
    """A store that a test may stop."""
    with S3Server(gateway_program()) as server:
        yield server


@pytest.fixture
def s3_server(
    store: S3Server, start_server: Callable[..., ServerProcess]
) -> Callable[..., ServerProcess]:
    """Starts servers in a bucket of the store, with an ample table ``t``."""

    def start(**settings: str) -> ServerProcess:
        environment = store.environment(f"{store.new_bucket()}/lake", **settings)
        server = start_server("--shutdown-grace-seconds", "1", **environment)
        with FlightSQLClient(server.url) as client:
            client.execute("CREATE TABLE t AS SELECT range AS i FROM range(10_000)")
        return server

    return start


@pytest.mark.parametrize(
    "sql",
    ["SELECT sum(i) FROM t", "INSERT INTO t SELECT range FROM range(50_000)", "DELETE FROM t"],
)
def test_statement_keeps_its_limit_while_the_store_does_not_answer(
    store: S3Server,
    s3_server: Callable[..., ServerProcess],
    flight_sql: Callable[..., FlightSql],
    sql: str,
) -> None:
    server = s3_server(**PATIENT)
    limited = flight_sql(server.url, **LIMITED)
    store.stop_answering()
    try:
        with pytest.raises(flight.FlightTimedOutError, match="QUERY_TIMEOUT"):
            limited.execute(sql)
    finally:
        store.answer_again()
    with FlightSQLClient(server.url) as client:
        assert client.query("SELECT 1 AS one").table.to_pylist() == [{"one": 1}]


def test_server_stops_while_the_store_does_not_answer(
    store: S3Server,
    s3_server: Callable[..., ServerProcess],
    flight_sql: Callable[..., FlightSql],
) -> None:
    server = s3_server(**PATIENT)
    store.stop_answering()
    with pytest.raises(flight.FlightTimedOutError, match="QUERY_TIMEOUT"):
        flight_sql(server.url, **LIMITED).execute("SELECT sum(i) FROM t")
    server.stop(300)


def test_lost_store_is_unavailable_and_loses_no_queued_row(
    store: S3Server, s3_server: Callable[..., ServerProcess]
) -> None:
    server = s3_server()
    with FlightSQLClient(server.url) as client:
        client.execute("CREATE TABLE q (i BIGINT)")
        store.kill()
        with pytest.raises(SwanLakeError) as unreachable:
            client.execute("INSERT INTO t SELECT range FROM range(50_000)")
        assert unreachable.value.identifier == "STORAGE_UNREACHABLE"
        client.execute("INSERT INTO duckling_queue.q SELECT range FROM range(100)")
        with pytest.raises(SwanLakeError, match="stay in the queue"):
            client.query("CALL duckling_queue_flush()")
        store.start()
        client.query("CALL duckling_queue_flush()")
        counts = "SELECT (SELECT count(*) FROM q) AS q, (SELECT count(*) FROM t) AS t"
        assert client.query(counts).table.to_pylist() == [{"q": 100, "t": 10_000}]

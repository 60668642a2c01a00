"""Runs: stopped by request, by time, by a client that left; never by a call that is over."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import duckdb
import pytest

from swanlake.errors import QueryCancelled, QueryTimeout, QueueStateUnknown
from swanlake.sessions.ids import SessionKey, peer_address
from swanlake.sessions.runs import Run, Watchdog
from tests.flight import eventually

KEY = SessionKey("alice", "s1")
ENDLESS = "SELECT count(*) FROM range(100000000000) r(x) WHERE x % 7 = 3"


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog()
    yield watchdog
    watchdog.close()


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def run_endless(run: Run, connection: duckdb.DuckDBPyConnection) -> None:
    with run.engaged(connection):
        connection.execute(ENDLESS)


def test_a_deadline_stops_what_runs(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    with pytest.raises(QueryTimeout, match=r"0\.1 s"):
        run_endless(Run(watchdog, KEY, timeout=0.1), connection)
    assert watchdog.running() == []


def test_a_vanished_client_stops_what_runs(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    gone = threading.Event()
    run = Run(watchdog, KEY)
    threading.Timer(0.1, gone.set).start()
    with pytest.raises(QueryCancelled, match="went away"), run.call(gone.is_set):
        run_endless(run, connection)


def test_the_probe_of_a_call_is_never_used_after_it(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)
    probed = threading.Event()

    def probe() -> bool:
        probed.set()
        return False

    with run.call(probe), run.engaged(connection):
        eventually(probed.is_set)
    probed.clear()
    with run.engaged(connection):
        run.watch()
    assert not probed.is_set()


def test_cancel_before_the_start_prevents_it(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)
    assert run.cancel(QueryCancelled("changed my mind")) is False
    with pytest.raises(QueryCancelled, match="changed my mind"):
        run_endless(run, connection)


def test_the_first_reason_to_stop_is_the_one_reported(watchdog: Watchdog) -> None:
    run = Run(watchdog, KEY)
    run.cancel(QueryCancelled("first"))
    run.cancel(QueryCancelled("second"))
    with pytest.raises(QueryCancelled, match="first"):
        run.check()


def test_an_ordinary_error_stays_what_it_is(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)
    with pytest.raises(duckdb.ParserException), run.engaged(connection):
        connection.execute("SELEC")


def test_a_run_has_a_query_id_even_if_nobody_gave_one(watchdog: Watchdog) -> None:
    assert Run(watchdog, KEY).query_id
    assert Run(watchdog, KEY, query_id="mine").query_id == "mine"


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:50000", "127.0.0.1:50000"),
        ("ipv6:%5B::1%5D:50000", "[::1]:50000"),
        ("unix:/run/x", "unix:/run/x"),
    ],
)
def test_peer_addresses(peer: str, address: str) -> None:
    assert peer_address(peer) == address


def test_what_is_done_is_not_reported_stopped(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)
    with run.engaged(connection):
        connection.execute("CREATE TABLE t AS SELECT 1 AS i")
        run.cancel(QueryCancelled("too late"))
        with run.engaged(connection):
            assert connection.fetchall() == [(1,)]


def test_what_may_have_been_done_is_not_reported_as_stopped(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)

    def stopped_in_doubt() -> None:
        with run.engaged(connection):
            run.cancel(QueryCancelled("stop"))
            raise QueueStateUnknown("the disk does not answer")

    with pytest.raises(QueueStateUnknown):
        stopped_in_doubt()

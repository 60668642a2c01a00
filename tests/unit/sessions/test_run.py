"""Runs are stopped by cancellation, a deadline or a disconnect, and never by an ended call."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import duckdb
import pytest

from swanlake.errors import QueryCancelled, QueryTimeout, QueueStateUnknown, WriterLockExceeded
from swanlake.sessions.ids import SessionKey, peer_address
from swanlake.sessions.run import Run, Watchdog
from tests.queries import ENDLESS_QUERY
from tests.waiting import eventually

KEY = SessionKey("alice", "s1")


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
    with run.interruptible(connection):
        connection.execute(ENDLESS_QUERY)


def test_deadline_interrupts_running_statement(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    with pytest.raises(QueryTimeout, match=r"0\.1 s"):
        run_endless(Run(watchdog, KEY, timeout=0.1), connection)
    assert watchdog.running() == []


def test_disconnected_client_interrupts_running_statement(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    gone = threading.Event()
    run = Run(watchdog, KEY)
    threading.Timer(0.1, gone.set).start()
    with pytest.raises(QueryCancelled, match="went away"), run.client_waiting(gone.is_set):
        run_endless(run, connection)


def test_client_probe_is_not_used_after_its_call(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)
    probed = threading.Event()

    def probe() -> bool:
        probed.set()
        return False

    with run.client_waiting(probe), run.interruptible(connection):
        eventually(probed.is_set)
    probed.clear()
    with run.interruptible(connection):
        run.watch()
    assert not probed.is_set()


def test_statement_cancelled_before_start_does_not_run(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)
    assert run.cancel(QueryCancelled("changed my mind")) is False
    with pytest.raises(QueryCancelled, match="changed my mind"):
        run_endless(run, connection)


def test_first_reason_to_stop_is_reported(watchdog: Watchdog) -> None:
    run = Run(watchdog, KEY)
    run.cancel(QueryCancelled("first"))
    run.cancel(QueryCancelled("second"))
    with pytest.raises(QueryCancelled, match="first"):
        run.check()


def test_ordinary_error_is_not_replaced(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)
    with pytest.raises(duckdb.ParserException), run.interruptible(connection):
        connection.execute("SELEC")


def test_run_without_query_id_generates_one(watchdog: Watchdog) -> None:
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
def test_peer_address_is_parsed(peer: str, address: str) -> None:
    assert peer_address(peer) == address


def test_finished_work_is_not_reported_stopped(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)
    with run.interruptible(connection):
        connection.execute("CREATE TABLE t AS SELECT 1 AS i")
        run.cancel(QueryCancelled("too late"))
        with run.interruptible(connection):
            assert connection.fetchall() == [(1,)]


def test_unknown_outcome_is_not_replaced_by_cancellation(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)

    def stopped_in_doubt() -> None:
        with run.interruptible(connection):
            run.cancel(QueryCancelled("stop"))
            raise QueueStateUnknown("the disk does not answer")

    with pytest.raises(QueueStateUnknown):
        stopped_in_doubt()


def test_statement_is_stopped_when_it_keeps_others_waiting_for_its_lock(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)
    awaited = threading.Event()
    threading.Timer(0.1, awaited.set).start()
    with (
        pytest.raises(WriterLockExceeded, match=r"0\.01 s"),
        run.holding_lock(0.01, awaited.is_set),
    ):
        run_endless(run, connection)
    assert run.is_stopped
    run.run_without_lock()
    run.check()


def test_lock_may_be_held_while_no_statement_waits(
    watchdog: Watchdog, connection: duckdb.DuckDBPyConnection
) -> None:
    run = Run(watchdog, KEY)
    asked = threading.Semaphore(0)

    def is_awaited() -> bool:
        asked.release()
        return False

    with run.holding_lock(0.01, is_awaited), run.interruptible(connection):
        for _ in range(3):  # the watchdog has looked, and did not stop the statement
            assert asked.acquire(timeout=60)
    run.check()


def test_cancellation_outlasts_the_lock(watchdog: Watchdog) -> None:
    run = Run(watchdog, KEY)
    run.cancel(QueryCancelled("no longer wanted"))
    run.run_without_lock()
    with pytest.raises(QueryCancelled):
        run.check()

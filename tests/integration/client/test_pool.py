"""Pools against a real server: every test runs with threads and with tasks."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import psutil
import pytest

import swanlake
from swanlake.client.api.options import UNSET
from swanlake.client.transport.connection import Request
from swanlake.errors import (
    ClientClosed,
    ConfigError,
    ConnectionLost,
    ForkedProcess,
    PoolClosed,
    PoolTimeout,
    QueryCancelled,
    QueryError,
    QueryTimeout,
    SessionLost,
    SwanLakeError,
    TooManyRequests,
)
from tests.flight import FlightSql
from tests.queries import ENDLESS_QUERY
from tests.server_process import ServerProcess
from tests.tcp_proxy import TcpProxy
from tests.waiting import eventually

MakePool = Callable[..., Any]


def lose_session(server: ServerProcess, session_id: str) -> None:
    """Ends a session on the server, as a restart does."""
    other = FlightSql(server.url, x_swanlake_session_id=session_id)
    other.close_session()
    other.close()


def idle_session(pool: Any) -> str:
    """The session that the next statement of a pool with one connection will use."""
    with pool.connection() as connection:
        connection.query("SELECT 1")
        return str(connection.session_id)


def forget(what: Any) -> None:
    del what
    gc.collect()


def in_use(pool: Any) -> int:
    return int(pool.stats().conn_in_use)


@pytest.fixture
def threads() -> Any:
    with ThreadPoolExecutor(64) as threads:
        yield threads


@pytest.fixture
def table(client: swanlake.FlightSQLClient) -> Any:
    name = f"pool_{uuid4().hex}"
    client.execute(f"CREATE TABLE {name} (i BIGINT)")
    yield name
    client.execute(f"DROP TABLE {name}")


def count(client: swanlake.FlightSQLClient, table: str) -> int:
    return int(client.query(f"SELECT count(*) FROM {table}").scalar())


# ---- statements ----------------------------------------------------------------------------------


def test_statements(make_pool: MakePool, table: str) -> None:
    with make_pool(max_size=2) as pool:
        assert pool.query("SELECT ? + 1 AS n", [41]).to_pylist() == [{"n": 42}]
        assert pool.update(f"INSERT INTO {table} VALUES (1), (2)").affected_rows == 2
        assert pool.ingest(table, [{"i": 3}]) == 1
        assert pool.execute(f"SELECT sum(i) FROM {table}").scalar() == 6
        assert table in pool.tables(table_pattern=table).to_arrow()["table_name"].to_pylist()
        assert pool.status()["state"]
        with pool.stream("FROM range(100_000)") as stream:
            assert sum(batch.num_rows for batch in stream) == 100_000
        with pytest.raises(QueryError):
            pool.query("SELECT no_such_column")
        stats = pool.stats()
        assert (stats.conn_in_use, stats.conn_lost, stats.waiting) == (0, 0, 0)
    assert pool.closed


def test_stream_holds_connection_until_its_end(make_pool: MakePool) -> None:
    pool = make_pool(max_size=1)
    stream = pool.stream("FROM range(10_000_000)")
    assert in_use(pool) == 1
    with pytest.raises(PoolTimeout, match="1 of 1 are in use"):
        pool.query("SELECT 1", timeout=0.1)
    stream.close()
    eventually(lambda: in_use(pool) == 0)
    with pytest.raises(ClientClosed):
        stream.read()
    read = pool.stream("FROM range(10)")
    assert read.read_all().num_rows == 10
    assert in_use(pool) == 0  # without close
    read.close()


def test_collected_stream_releases_connection(make_pool: MakePool) -> None:
    pool = make_pool(max_size=1)
    forget(pool.stream("FROM range(10_000_000)"))
    assert pool.query("SELECT 1", timeout=60).scalar() == 1


def test_collected_session_releases_connection(make_pool: MakePool) -> None:
    pool = make_pool(max_size=1)
    with pytest.warns(ResourceWarning, match="was not closed"):
        forget(pool.acquire_session())
    assert pool.query("SELECT 1", timeout=60).scalar() == 1


def test_spike(make_pool: MakePool, threads: ThreadPoolExecutor) -> None:
    pool = make_pool(max_size=3)
    answers = [threads.submit(pool.query, f"SELECT {n}") for n in range(200)]
    assert [one.result().scalar() for one in answers] == list(range(200))
    stats = pool.stats()
    assert stats.conn_created <= 3
    assert stats.requests == 200
    assert stats.conn_in_use == stats.waiting == 0


# ---- waiting -------------------------------------------------------------------------------------


def test_fifo_no_barging(make_pool: MakePool, threads: ThreadPoolExecutor) -> None:
    pool = make_pool(max_size=1)
    order: list[int] = []

    def ask(number: int) -> None:
        with pool.connection():
            order.append(number)

    held = pool.connection()
    waiting = []
    for number in range(5):
        waiting.append(threads.submit(ask, number))
        eventually(lambda: pool.stats().waiting == len(waiting))
    held.close()
    for one in waiting:
        one.result()
    assert order == [0, 1, 2, 3, 4]


def test_dropped_connection_wakes_waiter(make_pool: MakePool, threads: ThreadPoolExecutor) -> None:
    pool = make_pool(max_size=1)
    session = pool.acquire_session()
    waiter = threads.submit(pool.query, "SELECT 1", timeout=60)
    eventually(lambda: pool.stats().waiting == 1)
    dropped = pool.stats().conn_dropped
    session.close()
    assert waiter.result().scalar() == 1
    assert pool.stats().conn_dropped == dropped + 1


def test_timed_out_waiter_never_receives_connection(make_pool: MakePool) -> None:
    pool = make_pool(max_size=1)
    with pool.connection():
        with pytest.raises(PoolTimeout, match=r"within 0\.2 s"):
            pool.connection(timeout=0.2)
    stats = pool.stats()
    assert (stats.conn_idle, stats.conn_in_use, stats.acquire_timeouts) == (1, 0, 1)


def test_too_many_requests(make_pool: MakePool, threads: ThreadPoolExecutor) -> None:
    pool = make_pool(max_size=1, max_waiting=1)
    with pool.connection():
        waiter = threads.submit(pool.query, "SELECT 1")
        eventually(lambda: pool.stats().waiting == 1)
        with pytest.raises(TooManyRequests):
            pool.query("SELECT 1")
    assert waiter.result().scalar() == 1


def test_one_deadline_covers_waiting_and_the_statement(
    make_pool: MakePool, client: swanlake.FlightSQLClient
) -> None:
    pool = make_pool(max_size=1)
    pool.open(wait=True)
    with pytest.raises(QueryTimeout):
        pool.query(ENDLESS_QUERY, timeout=0.5)
    eventually(lambda: client.status()["statements_running"] == 0)
    assert pool.query("SELECT 1").scalar() == 1


# ---- retries -------------------------------------------------------------------------------------


def test_query_retried_once_on_stale(make_pool: MakePool, server: ServerProcess) -> None:
    pool = make_pool(max_size=1)
    lose_session(server, idle_session(pool))
    before = pool.stats()
    assert pool.query("SELECT 7").scalar() == 7
    after = pool.stats()
    assert after.requests == before.requests + 2
    assert after.conn_lost == before.conn_lost + 1


def test_query_is_retried_only_once(make_pool: MakePool) -> None:
    pool = make_pool(max_size=2)
    calls: list[object] = []

    def ask(connection: object, call: object) -> None:
        calls.append(connection)
        raise ConnectionLost("again")

    with pytest.raises(ConnectionLost):
        pool._run(Request(ask, idempotent=True, stateless=True), None, UNSET)
    assert len(calls) == len(set(map(id, calls))) == 2


@pytest.mark.parametrize("how", ["update", "execute", "ingest"])
def test_update_never_retried(
    make_pool: MakePool,
    server: ServerProcess,
    client: swanlake.FlightSQLClient,
    table: str,
    how: str,
) -> None:
    """Not even when it would be safe: the error does not tell."""
    pool = make_pool(max_size=1)
    lose_session(server, idle_session(pool))
    requests = pool.stats().requests
    what = [table, [{"i": 1}]] if how == "ingest" else [f"INSERT INTO {table} VALUES (1)"]
    with pytest.raises(SessionLost):
        getattr(pool, how)(*what)
    assert pool.stats().requests == requests + 1
    assert count(client, table) == 0


def test_execute_insert_not_retried(
    make_pool: MakePool, proxy: TcpProxy, client: swanlake.FlightSQLClient, table: str
) -> None:
    """The connection breaks while the INSERT runs."""
    pool = make_pool(proxy.url, max_size=1)
    pool.open(wait=True)
    caught: list[BaseException] = []

    def insert() -> None:
        try:
            pool.execute(f"INSERT INTO {table} {ENDLESS_QUERY}")
        except SwanLakeError as error:
            caught.append(error)

    thread = threading.Thread(target=insert)
    thread.start()
    eventually(lambda: client.status()["statements_running"] >= 1)
    proxy.drop()
    thread.join(120)
    assert isinstance(caught[0], ConnectionLost)
    assert pool.stats().requests == 1
    eventually(lambda: client.status()["statements_running"] == 0)
    assert count(client, table) == 0


def test_retries_can_be_disabled(make_pool: MakePool, server: ServerProcess) -> None:
    pool = make_pool(max_size=1)
    lose_session(server, idle_session(pool))
    with pytest.raises(SessionLost):
        pool.query("SELECT 1", options=swanlake.QueryOptions(retry_on_failure=False))
    pool = make_pool(max_size=1, retry_on_failure=False)
    lose_session(server, idle_session(pool))
    with pytest.raises(SessionLost):
        pool.query("SELECT 1")


# ---- sessions ------------------------------------------------------------------------------------


def test_session_shares_state_between_statements(make_pool: MakePool, table: str) -> None:
    pool = make_pool(max_size=2)
    with pool.acquire_session() as session:
        session.execute("CREATE TEMP TABLE mine AS SELECT 1 AS i")
        with session.transaction():
            session.update(f"INSERT INTO {table} FROM mine")
        with pytest.raises(QueryError), session.transaction():
            session.query(f"INSERT INTO {table} SELECT error('no')")
        with session.prepare_query(f"SELECT count(*) FROM {table} WHERE i = ?") as counted:
            assert counted.query([1]).scalar() == 1
        with session.stream(f"FROM {table}") as stream:
            assert stream.read_all().num_rows == 1


@pytest.mark.parametrize("reuse_sessions", [False, True])
def test_session_state_not_leaked(make_pool: MakePool, table: str, reuse_sessions: bool) -> None:
    pool = make_pool(max_size=1, reuse_sessions=reuse_sessions)
    with pool.acquire_session() as session:
        session.execute("CREATE TEMP TABLE secret AS SELECT 1 AS i")
        session.execute("SET VARIABLE who = 'me'")
    with pool.acquire_session() as session:
        session.begin_transaction()
        session.update(f"INSERT INTO {table} VALUES (1)")
    pool.execute("SET VARIABLE who = 'me too'")
    pool.execute("BEGIN")
    with pool.connection() as connection:
        connection.execute("CREATE TEMP TABLE secret AS SELECT 1 AS i")
    assert pool.query("SELECT getvariable('who')").scalar() is None
    assert pool.query(f"SELECT count(*) FROM {table}").scalar() == 0
    with pytest.raises(SwanLakeError, match="secret does not exist"):
        pool.query("FROM secret")


def test_only_clean_sessions_are_reused(make_pool: MakePool, table: str) -> None:
    pool = make_pool(max_size=1, reuse_sessions=True)
    with pool.acquire_session() as session:
        first = session.session_id
        with session.transaction():
            session.update(f"INSERT INTO {table} VALUES (1)")
    with pool.acquire_session() as session:
        assert session.session_id == first
        session.execute("SET VARIABLE who = 'me'")
    with pool.acquire_session() as session:
        assert session.session_id != first


def test_open_transaction_is_rolled_back_with_warning(
    make_pool: MakePool,
    table: str,
    client: swanlake.FlightSQLClient,
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool = make_pool(max_size=1, name="careless")
    with pool.acquire_session() as session:
        session_id = session.session_id
        session.begin_transaction()
        session.update(f"INSERT INTO {table} VALUES (1)")
    assert count(client, table) == 0
    [warning] = [one for one in caplog.records if one.levelno == logging.WARNING]
    assert warning.name == "swanlake.pool"
    assert f"pool careless: connection {session_id} was released" in warning.getMessage()


def test_cancel_stops_running_and_queued_statements(
    make_pool: MakePool, client: swanlake.FlightSQLClient, threads: ThreadPoolExecutor
) -> None:
    pool = make_pool(max_size=1)
    with pool.acquire_session() as session:
        running = threads.submit(session.query, ENDLESS_QUERY)
        eventually(lambda: client.status()["statements_running"] >= 1)
        waiting = threads.submit(session.query, ENDLESS_QUERY)
        eventually(lambda: len(session._connection._pending) == 2)
        assert session.cancel()
        for one in (running, waiting):
            with pytest.raises(QueryCancelled):
                one.result()
        assert session.query("SELECT 1").scalar() == 1


def test_closed_session_raises(make_pool: MakePool) -> None:
    pool = make_pool(max_size=1)
    session = pool.acquire_session()
    session.close()
    session.close()
    with pytest.raises(ClientClosed):
        session.query("SELECT 1")


def test_prepared_query_can_be_closed_after_its_session(make_pool: MakePool) -> None:
    with make_pool(max_size=1).acquire_session() as session:
        prepared = session.prepare_query("SELECT 1")
    prepared.close()


def test_session_has_a_writer(
    make_pool: MakePool, client: swanlake.FlightSQLClient, table: str
) -> None:
    with make_pool(max_size=1).acquire_session() as session:
        with session.writer(table, queue=False) as writer:
            writer.write({"i": 1})
    assert count(client, table) == 1


def test_session_closes_its_streams(make_pool: MakePool) -> None:
    pool = make_pool(max_size=1, reuse_sessions=True)
    with pool.acquire_session() as session:
        session_id = session.session_id
        stream = session.stream("FROM range(10_000_000)")
    with pytest.raises(ClientClosed):
        stream.read()
    with pool.acquire_session() as session:
        assert session.session_id == session_id


# ---- server and network failures -----------------------------------------------------------------


def test_hung_server_respects_deadline(make_pool: MakePool, proxy: TcpProxy) -> None:
    """Connections are accepted and nothing is answered."""
    proxy.hang()
    pool = make_pool(proxy.url, max_size=2, connect_timeout=1.0)
    with pytest.raises(PoolTimeout, match=r"within 0\.5 s"):
        pool.query("SELECT 1", timeout=0.5)
    proxy.heal()
    assert pool.query("SELECT 1", timeout=60).scalar() == 1
    proxy.black_hole()
    with pytest.raises(TimeoutError):
        pool.query("SELECT 1", timeout=0.5)
    assert pool.query("SELECT 1", timeout=60).scalar() == 1


def test_hanging_connect_does_not_block_others(
    make_pool: MakePool, proxy: TcpProxy, threads: ThreadPoolExecutor
) -> None:
    proxy.hang(connections=1)
    # The hanging connect outlasts the test, so both of the others were made beside it.
    pool = make_pool(proxy.url, min_idle=0, max_size=3, connect_timeout=600.0)
    with pool.connection(timeout=60), pool.connection(timeout=60):
        assert pool.stats().conn_in_use == 2
    proxy.heal()


def test_check_drops_lost_connections(make_pool: MakePool, proxy: TcpProxy) -> None:
    pool = make_pool(proxy.url, max_size=1, healthcheck_after_idle=0.0, connect_timeout=0.5)
    assert pool.query("SELECT 1").scalar() == 1
    proxy.black_hole()
    assert pool.query("SELECT 2", timeout=60).scalar() == 2
    assert pool.stats().conn_lost == 1
    pool.check()
    assert pool.stats().conn_idle == 1


def test_callers_wait_for_returning_server(
    make_pool: MakePool, proxy: TcpProxy, threads: ThreadPoolExecutor
) -> None:
    proxy.stop()
    pool = make_pool(proxy.url, max_size=2)

    def time_out_after_an_attempt() -> bool:
        with pytest.raises(PoolTimeout) as late:
            pool.query("SELECT 1", timeout=0.3)
        return "The last attempt to connect failed: No server answers" in str(late.value)

    eventually(time_out_after_an_attempt)
    waiter = threads.submit(pool.query, "SELECT 1", timeout=60)
    eventually(lambda: pool.stats().connect_errors >= 2)
    proxy.start()
    assert waiter.result().scalar() == 1


def test_unreachable_server_calls_on_reconnect_failed(make_pool: MakePool, proxy: TcpProxy) -> None:
    proxy.stop()
    told: list[Any] = []
    pool = make_pool(proxy.url, reconnect_timeout=0.2, on_reconnect_failed=told.append, name="lost")
    with pytest.raises(SwanLakeError, match="No server answers"):
        pool.open(wait=True)
    eventually(lambda: told)
    assert told[0].name == "lost"
    proxy.start()
    assert pool.query("SELECT 1").scalar() == 1


def test_adversity(
    make_pool: MakePool,
    proxy: TcpProxy,
    client: swanlake.FlightSQLClient,
    threads: ThreadPoolExecutor,
) -> None:
    """Whatever fails in the network, callers get an answer or an error, and the pool recovers."""
    chance = random.Random(7)
    pool = make_pool(proxy.url, max_size=3, connect_timeout=0.5, healthcheck_after_idle=0.05)
    over = threading.Event()
    served: list[int] = []

    def call() -> None:
        while not over.is_set():
            with contextlib.suppress(SwanLakeError):
                if chance.random() < 0.5:
                    served.append(pool.query("SELECT 1", timeout=2).scalar())
                else:
                    with pool.acquire_session(timeout=2) as session, session.transaction():
                        session.query("SELECT 1", timeout=2)

    callers = [threads.submit(call) for _ in range(6)]
    for fail in [proxy.drop, proxy.black_hole, proxy.restart, proxy.hang] * 2:
        served.clear()
        eventually(lambda: served)
        fail()
        threading.Event().wait(chance.random() / 5)
        proxy.heal()
    over.set()
    for caller in callers:
        caller.result()
    eventually(lambda: in_use(pool) == 0)
    with pool.connection(), pool.connection(), pool.connection() as connection:
        assert connection.query("SELECT 1").scalar() == 1
    assert pool.stats().waiting == 0
    eventually(lambda: client.status()["statements_running"] == 0)


# ---- the pool as a whole -------------------------------------------------------------------------


def test_close_fails_waiters(make_pool: MakePool, threads: ThreadPoolExecutor) -> None:
    pool = make_pool(max_size=1)
    held = pool.connection()
    waiter = threads.submit(pool.query, "SELECT 1")
    eventually(lambda: pool.stats().waiting == 1)
    pool.close(timeout=0.1)
    with pytest.raises(PoolClosed):
        waiter.result()
    with pytest.raises(PoolClosed):
        pool.query("SELECT 1")
    with pytest.raises(PoolClosed):
        pool.open()
    held.close()
    pool.close()


def test_close_with_running_query(
    make_pool: MakePool, client: swanlake.FlightSQLClient, threads: ThreadPoolExecutor
) -> None:
    pool = make_pool(max_size=1)
    endless = threads.submit(pool.query, ENDLESS_QUERY)
    eventually(lambda: client.status()["statements_running"] >= 1)
    pool.close(timeout=0.3)
    with pytest.raises(SwanLakeError):
        endless.result()
    eventually(lambda: client.status()["statements_running"] == 0)


def test_close_lets_statements_end(make_pool: MakePool, threads: ThreadPoolExecutor) -> None:
    pool = make_pool(max_size=1)
    with pool.stream("FROM range(1_000_000)") as stream:
        closing = threads.submit(pool.close, timeout=60.0)
        eventually(lambda: pool.closed)
        assert sum(batch.num_rows for batch in stream) == 1_000_000
    closing.result()


def test_configure_is_called_with_every_new_connection(make_pool: MakePool) -> None:
    def configure(connection: Any) -> None:
        connection.execute("SET VARIABLE greeting = 'hello'")

    pool = make_pool(max_size=1, configure=configure)
    for _ in range(2):
        assert pool.query("SELECT getvariable('greeting')").scalar() == "hello"
        assert pool.stats().conn_dropped == 0
    pool.drain()
    assert pool.query("SELECT getvariable('greeting')").scalar() == "hello"
    assert pool.stats().conn_created == 2


def test_failing_configure_is_raised(make_pool: MakePool) -> None:
    def configure(connection: Any) -> None:
        raise ZeroDivisionError

    pool = make_pool(configure=configure)
    with pytest.raises(ZeroDivisionError):
        pool.query("SELECT 1")


def test_resize_and_drain(make_pool: MakePool) -> None:
    pool = make_pool(min_idle=3, max_size=3)
    pool.open(wait=True)
    assert pool.stats().conn_idle == 3
    pool.resize(min_idle=1, max_size=1)
    eventually(lambda: pool.stats().conn_idle == 1)
    first = idle_session(pool)
    pool.drain()
    assert idle_session(pool) != first
    with pytest.raises(ConfigError):
        pool.resize(min_idle=2, max_size=1)
    popped = pool.pop_stats()
    assert popped.requests == 2
    assert pool.stats().requests == 0


def test_idle_connections_are_closed(make_pool: MakePool) -> None:
    pool = make_pool(min_idle=0, max_size=1, idle_ttl=0.1)
    pool.query("SELECT 1")
    eventually(lambda: pool.stats().conn_idle == 0)
    assert pool.query("SELECT 1").scalar() == 1


def test_no_thread_or_fd_leak_after_50_open_close(make_pool: MakePool) -> None:
    process = psutil.Process()

    def once() -> None:
        with make_pool(max_size=2) as pool:
            pool.query("SELECT 1")
            with pool.acquire_session() as session:
                session.query("SELECT 1")

    others = _threads()  # of earlier writers whose server hung
    once()
    eventually(lambda: _threads() <= others)
    descriptors = process.num_fds()
    for _ in range(50):
        once()
    eventually(lambda: _threads() <= others)
    eventually(lambda: process.num_fds() <= descriptors + 5)


def _threads() -> set[threading.Thread]:
    """The running threads of the client."""
    return {one for one in threading.enumerate() if one.name.startswith("swanlake-")}


def test_forked_child_of_pool_gets_error(make_pool: MakePool) -> None:
    pool = make_pool(max_size=1)
    pool.query("SELECT 1")
    wrapped: Any = getattr(pool, "_wrapped", pool)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for use in (wrapped._runtime.enqueue, wrapped.stats, wrapped.drain):
                with pytest.raises(ForkedProcess):
                    use()
            wrapped._runtime.close().result(0)
            code = 7
        finally:
            os._exit(code)  # whatever happens: the child must not run other tests
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert pool.query("SELECT 1").scalar() == 1


def test_collected_pool_warns_and_closes(server: ServerProcess) -> None:
    others = _threads()
    pool = swanlake.Pool(server.url, max_size=1)
    pool.query("SELECT 1")
    with pytest.warns(ResourceWarning, match="was not closed"):
        del pool
    eventually(lambda: _threads() <= others)


_FORGETFUL = {
    "a pool": "pool.query('SELECT 1')",
    "a stream and a session": "stream = pool.stream('FROM range(10000000)'); stream.read()\n"
    "session = pool.acquire_session(); session.query('SELECT 1')",
    "something that closes it": "pool.query('SELECT 1')\n"
    "class Owner:\n"
    "    def __del__(self): self.pool.close()\n"
    "owner = Owner(); owner.pool = pool",
    "something that queries": "pool.query('SELECT 1')\n"
    "class Owner:\n"
    "    def __del__(self):\n"
    "        try: self.pool.query('SELECT 2')\n"
    "        except self.error: pass\n"
    "owner = Owner(); owner.pool = pool; owner.error = swanlake.SwanLakeError",
}


@pytest.mark.parametrize("forgotten", _FORGETFUL)
def test_program_without_close_ends(server: ServerProcess, forgotten: str) -> None:
    program = f"import swanlake\npool = swanlake.Pool({server.url!r})\n{_FORGETFUL[forgotten]}\n"
    ended = subprocess.run(
        [sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (0, "")

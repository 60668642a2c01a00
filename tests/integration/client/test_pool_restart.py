"""Pools and servers that are killed, restarted or require a token."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from swanlake.errors import ConnectionLost, NotAuthenticated, SessionLost, SwanLakeError
from tests.credentials import write_tokens
from tests.server_process import ServerProcess
from tests.waiting import eventually

StartServer = Callable[..., ServerProcess]
MakeBoth = Callable[..., list[Any]]
CALLERS = 4


class Load:
    """Threads that query a pool until they are stopped."""

    def __init__(self, pool: Any, threads: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._over = threading.Event()
        self.served = [0] * CALLERS
        self.failed: list[SwanLakeError] = []
        self._callers = [threads.submit(self._query, number) for number in range(CALLERS)]

    def _query(self, number: int) -> None:
        while not self._over.is_set():
            try:
                assert self._pool.query("SELECT 5", timeout=60).scalar() == 5
                self.served[number] += 1
            except SwanLakeError as error:
                self.failed.append(error)

    def goes_on(self) -> bool:
        """True when every caller got five more answers."""
        goal = [served + 5 for served in self.served]
        return bool(
            eventually(lambda: all(self.served[one] >= goal[one] for one in range(CALLERS)))
        )

    def end(self) -> None:
        self._over.set()
        for caller in self._callers:
            caller.result()


def test_server_restart_raises_session_lost(make_both: MakeBoth, start_server: StartServer) -> None:
    """kill -9 under load: sessions get SessionLost, and the pool recovers."""
    server = start_server()
    pools = make_both(server.url, max_size=3, connect_timeout=2.0)
    sessions = [pool.acquire_session() for pool in pools]
    for session in sessions:
        session.execute("CREATE TEMP TABLE mine AS SELECT 1 AS i")
    with ThreadPoolExecutor(2 * CALLERS) as threads:
        loads = [Load(pool, threads) for pool in pools]
        assert all(load.goes_on() for load in loads)
        server.kill()
        start_server("--port", str(server.port), home=server.home)
        assert all(load.goes_on() for load in loads)
        for load in loads:
            load.end()
    for load in loads:
        # Each caller fails at most once, when its only retry fails too.
        assert len(load.failed) <= CALLERS, load.failed
    for session in sessions:
        with pytest.raises((SessionLost, ConnectionLost)):
            session.query("FROM mine")
        with pytest.raises(SessionLost):
            session.query("SELECT 1")
        session.close()
    for pool in pools:
        assert pool.query("SELECT 1").scalar() == 1
        stats = pool.stats()
        assert (stats.conn_in_use, stats.waiting) == (0, 0)


def test_wrong_credentials_fail_at_once(
    make_both: MakeBoth, start_server: StartServer, tmp_path: Path
) -> None:
    """A wrong token is not retried until the time-out, which is longer than this test may run."""
    home = tmp_path / "guarded"
    write_tokens(home, alice="the-right-token-of-alice")
    server = start_server("--auth", "token", home=home)
    for pool in make_both(server.url, token="wrong", acquire_timeout=600.0):
        with pytest.raises(NotAuthenticated):
            pool.query("SELECT 1")
        with pytest.raises(NotAuthenticated):
            pool.open(wait=True)
    for pool in make_both(server.url, token="the-right-token-of-alice"):
        assert pool.query("SELECT 1").scalar() == 1

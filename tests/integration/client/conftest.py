"""Pools for threads and for tasks with one interface, so that one test covers both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

import swanlake
from tests.integration.client.blocking import Blocking, EventLoopThread
from tests.server_process import ServerProcess
from tests.tcp_proxy import TcpProxy


class Pools:
    """Makes pools of one kind, with the interface for threads, and closes them at the end."""

    def __init__(self, kind: str, url: str) -> None:
        self._url = url
        self._made: list[Any] = []
        self._loop = EventLoopThread() if kind == "tasks" else None

    def make(self, url: str | None = None, **config: Any) -> Any:
        config.setdefault("cancel_grace", 2.0)
        pool: Any
        if self._loop is None:
            pool = swanlake.Pool(url or self._url, **config)
        else:
            pool = Blocking(self._loop, swanlake.AsyncPool(url or self._url, **config))
        self._made.append(pool)
        return pool

    def close(self) -> None:
        for pool in self._made:
            pool.close(timeout=2.0)
        if self._loop is not None:
            self._loop.close()


@pytest.fixture(params=["threads", "tasks"])
def make_pool(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Any]:
    """Makes pools; the test runs once for threads and once for tasks."""
    with closing(Pools(request.param, server.url)) as pools:
        yield pools.make


@pytest.fixture
def make_both() -> Iterator[Any]:
    """Makes a pool of each kind at once, for tests that start their own server."""
    with closing(Pools("threads", "")) as first, closing(Pools("tasks", "")) as second:
        yield lambda url, **config: [first.make(url, **config), second.make(url, **config)]


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[TcpProxy]:
    """A TCP proxy in front of the shared server, which can fail."""
    with TcpProxy(server.port) as proxy:
        yield proxy
        proxy.heal()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[swanlake.FlightSQLClient]:
    """A connection without pool and proxy."""
    with swanlake.connect(server.url) as client:
        yield client

"""Pools for threads and for tasks behind one face, so that one test serves both."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import swanlake
from tests.server_process import ServerProcess
from tests.tcp_proxy import TcpProxy

#: Runs for hours, on any machine.
ENDLESS = "SELECT sum(a.range * b.range) FROM range(10_000_000) a, range(10_000_000) b"


class Loop:
    """An event loop in a thread, for tests that are not tasks."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, awaitable: Any) -> Any:
        async def wait() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result(60)

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """The result of a function that is called in the loop, awaited if that is needed."""

        async def call() -> Any:
            result = function(*args, **options)
            return await result if inspect.isawaitable(result) else result

        return self.run(call())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """Something of the asyncio world, with the face of its twin for threads."""

    def __init__(self, loop: Loop, real: Any) -> None:
        self._loop = loop
        self._real = real
        self._inside: Any = None

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not inspect.ismethod(found):
            return found

        def call(*args: Any, **options: Any) -> Any:
            if name in ("connection", "acquire_session", "stream"):
                # Its twin has the connection when it returns.
                return Blocking(self._loop, self._loop.run(found(*args, **options)))
            result = self._loop.call(found, *args, **options)
            return Blocking(self._loop, result) if hasattr(result, "__aenter__") else result

        return call

    def __enter__(self) -> Any:
        self._inside = self._loop.run(self._real.__aenter__())
        return self if self._inside is self._real else self._inside

    def __exit__(self, *exception: Any) -> Any:
        return self._loop.run(self._real.__aexit__(*exception))

    def __iter__(self) -> Iterator[Any]:
        iterator = aiter(self._real)
        while True:
            try:
                yield self._loop.run(anext(iterator))
            except StopAsyncIteration:
                return


class Pools:
    """Makes pools of one kind, with the face of the one for threads, and closes them at the end."""

    def __init__(self, kind: str, url: str) -> None:
        self._url = url
        self._made: list[Any] = []
        self._loop = Loop() if kind == "tasks" else None

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
    """Makes pools, once of either kind: ``make_pool(max_size=1)``."""
    with closing(Pools(request.param, server.url)) as pools:
        yield pools.make


@pytest.fixture
def make_both() -> Iterator[Any]:
    """Makes two pools at once, one of either kind, for tests whose servers are slow to start."""
    with closing(Pools("threads", "")) as first, closing(Pools("tasks", "")) as second:
        yield lambda url, **config: [first.make(url, **config), second.make(url, **config)]


@pytest.fixture
def proxy(server: ServerProcess) -> Iterator[TcpProxy]:
    """A network before the shared server that can be broken."""
    with TcpProxy(server.port) as proxy:
        yield proxy
        proxy.heal()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[swanlake.FlightSQLClient]:
    """One connection that goes around pools and proxies."""
    with swanlake.connect(server.url) as client:
        yield client

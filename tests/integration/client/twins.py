"""One body for writers of threads and of tasks: what an AsyncWriter gives is waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from swanlake.client import AsyncWriter, Writer
from swanlake.client.address import Address


class Threads:
    """Writers as they are."""

    def writer(self, url: str, table: str, **options: Any) -> Any:
        return Writer(Address.parse(url), table, **options)


class Tasks:
    """Writers of an event loop in a thread of its own, with blocking calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def writer(self, url: str, table: str, **options: Any) -> Any:
        async def make() -> AsyncWriter:
            return AsyncWriter(Address.parse(url), table, **options)

        return Blocking(self, self.run(make()))

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """An AsyncWriter whose every call is waited for."""

    def __init__(self, tasks: Tasks, writer: AsyncWriter) -> None:
        self._tasks = tasks
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        if name not in ("write", "write_many", "flush", "close"):
            return getattr(self._writer, name)
        return lambda *given, **named: self._tasks.run(getattr(self._writer, name)(*given, **named))

    def __enter__(self) -> Blocking:
        return self

    def __exit__(self, *exception: Any) -> None:
        self._tasks.run(self._writer.__aexit__(*exception))


@contextmanager
def twin(kind: str) -> Iterator[Threads | Tasks]:
    """The makers of writers, by their name."""
    if kind == "threads":
        yield Threads()
        return
    tasks = Tasks()
    try:
        yield tasks
    finally:
        tasks.close()

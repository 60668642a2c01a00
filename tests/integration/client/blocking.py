"""Blocking calls to the async API, so that one test covers threads and tasks."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any


class EventLoopThread:
    """An event loop in a thread, for tests that are not tasks."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, awaitable: Any) -> Any:
        """Waits for an awaitable."""

        async def wait() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(wait(), self._loop).result(60)

    def call(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Calls a function in the loop, and awaits its result if it is awaitable."""

        async def call() -> Any:
            result = function(*args, **options)
            return await result if inspect.isawaitable(result) else result

        return self.run(call())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Blocking:
    """An object of the async API with the interface of its counterpart for threads."""

    def __init__(self, loop: EventLoopThread, wrapped: Any) -> None:
        self._loop = loop
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._wrapped, name)
        if not inspect.ismethod(attribute):
            return attribute

        def call(*args: Any, **options: Any) -> Any:
            if name in ("connection", "acquire_session", "stream"):
                # The sync method acquires before it returns.
                return Blocking(self._loop, self._loop.run(attribute(*args, **options)))
            result = self._loop.call(attribute, *args, **options)
            return Blocking(self._loop, result) if hasattr(result, "__aenter__") else result

        return call

    def __enter__(self) -> Any:
        entered = self._loop.run(self._wrapped.__aenter__())
        return self if entered is self._wrapped else entered

    def __exit__(self, *exception: Any) -> Any:
        return self._loop.run(self._wrapped.__aexit__(*exception))

    def __iter__(self) -> Iterator[Any]:
        iterator = aiter(self._wrapped)
        while True:
            try:
                yield self._loop.run(anext(iterator))
            except StopAsyncIteration:
                return

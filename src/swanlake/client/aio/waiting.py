"""Waiting in a task; ``sync/waiting.py`` has the same functions for threads."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any, Generic, ParamSpec, Protocol, TypeVar

from swanlake.client.transport.call_thread import run_in_background
from swanlake.client.transport.deadline import WaitTimeout

T = TypeVar("T")
P = ParamSpec("P")


async def wait_for(future: Future[T], timeout: float | None) -> T:
    """Awaits a future; on a timeout, cancels it if it is not running and raises WaitTimeout."""
    if future.done():
        return future.result()
    try:
        async with asyncio.timeout(timeout) as limit:
            return await asyncio.wrap_future(future)
    except TimeoutError:
        if limit.expired():
            raise WaitTimeout from None
        raise


async def run_blocking(name: str, work: Callable[[], T]) -> T:
    """Runs a blocking function in a thread, to its end even if the task is cancelled."""
    return await asyncio.shield(asyncio.wrap_future(run_in_background(name, work)))


def callback_runner() -> Callable[[Callable[[], object]], None]:
    """Runs callbacks of other threads in the event loop of the calling task."""
    return partial(_run_in_loop, asyncio.get_running_loop())


def _run_in_loop(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the loop is closed
        callback()


class _Closable(Protocol):
    async def close(self) -> None: ...


A = TypeVar("A", bound=_Closable)


class Acquiring(Generic[A]):
    """A resource to be acquired: use ``async with``, or ``await`` it and close it yourself."""

    def __init__(self, acquire: Callable[[], Awaitable[A]]) -> None:
        self._acquire = acquire
        self._acquired: A | None = None

    def __await__(self) -> Generator[Any, None, A]:
        return self._acquire().__await__()

    async def __aenter__(self) -> A:
        self._acquired = await self._acquire()
        return self._acquired

    async def __aexit__(self, *exception: object) -> None:
        if self._acquired is not None:
            await self._acquired.close()


def acquiring(method: Callable[P, Awaitable[A]]) -> Callable[P, Acquiring[A]]:
    """Makes a method whose result can be awaited, or used with ``async with``."""

    @wraps(method)
    def acquire(*args: P.args, **options: P.kwargs) -> Acquiring[A]:
        return Acquiring(lambda: method(*args, **options))

    return acquire

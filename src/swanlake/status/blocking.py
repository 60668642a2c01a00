"""Blocking work of the status server, which its event loop must not wait for.

A busy engine or a lost database can hold up any call into the server. So every call runs on a
thread, few run at a time, and each request waits for a limited time only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from swanlake._internal.worker_threads import WorkerThreads
from swanlake.errors import ServerUnavailable

T = TypeVar("T")

#: How long a request waits for blocking work, unless it says otherwise.
CALL_SECONDS = 5.0
_ANSWER_SECONDS, _MAX_ANSWERS = 1.0, 100


class BlockingCalls:
    """Runs functions on a few threads; to be used in one event loop."""

    def __init__(self, name: str, limit: int) -> None:
        self._threads = WorkerThreads(name)
        self._free = asyncio.Semaphore(limit)

    async def run(self, function: Callable[[], T], timeout: float = CALL_SECONDS) -> T:
        """What the function returns or raises; ServerUnavailable if it takes too long.

        A function that takes too long goes on, and keeps its thread until it ends.
        """
        deadline = time.monotonic() + timeout
        try:
            async with asyncio.timeout(timeout):
                await self._free.acquire()
        except TimeoutError:
            raise _too_slow(timeout) from None
        loop = asyncio.get_running_loop()
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()

        def release(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._free.release)

        future.add_done_callback(release)
        self._threads.run(lambda: _complete(future, function))
        waiting = asyncio.ensure_future(asyncio.wrap_future(future))
        done, _ = await asyncio.wait({waiting}, timeout=max(deadline - time.monotonic(), 0))
        if not done:
            waiting.add_done_callback(_retrieve)
            raise _too_slow(timeout)
        return waiting.result()


def _complete(future: Future[T], function: Callable[[], T]) -> None:
    try:
        future.set_result(function())
    except BaseException as failure:  # noqa: BLE001 - the waiting request raises it
        future.set_exception(failure)


def _retrieve(future: asyncio.Future[T]) -> None:
    """Reads the outcome that no request waits for; asyncio would log an unread exception."""
    if not future.cancelled():
        future.exception()


def _too_slow(timeout: float) -> ServerUnavailable:
    return ServerUnavailable(f"The server is busy: it gave no answer within {timeout:g} s.")


@dataclass(frozen=True)
class Aged(Generic[T]):
    """A value and when it was loaded, on the monotonic clock."""

    value: T
    loaded_at: float

    @property
    def age(self) -> float:
        """Seconds since the value was loaded."""
        return time.monotonic() - self.loaded_at


class Snapshot(Generic[T]):
    """A value that is loaded again when a request finds it old; one load serves all requests."""

    def __init__(
        self, load: Callable[[], T], calls: BlockingCalls, *, max_age: float, timeout: float = 60.0
    ) -> None:
        self._load = load
        self._calls = calls
        self._max_age = max_age
        self._timeout = timeout
        self._last: Aged[T] | None = None
        self._loading: asyncio.Task[Aged[T]] | None = None

    @property
    def last(self) -> T | None:
        """The value, however old; None if there is none yet."""
        return None if self._last is None else self._last.value

    @property
    def aged(self) -> Aged[T] | None:
        """The same with its age."""
        return self._last

    async def get(self, wait: float = 0.5) -> Aged[T]:
        """The value; if it is old, waits at most ``wait`` seconds for a newer one.

        Without any value, it waits longer, and raises what the load raises.
        """
        last = self._last
        if last is not None and last.age <= self._max_age:
            return last
        if self._loading is None:
            self._loading = asyncio.create_task(self._reload())
            self._loading.add_done_callback(_retrieve)
        loading = self._loading
        done, _ = await asyncio.wait({loading}, timeout=CALL_SECONDS if last is None else wait)
        if done and (last is None or loading.exception() is None):
            return loading.result()
        if last is None:
            raise _too_slow(CALL_SECONDS)
        return last

    async def _reload(self) -> Aged[T]:
        try:
            started = time.monotonic()
            value = await self._calls.run(self._load, self._timeout)
            self._last = Aged(value, started)
            return self._last
        finally:
            self._loading = None


class SharedAnswers:
    """Answers that are the same for all requests of a key within a second."""

    def __init__(self, calls: BlockingCalls) -> None:
        self._calls = calls
        self._answers: dict[Hashable, Snapshot[bytes]] = {}

    async def get(self, key: Hashable, make: Callable[[], bytes]) -> bytes:
        """The answer of the key; made again when it is older than a second.

        The function of the first request makes the answers of the later ones, too.
        """
        answer = self._answers.pop(key, None)
        if answer is None:
            answer = Snapshot(make, self._calls, max_age=_ANSWER_SECONDS, timeout=CALL_SECONDS)
        self._answers[key] = answer  # as the newest one
        if len(self._answers) > _MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]
        return (await answer.get()).value

"""Blocking calls and snapshots: no request waits longer than its limit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from functools import wraps
from typing import Any

import pytest

from swanlake.errors import NotFound, ServerUnavailable
from swanlake.status.blocking import BlockingCalls, Snapshot


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test as a function that pytest can call."""

    @wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(test(**fixtures))

    return run


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Lets the blocked functions of a test end, at the latest with the test."""
    event = threading.Event()
    yield event
    event.set()


def calls(limit: int = 1) -> BlockingCalls:
    return BlockingCalls("swanlake-test", limit)


@in_event_loop
async def test_result_and_error_of_a_function_are_passed_on() -> None:
    pool = calls()
    assert await pool.run(lambda: 7) == 7

    def fail() -> None:
        raise NotFound("There is none.")

    with pytest.raises(NotFound, match="There is none"):
        await pool.run(fail)


@in_event_loop
async def test_request_does_not_wait_for_a_function_that_blocks(gate: threading.Event) -> None:
    pool = calls()
    with pytest.raises(ServerUnavailable, match="busy"):
        await pool.run(gate.wait, timeout=0.01)
    with pytest.raises(ServerUnavailable, match="busy"):
        await pool.run(lambda: 1, timeout=0.01)  # the only thread is still blocked
    gate.set()
    assert await pool.run(lambda: 2, timeout=60) == 2


@in_event_loop
async def test_few_functions_run_at_a_time() -> None:
    pool = calls(2)
    running, most = 0, 0
    lock = threading.Lock()

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1

    await asyncio.gather(*(pool.run(work, timeout=60) for _ in range(50)))
    assert most <= 2


@in_event_loop
async def test_one_load_serves_all_requests() -> None:
    loads = 0

    def load() -> int:
        nonlocal loads
        loads += 1
        return loads

    snapshot = Snapshot(load, calls(), max_age=3600)
    values = await asyncio.gather(*(snapshot.get() for _ in range(20)))
    assert {aged.value for aged in values} == {1}


@in_event_loop
async def test_old_value_is_served_while_a_load_blocks(gate: threading.Event) -> None:
    values = iter([1])

    def load() -> int:
        for value in values:
            return value
        gate.wait()
        return 2

    snapshot = Snapshot(load, calls(), max_age=0, timeout=60)
    assert (await snapshot.get()).value == 1
    assert (await snapshot.get(wait=0.01)).value == 1
    gate.set()
    while (await snapshot.get()).value == 1:  # noqa: ASYNC110 - each call may load
        await asyncio.sleep(0)


@in_event_loop
async def test_old_value_is_served_when_a_load_fails() -> None:
    values = iter([1])
    snapshot = Snapshot(lambda: next(values), calls(), max_age=0)
    assert (await snapshot.get()).value == 1
    assert (await snapshot.get()).value == 1
    failing = Snapshot(_raise, calls(), max_age=0)
    with pytest.raises(NotFound):
        await failing.get()


def _raise() -> int:
    raise NotFound("There is none.")

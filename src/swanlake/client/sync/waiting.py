"""Waiting in a thread; ``aio/waiting.py`` has the same functions for tasks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from swanlake.client.transport.deadline import WaitTimeout

T = TypeVar("T")


def wait_for(future: Future[T], timeout: float | None) -> T:
    """Waits for a future; on a timeout, cancels it if it is not running and raises WaitTimeout."""
    if not wait([future], timeout).done:
        future.cancel()
        raise WaitTimeout
    return future.result()


def run_blocking(name: str, work: Callable[[], T]) -> T:
    """Calls a function: a thread may block."""
    return work()


def callback_runner() -> Callable[[Callable[[], object]], None]:
    """Runs callbacks in the thread that has news for them."""
    return _run_at_once


def _run_at_once(callback: Callable[[], object]) -> None:
    callback()

"""Waiting for a condition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


def eventually(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Returns the first true value of a condition; fails when there is none in time.

    The limit is generous: a test must not fail because the machine is busy.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(0.01)


async def eventually_async(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Waits for a condition that other threads change, and lets other tasks run."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - no thread tells
            await asyncio.sleep(0.01)

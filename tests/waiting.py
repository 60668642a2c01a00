"""Waiting for a condition, or for the state of a process."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def eventually(condition: Callable[[], Any], seconds: float = 240.0) -> Any:
    """Returns the first true value of a condition; fails when there is none in time.

    The limit is generous: a test must not fail because the machine is busy.
    """
    deadline = time.monotonic() + seconds
    pause = 0.005
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, "the condition did not become true in time"
        time.sleep(pause)
        pause = min(2 * pause, 0.05)  # a condition may cost the server milliseconds


def freeze(pid: int) -> None:
    """Stops a process with SIGSTOP; its threads may work until the last of them has stopped."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")
    eventually(lambda: all(map(_is_stopped, threads.glob("*/stat"))))


def _is_stopped(stat: Path) -> bool:
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "T"
    except FileNotFoundError:  # the thread has ended
        return True


async def eventually_async(condition: Callable[[], Any], seconds: float = 240.0) -> None:
    """Waits for a condition that other threads change, and lets other tasks run."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - no thread tells
            await asyncio.sleep(0.01)

"""How much memory a process and all below it hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """The most that this process and all below it held at once, in MB; mapped files count once."""
    peak, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, sum(_anonymous(one) for one in _family()) / 1_000_000)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: peak
    finally:
        done.set()
        watcher.join()


def _family() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def _anonymous(process: psutil.Process) -> int:
    try:
        memory = process.memory_info()
        return int(memory.rss - memory.shared)
    except psutil.Error:
        return 0

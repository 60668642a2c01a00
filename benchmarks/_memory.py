"""Peak memory of the benchmark's process tree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil


@contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """Yields a function: the peak memory of the process tree in MB, without shared pages."""
    peak, done = 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.05):
            peak = max(peak, sum(_anonymous(process) for process in _process_tree()) / 1_000_000)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: peak
    finally:
        done.set()
        watcher.join()


def _process_tree() -> list[psutil.Process]:
    process = psutil.Process()
    return [process, *process.children(recursive=True)]


def _anonymous(process: psutil.Process) -> int:
    try:
        memory = process.memory_info()
        return int(memory.rss - memory.shared)
    except psutil.Error:
        return 0

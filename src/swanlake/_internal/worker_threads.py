"""Daemon threads that are started on demand and used again."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

#: Idle threads above this number end.
_MAX_IDLE = 16

_Tasks = queue.SimpleQueue[Callable[[], None]]


class WorkerThreads:
    """Runs each function at once in a thread of its own; the number of threads is not limited.

    Daemon threads, unlike those of ``concurrent.futures``: a statement that does not end must not
    keep the process from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: deque[_Tasks] = deque()

    def run(self, function: Callable[[], None]) -> None:
        """Runs a function that raises nothing."""
        try:
            tasks = self._idle.pop()  # the last one used: its stack is still in the CPU's cache
        except IndexError:
            tasks = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(tasks,), name=self._name, daemon=True).start()
        tasks.put(function)

    def _work(self, tasks: _Tasks) -> None:
        while True:
            function = tasks.get()
            function()
            del function  # otherwise its result stays alive until the next call
            if len(self._idle) >= _MAX_IDLE:
                return
            self._idle.append(tasks)

"""A thread of one's own for the calls of one connection."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Line:
    """Makes blocking calls, one after the other, so that nobody else has to block.

    Who waits for a call waits for its future: a thread that can be interrupted meanwhile, or a
    task. The thread is a daemon: a call that hangs does not keep the interpreter from ending.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = (
            queue.SimpleQueue()
        )
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        weakref.finalize(self, self._calls.put, None).atexit = False

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Has the call made when those before it are over."""
        future: Future[T] = Future()
        if self._thread is None:
            self._start()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Ends the thread after the calls that wait; does not wait for it."""
        self._calls.put(None)

    def join(self, timeout: float | None) -> bool:
        """Waits for the thread to end after ``close``; False if it did not in time."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=_work, args=(self._calls,), name=self._name, daemon=True
                )
                thread.start()
                self._thread = thread


def _work(calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (task := calls.get()) is not None:
        future, call = task
        if future.set_running_or_notify_cancel():
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - it is raised where it is waited for
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        del task, future, call  # else the last result would live until the next call

"""A daemon thread that makes the blocking calls of one connection."""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

from swanlake.errors import SwanLakeError

log = logging.getLogger("swanlake.client")

T = TypeVar("T")


class CallThread:
    """Makes blocking calls one after the other; callers wait for futures.

    A waiting thread can be interrupted, and a task can await. The thread is a daemon, so a call
    that hangs does not keep the interpreter alive.
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
        """Queues a call behind those submitted before it."""
        future: Future[T] = Future()
        if self._thread is None:
            self._start()
        self._calls.put((future, call))
        return future

    def close(self) -> None:
        """Ends the thread after the queued calls; returns at once."""
        self._calls.put(None)

    def join(self, timeout: float | None) -> bool:
        """Waits for the thread to end after ``close``; False on a timeout."""
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(
                    target=_make_calls, args=(self._calls,), name=self._name, daemon=True
                )
                thread.start()
                self._thread = thread


def _make_calls(calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    while (task := calls.get()) is not None:
        future, call = task
        if future.set_running_or_notify_cancel():
            try:
                result = call()
            except BaseException as error:  # noqa: BLE001 - raised by future.result()
                future.set_exception(error)
            else:
                future.set_result(result)
                del result
        del task, future, call  # otherwise the last result stays alive until the next call


def run_in_background(name: str, work: Callable[[], T]) -> Future[T]:
    """Runs a function in a new daemon thread; logs what is not a SwanLakeError."""
    thread = CallThread(name)
    future = thread.submit(work)
    thread.close()
    future.add_done_callback(_log_failure)
    return future


def _log_failure(future: Future[Any]) -> None:
    error = future.exception()
    if error is not None and not isinstance(error, SwanLakeError):
        log.error("a background task of the client failed", exc_info=error)

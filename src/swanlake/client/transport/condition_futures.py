"""Futures that are done when a condition holds, for threads to wait for and tasks to await."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future


class ConditionFutures:
    """Futures by the condition they wait for; used under the lock that guards the conditions."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Callable[[], bool], Future[None]]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, condition: Callable[[], bool]) -> Future[None]:
        """A future that ``pop_ready`` returns once the condition holds; done if it holds now."""
        future: Future[None] = Future()
        if condition():
            future.set_result(None)
        else:
            self._waiting.append((condition, future))
        return future

    def pop_ready(self) -> list[Future[None]]:
        """Removes the futures whose condition holds, to be resolved outside of the lock."""
        ready, waiting = [], []
        for condition, future in self._waiting:
            if future.cancelled() or condition():
                ready.append(future)
            else:
                waiting.append((condition, future))
        self._waiting = waiting
        return ready


def resolve(futures: Iterable[Future[None]]) -> None:
    """Ends the waits for futures that are not cancelled."""
    for future in futures:
        if future.set_running_or_notify_cancel():
            future.set_result(None)

"""Reusable objects, such as connections, that threads borrow one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar


class Closeable(Protocol):
    """An object that holds a resource until it is closed."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closeable)


class FreeList(Generic[T]):
    """Hands out a free object, or creates one; an object returns to the list after use.

    At most ``limit`` objects stay on the list. ``is_reusable`` tells whether an object may
    return to it.
    """

    def __init__(
        self,
        create: Callable[[], T],
        *,
        limit: int | None = None,
        is_reusable: Callable[[T], bool] = lambda returned: True,
    ) -> None:
        self._create = create
        self._limit = limit
        self._is_reusable = is_reusable
        self._lock = threading.Lock()
        self._free: list[T] = []

    @contextmanager
    def borrow(self) -> Iterator[T]:
        """An object for the block; it is closed if the block raises."""
        with self._lock:
            borrowed = self._free.pop() if self._free else None
        if borrowed is None:
            borrowed = self._create()
        try:
            yield borrowed
        except BaseException:
            borrowed.close()
            raise
        with self._lock:
            has_room = self._limit is None or len(self._free) < self._limit
            if has_room and self._is_reusable(borrowed):
                self._free.append(borrowed)
                return
        borrowed.close()

    def close(self) -> None:
        """Closes the objects that are free; those in use are left to their borrowers."""
        with self._lock:
            free, self._free = self._free, []
        for unused in free:
            unused.close()

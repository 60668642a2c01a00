"""A cache of values computed from short texts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")

_MAX_ENTRIES = 256
_MAX_KEY_LENGTH = 1024


class LruCache(Generic[V]):
    """Keeps the values of the texts used last; values of long texts are not cached."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, V] = OrderedDict()

    def clear(self) -> None:
        """Empties the cache."""
        self._values.clear()

    def get(self, text: str) -> V | None:
        """The cached value of a text; None if there is none."""
        if text not in self._values:
            return None
        self._values.move_to_end(text)
        return self._values[text]

    def put(self, text: str, value: V) -> None:
        """Caches a value in place of an earlier one."""
        if len(text) > _MAX_KEY_LENGTH:
            return
        self._values[text] = value
        self._values.move_to_end(text)
        if len(self._values) > _MAX_ENTRIES:
            self._values.popitem(last=False)

    def get_or_compute(self, text: str, compute: Callable[[str], V]) -> V:
        """The cached value of a text, computed on a miss."""
        if text in self._values:
            self._values.move_to_end(text)
            return self._values[text]
        value = compute(text)
        self.put(text, value)
        return value

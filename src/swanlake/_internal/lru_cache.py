"""What was worked out of short texts lately."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")

_MOST = 256
_LONGEST = 1024


class Recent(Generic[V]):
    """Remembers a value for each of the texts that came last; long ones are not kept."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, V] = OrderedDict()

    def forget(self) -> None:
        """Forgets all of them."""
        self._values.clear()

    def of(self, text: str, work_out: Callable[[str], V]) -> V:
        """The value of a text, worked out if it is not remembered."""
        if text in self._values:
            self._values.move_to_end(text)
            return self._values[text]
        value = work_out(text)
        if len(text) <= _LONGEST:
            self._values[text] = value
            if len(self._values) > _MOST:
                self._values.popitem(last=False)
        return value

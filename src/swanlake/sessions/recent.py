"""What was worked out of short texts lately."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")

_MOST = 256
_LONGEST = 1024


class Recent(Generic[V]):
    """Remembers a value for each of the texts that came last; long ones are not kept."""

    def __init__(self) -> None:
        self._values: OrderedDict[str, V] = OrderedDict()

    def get(self, text: str) -> V | None:
        value = self._values.get(text)
        if value is not None:
            self._values.move_to_end(text)
        return value

    def put(self, text: str, value: V) -> None:
        if len(text) > _LONGEST:
            return
        self._values[text] = value
        if len(self._values) > _MOST:
            self._values.popitem(last=False)

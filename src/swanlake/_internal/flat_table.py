"""Reads FlatBuffers, in which Arrow describes its messages; every number in one may be corrupt.

Methods raise KeyError for a field that is absent, and IndexError or struct.error for one that leads
out of the buffer.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class FlatTable:
    """A table of a FlatBuffer, whose fields are found by number."""

    content: memoryview
    offset: int
    end: int

    @classmethod
    def root(cls, content: memoryview, start: int, end: int) -> FlatTable:
        """The table that a buffer between two places begins with."""
        return cls(content, cls(content, start, end)._follow(start), end)

    def field(self, number: int) -> int:
        """The offset of the value of a field."""
        (back,) = struct.unpack_from("<i", self.content, self.offset)
        slots = self.offset - back
        (size,) = struct.unpack_from("<H", self.content, slots)
        entry = 4 + 2 * number
        if entry + 2 > size:
            raise KeyError(number)
        (offset,) = struct.unpack_from("<H", self.content, slots + entry)
        if not offset:
            raise KeyError(number)
        return self.offset + int(offset)

    def table(self, number: int) -> FlatTable:
        """The value of a field that is a table."""
        return FlatTable(self.content, self._follow(self.field(number)), self.end)

    def tables(self, number: int) -> list[FlatTable]:
        """The value of a field that is a vector of tables."""
        start, count = self._vector(number, 4)
        offsets = (self._follow(start + 4 * i) for i in range(count))
        return [FlatTable(self.content, offset, self.end) for offset in offsets]

    def structs(self, number: int, layout: struct.Struct) -> list[tuple[Any, ...]]:
        """The value of a field that is a vector of structs."""
        start, count = self._vector(number, layout.size)
        return [layout.unpack_from(self.content, start + layout.size * i) for i in range(count)]

    def text(self, number: int) -> tuple[str, int]:
        """The value of a field that is a string, and the offset of its first byte."""
        start, length = self._vector(number, 1)
        return str(self.content[start : start + length], "utf-8"), start

    def _vector(self, number: int, size: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        start = self._follow(self.field(number))
        (count,) = struct.unpack_from("<I", self.content, start)
        if start + 4 + count * size > self.end:
            raise IndexError(count)
        return start + 4, int(count)

    def _follow(self, offset: int) -> int:
        target = offset + int(struct.unpack_from("<I", self.content, offset)[0])
        if target + 4 > self.end:
            raise IndexError(target)
        return target

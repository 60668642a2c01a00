"""The memory that an Arrow stream will need, from what it declares and before it is decoded.

A compressed buffer begins with its uncompressed length. The metadata of each message, a FlatBuffer,
says where the buffers are. Only the few fields that lead to them are read here.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

#: The positions of fields in the tables Message, RecordBatch and DictionaryBatch.
_HEADER_TYPE, _HEADER = 1, 2
_BUFFERS, _COMPRESSION = 2, 3
_DICTIONARY_DATA = 1
#: Values of Message.header_type.
_DICTIONARY_BATCH, _RECORD_BATCH = 2, 3
_BUFFER_STRUCT = struct.Struct("<qq")  # offset in the body, length
_NOT_COMPRESSED = -1


def decoded_bytes(stream: bytes) -> int:
    """The bytes of all buffers of a stream once they are decoded; ValueError if it is malformed."""
    total = 0
    try:
        for message in pa.ipc.MessageReader.open_stream(stream):
            total += _decoded_bytes(memoryview(message.metadata), message.body)
    except (struct.error, pa.ArrowException, OSError) as malformed:
        raise ValueError("not an Arrow stream") from malformed
    return total


def _decoded_bytes(metadata: memoryview, body: Any) -> int:
    message = _Table(metadata, _offset(metadata, 0))
    kind = message.byte(_HEADER_TYPE)
    batch = message.table(_HEADER) if kind in (_DICTIONARY_BATCH, _RECORD_BATCH) else None
    if batch is not None and kind == _DICTIONARY_BATCH:
        batch = batch.table(_DICTIONARY_DATA)
    if batch is None:
        return 0
    if body is None or batch.table(_COMPRESSION) is None:
        return 0 if body is None else int(body.size)
    content = memoryview(body)
    total = 0
    for offset, length in batch.buffers(_BUFFERS):
        if length == 0:
            continue
        [declared] = struct.unpack_from("<q", content, offset)
        if declared < _NOT_COMPRESSED or offset < 0 or length < 0:
            raise ValueError("a buffer has a negative length")
        total += length if declared == _NOT_COMPRESSED else declared
    return total


class _Table:
    """A table of a FlatBuffer: fields by number, each of which may be missing."""

    def __init__(self, buffer: memoryview, position: int) -> None:
        self._buffer = buffer
        self._position = position
        [distance] = struct.unpack_from("<i", buffer, position)
        self._fields = position - distance
        [self._fields_size] = struct.unpack_from("<H", buffer, self._fields)

    def _field(self, number: int) -> int | None:
        """The position of a field's value."""
        entry = 4 + 2 * number
        if entry + 2 > self._fields_size:
            return None
        [offset] = struct.unpack_from("<H", self._buffer, self._fields + entry)
        return self._position + int(offset) if offset else None

    def byte(self, number: int) -> int:
        position = self._field(number)
        return 0 if position is None else self._buffer[position]

    def table(self, number: int) -> _Table | None:
        position = self._field(number)
        return None if position is None else _Table(self._buffer, _offset(self._buffer, position))

    def buffers(self, number: int) -> list[tuple[int, int]]:
        """A vector of the struct Buffer."""
        position = self._field(number)
        if position is None:
            return []
        start = _offset(self._buffer, position)
        [count] = struct.unpack_from("<I", self._buffer, start)
        size = _BUFFER_STRUCT.size
        if count * size > len(self._buffer):
            raise ValueError("a vector is longer than its message")
        first = start + 4
        return [
            _BUFFER_STRUCT.unpack_from(self._buffer, first + index * size) for index in range(count)
        ]


def _offset(buffer: memoryview, position: int) -> int:
    """The position that an offset at this position points to."""
    [distance] = struct.unpack_from("<I", buffer, position)
    return position + int(distance)

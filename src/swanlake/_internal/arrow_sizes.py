"""The memory that an Arrow stream will need, from what it declares and before it is decoded.

A compressed buffer begins with its uncompressed length. The metadata of each message, a FlatBuffer,
says where the buffers are. Only the few fields that lead to them are read here.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from swanlake._internal.flat_table import FlatTable

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
    except (struct.error, LookupError, pa.ArrowException, OSError) as malformed:
        raise ValueError("not an Arrow stream") from malformed
    return total


def _decoded_bytes(metadata: memoryview, body: Any) -> int:
    message = FlatTable.root(metadata, 0, len(metadata))
    (kind,) = struct.unpack_from("<B", metadata, message.field(_HEADER_TYPE))
    if kind not in (_DICTIONARY_BATCH, _RECORD_BATCH) or body is None:
        return 0
    batch = message.table(_HEADER)
    if kind == _DICTIONARY_BATCH:
        batch = batch.table(_DICTIONARY_DATA)
    try:
        batch.field(_COMPRESSION)
    except KeyError:
        return int(body.size)
    content = memoryview(body)
    total = 0
    for offset, length in batch.structs(_BUFFERS, _BUFFER_STRUCT):
        if length == 0:
            continue
        (declared,) = struct.unpack_from("<q", content, offset)
        if declared < _NOT_COMPRESSED or offset < 0 or length < 0:
            raise ValueError("a buffer has a negative length")
        total += length if declared == _NOT_COMPRESSED else declared
    return total

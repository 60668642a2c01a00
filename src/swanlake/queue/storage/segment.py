"""The file of the queue: an Arrow IPC stream to which record batches are appended.

Any Arrow tool reads it. The schema message names the table; each record batch carries its sequence
number, its row count and the checksum of the schema message in its custom metadata. Every message,
the schema included, carries a CRC-32C over all of its bytes, computed with zeros in place of the
checksum itself, so any flipped bit is detected. Arrow's decoder only sees messages whose checksum
is right.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
from crc32c import crc32c

from swanlake._internal.flat_table import FlatTable
from swanlake.lake.model.layout import Column
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.batch_ids import BatchId

#: The end marker of an Arrow stream.
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_CONTINUATION = b"\xff\xff\xff\xff"
_MESSAGE_START = re.compile(_CONTINUATION)  # a pattern searches a mapped file without a copy
_HEADER = b"swanlake.segment"
_COLUMN_ID = b"swanlake.column_id"
_NESTED_IDS = b"swanlake.nested_ids"
_CRC = "crc32c"
_FORMAT = 1
_NO_CRC = b"00000000"
_ALIGNMENT = 8
_CUT_OFF = (
    "the file ends in the middle of it: a write was cut off and never acknowledged, or the disk "
    "lost its end"
)
#: Arrow's message type of a schema.
_SCHEMA = 1
#: A real message header has a few hundred bytes; a larger claim is damage.
_MAX_HEADER_BYTES = 64 * 1024 * 1024


class SegmentDamaged(Exception):
    """The bytes are not what was written; the text says why."""


@dataclass(frozen=True)
class SegmentHeader:
    """The identity of a segment."""

    id: UUID
    table: TableRef
    created_at: float

    def schema(self, arrow_schema: Any, columns: Sequence[Column]) -> Any:
        """The schema of the segment: types of the rows, ids and names of the table's columns."""
        fields = [
            pa.field(column.name, field.type, True, {_COLUMN_ID: str(column.id).encode()})
            for field, column in zip(arrow_schema, columns, strict=True)
        ]
        content = {
            "format": _FORMAT,
            "id": str(self.id),
            "catalog": self.table.catalog,
            "schema": self.table.schema,
            "table": self.table.name,
            "catalog_id": str(self.table.catalog_id),
            "table_id": self.table.table_id,
            "created_at": self.created_at,
        }
        nested = json.dumps([_ids_below(column) for column in columns]).encode()
        metadata = {_HEADER: json.dumps(content).encode(), _NESTED_IDS: nested, _CRC: _NO_CRC}
        return pa.schema(fields, metadata)

    @classmethod
    def from_schema(cls, schema: Any) -> SegmentHeader:
        """Reads the header from a schema; raises SegmentDamaged."""
        try:
            content = json.loads((schema.metadata or {})[_HEADER])
            if content["format"] != _FORMAT:
                raise SegmentDamaged(f"it has the format {content['format']}, not {_FORMAT}")
            table = TableRef(
                content["catalog"],
                content["schema"],
                content["table"],
                UUID(content["catalog_id"]),
                content["table_id"],
            )
            return cls(UUID(content["id"]), table, content["created_at"])
        except (KeyError, ValueError, TypeError) as error:
            raise SegmentDamaged(f"its schema is not that of a segment: {error!r}") from None


def _ids_below(column: Column) -> list[Any]:
    """The ids of the fields of a nested column, each with the ids of its own fields."""
    return [[child.id, _ids_below(child)] for child in column.children]


def nested_columns(schema: Any) -> list[Column]:
    """The columns of a segment: ids and names, and the ids of nested fields."""
    below = json.loads(schema.metadata[_NESTED_IDS])
    return [
        Column(id, name, "", children=_columns_below(ids))
        for id, name, ids in zip(column_ids(schema), schema.names, below, strict=True)
    ]


def _columns_below(ids: list[Any]) -> tuple[Column, ...]:
    return tuple(Column(id, "", "", children=_columns_below(below)) for id, below in ids)


def schema_as_of(schema: Any, columns: Sequence[Column]) -> Any:
    """The schema of a segment with the current names of its struct fields.

    DuckDB casts structs by field name, and fields may have been renamed since.
    """
    names = {field.id: field.name for column in columns for field in column.tree()}
    return pa.schema(
        [
            field.with_type(_renamed(field.type, column.children, names))
            for field, column in zip(schema, nested_columns(schema), strict=True)
        ],
        schema.metadata,
    )


def _renamed(kind: Any, children: tuple[Column, ...], names: dict[int, str]) -> Any:
    if not children:
        return kind
    if pa.types.is_struct(kind):
        return pa.struct(
            [
                # A dropped field must not match a new field of the same name.
                pa.field(
                    names.get(child.id, f"__dropped_{child.id}"),
                    _renamed(kind.field(index).type, child.children, names),
                )
                for index, child in enumerate(children)
            ]
        )
    if pa.types.is_map(kind):
        key, value = children
        return pa.map_(
            _renamed(kind.key_type, key.children, names),
            _renamed(kind.item_type, value.children, names),
        )
    return pa.list_(_renamed(kind.value_type, children[0].children, names))


def column_ids(schema: Any) -> list[int]:
    """The column ids of the table, for the columns of a segment in order."""
    return [int(field.metadata[_COLUMN_ID]) for field in schema]


class Encoder:
    """Encodes the batches of one segment as bytes to append."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.start = bytes(_signed(bytearray(schema.serialize())))
        self._checksum = _hex(crc32c(self.start))

    def encode(self, batch: Any, sequence: int, batch_id: BatchId | None = None) -> bytearray:
        """One batch as a message; its columns match those of the schema by position."""
        metadata = {
            "sequence": str(sequence),
            "rows": str(batch.num_rows),
            "schema": self._checksum.decode(),
            _CRC: _NO_CRC.decode(),
        }
        if batch_id is not None:
            metadata["ingest"] = json.dumps([batch_id.producer, batch_id.sequence])
        sink = pa.BufferOutputStream()
        # Never closed: that would append the end marker.
        writer = pa.ipc.new_stream(sink, self.schema)
        writer.write_batch(
            pa.RecordBatch.from_arrays(batch.columns, schema=self.schema), custom_metadata=metadata
        )
        return _signed(bytearray(memoryview(sink.getvalue())[len(self.start) :]))


@dataclass(frozen=True)
class _Message:
    """A message as its header describes it, before its checksum is verified."""

    start: int
    end: int
    metadata: dict[str, str]
    crc_offset: int


@dataclass(frozen=True)
class StoredBatch:
    """The position and metadata of a record batch whose checksum is right."""

    start: int
    end: int
    sequence: int
    rows: int
    batch_id: BatchId | None = None


@dataclass(frozen=True)
class Damage:
    """Bytes of a segment that are corrupt or incomplete."""

    start: int
    end: int
    reason: str


class Segment:
    """A segment whose checksums are verified."""

    def __init__(self, content: Any, skip: frozenset[BatchId] = frozenset()) -> None:
        """Takes an Arrow buffer, such as a memory map; raises SegmentDamaged without a schema.

        The rows of batches in ``skip`` are left out.
        """
        self._buffer = content
        self._skip = skip
        self._bytes = memoryview(content).cast("B")
        try:
            self._start = _verified(self._bytes, 0).end
            self.schema = pa.ipc.read_schema(content.slice(0, self._start))
        except (pa.ArrowException, OSError, SegmentDamaged) as unreadable:
            raise SegmentDamaged(f"it does not begin with a schema: {unreadable}") from None
        self._checksum = _hex(crc32c(self._bytes[: self._start])).decode()
        self.header = SegmentHeader.from_schema(self.schema)
        #: The intact batches, and the damaged parts of the file.
        self.batches: list[StoredBatch] = []
        self.damages: list[Damage] = []
        #: True if the file has its end marker: nothing was cut off.
        self.sealed = False
        self._verify_batches()

    def _verify_batches(self) -> None:
        batches, damages = self.batches, self.damages
        position, size = self._start, len(self._bytes)
        while position < size:
            if self._bytes[position:] == END:
                self.sealed = True
                return
            try:
                batch = self._batch(position)
            except SegmentDamaged as damaged:
                resumed = self._next_batch(position + _ALIGNMENT)
                damages.append(Damage(position, resumed, str(damaged)))
                position = resumed
                continue
            missing = batch.sequence - (batches[-1].sequence + 1 if batches else 0)
            if missing < 0:
                damages.append(Damage(position, batch.end, "the batch is in the file twice"))
            else:
                if missing and not damages:
                    reason = f"{missing} batches before it are missing"
                    damages.append(Damage(position, position, reason))
                batches.append(batch)
            position = batch.end

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    def record_batches(self, schema: Any = None) -> Iterator[Any]:
        """The rows, without a copy; optionally under a schema that differs in names."""
        for batch in self.batches:
            if batch.batch_id in self._skip:
                continue
            message = pa.ipc.read_message(self._buffer.slice(batch.start, batch.end - batch.start))
            yield pa.ipc.read_record_batch(message, schema or self.schema)

    def _batch(self, position: int) -> StoredBatch:
        message = _verified(self._bytes, position)
        try:
            if message.metadata["schema"] != self._checksum:
                raise SegmentDamaged("it was not written with the schema at the start of the file")
            producer_and_sequence = json.loads(message.metadata.get("ingest", "null"))
            return StoredBatch(
                message.start,
                message.end,
                int(message.metadata["sequence"]),
                int(message.metadata["rows"]),
                BatchId(*producer_and_sequence) if producer_and_sequence else None,
            )
        except (KeyError, ValueError, TypeError) as error:
            raise SegmentDamaged(f"it is not a batch of a segment: {error!r}") from None

    def _next_batch(self, position: int) -> int:
        """The start of the next intact batch or end marker, else the size of the file."""
        while match := _MESSAGE_START.search(self._bytes, position):
            start = match.start()
            # Batches start at multiples of the alignment from the first one.
            if (start - self._start) % _ALIGNMENT == 0:
                if self._bytes[start:] == END:
                    return start
                with suppress(SegmentDamaged):
                    self._batch(start)
                    return start
            position = start + 1
        return len(self._bytes)


@dataclass(frozen=True)
class SegmentRef:
    """A segment in a file: how much of the file counts, and which batches to leave out."""

    id: UUID
    path: str
    size: int
    skip: frozenset[BatchId] = frozenset()


def open_segment(path: str, size: int, skip: frozenset[BatchId] = frozenset()) -> Segment:
    """The first bytes of a file as a memory-mapped segment; readable after its removal."""
    with pa.memory_map(path) as source:
        return Segment(source.read_buffer(size), skip)


def _signed(message: bytearray) -> bytearray:
    """Replaces the zeros in a message by its checksum."""
    offset = _crc_offset(message)
    message[offset : offset + len(_NO_CRC)] = _hex(crc32c(message))
    return message


def _crc_offset(message: bytearray) -> int:
    """Where the checksum of a message is, which has zeros in its place."""
    (size,) = struct.unpack_from("<i", message, 4)
    if message.count(_NO_CRC, 8, 8 + size) == 1:  # nothing else in its header looks the same
        return message.index(_NO_CRC, 8)
    return _parse_message(memoryview(message), 0).crc_offset


def _verified(content: memoryview, start: int) -> _Message:
    """The message at a position; raises SegmentDamaged if its checksum is wrong."""
    message = _parse_message(content, start)
    crc = crc32c(content[start : message.crc_offset])
    crc = crc32c(_NO_CRC, crc)
    crc = crc32c(content[message.crc_offset + len(_NO_CRC) : message.end], crc)
    if _hex(crc).decode() != message.metadata[_CRC]:
        raise SegmentDamaged("its checksum is wrong")
    return message


def _parse_message(content: memoryview, start: int) -> _Message:
    """Parses the header of a message; every number in it may be corrupt."""
    try:
        if content[start : start + 4] != _CONTINUATION:
            raise SegmentDamaged("there is no message")
        (size,) = struct.unpack_from("<i", content, start + 4)
        if not 0 < size <= _MAX_HEADER_BYTES:
            raise SegmentDamaged(f"its header claims {size} bytes")
        body = start + 8 + size
        if body > len(content):
            raise SegmentDamaged(_CUT_OFF)
        table = FlatTable.root(content, start + 8, body)
        end = body + (length := _body_length(table))
        if length < 0 or end > len(content):
            raise SegmentDamaged(_CUT_OFF)
        metadata, offsets = {}, {}
        for entry in _key_values(table):
            key, _ = entry.text(0)
            metadata[key], offsets[key] = entry.text(1)
        if len(metadata[_CRC].encode()) != len(_NO_CRC):
            raise SegmentDamaged("it has no checksum")
        return _Message(start, end, metadata, offsets[_CRC])
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as error:
        raise SegmentDamaged(f"its header cannot be read: {error!r}") from None


def _body_length(message: FlatTable) -> int:
    """The length of the body that follows a message; 0 if it is not given."""
    try:
        (length,) = struct.unpack_from("<q", message.content, message.field(3))
    except KeyError:
        return 0
    return int(length)


def _key_values(message: FlatTable) -> list[FlatTable]:
    """The key-value pairs of a message: of the schema, or of the message itself."""
    (kind,) = struct.unpack_from("<B", message.content, message.field(1))
    return message.tables(4) if kind != _SCHEMA else message.table(2).tables(2)


def _hex(checksum: int) -> bytes:
    return b"%08x" % checksum

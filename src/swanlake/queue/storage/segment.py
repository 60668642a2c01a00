"""The file of the queue: an Arrow IPC stream to which record batches are appended.

Any Arrow tool reads it. The schema message says for which table the rows are; every record batch
carries in its custom metadata its sequence number, its number of rows and the checksum of the
schema message. Every message, the schema included, carries a CRC-32C of its whole, headers
included. It is computed with zeros in its own place, so that one flipped bit anywhere is noticed.
Nothing is given to Arrow's decoder before its checksum was found right.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

import pyarrow as pa
from crc32c import crc32c

from swanlake.lake.layout import Column
from swanlake.queue.names import Ingest, QueueTable

#: Marks the end of a stream: nothing was to come after it.
END = b"\xff\xff\xff\xff\x00\x00\x00\x00"

_CONTINUATION = b"\xff\xff\xff\xff"
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
#: How much of a damaged file is looked at in one go.
_PART = 1 << 20
#: What Arrow calls a message that is a schema.
_SCHEMA = 1
#: The header of a message is a few hundred bytes; what claims more is no header.
_LONGEST_METADATA = 64 * 1024 * 1024


class SegmentDamaged(Exception):
    """The bytes are not what was written; the text says why."""


@dataclass(frozen=True)
class Header:
    """What a segment says of itself."""

    id: UUID
    table: QueueTable
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
    def of(cls, schema: Any) -> Header:
        """Reads it back; raises SegmentDamaged."""
        try:
            content = json.loads((schema.metadata or {})[_HEADER])
            if content["format"] != _FORMAT:
                raise SegmentDamaged(f"it has the format {content['format']}, not {_FORMAT}")
            table = QueueTable(
                content["catalog"],
                content["schema"],
                content["table"],
                UUID(content["catalog_id"]),
                content["table_id"],
            )
            return cls(UUID(content["id"]), table, content["created_at"])
        except (KeyError, ValueError, TypeError) as wrong:
            raise SegmentDamaged(f"its schema is not that of a segment: {wrong!r}") from None


def _ids_below(column: Column) -> list[Any]:
    """The ids of the fields of a nested column, each with those below it."""
    return [[child.id, _ids_below(child)] for child in column.children]


def nested_columns(schema: Any) -> list[Column]:
    """The columns of a segment as far as it knows them: by id, and those below them by id alone."""
    below = json.loads(schema.metadata[_NESTED_IDS])
    return [
        Column(id, name, "", children=_columns_below(ids))
        for id, name, ids in zip(column_ids(schema), schema.names, below, strict=True)
    ]


def _columns_below(ids: list[Any]) -> tuple[Column, ...]:
    return tuple(Column(id, "", "", children=_columns_below(below)) for id, below in ids)


def schema_as_of(schema: Any, columns: Sequence[Column]) -> Any:
    """The schema of a segment with the fields of its structs called as they are called now.

    DuckDB casts structs by the names of their fields, and fields may have been renamed.
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
                # What is gone must not meet a new field of its old name.
                pa.field(
                    names.get(child.id, f"__dropped_{child.id}"),
                    _renamed(kind.field(place).type, child.children, names),
                )
                for place, child in enumerate(children)
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
    """The ids of the lake's columns that the columns of a segment are."""
    return [int(field.metadata[_COLUMN_ID]) for field in schema]


class Encoder:
    """Turns the batches of one segment into the bytes to append."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema
        self.start = bytes(_signed(bytearray(schema.serialize())))
        self._checksum = _hex(crc32c(self.start))

    def encode(self, batch: Any, sequence: int, ingest: Ingest | None = None) -> bytearray:
        """One batch as a message; its columns are those of the schema, by place."""
        metadata = {
            "sequence": str(sequence),
            "rows": str(batch.num_rows),
            "schema": self._checksum.decode(),
            _CRC: _NO_CRC.decode(),
        }
        if ingest is not None:
            metadata["ingest"] = json.dumps([ingest.producer, ingest.sequence])
        sink = pa.BufferOutputStream()
        # Closing it would end the stream; what it has written by then is all that is wanted.
        writer = pa.ipc.new_stream(sink, self.schema)
        writer.write_batch(
            pa.RecordBatch.from_arrays(batch.columns, schema=self.schema), custom_metadata=metadata
        )
        return _signed(bytearray(memoryview(sink.getvalue())[len(self.start) :]))


@dataclass(frozen=True)
class _Frame:
    """One message as its header describes it, before anything of it is believed."""

    start: int
    end: int
    metadata: dict[str, str]
    crc_place: int


@dataclass(frozen=True)
class Batch:
    """A record batch whose checksum is right."""

    start: int
    end: int
    sequence: int
    rows: int
    ingest: Ingest | None = None


@dataclass(frozen=True)
class Damage:
    """Bytes of a segment that are not what was written, or were never written to their end."""

    start: int
    end: int
    reason: str


class Segment:
    """The bytes of a segment, checked."""

    def __init__(self, content: Any, skip: frozenset[Ingest] = frozenset()) -> None:
        """Takes an Arrow buffer, such as a memory map; raises SegmentDamaged if it has no head.

        Batches to skip are not among its rows.
        """
        self._buffer = content
        self._skip = skip
        self._bytes = memoryview(content).cast("B")
        try:
            self._start = _checked(self._bytes, 0).end
            self.schema = pa.ipc.read_schema(content.slice(0, self._start))
        except (pa.ArrowException, OSError, SegmentDamaged) as unreadable:
            raise SegmentDamaged(f"it does not begin with a schema: {unreadable}") from None
        self._checksum = _hex(crc32c(self._bytes[: self._start])).decode()
        self.header = Header.of(self.schema)

    @cached_property
    def _content(self) -> tuple[list[Batch], list[Damage], bool]:
        batches: list[Batch] = []
        damages: list[Damage] = []
        position, size = self._start, len(self._bytes)
        while position < size:
            if self._bytes[position:] == END:
                return batches, damages, True
            try:
                batch = self._batch(position)
            except SegmentDamaged as damaged:
                resumed = self._next_batch(position + _ALIGNMENT)
                damages.append(Damage(position, resumed, str(damaged)))
                position = resumed
                continue
            missing = batch.sequence - (batches[-1].sequence + 1 if batches else 0)
            if missing < 0:
                damages.append(Damage(position, batch.end, "it was in the file before"))
            else:
                if missing and not damages:
                    reason = f"{missing} batches before it are missing"
                    damages.append(Damage(position, position, reason))
                batches.append(batch)
            position = batch.end
        return batches, damages, False

    @property
    def batches(self) -> list[Batch]:
        """All batches that are what was written."""
        return self._content[0]

    @property
    def damages(self) -> list[Damage]:
        """Everything else that is in the file."""
        return self._content[1]

    @property
    def sealed(self) -> bool:
        """True if the file has its end: nothing was cut off."""
        return self._content[2]

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)

    @property
    def valid_end(self) -> int:
        """Where the last batch that is what was written ends."""
        return self.batches[-1].end if self.batches else self._start

    def record_batches(self, schema: Any = None) -> Iterator[Any]:
        """The rows, without a copy; in a schema that differs in names, if one is given."""
        for batch in self.batches:
            if batch.ingest in self._skip:
                continue
            message = pa.ipc.read_message(self._buffer.slice(batch.start, batch.end - batch.start))
            yield pa.ipc.read_record_batch(message, schema or self.schema)

    def _batch(self, position: int) -> Batch:
        frame = _checked(self._bytes, position)
        try:
            if frame.metadata["schema"] != self._checksum:
                raise SegmentDamaged("it was not written with the schema at the begin of the file")
            ingest = json.loads(frame.metadata.get("ingest", "null"))
            return Batch(
                frame.start,
                frame.end,
                int(frame.metadata["sequence"]),
                int(frame.metadata["rows"]),
                Ingest(*ingest) if ingest else None,
            )
        except (KeyError, ValueError, TypeError) as wrong:
            raise SegmentDamaged(f"it is not a batch of a segment: {wrong!r}") from None

    def _next_batch(self, position: int) -> int:
        """Where, from a position on, an undamaged batch or the end begins; else the file's end."""
        content = self._bytes
        size = len(content)
        while (position := _find(content, _CONTINUATION, position)) < size:
            # Batches begin at multiples of the alignment from where the first one did.
            if (position - self._start) % _ALIGNMENT == 0:
                if content[position:] == END:
                    return position
                with suppress(SegmentDamaged):
                    self._batch(position)
                    return position
            position += 1
        return size


def open_segment(path: str, size: int, skip: frozenset[Ingest] = frozenset()) -> Segment:
    """The first bytes of a file as a segment, mapped into memory.

    It stays readable when the file is removed.
    """
    with pa.memory_map(path) as source:
        return Segment(source.read_buffer(size), skip)


def _find(content: memoryview, mark: bytes, start: int) -> int:
    """Where a mark next stands; the end if nowhere."""
    while start < len(content):
        part = bytes(content[start : start + _PART + len(mark) - 1])
        found = part.find(mark)
        if found >= 0:
            return start + found
        start += _PART
    return len(content)


def _signed(message: bytearray) -> bytearray:
    """A message with its checksum in place of the zeros."""
    place = _frame(memoryview(message), 0).crc_place
    message[place : place + len(_NO_CRC)] = _hex(crc32c(message))
    return message


def _checked(content: memoryview, start: int) -> _Frame:
    """A message whose checksum is right; raises SegmentDamaged."""
    frame = _frame(content, start)
    crc = crc32c(content[start : frame.crc_place])
    crc = crc32c(_NO_CRC, crc)
    crc = crc32c(content[frame.crc_place + len(_NO_CRC) : frame.end], crc)
    if _hex(crc).decode() != frame.metadata[_CRC]:
        raise SegmentDamaged("its checksum is wrong")
    return frame


def _frame(content: memoryview, start: int) -> _Frame:
    """Where a message ends and what its metadata says, read without trust in any number of it."""
    try:
        if content[start : start + 4] != _CONTINUATION:
            raise SegmentDamaged("there is no message")
        (size,) = struct.unpack_from("<i", content, start + 4)
        if not 0 < size <= _LONGEST_METADATA:
            raise SegmentDamaged(f"its header claims {size} bytes")
        body = start + 8 + size
        table = _FlatTable.root(content, start + 8, body)
        end = body + (length := table.body_length)
        if length < 0 or end > len(content):
            raise SegmentDamaged(_CUT_OFF)
        metadata, places = {}, {}
        for entry in table.metadata:
            key, _ = entry.text(0)
            metadata[key], places[key] = entry.text(1)
        if len(metadata[_CRC].encode()) != len(_NO_CRC):
            raise SegmentDamaged("it has no checksum")
        return _Frame(start, end, metadata, places[_CRC])
    except (struct.error, IndexError, KeyError, UnicodeDecodeError) as wrong:
        raise SegmentDamaged(f"its header cannot be read: {wrong!r}") from None


@dataclass(frozen=True)
class _FlatTable:
    """A table of a FlatBuffer: just enough of the format to read the metadata of a message."""

    content: memoryview
    place: int
    end: int

    @classmethod
    def root(cls, content: memoryview, start: int, end: int) -> _FlatTable:
        if end > len(content):
            raise SegmentDamaged(_CUT_OFF)
        (offset,) = struct.unpack_from("<I", content, start)
        return cls(content, start + offset, end)._checked()

    @property
    def body_length(self) -> int:
        """How many bytes of values follow a message; none if it does not say."""
        try:
            (length,) = struct.unpack_from("<q", self.content, self.field(3))
        except KeyError:
            return 0
        return int(length)

    @property
    def metadata(self) -> list[_FlatTable]:
        """The keys and values of a message: a schema has them inside, a batch outside."""
        (kind,) = struct.unpack_from("<B", self.content, self.field(1))
        if kind != _SCHEMA:
            return self.tables(4)
        schema = _FlatTable(self.content, self._follow(self.field(2)), self.end)
        return schema.tables(2)

    def field(self, number: int) -> int:
        """Where the value of a field stands."""
        (back,) = struct.unpack_from("<i", self.content, self.place)
        slots = self.place - back
        (size,) = struct.unpack_from("<H", self.content, slots)
        entry = 4 + 2 * number
        if entry + 2 > size:
            raise KeyError(number)
        (offset,) = struct.unpack_from("<H", self.content, slots + entry)
        if not offset:
            raise KeyError(number)
        return self.place + int(offset)

    def tables(self, number: int) -> list[_FlatTable]:
        """A field that is a list of tables."""
        place = self._follow(self.field(number))
        (count,) = struct.unpack_from("<I", self.content, place)
        if count > (self.end - place) // 4:
            raise IndexError(count)
        places = (self._follow(place + 4 + 4 * i) for i in range(count))
        return [_FlatTable(self.content, one, self.end)._checked() for one in places]

    def text(self, number: int) -> tuple[str, int]:
        """A field that is a text, and where its first byte stands."""
        place = self._follow(self.field(number))
        (length,) = struct.unpack_from("<I", self.content, place)
        if place + 4 + length > self.end:
            raise IndexError(length)
        return str(self.content[place + 4 : place + 4 + length], "utf-8"), place + 4

    def _follow(self, place: int) -> int:
        target = place + int(struct.unpack_from("<I", self.content, place)[0])
        if target + 4 > self.end:
            raise IndexError(target)
        return target

    def _checked(self) -> _FlatTable:
        if self.place + 4 > self.end:
            raise IndexError(self.place)
        return self


def _hex(checksum: int) -> bytes:
    return b"%08x" % checksum

"""Dead letters: segments that can never reach their table, kept with the reason.

A letter is an unchanged segment, ``<id>.arrows``. The damaged bytes of a segment are kept as
``<id>.damaged`` and cannot be replayed. A file with ``.json`` appended to its name describes each.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa

from swanlake._internal.disk import read_chunks
from swanlake.errors import NotFound
from swanlake.lake.files import storage
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.names import segment_folder
from swanlake.queue.storage.segment import Damage, Segment, SegmentDamaged, SegmentHeader
from swanlake.queue.storage.store import SUFFIX, SegmentFile

log = logging.getLogger("swanlake.queue")

_DESCRIPTION = ".json"
_CHUNK_BYTES = 8 * 1024 * 1024
_DAMAGED = ".damaged"


@dataclass(frozen=True)
class DeadLetter:
    """The description of a segment, or of damaged bytes, that was not flushed."""

    segment_id: str
    catalog: str
    schema: str
    table: str
    rows: int
    bytes: int
    reason: str
    at: str
    #: False for damaged bytes.
    replayable: bool
    path: str


class DeadLetters:
    """The dead letters in a directory or under a URL of an object store."""

    def __init__(self, target: str) -> None:
        path = target if storage.is_url(target) else os.path.abspath(target)
        self._target = path.rstrip("/")

    def add_segment(self, segment: SegmentFile, reason: str) -> None:
        """Stores a segment; it can then be removed from the queue."""
        path = f"{self._folder(segment.table)}/{segment.id}{SUFFIX}"
        storage.write(path, _read(segment.path, 0, segment.size))
        self._describe(str(segment.id), segment.table, segment.rows, segment.size, reason, path)

    def add_damaged_parts(
        self, segment: SegmentFile, damages: tuple[Damage, ...], recovered: int
    ) -> None:
        """Stores the damaged parts of a segment whose other rows go to the lake."""
        parts = chain.from_iterable(_read(segment.path, d.start, d.end) for d in damages)
        self._add_parts(segment.header, parts, damages, recovered)

    def add_unreplayed_parts(self, letter: DeadLetter, content: Segment) -> None:
        """Stores the damaged parts of a letter whose other rows are replayed."""
        if content.damages:
            damages = tuple(content.damages)
            data = storage.read(letter.path)
            parts = (data[damage.start : damage.end] for damage in damages)
            self._add_parts(content.header, parts, damages, content.rows)

    def _add_parts(
        self,
        header: SegmentHeader,
        parts: Iterable[bytes],
        damages: tuple[Damage, ...],
        recovered: int,
    ) -> None:
        path = f"{self._folder(header.table)}/{header.id}{_DAMAGED}"
        storage.write(path, parts)
        where = "; ".join(f"bytes {d.start} to {d.end}: {d.reason}" for d in damages)
        reason = f"part of the segment is damaged ({where}); {recovered} rows of it were recovered"
        size = sum(damage.end - damage.start for damage in damages)
        self._describe(str(header.id), header.table, 0, size, reason, path)

    def add_unreadable(self, file: Path, reason: str) -> None:
        """Stores a file that cannot be read as a segment."""
        catalog, folder = file.parent.parent.name, file.parent.name
        schema, _, name = folder.partition(".")
        path = f"{self._target}/{catalog}/{folder}/{file.stem}{_DAMAGED}"
        size = file.stat().st_size
        storage.write(path, _read(file, 0, size))
        table = TableRef(unquote(catalog), unquote(schema), unquote(name), UUID(int=0), 0)
        self._describe(file.stem, table, 0, size, f"the segment is damaged: {reason}", path)

    def list_all(self) -> list[DeadLetter]:
        """Every letter, oldest first."""
        letters = [
            letter
            for path in storage.files_under(self._target)
            if path.endswith(_DESCRIPTION) and (letter := _read_description(path)) is not None
        ]
        return sorted(letters, key=lambda letter: (letter.at, letter.segment_id))

    def get(self, segment_id: str) -> DeadLetter:
        """One letter; raises NotFound."""
        for letter in self.list_all():
            if letter.segment_id == segment_id:
                return letter
        raise NotFound(
            f"There is no dead letter {segment_id}; `CALL duckling_queue_dead_letters()` lists "
            "them.",
            identifier="DEAD_LETTER_NOT_FOUND",
        )

    def read(self, letter: DeadLetter) -> Segment:
        """The rows of a letter; raises SegmentDamaged."""
        return Segment(pa.py_buffer(storage.read(letter.path)))

    def first_rows(self, segment_id: str, limit: int) -> list[Any]:
        """Up to ``limit`` rows of a letter, as batches; none of damaged bytes."""
        letter = self.get(segment_id)
        if not letter.replayable:
            return []
        rows = []
        try:
            for batch in self.read(letter).record_batches():
                rows.append(batch.slice(0, limit))
                limit -= rows[-1].num_rows
                if limit <= 0:
                    break
        except SegmentDamaged as damaged:
            log.warning("the rows of the dead letter %s cannot be read: %s", segment_id, damaged)
        return rows

    def remove(self, letter: DeadLetter) -> None:
        """Deletes a letter, its description first: without it the letter is not listed."""
        storage.delete(letter.path + _DESCRIPTION)
        storage.delete(letter.path)

    def _folder(self, table: TableRef) -> str:
        return f"{self._target}/{segment_folder(table).as_posix()}"

    def _describe(
        self, segment_id: str, table: TableRef, rows: int, size: int, reason: str, path: str
    ) -> None:
        """Written last: a letter without a description is not listed, and its segment stays."""
        letter = DeadLetter(
            segment_id,
            table.catalog,
            table.schema,
            table.name,
            rows,
            size,
            reason,
            datetime.now(UTC).isoformat(timespec="milliseconds"),
            path.endswith(SUFFIX),
            path,
        )
        storage.write(path + _DESCRIPTION, [json.dumps(asdict(letter), indent=2).encode()])


def _read_description(path: str) -> DeadLetter | None:
    """The letter that a file describes; None if it is an unrelated file."""
    try:
        letter = DeadLetter(**json.loads(storage.read(path)))
        UUID(letter.segment_id)
    except (TypeError, ValueError):
        log.warning("%s does not describe a dead letter", path)
        return None
    return letter


def _read(path: Path, start: int, end: int) -> Iterator[bytes]:
    return read_chunks(path, start, end, _CHUNK_BYTES)

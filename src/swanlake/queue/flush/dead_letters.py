"""Segments that can never reach their table, kept with the reason until somebody decides.

A letter is the segment as it was, ``<id>.arrows``. Bytes of a segment that are not what was written
are kept as ``<id>.damaged``: there is nothing to replay in them. What is known of either stands
beside it, in a file of its name with ``.json`` behind.
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
from urllib.parse import unquote
from uuid import UUID

import pyarrow as pa

from swanlake.errors import NotFound
from swanlake.lake import files
from swanlake.queue.names import QueueTable
from swanlake.queue.segment import Damage, Header, Segment
from swanlake.queue.store import SUFFIX, SegmentFile

log = logging.getLogger("swanlake.queue")

_ABOUT = ".json"
_PIECE = 8 * 1024 * 1024
_DAMAGED = ".damaged"


@dataclass(frozen=True)
class DeadLetter:
    """What is known of a segment that was put aside."""

    segment_id: str
    catalog: str
    schema: str
    table: str
    rows: int
    bytes: int
    reason: str
    at: str
    #: False for bytes that nothing can read any more.
    replayable: bool
    path: str


class DeadLetters:
    """A directory, or a place in an object store."""

    def __init__(self, target: str) -> None:
        place = target if files.is_url(target) else os.path.abspath(target)
        self._target = place.rstrip("/")

    def put(self, segment: SegmentFile, reason: str) -> None:
        """Keeps a segment; it can then be removed from the queue."""
        path = f"{self._folder(segment.table)}/{segment.id}{SUFFIX}"
        files.write(path, pieces(segment.path, 0, segment.size))
        self._describe(str(segment.id), segment.table, segment.rows, segment.size, reason, path)

    def put_damaged(
        self, segment: SegmentFile, damages: tuple[Damage, ...], recovered: int
    ) -> None:
        """Keeps what of a segment could not be read; the rest of it is in the lake."""
        parts = chain.from_iterable(pieces(segment.path, d.start, d.end) for d in damages)
        self._put_parts(segment.header, parts, damages, recovered)

    def put_rest(self, letter: DeadLetter, content: Segment) -> None:
        """Keeps what of a letter could not be read, when the rest of it is replayed."""
        if content.damages:
            damages = tuple(content.damages)
            whole = files.read(letter.path)
            parts = (whole[damage.start : damage.end] for damage in damages)
            self._put_parts(content.header, parts, damages, content.rows)

    def _put_parts(
        self,
        header: Header,
        parts: Iterable[bytes],
        damages: tuple[Damage, ...],
        recovered: int,
    ) -> None:
        path = f"{self._folder(header.table)}/{header.id}{_DAMAGED}"
        files.write(path, parts)
        where = "; ".join(f"bytes {d.start} to {d.end}: {d.reason}" for d in damages)
        reason = f"part of the segment is damaged ({where}); {recovered} rows of it were recovered"
        size = sum(damage.end - damage.start for damage in damages)
        self._describe(str(header.id), header.table, 0, size, reason, path)

    def put_unreadable(self, file: Path, reason: str) -> None:
        """Keeps a file that is no segment any more."""
        catalog, folder = file.parent.parent.name, file.parent.name
        schema, _, name = folder.partition(".")
        path = f"{self._target}/{catalog}/{folder}/{file.stem}{_DAMAGED}"
        size = file.stat().st_size
        files.write(path, pieces(file, 0, size))
        named = QueueTable(unquote(catalog), unquote(schema), unquote(name), UUID(int=0), 0)
        self._describe(file.stem, named, 0, size, f"the segment is damaged: {reason}", path)

    def all(self) -> list[DeadLetter]:
        """Every letter, oldest first."""
        found = [
            letter
            for path in files.files_under(self._target)
            if path.endswith(_ABOUT) and (letter := _read(path)) is not None
        ]
        return sorted(found, key=lambda letter: (letter.at, letter.segment_id))

    def named(self, segment_id: str) -> DeadLetter:
        """One letter; raises NotFound."""
        for letter in self.all():
            if letter.segment_id == segment_id:
                return letter
        raise NotFound(
            f"There is no dead letter {segment_id}; `CALL duckling_queue_dead_letters()` lists "
            "them.",
            identifier="DEAD_LETTER_NOT_FOUND",
        )

    def open(self, letter: DeadLetter) -> Segment:
        """The rows of a letter; raises SegmentDamaged."""
        return Segment(pa.py_buffer(files.read(letter.path)))

    def remove(self, letter: DeadLetter) -> None:
        """Forgets a letter; its description first, without which it is none."""
        files.delete(_about(letter.path))
        files.delete(letter.path)

    def _folder(self, table: QueueTable) -> str:
        return f"{self._target}/{table.folder.as_posix()}"

    def _describe(
        self, segment_id: str, table: QueueTable, rows: int, size: int, reason: str, path: str
    ) -> None:
        """Last of all: a letter without a description is not listed, and its segment stays."""
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
        files.write(_about(path), [json.dumps(asdict(letter), indent=2).encode()])


def _about(path: str) -> str:
    return path + _ABOUT


def _read(path: str) -> DeadLetter | None:
    """The letter that a file describes; None if it is a file of somebody else's."""
    try:
        letter = DeadLetter(**json.loads(files.read(path)))
        UUID(letter.segment_id)
    except (TypeError, ValueError):
        log.warning("%s is no dead letter", path)
        return None
    return letter


def pieces(path: Path, start: int, end: int) -> Iterator[bytes]:
    """A part of a file, a little at a time."""
    with path.open("rb") as file:
        file.seek(start)
        while start < end and (piece := file.read(min(_PIECE, end - start))):
            start += len(piece)
            yield piece

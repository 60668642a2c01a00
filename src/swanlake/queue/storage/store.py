"""Segments on disk: one directory per server, one folder per table, one file per segment.

What is acknowledged is on disk: contents by ``fdatasync``, names by a sync of their directory.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from swanlake.errors import QueueUnavailable, SwanLakeError
from swanlake.lake.disk import make_directories, sync
from swanlake.lake.ids import uuid7
from swanlake.lake.layout import Column, Table
from swanlake.queue.names import Ingest, QueueTable
from swanlake.queue.producers import Taken
from swanlake.queue.segment import (
    END,
    Encoder,
    Header,
    Segment,
    open_segment,
)
from swanlake.queue.work import SegmentRef

SUFFIX = ".arrows"
_PARTIAL = ".partial"
_FLUSHED = "flushed"


class SegmentFile:
    """A segment that this process writes, or found."""

    def __init__(self, path: Path, header: Header, size: int = 0, rows: int = 0) -> None:
        self.path = path
        self.header = header
        #: The batches in it that their producers gave a name.
        self.taken = Taken()
        #: What is acknowledged; anything beyond it in the file does not count.
        self.size = size
        self.rows = rows

    @property
    def id(self) -> UUID:
        return self.header.id

    @property
    def table(self) -> QueueTable:
        return self.header.table

    def reference(self, skip: frozenset[Ingest] = frozenset()) -> SegmentRef:
        """What a worker needs to find it."""
        return SegmentRef(self.id, str(self.path), self.size, skip)

    def open(self) -> Segment:
        """What is acknowledged of it; it stays readable when the file is removed."""
        return open_segment(str(self.path), self.size)


class OpenSegment(SegmentFile):
    """The segment of a table to which rows are appended."""

    def __init__(self, path: Path, header: Header, layout: Table, arrow_schema: Any) -> None:
        super().__init__(path, header)
        self.columns: tuple[Column, ...] = layout.columns
        self._encoder = Encoder(header.schema(arrow_schema, layout.columns))
        self._sequence = 0

    def append(self, batches: Sequence[tuple[Any, Ingest | None]]) -> None:
        """Adds batches, all of them or none; they are on disk when it returns."""
        if not batches:
            return
        data = bytearray() if self.size else bytearray(self._encoder.start)
        sequence, rows = self._sequence, 0
        for batch, ingest in batches:
            data += self._encoder.encode(batch, sequence, ingest)
            sequence += 1
            rows += batch.num_rows
        self._write(data)
        self._sequence = sequence
        self.size += len(data)
        self.rows += rows
        for _, ingest in batches:
            if ingest is not None:
                self.taken.add(ingest)

    def seal(self) -> None:
        """Marks the end, so that a reader knows that nothing was cut off; best effort."""
        with suppress(QueueUnavailable):
            self._write(END)
            self.size += len(END)

    def _write(self, data: bytes | bytearray) -> None:
        try:
            directories = make_directories(str(self.path.parent)) if not self.size else set()
            flags = os.O_WRONLY | os.O_CLOEXEC | (0 if self.size else os.O_CREAT | os.O_EXCL)
            descriptor = os.open(self.path, flags, 0o644)
            try:
                _write_all(descriptor, data, self.size)
                os.fdatasync(descriptor)
                for directory in directories:
                    sync(directory)
            except OSError:
                self._undo(descriptor)
                raise
            finally:
                os.close(descriptor)
        except OSError as failed:
            raise unwritable(self.path, failed) from failed

    def _undo(self, descriptor: int) -> None:
        # Should this fail as well, readers of this process still stop at what is acknowledged.
        with suppress(OSError):
            if self.size:
                os.ftruncate(descriptor, self.size)
            else:
                self.path.unlink()


class Store:
    """The segments of one server."""

    def __init__(self, root: Path, server: Path) -> None:
        self.root = root
        self._server = server

    def new_segment(
        self, table: QueueTable, layout: Table, arrow_schema: Any, at: float
    ) -> OpenSegment:
        """A segment that comes to disk with its first rows."""
        header = Header(uuid7(), table, at)
        return OpenSegment(self._path(header), header, layout, arrow_schema)

    def write_sealed(
        self, header: Header, schema: Any, batches: Iterator[tuple[Any, Ingest | None]]
    ) -> SegmentFile:
        """Any number of rows as a segment of their own: it is there whole, or not at all."""
        encoder = Encoder(schema)
        path = self._path(header)
        segment = SegmentFile(path, header)
        partial = path.with_name(path.name + _PARTIAL)
        try:
            directories = make_directories(str(path.parent))
            with partial.open("wb", buffering=0) as file:
                descriptor = file.fileno()
                size = _write_all(descriptor, encoder.start, 0)
                for sequence, (batch, ingest) in enumerate(batches):
                    data = encoder.encode(batch, sequence, ingest)
                    size += _write_all(descriptor, data, size)
                    segment.rows += batch.num_rows
                    if ingest is not None:
                        segment.taken.add(ingest)
                segment.size = size + _write_all(descriptor, END, size)
                os.fdatasync(descriptor)
            partial.rename(path)
            for directory in directories:
                sync(directory)
        except OSError as failed:
            if isinstance(failed, SwanLakeError):
                raise  # a timeout is an OSError as well
            path.unlink(missing_ok=True)
            raise unwritable(path, failed) from failed
        finally:
            partial.unlink(missing_ok=True)
        return segment

    def take_over(self, directory: Path) -> Iterator[Path]:
        """Moves the segments of another server here, and says where each is now."""
        for path in sorted(directory.glob(f"*/*/*{SUFFIX}")):
            if not path.stat().st_size:  # made, and never written to
                path.unlink()
                continue
            place = self._server / path.relative_to(directory)
            changed = make_directories(str(place.parent))
            path.rename(place)
            yield place
            for folder in changed:
                sync(folder)
        for path in directory.glob(f"*/*/*{_PARTIAL}"):
            path.unlink()  # never acknowledged

    def examine(self, path: Path) -> SegmentFile:
        """A segment that another process wrote; raises SegmentDamaged if nothing can be read."""
        size = path.stat().st_size
        content = open_segment(str(path), size)
        segment = SegmentFile(path, content.header, size, content.rows)
        for batch in content.batches:
            if batch.ingest is not None:
                segment.taken.add(batch.ingest)
        return segment

    def remove(self, segment: SegmentFile, keep: bool) -> None:
        """Lets go of a segment that is in the lake, or puts it where it is kept for a while."""
        if keep:
            place = self.root / _FLUSHED / segment.table.folder / segment.path.name
            make_directories(str(place.parent))
            with suppress(FileNotFoundError):
                os.utime(segment.path)
                segment.path.rename(place)
        segment.path.unlink(missing_ok=True)

    def remove_kept(self, older_than_seconds: float) -> None:
        """Removes flushed segments that were kept for long enough."""
        for path in (self.root / _FLUSHED).glob(f"*/*/*{SUFFIX}"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime >= older_than_seconds:
                    path.unlink()

    def _path(self, header: Header) -> Path:
        return self._server / header.table.folder / f"{header.id}{SUFFIX}"


def _write_all(descriptor: int, data: bytes | bytearray, place: int) -> int:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, place)
        place += written
        rest = rest[written:]
    return len(data)


def unwritable(path: Path, failed: OSError) -> QueueUnavailable:
    """What a client is told when its rows cannot be kept."""
    reason = failed.strerror or str(failed)
    if failed.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = f"its disk is full ({reason})"
    return QueueUnavailable(
        f"The queue cannot keep the rows: {reason}, in {path.parent}. Nothing was written."
    )

"""Segments on disk: one directory per server, one folder per table, one file per segment.

Acknowledged rows are on disk: contents by ``fdatasync``, names by an fsync of their directory.
"""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID

from swanlake._internal.disk import fsync_path, make_directories
from swanlake.errors import QueueUnavailable, SwanLakeError
from swanlake.lake.model.ids import uuid7
from swanlake.lake.model.layout import Column, Table
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.batch_ids import BatchId, BatchIdSet
from swanlake.queue.names import segment_folder
from swanlake.queue.storage.segment import (
    END,
    Encoder,
    Segment,
    SegmentHeader,
    SegmentRef,
    open_segment,
)

SUFFIX = ".arrows"
_PARTIAL = ".partial"
_FLUSHED = "flushed"
_PROBE_BYTES = 4096


class SegmentFile:
    """A segment in the directory of this server."""

    def __init__(self, path: Path, header: SegmentHeader, size: int = 0, rows: int = 0) -> None:
        self.path = path
        self.header = header
        #: The ids of its batches, as far as producers gave them.
        self.batch_ids = BatchIdSet()
        #: The acknowledged bytes; anything beyond them in the file does not count.
        self.size = size
        self.rows = rows

    @property
    def id(self) -> UUID:
        return self.header.id

    @property
    def table(self) -> TableRef:
        return self.header.table

    def reference(self, skip: frozenset[BatchId] = frozenset()) -> SegmentRef:
        """What a worker needs to read it."""
        return SegmentRef(self.id, str(self.path), self.size, skip)

    def read(self) -> Segment:
        """The acknowledged rows; they stay readable when the file is removed."""
        return open_segment(str(self.path), self.size)


class OpenSegmentFile(SegmentFile):
    """The segment of a table to which rows are appended."""

    def __init__(self, path: Path, header: SegmentHeader, layout: Table, arrow_schema: Any) -> None:
        super().__init__(path, header)
        self.columns: tuple[Column, ...] = layout.columns
        self._encoder = Encoder(header.schema(arrow_schema, layout.columns))
        self._sequence = 0

    def append(self, batches: Sequence[tuple[Any, BatchId | None]]) -> None:
        """Appends all batches, or none on an error; they are on disk when it returns."""
        if not batches:
            return
        data = bytearray() if self.size else bytearray(self._encoder.start)
        sequence, rows = self._sequence, 0
        for batch, batch_id in batches:
            data += self._encoder.encode(batch, sequence, batch_id)
            sequence += 1
            rows += batch.num_rows
        self._write(data)
        self._sequence = sequence
        self.size += len(data)
        self.rows += rows
        for _, batch_id in batches:
            if batch_id is not None:
                self.batch_ids.add(batch_id)

    def seal(self) -> None:
        """Writes the end marker, by which readers know that nothing was cut off; best effort."""
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
                    fsync_path(directory)
            except OSError:
                self._undo(descriptor)
                raise
            finally:
                os.close(descriptor)
        except OSError as error:
            raise write_failed(self.path, error) from error

    def _undo(self, descriptor: int) -> None:
        # If this fails too, readers of this process still stop at the acknowledged size.
        with suppress(OSError):
            if self.size:
                os.ftruncate(descriptor, self.size)
            else:
                self.path.unlink()


class SegmentStore:
    """The segments of one server."""

    def __init__(self, root: Path, server: Path) -> None:
        self.root = root
        self._server = server

    def new_segment(
        self, table: TableRef, layout: Table, arrow_schema: Any, at: float
    ) -> OpenSegmentFile:
        """A new segment; its file is created with its first rows."""
        header = SegmentHeader(uuid7(), table, at)
        return OpenSegmentFile(self._path(header), header, layout, arrow_schema)

    def write_sealed(
        self, header: SegmentHeader, schema: Any, batches: Iterator[tuple[Any, BatchId | None]]
    ) -> SegmentFile:
        """Writes any number of rows as a new segment; its file appears complete or not at all."""
        encoder = Encoder(schema)
        path = self._path(header)
        segment = SegmentFile(path, header)
        partial = path.with_name(path.name + _PARTIAL)
        try:
            directories = make_directories(str(path.parent))
            with partial.open("wb", buffering=0) as file:
                descriptor = file.fileno()
                size = _write_all(descriptor, encoder.start, 0)
                for sequence, (batch, batch_id) in enumerate(batches):
                    data = encoder.encode(batch, sequence, batch_id)
                    size += _write_all(descriptor, data, size)
                    segment.rows += batch.num_rows
                    if batch_id is not None:
                        segment.batch_ids.add(batch_id)
                segment.size = size + _write_all(descriptor, END, size)
                os.fdatasync(descriptor)
            partial.rename(path)
            for directory in directories:
                fsync_path(directory)
        except OSError as error:
            if isinstance(error, SwanLakeError):
                raise  # some of our errors are OSErrors too, such as timeouts
            path.unlink(missing_ok=True)
            raise write_failed(path, error) from error
        finally:
            partial.unlink(missing_ok=True)
        return segment

    def check_writable(self) -> None:
        """Writes to the disk as an insert does; raises QueueUnavailable. Leaves no file."""
        try:
            with tempfile.TemporaryFile(dir=self._server, buffering=0) as file:
                _write_all(file.fileno(), bytes(_PROBE_BYTES), 0)
                os.fdatasync(file.fileno())
        except OSError as error:
            raise write_failed(self._server / "probe", error) from error

    def adopt(self, directory: Path) -> Iterator[Path]:
        """Moves the segments of another server to this one; yields each new path."""
        for path in sorted(directory.glob(f"*/*/*{SUFFIX}")):
            if not path.stat().st_size:  # created, and never written to
                path.unlink()
                continue
            target = self._server / path.relative_to(directory)
            changed = make_directories(str(target.parent))
            path.rename(target)
            yield target
            for folder in changed:
                fsync_path(folder)
        for path in directory.glob(f"*/*/*{_PARTIAL}"):
            path.unlink()  # never acknowledged

    def examine(self, path: Path) -> SegmentFile:
        """A segment that another process wrote; raises SegmentDamaged if nothing can be read."""
        size = path.stat().st_size
        content = open_segment(str(path), size)
        segment = SegmentFile(path, content.header, size, content.rows)
        for batch in content.batches:
            if batch.batch_id is not None:
                segment.batch_ids.add(batch.batch_id)
        return segment

    def remove(self, segment: SegmentFile, keep: bool) -> None:
        """Deletes a flushed segment, or moves it to where it is kept for the retention."""
        if keep:
            retained = self.root / _FLUSHED / segment_folder(segment.table) / segment.path.name
            make_directories(str(retained.parent))
            with suppress(FileNotFoundError):
                os.utime(segment.path)
                segment.path.rename(retained)
        segment.path.unlink(missing_ok=True)

    def remove_expired(self, older_than_seconds: float) -> None:
        """Deletes flushed segments whose retention is over."""
        for path in (self.root / _FLUSHED).glob(f"*/*/*{SUFFIX}"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime >= older_than_seconds:
                    path.unlink()

    def _path(self, header: SegmentHeader) -> Path:
        return self._server / segment_folder(header.table) / f"{header.id}{SUFFIX}"


def _write_all(descriptor: int, data: bytes | bytearray, offset: int) -> int:
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        offset += written
        rest = rest[written:]
    return len(data)


def write_failed(path: Path, error: OSError) -> QueueUnavailable:
    """The error for a client whose rows cannot be written."""
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = f"its disk is full ({reason})"
    return QueueUnavailable(
        f"The queue cannot keep the rows: {reason}, in {path.parent}. Nothing was written."
    )

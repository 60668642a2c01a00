"""A first-in, first-out buffer of record batches that moves to disk when it grows."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from swanlake._internal.memory_budget import Charge


class SpillBuffer:
    """Batches in memory as long as a limit and their charge allow, then in unlinked files."""

    def __init__(self, schema: Any, memory_limit: int, directory: Path, memory: Charge) -> None:
        self._schema = schema
        self._memory_limit = memory_limit
        self._directory = directory
        self._memory = memory
        #: Record batches and files of batches, oldest first.
        self._parts: deque[Any] = deque()

    @property
    def memory_bytes(self) -> int:
        """The bytes of the batches that are in memory."""
        return self._memory.bytes

    @property
    def spilled(self) -> bool:
        return any(isinstance(part, _SpillFile) for part in self._parts)

    def append(self, batch: Any) -> None:
        """Adds a batch; raises OSError when it must go to disk and the disk is full."""
        last = self._parts[-1] if self._parts else None
        if isinstance(last, _SpillFile) and last.writable:
            last.write(batch)
        elif self._fits(batch.nbytes):
            self._parts.append(batch)
        else:
            file = _SpillFile(self._schema, self._directory)
            self._parts.append(file)
            file.write(batch)

    def _fits(self, size: int) -> bool:
        return self._memory.bytes + size <= self._memory_limit and self._memory.add(size)

    def take(self) -> Any | None:
        """The oldest batch, or None when the buffer is empty."""
        while self._parts:
            first = self._parts[0]
            if not isinstance(first, _SpillFile):
                self._memory.release(first.nbytes)
                return self._parts.popleft()
            batch = first.read()
            if batch is not None:
                return batch
            self._parts.popleft()
        return None

    def __iter__(self) -> Iterator[Any]:
        """Takes all batches, one after the other."""
        while (batch := self.take()) is not None:
            yield batch

    def close(self) -> None:
        """Frees memory and disk; the buffer is empty afterwards."""
        for part in self._parts:
            if isinstance(part, _SpillFile):
                part.close()
        self._parts.clear()
        self._memory.release()


class _SpillFile:
    """An Arrow stream in a temporary file that has no name: written to the end, then read."""

    def __init__(self, schema: Any, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory, prefix="result-")  # noqa: SIM115
        self._writer = pa.ipc.new_stream(self._file, schema)
        self._reader: Any = None

    @property
    def writable(self) -> bool:
        return self._reader is None

    def write(self, batch: Any) -> None:
        self._writer.write_batch(batch)

    def read(self) -> Any | None:
        if self._reader is None:
            self._writer.close()
            self._file.seek(0)
            self._reader = pa.ipc.open_stream(self._file)
        try:
            return self._reader.read_next_batch()
        except StopIteration:
            self.close()
            return None

    def close(self) -> None:
        self._file.close()

"""Durable changes to local files and directories."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def fsync_path(path: str | Path) -> None:
    """Returns when a file or directory is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(directory: str) -> set[str]:
    """Creates a directory; returns every directory to sync after a file is added to it."""
    directory = os.path.abspath(directory)
    changed = {directory}
    parent = directory
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
        changed.add(parent)
    os.makedirs(directory, exist_ok=True)
    return changed


def read_chunks(path: str | Path, start: int, end: int, chunk_bytes: int) -> Iterator[bytes]:
    """The bytes of a file between two offsets, in chunks; fewer if the file is shorter."""
    with open(path, "rb") as file:
        file.seek(start)
        while start < end and (chunk := file.read(min(chunk_bytes, end - start))):
            start += len(chunk)
            yield chunk

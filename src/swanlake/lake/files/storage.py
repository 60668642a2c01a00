"""The lake's files in a local directory or an object store.

Paths are those of the catalog. pyarrow would decode ``%20`` in a URL, so it gets only the root of a
store as a URL.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyarrow import fs

from swanlake._internal.disk import fsync_path, make_directories
from swanlake.errors import CatalogUnreachable


def is_url(path: str) -> bool:
    """True for an object store, False for a local path."""
    return "://" in path


@dataclass(frozen=True)
class Entry:
    """A file or folder, and when it was last modified."""

    path: str
    modified: datetime
    size: int
    is_folder: bool


def entries_under(directory: str) -> Iterator[Entry]:
    """Everything below a directory; nothing if it does not exist."""
    with _reachable(directory):
        filesystem, prefix, inside = _open(directory.rstrip("/"))
        selector = fs.FileSelector(inside, recursive=True, allow_not_found=True)
        found = filesystem.get_file_info(selector)
    for info in found:
        is_folder = info.type == fs.FileType.Directory
        if is_folder or info.is_file:
            modified = info.mtime or datetime.now(UTC)
            yield Entry(prefix + info.path, modified, info.size or 0, is_folder)


def files_under(directory: str) -> Iterator[str]:
    """Every file below a directory; none if it does not exist."""
    return (entry.path for entry in entries_under(directory) if not entry.is_folder)


def find_missing(paths: Iterable[str]) -> list[str]:
    """The files that do not exist."""
    return [path for path, info in _infos(paths) if not info.is_file]


def file_sizes(paths: Iterable[str]) -> dict[str, int]:
    """The sizes of the files that exist."""
    return {path: info.size or 0 for path, info in _infos(paths) if info.is_file}


def _infos(paths: Iterable[str]) -> Iterator[tuple[str, Any]]:
    by_root: dict[str, list[str]] = {}
    for path in paths:
        by_root.setdefault(_root(path), []).append(path)
    for root, files in by_root.items():
        with _reachable(root):
            filesystem = _open(files[0])[0]
            answers = filesystem.get_file_info([_open(path)[2] for path in files])
        yield from zip(files, answers, strict=True)


def check_reachable(directory: str) -> None:
    """Raises CatalogUnreachable unless files can be written under the directory.

    Of an object store, which says nothing about that, it is only checked that it answers.
    """
    with _reachable(directory):
        if is_url(directory):
            filesystem, _, inside = _open(directory.rstrip("/"))
            filesystem.get_file_info(inside)
            return
        existing = directory
        while not os.path.lexists(existing):  # it is created with the first file
            existing = os.path.dirname(existing)
        os.stat(existing)
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(f"{existing} is not writable")


def read(path: str) -> bytes:
    """The content of a file."""
    with _reachable(path):
        filesystem, _, inside = _open(path)
        with filesystem.open_input_stream(inside) as source:
            return bytes(source.read())


def write(path: str, pieces: Iterable[bytes]) -> None:
    """Writes or replaces a file; it is on disk when this returns."""
    with _reachable(path):
        if is_url(path):
            filesystem, _, inside = _open(path)
            with filesystem.open_output_stream(inside) as sink:
                for piece in pieces:
                    sink.write(piece)
            return
        directories = make_directories(os.path.dirname(path))
        partial = f"{path}.partial"
        with open(partial, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        for directory in directories:
            fsync_path(directory)


def delete(path: str) -> None:
    """Deletes a file, or, if the path ends with a slash, a folder and its content.

    A missing one is ignored.
    """
    with _reachable(path):
        filesystem, _, inside = _open(path.rstrip("/"))
        with suppress(FileNotFoundError):
            if path.endswith("/"):
                filesystem.delete_dir(inside)
            else:
                filesystem.delete_file(inside)


def _root(path: str) -> str:
    """``s3://bucket``, or an empty text for a local path."""
    if not is_url(path):
        return ""
    scheme, _, rest = path.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"


def _open(path: str) -> tuple[Any, str, str]:
    """The file system of a path, the prefix of its paths, and the path inside it."""
    root = _root(path)
    if not root:
        return fs.LocalFileSystem(), "", path
    filesystem, bucket = _store(root)
    return filesystem, root.removesuffix(bucket), bucket + path.removeprefix(root)


@lru_cache(maxsize=32)
def _store(root: str) -> tuple[Any, str]:
    # Cached: finding the region of a bucket takes a round trip.
    filesystem, bucket = fs.FileSystem.from_uri(root)
    return filesystem, bucket.rstrip("/")


@contextmanager
def _reachable(place: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise CatalogUnreachable(
            f"The lake's files under {place or '/'} cannot be reached: {reason}"
        ) from error

"""The lake's files in a local directory or an object store.

Paths are those of the catalog. An object store is reached with the options of this process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache

import pyarrow as pa
from pyarrow import fs

from swanlake._internal.disk import fsync_path, make_directories
from swanlake.errors import StorageUnreachable
from swanlake.lake.files.object_store import ObjectStore, StoredObject
from swanlake.lake.files.storage_options import StorageOptions

_THREADS = 8
#: In the path of an unfinished upload: before its id.
_UPLOAD = "?uploadId="


def is_url(path: str) -> bool:
    """True for an object store, False for a local path."""
    return "://" in path


def is_upload(path: str) -> bool:
    """True for an unfinished upload."""
    return _UPLOAD in path and is_url(path)


class _Configuration:
    """The options of this process; those of its environment until others are given."""

    def __init__(self) -> None:
        self._options: StorageOptions | None = None

    def set(self, options: StorageOptions) -> None:
        self._options = options

    def get(self) -> StorageOptions:
        return self._options or StorageOptions.from_environment()


_configuration = _Configuration()
#: The options with which this process reaches object stores.
current_options = _configuration.get


def configure(options: StorageOptions) -> None:
    """Sets how this process reaches object stores, from now on."""
    _configuration.set(options)


@dataclass(frozen=True)
class Entry:
    """A file, a folder or an unfinished upload, and when it was last modified.

    In an object store, a folder is an empty object whose name ends with a slash.
    """

    path: str
    modified: datetime
    size: int
    is_folder: bool


def entries_under(directory: str) -> Iterator[Entry]:
    """Everything below a directory; nothing if it does not exist."""
    if is_url(directory):
        bucket, prefix = _split(directory.rstrip("/") + "/")
        for found in _store().objects(bucket, prefix):
            yield _entry(found)
        return
    with _reachable(directory):
        selector = fs.FileSelector(directory.rstrip("/"), recursive=True, allow_not_found=True)
        infos = fs.LocalFileSystem().get_file_info(selector)
    for info in infos:
        is_folder = info.type == fs.FileType.Directory
        if is_folder or info.is_file:
            modified = info.mtime or datetime.now(UTC)
            yield Entry(info.path, modified, info.size or 0, is_folder)


def unfinished_uploads(directory: str) -> Iterator[Entry]:
    """The uploads below a directory that never ended, whose parts take space; ``delete`` them."""
    if is_url(directory):
        bucket, prefix = _split(directory.rstrip("/") + "/")
        for found in _store().uploads(bucket, prefix):
            yield _entry(found)


def files_under(directory: str) -> Iterator[str]:
    """Every file below a directory; none if it does not exist."""
    return (entry.path for entry in entries_under(directory) if not entry.is_folder)


def find_missing(paths: Iterable[str]) -> list[str]:
    """The files that do not exist."""
    wanted = list(paths)
    sizes = file_sizes(wanted)
    return [path for path in wanted if path not in sizes]


def file_sizes(paths: Iterable[str]) -> dict[str, int]:
    """The sizes of the files that exist."""
    wanted = list(paths)
    remote = [path for path in wanted if is_url(path)]
    local = [path for path in wanted if not is_url(path)]
    with _reachable(local[0] if local else ""):
        infos = fs.LocalFileSystem().get_file_info(local)
    sizes = {path: info.size or 0 for path, info in zip(local, infos, strict=True) if info.is_file}
    if remote:
        store = _store()
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="swanlake-sizes") as pool:
            answers = pool.map(lambda path: store.size(*_split(path)), remote)
            pairs = zip(remote, answers, strict=True)
            sizes |= {path: size for path, size in pairs if size is not None}
    return sizes


def check_reachable(directory: str) -> None:
    """Raises StorageUnreachable unless files can be written under the directory.

    Of an object store, which says nothing about that, it is only checked that the bucket exists and
    that its objects can be listed.
    """
    if is_url(directory):
        _store().check_bucket(*_split(directory))
        return
    with _reachable(directory):
        existing = os.path.abspath(directory)
        while not os.path.lexists(existing):  # it is created with the first file
            existing = os.path.dirname(existing)
        os.stat(existing)
        if not os.access(existing, os.W_OK | os.X_OK):
            raise PermissionError(f"{existing} is not writable")


def read(path: str) -> bytes:
    """The content of a file."""
    content = read_if_exists(path)
    if content is None:
        raise StorageUnreachable(f"The lake's file {path} does not exist.")
    return content


def read_if_exists(path: str) -> bytes | None:
    """The content of a file; None if it does not exist."""
    if is_url(path):
        return _store().read(*_split(path))
    with _reachable(path):
        try:
            with open(path, "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None


def write(path: str, pieces: Iterable[bytes]) -> None:
    """Writes or replaces a file; it is on disk when this returns."""
    if is_url(path):
        _store().write(*_split(path), b"".join(pieces))
        return
    with _reachable(path):
        directories = make_directories(os.path.dirname(path))
        partial = f"{path}.partial"
        with open(partial, "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
        for directory in directories:
            fsync_path(directory)


def create(path: str, content: bytes) -> bool:
    """Writes a new file; False if it exists already, which is then unchanged."""
    if is_url(path):
        return _store().create(*_split(path), content)
    with _reachable(path):
        directories = make_directories(os.path.dirname(path))
        partial = f"{path}.{os.getpid()}-{threading.get_ident()}.partial"
        try:
            with open(partial, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(partial, path)  # fails if it exists, and is complete if it does not
        except FileExistsError:
            return False
        finally:
            with suppress(FileNotFoundError):
                os.unlink(partial)
        for directory in (*directories, os.path.dirname(path)):
            fsync_path(directory)
    return True


def delete(path: str) -> None:
    """Deletes a file, an unfinished upload, or a folder, whose path ends with a slash.

    A local folder is deleted with its content. A missing one is ignored.
    """
    for problem in delete_all([path]).values():
        raise StorageUnreachable(problem)


def delete_all(paths: Sequence[str]) -> dict[str, str]:
    """As ``delete``, for many; returns those that remain and why, and raises nothing."""
    problems: dict[str, str] = {}
    by_bucket: dict[str, dict[str, str]] = {}
    single: list[str] = []
    for path in paths:
        if is_url(path) and not is_upload(path):
            bucket, key = _split(path)
            by_bucket.setdefault(bucket, {})[key] = path
        else:
            single.append(path)
    for bucket, keys in by_bucket.items():
        try:
            failed = _store().delete(bucket, keys)
        except StorageUnreachable as unreachable:
            failed = dict.fromkeys(keys, unreachable.message)
        problems |= {keys[key]: reason for key, reason in failed.items()}
    if len(single) == 1:
        answers = [_delete_one(single[0])]
    else:
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="swanlake-delete") as pool:
            answers = list(pool.map(_delete_one, single))
    pairs = zip(single, answers, strict=True)
    return problems | {path: reason for path, reason in pairs if reason is not None}


def _delete_one(path: str) -> str | None:
    """Why a local path or an unfinished upload could not be deleted."""
    try:
        if is_url(path):
            place, _, upload = path.rpartition(_UPLOAD)
            _store().abort_upload(*_split(place), upload)
            return None
        with _reachable(path), suppress(FileNotFoundError):
            if path.endswith("/"):
                fs.LocalFileSystem().delete_dir(path.rstrip("/"))
            else:
                fs.LocalFileSystem().delete_file(path)
    except StorageUnreachable as failed:
        return failed.message
    return None


def _entry(found: StoredObject) -> Entry:
    path = f"s3://{found.bucket}/{found.key}"
    if found.upload:
        return Entry(path + _UPLOAD + found.upload, found.modified, found.size, False)
    return Entry(path, found.modified, found.size, found.key.endswith("/") and not found.size)


def _split(url: str) -> tuple[str, str]:
    """The bucket and the key of a URL."""
    bucket, _, key = url.partition("://")[2].partition("/")
    return bucket, key


def _store() -> ObjectStore:
    return _open_store(_configuration.get())


@lru_cache(maxsize=8)
def _open_store(options: StorageOptions) -> ObjectStore:
    # Cached: its connections are reused, and to make one takes a tenth of a second.
    return ObjectStore(options)


@contextmanager
def _reachable(place: str) -> Iterator[None]:
    try:
        yield
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise StorageUnreachable(
            f"The lake's files under {place or '/'} cannot be reached: {reason}"
        ) from error

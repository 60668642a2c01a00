"""Which files the statements of callers may name."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from swanlake.errors import ConfigError

#: Before the path of a database: ``ducklake:sqlite:/srv/…``.
_SCHEME = re.compile(r"^(?:(?:ducklake|duckdb|sqlite|file):)+", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


class FileAccess(StrEnum):
    """Which files callers other than admins may name in statements."""

    #: None; statements reach the files of the lake through its tables.
    LAKE = "lake"
    #: Those in the directories of ``FileRules``.
    DIRECTORIES = "directories"
    ALL = "all"


@dataclass(frozen=True)
class FileRules:
    """The files that statements may name."""

    access: FileAccess = FileAccess.LAKE
    #: Directories and URLs.
    directories: tuple[str, ...] = ()
    #: The data of the lake: statements of callers other than admins may not name its files.
    data: tuple[str, ...] = ()
    #: The metadata, the queue, the tokens: no statement may write there.
    server: tuple[str, ...] = ()

    def is_open(self, path: str) -> bool:
        """True for a file that callers other than admins may name."""
        if self.access is FileAccess.ALL:
            return not self.is_of_lake(path)
        is_inside = any(is_within(path, directory) for directory in self.directories)
        return self.access is FileAccess.DIRECTORIES and is_inside and not self.is_of_lake(path)

    def is_of_lake(self, path: str) -> bool:
        """True for a file of the lake or of the server."""
        return any(is_within(path, directory) for directory in (*self.data, *self.server))

    def is_of_server(self, path: str) -> bool:
        """True for a file of the server itself."""
        return any(is_within(path, directory) for directory in self.server)


def is_within(path: str, directory: str) -> bool:
    """True if a path, or a pattern of paths, is in a directory or in a URL."""
    if _URL.match(path) or _URL.match(directory):
        prefix = directory.rstrip("/").lower() + "/"
        return f"{path}/".lower().startswith(prefix) and ".." not in path.split("/")
    path = _SCHEME.sub("", path)
    return Path(os.path.normpath(os.path.abspath(path))).is_relative_to(directory)


def parse_directories(text: str) -> tuple[str, ...]:
    """Directories and URLs, separated by commas; raises ConfigError for a relative directory."""
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    for entry in entries:
        if not _URL.match(entry) and not os.path.isabs(entry):
            raise ConfigError(f"file_directories: {entry!r} is not an absolute path or a URL.")
    return tuple(entry if _URL.match(entry) else os.path.normpath(entry) for entry in entries)

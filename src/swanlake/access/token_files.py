"""Token files: one file for each admin, in a directory that only the server's user can read."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from swanlake.access.grant_text import checked_caller_name
from swanlake.access.identity import Identity, Role
from swanlake.access.secret_text import MIN_TOKEN_LENGTH, token_digest
from swanlake.errors import ConfigError, InvalidRequest, StartupError

log = logging.getLogger("swanlake.access")

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class TokenFiles:
    """The identities of a directory of token files, by the digests of their tokens."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._reported: set[str] = set()

    def check(self) -> None:
        """Creates the directory; raises ConfigError for a file that others can read."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            loose = [entry.path for entry in self._entries() if _is_loose(entry)]
        except OSError as unusable:
            raise StartupError(
                f"The tokens in {self._directory} cannot be read: {unusable}."
            ) from None
        if loose:
            raise ConfigError(
                f"Other users can read the token file {loose[0]}. Make it private with chmod 600, "
                "and replace the token if others may have read it."
            )
        self.read()  # reports unusable files now, not with the first call

    def read(self) -> Mapping[str, Identity]:
        """The identities; a file that cannot be used is reported once."""
        identities: dict[str, Identity] = {}
        problems: set[str] = set()
        for entry in self._entries():
            try:
                token = _read_token(entry)
                name = checked_caller_name(entry.name)
            except (OSError, ValueError, InvalidRequest) as unusable:
                problems.add(f"the token file {entry.path} is not used: {unusable}")
                continue
            identities[token_digest(token)] = Identity(name, Role.ADMIN)
        for problem in sorted(problems - self._reported):
            log.error("%s", problem)
        self._reported = problems
        return identities

    def _entries(self) -> Iterator[os.DirEntry[str]]:
        with os.scandir(self._directory) as entries:
            for entry in entries:
                # Hidden files belong to editors and to mounted secrets.
                if entry.is_file() and not entry.name.startswith("."):
                    yield entry


def is_loose(mode: int, owner: int, own_user: int) -> bool:
    """True if other users can read or change a file with that mode and owner.

    The group may read a file of root: mounted secrets give it to the server's group that way.
    """
    allowed = stat.S_IRGRP if owner == 0 != own_user else 0
    return bool(mode & _OTHERS & ~allowed)


def _is_loose(entry: os.DirEntry[str]) -> bool:
    status = entry.stat()
    return is_loose(status.st_mode, status.st_uid, os.geteuid())


def _read_token(entry: os.DirEntry[str]) -> str:
    if _is_loose(entry):
        raise ValueError("other users can read it")
    try:
        token = Path(entry.path).read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8 text") from None
    if len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(f"the token is shorter than {MIN_TOKEN_LENGTH} characters")
    return token

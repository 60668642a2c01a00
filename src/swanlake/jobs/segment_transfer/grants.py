"""Transfer grants: remote workers that do not see the server's disk may fetch files from it.

A grant covers named files for the duration of a job. Its token gives read access to these files
and to nothing else, and is never logged.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from swanlake.errors import NotAuthenticated, NotFound, PipelineUnavailable

#: The Flight action by which workers fetch a file: its name in, its bytes out, in chunks.
#: ListActions omits it, because it needs a grant.
FETCH_SEGMENT = "swanlake.FetchSegment"

_TOKEN_BYTES = 32
#: How long a job waits for a starting server to listen.
_LISTEN_SECONDS = 30.0


@dataclass(frozen=True)
class GrantedFile:
    """A file, and how many of its bytes count."""

    path: str
    size: int


@dataclass(frozen=True)
class TransferGrant:
    """What a worker needs to fetch the files; it is sent with the unit."""

    url: str
    token: str = field(repr=False)
    #: For TLS: the certificates to trust, as PEM; None for the worker's defaults.
    certificates: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class _ActiveGrant:
    files: Mapping[str, GrantedFile]
    expires_at: float


class TransferGrants:
    """The active grants of one server."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Grants expire after these seconds if their job does not end before."""
        self._seconds = seconds
        self._clock = clock
        self._address: tuple[str, bytes | None] = ("", None)
        self._listening = threading.Event()
        #: By digest of the token: the time of a lookup reveals nothing about the token.
        self._active: dict[bytes, _ActiveGrant] = {}

    def set_address(self, url: str, certificates: bytes | None = None) -> None:
        """Sets the address at which workers reach the server; jobs wait for it."""
        self._address = url, certificates
        self._listening.set()

    @contextmanager
    def issue(self, files: Mapping[str, GrantedFile]) -> Iterator[TransferGrant]:
        """A grant for files by name, valid during the block."""
        if not self._listening.wait(_LISTEN_SECONDS):
            raise PipelineUnavailable("The server does not listen yet; workers could not reach it.")
        url, certificates = self._address
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        key = _digest(token)
        self._active[key] = _ActiveGrant(dict(files), self._clock() + self._seconds)
        try:
            yield TransferGrant(url, token, certificates)
        finally:
            del self._active[key]

    def is_valid(self, token: str) -> bool:
        """True if the token belongs to an active grant."""
        grant = self._active.get(_digest(token))
        return grant is not None and self._clock() < grant.expires_at

    def find(self, token: str, name: str) -> GrantedFile:
        """A file that the grant of a token covers; raises NotAuthenticated or NotFound."""
        grant = self._active.get(_digest(token))
        if grant is None or self._clock() >= grant.expires_at:
            raise NotAuthenticated("The job for which this token was made is over.")
        if name not in grant.files:
            raise NotFound("The token is not for this segment.", identifier="SEGMENT_NOT_FOUND")
        return grant.files[name]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()

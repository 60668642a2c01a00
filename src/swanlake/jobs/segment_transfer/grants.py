"""Files of this server, lent to workers that do not see its disk.

A loan names files and is good while the job runs for which it was made. Whoever has its token may
read them until then, and do nothing else; so it stands in no log.
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

#: The Flight action with which workers fetch a lent file: its name in, its bytes out, in pieces.
#: ListActions does not name it: without a loan nobody can use it.
FETCH = "swanlake.FetchSegment"

_TOKEN_BYTES = 32
#: How long a job waits for a server that is being started to listen.
_LISTEN_SECONDS = 30.0


@dataclass(frozen=True)
class LentFile:
    """A file, and how much of it counts."""

    path: str
    size: int


@dataclass(frozen=True)
class Loan:
    """What a worker needs to fetch the files: it travels with the work."""

    url: str
    token: str = field(repr=False)
    #: For TLS: the certificates to trust, as PEM. None: those the worker trusts anyway.
    certificates: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class _Terms:
    files: Mapping[str, LentFile]
    ends_at: float


class Lender:
    """The loans of one server."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """A loan ends after these seconds, should its job not end it before."""
        self._seconds = seconds
        self._clock = clock
        self._address: tuple[str, bytes | None] = ("", None)
        self._listening = threading.Event()
        #: By the digest of the token: a lookup tells nothing about how much of a guess was right.
        self._terms: dict[bytes, _Terms] = {}

    def listen(self, url: str, certificates: bytes | None = None) -> None:
        """Tells where workers find the server; jobs that need it wait for this."""
        self._address = url, certificates
        self._listening.set()

    @contextmanager
    def lend(self, files: Mapping[str, LentFile]) -> Iterator[Loan]:
        """A loan of files, by the names workers call them, for as long as the block runs."""
        if not self._listening.wait(_LISTEN_SECONDS):
            raise PipelineUnavailable("The server does not listen yet; workers could not reach it.")
        url, certificates = self._address
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        key = _digest(token)
        self._terms[key] = _Terms(dict(files), self._clock() + self._seconds)
        try:
            yield Loan(url, token, certificates)
        finally:
            del self._terms[key]

    def knows(self, token: str) -> bool:
        """True while a token is that of a loan."""
        terms = self._terms.get(_digest(token))
        return terms is not None and self._clock() < terms.ends_at

    def find(self, token: str, name: str) -> LentFile:
        """A file that a loan names; raises NotAuthenticated or NotFound."""
        terms = self._terms.get(_digest(token))
        if terms is None or self._clock() >= terms.ends_at:
            raise NotAuthenticated("The job for which this token was made is over.")
        if name not in terms.files:
            raise NotFound(
                "The token is not for this segment.",
                identifier="SEGMENT_NOT_FOUND",
            )
        return terms.files[name]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()

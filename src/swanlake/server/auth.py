"""Who is calling: from the authorization header of every call."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow.flight as flight

from swanlake.config import Settings
from swanlake.errors import NotAuthenticated, StartupError
from swanlake.pipeline.loans import Lender

log = logging.getLogger("swanlake.server")

ANONYMOUS = "anonymous"
_TRUSTED_USER = "user:"
_WORKER = "spark-worker"


@dataclass(frozen=True)
class Identity:
    """A caller's name, and the bearer token that stands for it in later calls."""

    name: str
    bearer: str = field(default="", repr=False)
    #: The token of a worker, which is good for the files its job was lent and for nothing else.
    loan: str = field(default="", repr=False)


class Authenticator(ABC):
    """Turns the value of an authorization header into an identity."""

    def identify(self, authorization: str | None) -> Identity:
        """Raises NotAuthenticated where the header proves nothing."""
        if not authorization:
            return self.without_credentials()
        scheme, _, value = authorization.strip().partition(" ")
        if scheme.lower() == "bearer":
            return self.by_token(value.strip())
        if scheme.lower() == "basic":
            return self.by_password(*_user_and_password(value.strip()))
        raise NotAuthenticated(
            f"The authorization scheme {scheme!r} is not offered; use Bearer or Basic."
        )

    @abstractmethod
    def without_credentials(self) -> Identity: ...

    @abstractmethod
    def by_token(self, token: str) -> Identity: ...

    @abstractmethod
    def by_password(self, user: str, password: str) -> Identity: ...


def worker_identity(authorization: str | None, lender: Lender) -> Identity | None:
    """A worker of the pipeline by the token of its loan; None for everybody else."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    token = token.strip()
    if scheme.lower() == "bearer" and lender.knows(token):
        return Identity(_WORKER, loan=token)
    return None


class TrustAuthenticator(Authenticator):
    """Believes what callers say of themselves: for one machine, or behind something that checks."""

    def without_credentials(self) -> Identity:
        return Identity(ANONYMOUS)

    def by_token(self, token: str) -> Identity:
        if token.startswith(_TRUSTED_USER):
            return Identity(token.removeprefix(_TRUSTED_USER), token)
        return Identity("token-" + hashlib.sha256(token.encode()).hexdigest()[:12], token)

    def by_password(self, user: str, password: str) -> Identity:
        return Identity(user or ANONYMOUS, _TRUSTED_USER + (user or ANONYMOUS))


@dataclass(frozen=True)
class _TokenFile:
    """A token's file as it was read; ``is_unchanged`` while the token in it still counts."""

    path: str
    name: str
    stamp: tuple[int, int, int]

    @property
    def is_unchanged(self) -> bool:
        try:
            return self.stamp == _stamp(os.stat(self.path))
        except OSError:
            return False


def _stamp(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


class TokenAuthenticator(Authenticator):
    """Asks for a token that stands in a file; the file's name is the identity.

    With Basic authentication the user is that name and the password is the token. Files may come,
    change and go while the server runs.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = self._read()

    def without_credentials(self) -> Identity:
        raise NotAuthenticated(
            "This server asks for a token; send it as 'authorization: Bearer …'."
        )

    def by_token(self, token: str) -> Identity:
        digest = _digest(token)
        file = self._files.get(digest)
        if file is None or not file.is_unchanged:
            self._files = self._read()
            file = self._files.get(digest)
        if token and file is not None:
            return Identity(file.name, token)
        raise NotAuthenticated("The token is not known to this server.")

    def by_password(self, user: str, password: str) -> Identity:
        identity = self.by_token(password)
        if not hmac.compare_digest(identity.name.encode(), user.encode()):
            raise NotAuthenticated("The user and the token do not belong together.")
        return identity

    def _read(self) -> dict[bytes, _TokenFile]:
        found: dict[bytes, _TokenFile] = {}
        try:
            entries = [entry for entry in os.scandir(self._directory) if entry.is_file()]
        except OSError as unreadable:
            log.error("the tokens in %s cannot be read: %s", self._directory, unreadable)
            return found
        for entry in entries:
            if entry.name.startswith("."):
                continue  # what editors and mounted secrets leave beside the files
            try:
                with open(entry.path, encoding="utf-8") as file:
                    stamp = _stamp(os.fstat(file.fileno()))
                    found[_digest(file.read().strip())] = _TokenFile(entry.path, entry.name, stamp)
            except (OSError, UnicodeDecodeError) as unreadable:
                log.error("the token file %s cannot be read: %s", entry.path, unreadable)
        return found


def _digest(token: str) -> bytes:
    """Tokens are compared by digest: a lookup tells nothing about how much of a guess was right."""
    return hashlib.sha256(token.encode()).digest()


def _user_and_password(value: str) -> tuple[str, str]:
    value += "=" * (-len(value) % 4)  # Go's Flight clients leave the padding out
    try:
        user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise NotAuthenticated("The Basic credentials are not valid base64 text.") from None
    if not user.isprintable():  # names stand in the log
        raise NotAuthenticated("The user name holds characters that cannot be printed.")
    return user, password


def open_authenticator(settings: Settings) -> Authenticator:
    """The authenticator that the settings ask for."""
    if settings.auth == "none":
        return TrustAuthenticator()
    directory = settings.home.absolute() / "tokens"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.scandir(directory).close()
    except OSError as unusable:
        raise StartupError(f"The tokens in {directory} cannot be read: {unusable}.") from None
    return TokenAuthenticator(directory)


class HandshakeHandler(flight.ServerAuthHandler):
    """Lets the Handshake call through: the middleware has already read its authorization header."""

    def authenticate(self, outgoing: object, incoming: object) -> None: ...

    def is_valid(self, token: bytes) -> bytes:
        return b""

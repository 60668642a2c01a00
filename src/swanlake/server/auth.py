"""Authentication by the authorization header of every call."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import pyarrow.flight as flight

from swanlake.access.identity import Grant, Identity, Privilege, Role
from swanlake.config import Settings
from swanlake.errors import NotAuthenticated, StartupError
from swanlake.jobs.segment_transfer.grants import TransferGrants

log = logging.getLogger("swanlake.server")

ANONYMOUS = "anonymous"
_TRUSTED_USER = "user:"
_WORKER = "spark-worker"
_NO_CATALOG = (Grant("*", Privilege.NONE),)


class Authenticator(ABC):
    """Identifies a caller by the value of an authorization header."""

    def identify(self, authorization: str | None) -> Identity:
        """The caller's identity; raises NotAuthenticated if the header does not prove one."""
        if not authorization:
            return self.authenticate_anonymous()
        scheme, _, value = authorization.strip().partition(" ")
        if scheme.lower() == "bearer":
            return self.authenticate_token(value.strip())
        if scheme.lower() == "basic":
            return self.authenticate_password(*_user_and_password(value.strip()))
        raise NotAuthenticated(
            f"The authorization scheme {scheme!r} is not supported; use Bearer or Basic."
        )

    @abstractmethod
    def authenticate_anonymous(self) -> Identity: ...

    @abstractmethod
    def authenticate_token(self, token: str) -> Identity: ...

    @abstractmethod
    def authenticate_password(self, user: str, password: str) -> Identity: ...


def identify_worker(authorization: str | None, grants: TransferGrants) -> Identity | None:
    """A Spark worker, by the token of its grant; None for other callers."""
    scheme, _, token = (authorization or "").strip().partition(" ")
    token = token.strip()
    if scheme.lower() == "bearer" and grants.is_valid(token):
        return Identity(_WORKER, Role.READER, _NO_CATALOG, grant_token=token)
    return None


class TrustAuthenticator(Authenticator):
    """Trusts the user name that callers send: for one machine, or behind a proxy that checks."""

    def authenticate_anonymous(self) -> Identity:
        return Identity(ANONYMOUS, Role.ADMIN)

    def authenticate_token(self, token: str) -> Identity:
        if token.startswith(_TRUSTED_USER):
            return Identity(token.removeprefix(_TRUSTED_USER), Role.ADMIN, bearer=token)
        name = "token-" + hashlib.sha256(token.encode()).hexdigest()[:12]
        return Identity(name, Role.ADMIN, bearer=token)

    def authenticate_password(self, user: str, password: str) -> Identity:
        name = user or ANONYMOUS
        return Identity(name, Role.ADMIN, bearer=_TRUSTED_USER + name)


@dataclass(frozen=True)
class _TokenFile:
    """A token file as it was read; the token is valid while the file ``is_unchanged``."""

    path: str
    name: str
    stamp: tuple[int, int, int]

    @property
    def is_unchanged(self) -> bool:
        try:
            return self.stamp == _stamp(os.stat(self.path))
        except OSError:
            return False


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


class TokenAuthenticator(Authenticator):
    """Requires a token that a file contains; the file's name is the identity.

    With Basic authentication the user is that name and the password is the token. Files may be
    added, changed and removed while the server runs.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = self._read()

    def authenticate_anonymous(self) -> Identity:
        raise NotAuthenticated(
            "This server requires a token; send it as 'authorization: Bearer …'."
        )

    def authenticate_token(self, token: str) -> Identity:
        digest = _digest(token)
        file = self._files.get(digest)
        if file is None or not file.is_unchanged:
            self._files = self._read()
            file = self._files.get(digest)
        if token and file is not None:
            return Identity(file.name, Role.ADMIN, bearer=token)
        raise NotAuthenticated("This server does not know the token.")

    def authenticate_password(self, user: str, password: str) -> Identity:
        identity = self.authenticate_token(password)
        if not hmac.compare_digest(identity.name.encode(), user.encode()):
            raise NotAuthenticated("The token does not belong to the user.")
        return identity

    def _read(self) -> dict[bytes, _TokenFile]:
        tokens: dict[bytes, _TokenFile] = {}
        try:
            entries = [entry for entry in os.scandir(self._directory) if entry.is_file()]
        except OSError as unreadable:
            log.error("the tokens in %s cannot be read: %s", self._directory, unreadable)
            return tokens
        for entry in entries:
            if entry.name.startswith("."):
                continue  # files of editors and of mounted secrets
            try:
                with open(entry.path, encoding="utf-8") as file:
                    stamp = _stamp(os.fstat(file.fileno()))
                    tokens[_digest(file.read().strip())] = _TokenFile(entry.path, entry.name, stamp)
            except (OSError, UnicodeDecodeError) as unreadable:
                log.error("the token file %s cannot be read: %s", entry.path, unreadable)
        return tokens


def _digest(token: str) -> bytes:
    """The digest of a token. Comparing digests reveals nothing about a nearly correct guess."""
    return hashlib.sha256(token.encode()).digest()


def _user_and_password(value: str) -> tuple[str, str]:
    value += "=" * (-len(value) % 4)  # Go's Flight clients omit the padding
    try:
        user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise NotAuthenticated("The Basic credentials are not valid base64 text.") from None
    if not user.isprintable():  # names are logged
        raise NotAuthenticated("The user name contains unprintable characters.")
    return user, password


def open_authenticator(settings: Settings) -> Authenticator:
    """The authenticator that the settings select."""
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
    """Accepts the Handshake call: the middleware has already authenticated it."""

    def authenticate(self, outgoing: object, incoming: object) -> None: ...

    def is_valid(self, token: bytes) -> bytes:
        return b""

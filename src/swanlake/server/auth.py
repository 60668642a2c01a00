"""Who is calling: from the authorization header of every call."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

import pyarrow.flight as flight

from swanlake.config import Settings
from swanlake.errors import NotAuthenticated, StartupError

ANONYMOUS = "anonymous"
_TRUSTED_USER = "user:"


@dataclass(frozen=True)
class Identity:
    """A caller's name, and the bearer token that stands for it in later calls."""

    name: str
    bearer: str = ""


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


class TokenAuthenticator(Authenticator):
    """Asks for a token that stands in a file; the file's name is the identity.

    With Basic authentication the user is that name and the password is the token.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._identities = self._read()

    def without_credentials(self) -> Identity:
        raise NotAuthenticated(
            "This server asks for a token; send it as 'authorization: Bearer …'."
        )

    def by_token(self, token: str) -> Identity:
        digest = _digest(token)
        if digest not in self._identities:
            self._identities = self._read()  # a token may have been added since
        if token and digest in self._identities:
            return Identity(self._identities[digest], token)
        raise NotAuthenticated("The token is not known to this server.")

    def by_password(self, user: str, password: str) -> Identity:
        identity = self.by_token(password)
        if not hmac.compare_digest(identity.name.encode(), user.encode()):
            raise NotAuthenticated("The user and the token do not belong together.")
        return identity

    def _read(self) -> dict[bytes, str]:
        try:
            files = [file for file in self._directory.iterdir() if file.is_file()]
            return {_digest(file.read_text().strip()): file.name for file in files}
        except OSError as unreadable:
            raise StartupError(
                f"The tokens in {self._directory} cannot be read: {unreadable}."
            ) from None


def _digest(token: str) -> bytes:
    """Tokens are compared by digest: a lookup then tells nothing about how much of a guess was right."""
    return hashlib.sha256(token.encode()).digest()


def _user_and_password(value: str) -> tuple[str, str]:
    try:
        user, _, password = base64.b64decode(value, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        raise NotAuthenticated("The Basic credentials are not valid base64 text.") from None
    return user, password


def open_authenticator(settings: Settings) -> Authenticator:
    """The authenticator that the settings ask for."""
    if settings.auth == "none":
        return TrustAuthenticator()
    directory = settings.home / "tokens"
    directory.mkdir(parents=True, exist_ok=True)
    return TokenAuthenticator(directory)


class HandshakeHandler(flight.ServerAuthHandler):
    """Lets the Handshake call through: the middleware has already read its authorization header."""

    def authenticate(self, outgoing: object, incoming: object) -> None: ...

    def is_valid(self, token: bytes) -> bytes:
        return b""

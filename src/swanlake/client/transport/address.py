"""A server's URL and the credentials for it."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from swanlake.errors import ConfigError

DEFAULT_PORT = 4214
_SCHEMES = {"grpc": "grpc", "grpc+tcp": "grpc", "grpc+tls": "grpc+tls", "grpcs": "grpc+tls"}


@dataclass(frozen=True, kw_only=True)
class Address:
    """A server and the credentials for it; its repr shows no secret.

    >>> Address.parse("grpc://lake.example/analytics", token="secret")
    Address(url='grpc://lake.example:4214', catalog='analytics', user=None)
    """

    url: str
    catalog: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    tls_root_certs: bytes | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        token: str | None = None,
        user: str | None = None,
        password: str | None = None,
        tls_ca: str | PathLike[str] | bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Address:
        """Reads ``grpc[+tls]://[user:password@]host[:port][/catalog]``; raises ConfigError."""
        parts = _split(url)
        user = user or (unquote(parts.username) if parts.username else None)
        password = password or (unquote(parts.password) if parts.password else None)
        if token is not None and (user or password):
            raise ConfigError("Give a token, or a user and a password, not both.")
        if (user is None) != (password is None):
            raise ConfigError("A user and a password belong together; one of them is missing.")
        sent = {"token": token, "user": user, "password": password, **(headers or {})}
        for name, text in sent.items():
            if text is not None and not (text.isascii() and text.isprintable()):
                raise ConfigError(f"The {name} holds characters that no header can carry.")
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        return cls(
            url=f"{_SCHEMES[parts.scheme]}://{host}:{parts.port or DEFAULT_PORT}",
            catalog=unquote(parts.path.strip("/")) or None,
            user=user,
            password=password,
            token=token,
            tls_root_certs=_certificates(tls_ca),
            headers={name.lower(): value for name, value in (headers or {}).items()},
        )


def _split(url: str) -> Any:
    try:
        parts = urlsplit(url)
        if parts.scheme in _SCHEMES and parts.hostname and parts.port != 0:
            return parts
    except ValueError:
        pass
    raise ConfigError(
        f"{_without_password(url)!r} is not the URL of a Flight server; it has the form "
        "grpc://host:4214, or grpc+tls://host:4214 for TLS."
    )


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.rpartition("@")[2]


def _certificates(tls_ca: str | PathLike[str] | bytes | None) -> bytes | None:
    """The certificates to trust, from PEM text or the path of a PEM file."""
    if tls_ca is None:
        return None
    try:
        pem = tls_ca if isinstance(tls_ca, bytes) else Path(tls_ca).read_bytes()
    except OSError as unreadable:
        raise ConfigError(f"{tls_ca!s} cannot be read: {unreadable.strerror}.") from None
    try:
        text = pem.decode("ascii", "ignore")  # comments in bundles may be in any script
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise ConfigError("The certificates to trust are not PEM text.") from None
    return pem

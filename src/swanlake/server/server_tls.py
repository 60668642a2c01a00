"""The server's TLS files."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from swanlake.config import Settings
from swanlake.errors import ConfigError

#: A certificate that ends sooner is warned about.
_RENEWAL = timedelta(days=14)


@dataclass(frozen=True)
class ServerTls:
    """The contents of the TLS files, as PEM."""

    certificate: bytes
    key: bytes = field(repr=False)
    #: The authorities of client certificates; None if clients need none.
    client_ca: bytes | None = None


def read_tls(settings: Settings) -> ServerTls | None:
    """The TLS files of the settings; None without TLS. Raises ConfigError for unusable files."""
    if settings.tls_cert is None and settings.tls_key is None:
        if settings.tls_client_ca is not None:
            raise ConfigError("tls_client_ca needs tls_cert and tls_key.")
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise ConfigError("tls_cert and tls_key belong together; one of them is missing.")
    try:
        tls = ServerTls(
            settings.tls_cert.read_bytes(),
            settings.tls_key.read_bytes(),
            _read_client_ca(settings.tls_client_ca),
        )
        # gRPC would only report that it cannot listen, and would prompt for an encrypted key.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except ssl.SSLError as unusable:
        raise ConfigError(
            "tls_cert and tls_key must be a PEM certificate and its unencrypted private key: "
            f"{unusable}."
        ) from None
    except OSError as unreadable:
        raise ConfigError(f"The TLS files cannot be read: {unreadable}.") from None
    return tls


def http_context(settings: Settings) -> ssl.SSLContext | None:
    """TLS for HTTP, with the same files; None without TLS."""
    if settings.tls_cert is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    reload_context(context, settings)
    if settings.tls_client_ca is not None:
        context.load_verify_locations(settings.tls_client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def reload_context(context: ssl.SSLContext, settings: Settings) -> None:
    """Uses the current certificate for new connections."""
    assert settings.tls_cert is not None
    context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")


def _read_client_ca(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(path)
    except ssl.SSLError as unusable:
        raise ConfigError(
            f"tls_client_ca must be a file of PEM certificates: {unusable}."
        ) from None
    return path.read_bytes()


def expiry_warning(certificate: bytes, now: datetime | None = None) -> str | None:
    """A sentence about a certificate that has expired or soon will; None for another."""
    from cryptography import x509  # slow to load, and only needed with TLS

    try:
        end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    except ValueError as unreadable:  # stricter than the TLS library that uses it
        return f"The end of the TLS certificate cannot be read: {unreadable}."
    left = end - (now or datetime.now(UTC))
    if left <= timedelta(0):
        return f"The TLS certificate expired on {end:%Y-%m-%d}: clients refuse to connect."
    if left < _RENEWAL:
        return f"The TLS certificate expires on {end:%Y-%m-%d %H:%M} UTC: renew it."
    return None

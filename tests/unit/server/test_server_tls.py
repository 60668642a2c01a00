"""The server's TLS files."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from swanlake.config import Settings
from swanlake.errors import ConfigError
from swanlake.server.server_tls import expiry_warning, read_tls
from tests.tls import self_signed


def test_certificate_that_ends_soon_is_warned_about(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)[0].read_bytes()  # valid for two days
    now = datetime.now(UTC)
    assert expiry_warning(certificate, now - timedelta(days=30)) is None
    assert "expires on" in str(expiry_warning(certificate))
    assert "expired on" in str(expiry_warning(certificate, now + timedelta(days=3)))
    assert "cannot be read" in str(expiry_warning(b"not a certificate"))


def test_client_authorities_are_checked(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    with pytest.raises(ConfigError, match="tls_client_ca needs tls_cert"):
        read_tls(Settings(tls_client_ca=certificate))
    with pytest.raises(ConfigError, match="tls_client_ca must"):
        read_tls(Settings(tls_cert=certificate, tls_key=key, tls_client_ca=key))
    tls = read_tls(Settings(tls_cert=certificate, tls_key=key, tls_client_ca=certificate))
    assert tls is not None
    assert tls.client_ca == certificate.read_bytes()
    assert key.read_text() not in repr(tls)

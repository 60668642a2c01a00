"""The server's TLS files: their end, and what is needed to listen for other machines."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from swanlake.config import Settings
from swanlake.errors import ConfigError
from swanlake.server.app import Server
from swanlake.server.server_tls import expiry_warning, read_tls
from tests.tls import self_signed


def test_certificate_that_ends_soon_is_warned_about(tmp_path: Path) -> None:
    certificate = self_signed(tmp_path)[0].read_bytes()  # valid for two days
    now = datetime.now(UTC)
    assert expiry_warning(certificate, now - timedelta(days=30)) is None
    assert "expires on" in str(expiry_warning(certificate))
    assert "expired on" in str(expiry_warning(certificate, now + timedelta(days=3)))


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


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"host": "0.0.0.0"}, r"no authentication \(--auth\) and no TLS"),
        ({"host": "::", "auth": "token"}, "no TLS"),
        ({"host": "lake.example.com", "auth": "any"}, "no TLS"),
    ],
)
def test_exposed_server_without_protection_does_not_start(
    tmp_path: Path, settings: dict[str, Any], missing: str
) -> None:
    with pytest.raises(ConfigError, match=missing):
        Server(Settings(home=tmp_path / "home", **settings))
    assert list(tmp_path.iterdir()) == [], "nothing is initialised"


def test_exposed_server_needs_authentication_besides_tls(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    settings = Settings(home=tmp_path / "home", host="0.0.0.0", tls_cert=certificate, tls_key=key)
    with pytest.raises(ConfigError, match="no authentication"):
        Server(settings)
    assert not settings.home.exists()


def test_client_certificates_and_remote_spark_workers_exclude_each_other(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    settings = Settings(
        home=tmp_path / "home",
        tls_cert=certificate,
        tls_key=key,
        tls_client_ca=certificate,
        spark_master="spark://there:7077",
    )
    with pytest.raises(ConfigError, match="have no client certificate"):
        Server(settings)

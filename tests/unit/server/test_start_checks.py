"""What is checked and prepared before a server creates the lake."""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from typing import Any

import pytest

from swanlake.config import Settings
from swanlake.errors import AddressInUse, ConfigError
from swanlake.server.app import Server
from swanlake.server.start_checks import check_exposure, make_private
from tests.tls import self_signed


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


@pytest.mark.parametrize(
    "settings",
    [
        {"host": "::1"},
        {"host": "localhost"},
        {"host": "0.0.0.0", "insecure": True},
    ],
)
def test_protected_or_declared_insecure_server_may_start(settings: dict[str, Any]) -> None:
    check_exposure(Settings(**settings), settings["host"], has_tls=False)


def test_taken_address_is_noticed_before_the_lake_is_created(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(home=tmp_path / "home", port=taken.getsockname()[1])
        with pytest.raises(AddressInUse):
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


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_home_is_made_private(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    make_private(home)
    assert mode(home) == 0o700
    (home / "catalogs").mkdir()
    home.chmod(0o755)
    make_private(home)
    assert mode(home) == 0o700


def test_directory_of_other_programs_is_not_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "catalogs").mkdir()
    (tmp_path / "other").mkdir()
    tmp_path.chmod(0o755)
    make_private(tmp_path)
    assert mode(tmp_path) == 0o755
    assert "contains more than SwanLake's files: other" in caplog.text

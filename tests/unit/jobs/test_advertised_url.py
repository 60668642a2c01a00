"""The URL at which executors reach the server, and when they need it."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swanlake.config import Settings
from swanlake.errors import ConfigError
from swanlake.jobs.selection import open_transfer_grants
from swanlake.server.app import Server


@pytest.mark.parametrize(
    "url", ["here", "grpc://here", "http://here:1", "grpc://:1", "grpc://here:x", "grpc://[1:2"]
)
def test_start_fails_when_advertised_url_is_not_a_server_url(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"advertised_url: .* is not a URL"):
        Server(Settings(home=tmp_path, advertised_url=url))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({"host": "10.0.0.1"}, "grpc://10.0.0.1:7"),
        ({"host": "0.0.0.0"}, f"grpc://{socket.gethostname()}:7"),
        ({"host": "::"}, f"grpc://{socket.gethostname()}:7"),
        ({"host": "0.0.0.0", "advertised_url": "grpc+tls://lake:1"}, "grpc+tls://lake:1"),
    ],
)
def test_advertised_url(settings: dict[str, Any], url: str) -> None:
    server = SimpleNamespace(
        _settings=Settings(**settings), url=f"grpc://{settings['host']}:7", port=7
    )
    assert Server._advertised_url(cast(Server, server), "grpc") == url


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, False),
        ({"spark_master": "local[2]"}, False),
        ({"spark_master": "spark://there:7077"}, True),
        ({"spark_master": "yarn"}, True),
        ({"spark_remote": "sc://there"}, True),
        ({"spark_remote": "sc://there", "pipeline": "inline"}, False),
    ],
)
def test_only_remote_workers_need_transfer_grants(settings: dict[str, Any], expected: bool) -> None:
    assert (open_transfer_grants(Settings(**settings)) is not None) == expected

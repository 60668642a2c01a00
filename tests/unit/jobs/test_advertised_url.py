"""Where executors are told to look for the server."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swanlake.config import Settings
from swanlake.errors import ConfigError
from swanlake.pipeline.runners import open_lender
from swanlake.server.app import Server


@pytest.mark.parametrize(
    "url", ["here", "grpc://here", "http://here:1", "grpc://:1", "grpc://here:x", "grpc://[1:2"]
)
def test_what_is_no_url_of_a_server_stops_the_start(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigError, match=r"advertised_url: .* is not the URL of this server"):
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
def test_the_address_that_others_can_use(settings: dict[str, Any], url: str) -> None:
    server = SimpleNamespace(
        _settings=Settings(**settings), url=f"grpc://{settings['host']}:7", port=7
    )
    assert Server._advertised_url(cast(Server, server), "grpc") == url


@pytest.mark.parametrize(
    ("settings", "lends"),
    [
        ({}, False),
        ({"spark_master": "local[2]"}, False),
        ({"spark_master": "spark://there:7077"}, True),
        ({"spark_master": "yarn"}, True),
        ({"spark_remote": "sc://there"}, True),
        ({"spark_remote": "sc://there", "pipeline": "inline"}, False),
    ],
)
def test_only_work_that_is_done_elsewhere_needs_a_loan(
    settings: dict[str, Any], lends: bool
) -> None:
    assert (open_lender(Settings(**settings)) is not None) == lends

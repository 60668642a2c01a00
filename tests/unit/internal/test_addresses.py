"""Which addresses only this machine can reach."""

from __future__ import annotations

import pytest

from swanlake._internal.addresses import is_loopback


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1.2.3", "::1", "[::1]", "localhost", "LOCALHOST", "::ffff:127.0.0.1"]
)
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "127.example.com",
        "127.0.0.1.nip.io",
        "lake",
        "",
        "::ffff:10.0.0.1",
    ],
)
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)

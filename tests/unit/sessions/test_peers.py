"""Connected peers as the kernel lists them."""

from __future__ import annotations

import socket

import pytest

from swanlake.sessions.peers import _address, connected_peers
from tests.waiting import eventually


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0100007F:C350", "127.0.0.1:50000"),
        ("00000000000000000000000001000000:C350", "[::1]:50000"),
        ("0000000000000000FFFF00000100007F:0050", "127.0.0.1:80"),
    ],
)
def test_kernel_address_is_converted_to_text(text: str, address: str) -> None:
    assert _address(text) == address


def test_connection_is_listed_until_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", port))
        accepted, peer = listener.accept()
        name = f"{peer[0]}:{peer[1]}"
        assert name in (connected_peers(port) or ())
        client.close()
        accepted.close()
        eventually(lambda: name not in (connected_peers(port) or ()))

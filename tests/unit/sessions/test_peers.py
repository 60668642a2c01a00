"""Connected peers as the kernel lists them."""

from __future__ import annotations

import socket

import pytest

from swanlake.sessions.peers import _address, connected_peers, find_connection
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


@pytest.mark.parametrize(
    ("listens_on", "connects_to", "peer"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.1:{}"),
        ("::1", "::1", "[::1]:{}"),
        ("::", "127.0.0.1", "127.0.0.1:{}"),
    ],
)
def test_connection_is_found_with_the_inode_that_the_kernel_lists(
    listens_on: str, connects_to: str, peer: str
) -> None:
    family = socket.AF_INET6 if ":" in listens_on else socket.AF_INET
    is_dual = listens_on == "::"
    with socket.create_server((listens_on, 0), family=family, dualstack_ipv6=is_dual) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((connects_to, port)) as client, listener.accept()[0]:
            name = peer.format(client.getsockname()[1])
            assert find_connection(port, name) == (connected_peers(port) or {})[name]
            assert find_connection(port + 1, name) is None
        assert find_connection(port, name) is None


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

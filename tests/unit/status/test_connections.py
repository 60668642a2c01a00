"""Connections of the status server that are not used."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.responses import PlainTextResponse

from swanlake.status import http
from tests.waiting import eventually


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(http, "_LOOK_SECONDS", 0.05)
    config = uvicorn.Config(
        PlainTextResponse("ok"), http=http._Connection, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        eventually(lambda: server.started)
        yield listener.getsockname()
        server.should_exit = True
        thread.join()


@pytest.mark.parametrize("sent", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /"])
def test_connection_is_closed_unless_it_makes_requests(
    address: tuple[str, int], sent: bytes
) -> None:
    with socket.create_connection(address) as client:
        client.sendall(sent)
        while client.recv(1000):
            pass  # until the server closes it

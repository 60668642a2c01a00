"""A proxy to PostgreSQL that drops the connection around a COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum, auto
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_COMMIT_REQUEST = b"COMMIT\0"
_COMMIT_ANSWER = b"C\0\0\0\x0bCOMMIT\0"


class LostMessage(Enum):
    """Which message is lost together with the connection: the COMMIT or its answer."""

    REQUEST = auto()
    ANSWER = auto()


class PostgresProxy:
    """A Unix socket that forwards to a server's, until it is told to lose a COMMIT."""

    def __init__(self, url: str, folder: Path) -> None:
        parameters = conninfo_to_dict(url)
        port = parameters.get("port") or 5432
        self._server = f"{parameters['host']}/.s.PGSQL.{port}"
        self.url = make_conninfo(url, host=str(folder))
        self.lost = 0
        self._next_loss: LostMessage | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/.s.PGSQL.{port}")
        self._listener.listen()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> PostgresProxy:
        return self

    def __exit__(self, *exception: object) -> None:
        _close(self._listener)
        for connection in self._open:
            _close(connection)

    def lose_next_commit(self, message: LostMessage) -> None:
        """Loses the next COMMIT or its answer; later ones pass."""
        self._next_loss = message

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._open += [client, server]
            for pump in (self._forward_requests, self._forward_answers):
                threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        while data := _receive(client):
            if self._next_loss is LostMessage.REQUEST and _COMMIT_REQUEST in data:
                break
            _send(server, data)
        self._disconnect(client, server, LostMessage.REQUEST)

    def _forward_answers(self, client: socket.socket, server: socket.socket) -> None:
        while data := _receive(server):
            if self._next_loss is LostMessage.ANSWER and _COMMIT_ANSWER in data:
                break
            _send(client, data)
        self._disconnect(client, server, LostMessage.ANSWER)

    def _disconnect(self, client: socket.socket, server: socket.socket, loss: LostMessage) -> None:
        if self._next_loss is loss:
            self._next_loss = None
            self.lost += 1
        _close(client)
        _close(server)


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(1 << 20)
    except OSError:
        return b""


def _send(connection: socket.socket, data: bytes) -> None:
    try:
        connection.sendall(data)
    except OSError:
        _close(connection)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()

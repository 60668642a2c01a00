"""A wire to PostgreSQL that breaks at the worst moment: around a COMMIT."""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum, auto
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_COMMIT_ASKED = b"COMMIT\0"
_COMMIT_ANSWERED = b"C\0\0\0\x0bCOMMIT\0"


class Loss(Enum):
    """Which way the next COMMIT, or its answer, gets lost together with the connection."""

    REQUEST = auto()
    ANSWER = auto()


class Proxy:
    """A Unix socket that passes on to a server's, until it is told to lose a COMMIT."""

    def __init__(self, url: str, folder: Path) -> None:
        given = conninfo_to_dict(url)
        port = given.get("port") or 5432
        self._server = f"{given['host']}/.s.PGSQL.{port}"
        self.url = make_conninfo(url, host=str(folder))
        self.lost = 0
        self._next_loss: Loss | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"{folder}/.s.PGSQL.{port}")
        self._listener.listen()
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exception: object) -> None:
        _end(self._listener)
        for one in self._open:
            _end(one)

    def lose(self, what: Loss) -> None:
        """Loses the next COMMIT; those after it pass."""
        self._next_loss = what

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._open += [client, server]
            for pump in (self._pass_questions, self._pass_answers):
                threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _pass_questions(self, client: socket.socket, server: socket.socket) -> None:
        while data := _received(client):
            if self._next_loss is Loss.REQUEST and _COMMIT_ASKED in data:
                break
            _send(server, data)
        self._hang_up(client, server, Loss.REQUEST)

    def _pass_answers(self, client: socket.socket, server: socket.socket) -> None:
        while data := _received(server):
            if self._next_loss is Loss.ANSWER and _COMMIT_ANSWERED in data:
                break
            _send(client, data)
        self._hang_up(client, server, Loss.ANSWER)

    def _hang_up(self, client: socket.socket, server: socket.socket, loss: Loss) -> None:
        if self._next_loss is loss:
            self._next_loss = None
            self.lost += 1
        _end(client)
        _end(server)


def _received(one: socket.socket) -> bytes:
    try:
        return one.recv(1 << 20)
    except OSError:
        return b""


def _send(one: socket.socket, data: bytes) -> None:
    try:
        one.sendall(data)
    except OSError:
        _end(one)


def _end(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()

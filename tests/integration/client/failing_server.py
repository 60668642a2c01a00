"""Connections that do to a writer's batches what networks and servers do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from swanlake.client.address import Address
from swanlake.client.connection import Connection, Request, Statement
from swanlake.client.driver import Call
from swanlake.client.requests import ingest
from swanlake.client.writer import connection_to

T = TypeVar("T")

_INGEST = ingest.__name__


class Troubled:
    """Opens connections on which ``around`` decides what becomes of a batch.

    It is given the sending itself and the number of the attempt, and gives the answer.
    """

    def __init__(self, around: Callable[[Callable[[], Any], int], Any]) -> None:
        self._around = around
        self.attempts = 0

    def __call__(self, address: Address) -> Connection:
        connection = connection_to(address)
        begin = connection.begin

        def troubled_begin(request: Request[T], call: Call) -> Statement[T]:
            if not request.ask.__qualname__.startswith(_INGEST):
                return begin(request, call)
            self.attempts += 1
            number = self.attempts

            def ask(connection: Connection, call: Call) -> T:
                answer: T = self._around(lambda: request.ask(connection, call), number)
                return answer

            return begin(Request(ask, request.repeatable, request.headers), call)

        connection.begin = troubled_begin  # type: ignore[method-assign]
        return connection


class Held(Troubled):
    """Keeps the first batch until the test lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        super().__init__(self._hold)

    def _hold(self, send: Callable[[], Any], number: int) -> Any:
        self.reached.set()
        assert self.go_on.wait(30)
        return send()

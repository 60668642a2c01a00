"""Connections that inject faults into the batches of a writer."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from swanlake.client.api.requests import ingest
from swanlake.client.transport.address import Address
from swanlake.client.transport.connection import Connection, PendingRequest, Request
from swanlake.client.transport.driver import CallContext

T = TypeVar("T")

_INGEST = ingest.__name__


class FaultyConnections:
    """Opens connections on which ``around(send, attempt)`` sends a batch, or fails instead."""

    def __init__(self, around: Callable[[Callable[[], Any], int], Any]) -> None:
        self._around = around
        self.attempts = 0

    def __call__(self, address: Address) -> Connection:
        connection = Connection(address)
        begin = connection.begin

        def faulty_begin(request: Request[T], call: CallContext) -> PendingRequest[T]:
            if not request.run.__qualname__.startswith(_INGEST):
                return begin(request, call)
            self.attempts += 1
            number = self.attempts

            def run(connection: Connection, call: CallContext) -> T:
                answer: T = self._around(lambda: request.run(connection, call), number)
                return answer

            return begin(Request(run, request.idempotent, request.headers), call)

        connection.begin = faulty_begin  # type: ignore[method-assign]
        return connection


class BlockedConnections(FaultyConnections):
    """Blocks the first batch until the test sets ``go_on``."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        super().__init__(self._hold)

    def _hold(self, send: Callable[[], Any], number: int) -> Any:
        self.reached.set()
        assert self.go_on.wait(120)
        return send()

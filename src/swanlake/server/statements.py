"""The session and the run of a call that executes a statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from swanlake.config import Settings
from swanlake.errors import ServerUnavailable
from swanlake.server.call import FlightCall
from swanlake.sessions.registry import SessionRegistry
from swanlake.sessions.run import Run
from swanlake.sessions.session import Session


class StatementScopes:
    """Opens the session of a call, until the server drains."""

    def __init__(self, settings: Settings, registry: SessionRegistry) -> None:
        self.settings = settings
        self.registry = registry
        #: Set when the server shuts down: new statements are refused, running ones continue.
        self.is_draining = False

    @contextmanager
    def open(
        self, call: FlightCall, *, while_draining: bool = False
    ) -> Iterator[tuple[Session, Run]]:
        """The caller's session, and a run that lasts as long as the call."""
        if self.is_draining and not while_draining:
            raise ServerUnavailable(
                "The server is shutting down and accepts no new statements; retry elsewhere.",
                identifier="SERVER_DRAINING",
            )
        session = self.registry.get(
            call.session_key,
            call.identity,
            resume=call.resumes_session,
            address=call.peer,
        )
        requested = call.query_timeout
        if requested is None:
            requested = session.query_timeout or 0.0
        with self.registry.run(
            session,
            call.identity,
            address=call.peer,
            query_id=call.query_id,
            timeout=requested,
            batch_id=lambda: call.ingest(session.options),
            traceparent=call.traceparent,
            is_client_gone=call.is_cancelled,
        ) as run:
            yield session, run


def transaction_id(command: Any) -> bytes | None:
    """The transaction that a command names."""
    return command.transaction_id if command.HasField("transaction_id") else None

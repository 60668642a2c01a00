"""The session and the run of a call that executes a statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from swanlake._internal.tracing import begin
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
        services = self.registry.services
        run = Run(
            self.registry.watchdog,
            session.key,
            identity=call.identity,
            address=call.peer,
            query_id=call.query_id,
            timeout=time_limit(requested, self.settings.query_timeout_seconds),
            batch_id=lambda: call.ingest(session.options),
            trace=begin(call.traceparent) if services.send_trace else None,
            on_end=self._end,
        )
        session.address = call.peer
        with self.registry.track(run), run.client_waiting(call.is_cancelled):
            try:
                yield session, run
            except BaseException as error:
                run.end(error)
                raise
            if not run.has_reader:
                run.end()

    def _end(self, run: Run) -> None:
        services = self.registry.services
        services.activity.log.add(run)
        if run.trace is not None and services.send_trace is not None:
            services.send_trace(run)


def time_limit(requested: float, ceiling: float) -> float:
    """The limit of a statement: what its caller requests, within the operator's. 0 is none."""
    return min(requested, ceiling) if requested and ceiling else requested or ceiling


def transaction_id(command: Any) -> bytes | None:
    """The transaction that a command names."""
    return command.transaction_id if command.HasField("transaction_id") else None

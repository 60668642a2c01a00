"""The Flight service: decodes a call and passes it to a session, a metadata query or an action."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.flight as flight

from swanlake.config import Settings
from swanlake.errors import InvalidRequest, Unsupported
from swanlake.jobs.segment_transfer.grants import TransferGrants
from swanlake.protocol import decode, messages
from swanlake.server import metadata
from swanlake.server.actions import ACTIONS, Describe, FlightActions
from swanlake.server.auth import Authenticator, HandshakeHandler
from swanlake.server.call import MIDDLEWARE, CallMiddlewareFactory, FlightCall, authenticate
from swanlake.server.errors import flight_errors
from swanlake.server.ingest import ingest_statements
from swanlake.server.results import Results, announced_schema, flight_info
from swanlake.server.server_tls import ServerTls
from swanlake.server.statements import StatementScopes, transaction_id
from swanlake.sessions.execution import binding
from swanlake.sessions.registry import SessionRegistry
from swanlake.sessions.results.stream import Outcome
from swanlake.sessions.run import Run
from swanlake.sessions.session import Session

F = TypeVar("F", bound=Callable[..., Any])

#: With its event engine, gRPC reads sockets on threads of their own and wakes the thread that waits
#: for a call. Without it, that thread reads the socket itself: two context switches fewer for each
#: message. Users can still set the variable.
_GRPC_EXPERIMENTS = "-event_engine_listener"


def flight_call(handler: F) -> F:
    """The handler of a Flight call, which authenticates the caller first and converts errors."""

    @wraps(handler)
    def handle(self: SwanLakeService, context: Any, *arguments: Any) -> Any:
        with flight_errors():
            authenticate(context)
            return handler(self, context, *arguments)

    return handle  # type: ignore[return-value]


class SwanLakeService(flight.FlightServerBase):
    """Answers Flight SQL with the sessions of one registry."""

    def __init__(
        self,
        location: str,
        settings: Settings,
        registry: SessionRegistry,
        authenticator: Authenticator,
        describe: Describe,
        tls: ServerTls | None = None,
        grants: TransferGrants | None = None,
    ) -> None:
        self._scopes = StatementScopes(settings, registry)
        self._results = Results(registry)
        self._actions = FlightActions(self._scopes, describe, grants)
        os.environ.setdefault("GRPC_EXPERIMENTS", _GRPC_EXPERIMENTS)
        super().__init__(
            location,
            # With a handler, Flight does not tell the subject of a client's certificate.
            auth_handler=None if settings.tls_client_subjects else HandshakeHandler(),
            tls_certificates=None if tls is None else [(tls.certificate, tls.key)],
            verify_client=tls is not None and tls.client_ca is not None,
            root_certificates=None if tls is None else tls.client_ca,
            middleware={MIDDLEWARE: CallMiddlewareFactory(authenticator, grants)},
        )

    def drain(self) -> None:
        """Refuses new statements from now on; running ones continue."""
        self._scopes.is_draining = True

    @flight_call
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        command = decode(_command_bytes(descriptor))
        if type(command) in metadata.COMMANDS:
            schema = metadata.result_schema(command)
            return flight_info(schema, descriptor, descriptor.command)
        call = FlightCall(context)
        with self._scopes.open(call) as (session, run):
            if isinstance(command, messages.CommandStatementQuery):
                outcome = session.execute(run, command.query, transaction_id(command))
            elif isinstance(command, messages.CommandPreparedStatementQuery):
                prepared = session.prepared(command.prepared_statement_handle)
                return self._results.info_of_prepared(session, run, prepared, descriptor, call)
            else:
                raise Unsupported(f"{command.DESCRIPTOR.name} does not give a result set.")
            return self._results.info(outcome, descriptor, call)

    @flight_call
    def get_schema(self, context: Any, descriptor: Any) -> Any:
        command = decode(_command_bytes(descriptor))
        if type(command) in metadata.COMMANDS:
            return flight.SchemaResult(metadata.result_schema(command))
        call = FlightCall(context)
        if isinstance(command, messages.CommandStatementQuery):
            with self._scopes.open(call) as (session, run):
                prepared = session.describe(run, command.query, transaction_id(command))
        elif isinstance(command, messages.CommandPreparedStatementQuery):
            with self._scopes.open(call) as (session, _):
                prepared = session.prepared(command.prepared_statement_handle)
        else:
            raise Unsupported(f"{command.DESCRIPTOR.name} has no schema.")
        return flight.SchemaResult(announced_schema(prepared.dataset_schema, call))

    @flight_call
    def do_get(self, context: Any, ticket: Any) -> Any:
        command = decode(ticket.ticket)
        call = FlightCall(context)
        if isinstance(command, messages.TicketStatementQuery):
            return self._results.send(command.statement_handle, call)
        if type(command) in metadata.COMMANDS:
            with self._scopes.open(call) as (session, run):
                _, query = metadata.COMMANDS[type(command)]
                return flight.RecordBatchStream(query(session, run, command))
        if isinstance(command, messages.CommandStatementQuery):
            with self._scopes.open(call) as (session, run):
                outcome = session.execute(run, command.query, transaction_id(command))
                return self._results.send_outcome(outcome, call)
        if isinstance(command, messages.TicketBoundStatement):
            with self._scopes.open(call) as (session, run):
                return self._results.send_outcome(_execute_bound(session, run, command), call)
        raise Unsupported(f"A {command.DESCRIPTOR.name} is not a ticket.")

    @flight_call
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        command = decode(_command_bytes(descriptor))
        with self._scopes.open(FlightCall(context)) as (session, run):
            if isinstance(command, messages.CommandStatementUpdate):
                outcome = session.execute(run, command.query, transaction_id(command))
                if outcome.stream is not None:
                    outcome.stream.discard()
                affected = outcome.affected or 0
            elif isinstance(command, messages.CommandPreparedStatementUpdate):
                prepared = session.prepared(command.prepared_statement_handle)
                affected = session.update_prepared(run, prepared, reader)
            elif isinstance(command, messages.CommandStatementIngest):
                rows = binding.scannable_reader(reader.to_reader())
                statements = ingest_statements(command)
                affected = session.ingest(run, rows, statements, transaction_id(command))
            elif isinstance(command, messages.CommandPreparedStatementQuery):
                handle = command.prepared_statement_handle
                prepared = session.bind(run, handle, reader.to_reader())
                response = messages.DoPutPreparedStatementResult(
                    prepared_statement_handle=prepared.handle
                )
                writer.write(pa.py_buffer(response.SerializeToString()))
                return
            else:
                raise Unsupported(f"{command.DESCRIPTOR.name} takes no data.")
        result = messages.DoPutUpdateResult(record_count=affected)
        writer.write(pa.py_buffer(result.SerializeToString()))

    @flight_call
    def list_actions(self, context: Any) -> list[Any]:
        return [
            flight.ActionType(action.name, action.description)
            for action in ACTIONS.values()
            if not action.for_workers
        ]

    @flight_call
    def list_flights(self, context: Any, criteria: bytes) -> NoReturn:
        raise Unsupported("SwanLake does not list flights; query its catalogs with Flight SQL.")

    @flight_call
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> NoReturn:
        raise Unsupported("SwanLake does not support DoExchange; use DoPut and DoGet.")

    @flight_call
    def do_action(self, context: Any, action: Any) -> Iterable[bytes]:
        return self._actions.run(action.type, context, action.body.to_pybytes())


def _execute_bound(session: Session, run: Run, ticket: messages.TicketBoundStatement) -> Outcome:
    """Executes the statement of a ticket, by its text or its handle, with the rows bound to it."""
    bound = session.decode_parameters(ticket.parameters) if ticket.parameters else None
    transaction = transaction_id(ticket)
    if ticket.prepared_statement_handle:
        prepared = session.prepared(ticket.prepared_statement_handle)
        prepared.bound = bound
        return session.execute_prepared(run, prepared, transaction)
    if bound is None:
        return session.execute(run, ticket.query, transaction)
    return session.execute_bound(run, ticket.query, bound, transaction)


def _command_bytes(descriptor: Any) -> bytes:
    command = descriptor.command
    if not command:
        raise InvalidRequest("The descriptor has no command; SwanLake does not support paths.")
    return bytes(command)

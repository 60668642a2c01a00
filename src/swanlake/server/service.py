"""The Flight service: every call of the protocol, sent on to where it is answered."""

from __future__ import annotations

import json
import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import wraps
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as flight
from google.protobuf.message import Message

from swanlake._version import __version__
from swanlake.config import Settings
from swanlake.errors import (
    InvalidRequest,
    QueryCancelled,
    ServerUnavailable,
    SwanLakeError,
    Unsupported,
)
from swanlake.pipeline.loans import FETCH, Lender
from swanlake.protocol import AFFECTED_ROWS, Actions, decode, decode_as, encode, messages
from swanlake.server import metadata, options
from swanlake.server.auth import Authenticator, HandshakeHandler
from swanlake.server.call import Call, loan_token, middleware
from swanlake.server.ingest import ingest_statements
from swanlake.server.lending import pieces
from swanlake.server.sql_info import SQL_INFO, sql_info
from swanlake.server.wire_errors import raise_on_wire
from swanlake.server.xdbc import XDBC_TYPE_INFO, xdbc_type_info
from swanlake.sessions import binding
from swanlake.sessions.prepared import EMPTY_SCHEMA
from swanlake.sessions.registry import SessionRegistry
from swanlake.sessions.results import Outcome, ResultStream
from swanlake.sessions.runs import Run
from swanlake.sessions.session import Session

log = logging.getLogger("swanlake.server")

F = TypeVar("F", bound=Callable[..., Any])
#: The handle of results that have no rows to wait for.
_NO_ROWS = b""
#: How long a batch may still take whose client has hung up in the middle of a transaction.
_LEAVING_SECONDS = 1.0

#: Commands that ask for metadata: the schema of the answer, and the query behind it.
_METADATA: Mapping[type[Message], tuple[Any, Callable[..., Any]]] = {
    messages.CommandGetCatalogs: (metadata.CATALOGS, metadata.catalogs),
    messages.CommandGetDbSchemas: (metadata.DB_SCHEMAS, metadata.db_schemas),
    messages.CommandGetTables: (metadata.TABLES, metadata.tables),
    messages.CommandGetTableTypes: (metadata.TABLE_TYPES, metadata.table_types),
    messages.CommandGetPrimaryKeys: (metadata.PRIMARY_KEYS, metadata.primary_keys),
    messages.CommandGetExportedKeys: (metadata.FOREIGN_KEYS, metadata.exported_keys),
    messages.CommandGetImportedKeys: (metadata.FOREIGN_KEYS, metadata.imported_keys),
    messages.CommandGetCrossReference: (metadata.FOREIGN_KEYS, metadata.cross_reference),
    messages.CommandGetSqlInfo: (SQL_INFO, lambda session, run, command: sql_info(command.info)),
    messages.CommandGetXdbcTypeInfo: (
        XDBC_TYPE_INFO,
        lambda session, run, command: xdbc_type_info(
            command.data_type if command.HasField("data_type") else None
        ),
    ),
}

_ACTIONS: Mapping[str, str] = {
    "CreatePreparedStatement": "Parses and describes a statement.",
    "ClosePreparedStatement": "Forgets a prepared statement.",
    "BeginTransaction": "Opens a transaction in the session.",
    "EndTransaction": "Commits or rolls back a transaction.",
    "CancelFlightInfo": "Stops the statement behind a FlightInfo.",
    "CancelQuery": "Stops the statement behind a FlightInfo (the older form).",
    "SetSessionOptions": "Sets catalog, schema, query_timeout_seconds or a DuckDB setting.",
    "GetSessionOptions": "Tells the session's options.",
    "CloseSession": "Ends the session and frees everything it holds.",
    Actions.CANCEL_BY_QUERY_ID: "Stops a statement by the x-swanlake-query-id it was given.",
    Actions.STATUS: "Tells version, state and session counts, as JSON.",
    Actions.STATEMENT_TICKETS: "Not to be called: says that DoGet takes statements as tickets.",
}


def _answering(handler: F) -> F:
    """Turns whatever a handler raises into an error that may travel."""

    @wraps(handler)
    def answer(self: SwanLakeService, context: Any, *arguments: Any) -> Any:
        with _errors_on_wire():
            return handler(self, context, *arguments)

    return answer  # type: ignore[return-value]


@contextmanager
def _errors_on_wire() -> Iterator[None]:
    try:
        yield
    except SwanLakeError as error:
        raise_on_wire(error)
    except flight.FlightError:
        raise
    except Exception as bug:
        log.exception("a request failed unexpectedly")
        raise_on_wire(
            SwanLakeError(
                f"The server failed in a way it should not ({type(bug).__name__}); its log has the "
                "details.",
                identifier="INTERNAL_ERROR",
            )
        )


class SwanLakeService(flight.FlightServerBase):
    """Answers Flight SQL with the sessions of one registry."""

    def __init__(
        self,
        location: str,
        settings: Settings,
        registry: SessionRegistry,
        authenticator: Authenticator,
        tls_certificates: list[tuple[bytes, bytes]] | None = None,
        lender: Lender | None = None,
    ) -> None:
        self._settings = settings
        self._lender = lender
        self._registry = registry
        self._draining = False
        super().__init__(
            location,
            auth_handler=HandshakeHandler(),
            tls_certificates=tls_certificates,
            middleware=middleware(authenticator, lender),
        )

    def drain(self) -> None:
        """From now on refuses new statements; what runs goes on."""
        self._draining = True

    # ---- queries -------------------------------------------------------------------------------

    @_answering
    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        command = decode(_command_of(descriptor))
        if type(command) in _METADATA:
            return _flight_info(_metadata_schema(command), descriptor, descriptor.command)
        call = Call(context)
        if isinstance(command, messages.CommandStatementQuery):
            with self._statement(call) as (session, run):
                outcome = session.execute(run, command.query, _transaction(command))
        elif isinstance(command, messages.CommandPreparedStatementQuery):
            with self._statement(call) as (session, run):
                prepared = session.prepared(command.prepared_statement_handle)
                outcome = session.execute_prepared(run, prepared)
        else:
            raise Unsupported(f"{command.DESCRIPTOR.name} does not give a result set.")
        return self._outcome_info(outcome, descriptor)

    @_answering
    def get_schema(self, context: Any, descriptor: Any) -> Any:
        command = decode(_command_of(descriptor))
        if type(command) in _METADATA:
            return flight.SchemaResult(_metadata_schema(command))
        call = Call(context)
        if isinstance(command, messages.CommandStatementQuery):
            with self._statement(call) as (session, run):
                prepared = session.prepare(run, command.query, _transaction(command))
                session.close_prepared(prepared.handle)
        elif isinstance(command, messages.CommandPreparedStatementQuery):
            with self._statement(call) as (session, _):
                prepared = session.prepared(command.prepared_statement_handle)
        else:
            raise Unsupported(f"{command.DESCRIPTOR.name} has no schema.")
        return flight.SchemaResult(prepared.dataset_schema)

    @_answering
    def do_get(self, context: Any, ticket: Any) -> Any:
        command = decode(ticket.ticket)
        call = Call(context)
        if isinstance(command, messages.TicketStatementQuery):
            if command.statement_handle == _NO_ROWS:
                return _without_rows(EMPTY_SCHEMA)
            return self._deliver(command.statement_handle, call)
        if type(command) in _METADATA:
            with self._statement(call) as (session, run):
                table = _METADATA[type(command)][1](session, run, command)
            return flight.RecordBatchStream(table)
        if isinstance(command, messages.CommandStatementQuery):
            with self._statement(call) as (session, run):
                outcome = session.execute(run, command.query, _transaction(command))
        elif isinstance(command, messages.TicketBoundStatement):
            with self._statement(call) as (session, run):
                outcome = _execute_bound(session, run, command)
        else:
            raise Unsupported(f"A {command.DESCRIPTOR.name} is not a ticket.")
        if outcome.stream is None:
            affected = -1 if outcome.affected is None else outcome.affected
            return _without_rows(EMPTY_SCHEMA.with_metadata({AFFECTED_ROWS: str(affected)}))
        self._registry.keep(outcome.stream)
        return self._deliver(outcome.stream.handle, call)

    def _deliver(self, handle: bytes, call: Call) -> Any:
        stream = self._registry.redeem(handle, call.identity.name)
        batches = _batches(stream, call)
        # Not a finally in the generator: one that was never started would not run it.
        weakref.finalize(batches, self._registry.delivered, stream).atexit = False
        return flight.GeneratorStream(stream.schema, batches)

    def _outcome_info(self, outcome: Outcome, descriptor: Any) -> Any:
        stream = outcome.stream
        if stream is None:
            handle, schema, rows = _NO_ROWS, EMPTY_SCHEMA, outcome.affected
        else:
            self._registry.keep(stream)
            handle, schema, rows = stream.handle, stream.schema, stream.total_rows
        ticket = encode(messages.TicketStatementQuery(statement_handle=handle))
        return _flight_info(schema, descriptor, ticket, -1 if rows is None else rows)

    # ---- updates and uploads -------------------------------------------------------------------

    @_answering
    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        command = decode(_command_of(descriptor))
        with self._statement(Call(context)) as (session, run):
            if isinstance(command, messages.CommandStatementUpdate):
                outcome = session.execute(run, command.query, _transaction(command))
                if outcome.stream is not None:
                    outcome.stream.discard()
                affected = outcome.affected or 0
            elif isinstance(command, messages.CommandPreparedStatementUpdate):
                prepared = session.prepared(command.prepared_statement_handle)
                affected = session.update_prepared(run, prepared, reader)
            elif isinstance(command, messages.CommandStatementIngest):
                rows = binding.scannable_reader(reader.to_reader())
                load = ingest_statements(command)
                affected = session.ingest(run, rows, load, _transaction(command))
            elif isinstance(command, messages.CommandPreparedStatementQuery):
                prepared = session.prepared(command.prepared_statement_handle)
                prepared.bound = binding.batches_of(reader.read_all())
                answer = messages.DoPutPreparedStatementResult(
                    prepared_statement_handle=prepared.handle
                )
                writer.write(pa.py_buffer(answer.SerializeToString()))
                return
            else:
                raise Unsupported(f"{command.DESCRIPTOR.name} takes no data.")
        result = messages.DoPutUpdateResult(record_count=affected)
        writer.write(pa.py_buffer(result.SerializeToString()))

    # ---- actions -------------------------------------------------------------------------------

    @_answering
    def list_actions(self, context: Any) -> list[Any]:
        return [flight.ActionType(name, text) for name, text in _ACTIONS.items()]

    @_answering
    def do_action(self, context: Any, action: Any) -> Iterable[Any]:
        body = action.body.to_pybytes()
        if action.type == FETCH and self._lender is not None:
            return _on_wire(pieces(self._lender, loan_token(context), body))
        answer: Callable[[Call, bytes], Message | bytes | None] | None = {
            "CreatePreparedStatement": self._create_prepared,
            "ClosePreparedStatement": self._close_prepared,
            "BeginTransaction": self._begin,
            "EndTransaction": self._end,
            "CancelFlightInfo": self._cancel_flight_info,
            "CancelQuery": self._cancel_query,
            "SetSessionOptions": self._set_options,
            "GetSessionOptions": self._get_options,
            "CloseSession": self._close_session,
            Actions.CANCEL_BY_QUERY_ID: self._cancel_by_query_id,
            Actions.STATUS: self._status,
        }.get(action.type)
        if answer is None:
            raise Unsupported(
                f"There is no action {action.type!r}; ListActions names those there are."
            )
        result = answer(Call(context), body)
        if result is None:
            return []
        return [result if isinstance(result, bytes) else encode(result)]

    def _create_prepared(self, call: Call, body: bytes) -> Message:
        request = decode_as(messages.ActionCreatePreparedStatementRequest, body)
        with self._statement(call) as (session, run):
            prepared = session.prepare(run, request.query, _transaction(request))
        return messages.ActionCreatePreparedStatementResult(
            prepared_statement_handle=prepared.handle,
            dataset_schema=prepared.dataset_schema.serialize().to_pybytes(),
            parameter_schema=prepared.parameter_schema.serialize().to_pybytes(),
            is_update=prepared.is_update,
        )

    def _close_prepared(self, call: Call, body: bytes) -> None:
        request = decode_as(messages.ActionClosePreparedStatementRequest, body)
        session = self._registry.find(call.session_key)
        if session is not None:
            session.close_prepared(request.prepared_statement_handle)

    def _begin(self, call: Call, body: bytes) -> Message:
        decode_as(messages.ActionBeginTransactionRequest, body)
        with self._statement(call) as (session, run):
            return messages.ActionBeginTransactionResult(transaction_id=session.begin(run))

    def _end(self, call: Call, body: bytes) -> None:
        request = decode_as(messages.ActionEndTransactionRequest, body)
        if request.action == messages.ActionEndTransactionRequest.END_TRANSACTION_UNSPECIFIED:
            raise InvalidRequest("EndTransaction must say whether to commit or to roll back.")
        commit = request.action == messages.ActionEndTransactionRequest.END_TRANSACTION_COMMIT
        with self._statement(call, while_draining=True) as (session, run):
            session.end(run, request.transaction_id, commit)

    def _cancel_flight_info(self, call: Call, body: bytes) -> bytes:
        request = decode_as(messages.CancelFlightInfoRequest, body, bare=True)
        cancelled = self._cancel(call, _handles(request.info))
        # Both enumerations number their values alike.
        answer = messages.CancelFlightInfoResult(status=cancelled)  # type: ignore[arg-type]
        return answer.SerializeToString()

    def _cancel_query(self, call: Call, body: bytes) -> Message:
        request = decode_as(messages.ActionCancelQueryRequest, body)
        return messages.ActionCancelQueryResult(result=self._cancel(call, _handles(request.info)))

    def _cancel_by_query_id(self, call: Call, body: bytes) -> Message:
        request = decode_as(messages.ActionCancelByQueryIdRequest, body)
        runs = [
            run
            for run in self._registry.runs(call.identity.name)
            if run.query_id == request.query_id
        ]
        return messages.ActionCancelQueryResult(result=self._stop(runs))

    def _cancel(
        self, call: Call, handles: set[bytes]
    ) -> messages.ActionCancelQueryResult.CancelResult.ValueType:
        runs = [run for run in self._registry.runs(call.identity.name) if run.handle in handles]
        return self._stop(runs)

    def _stop(self, runs: list[Run]) -> messages.ActionCancelQueryResult.CancelResult.ValueType:
        """Cancels the caller's statements; one that runs is being cancelled, one that waits is."""
        if not runs:
            return messages.ActionCancelQueryResult.CANCEL_RESULT_NOT_CANCELLABLE
        was_running = False
        for run in runs:
            was_running |= run.cancel(QueryCancelled("The statement was cancelled on request."))
            self._registry.forget(run)
        if was_running:
            return messages.ActionCancelQueryResult.CANCEL_RESULT_CANCELLING
        return messages.ActionCancelQueryResult.CANCEL_RESULT_CANCELLED

    def _set_options(self, call: Call, body: bytes) -> bytes:
        request = decode_as(messages.SetSessionOptionsRequest, body, bare=True)
        with self._statement(call) as (session, run):
            return options.set_options(session, run, request).SerializeToString()

    def _get_options(self, call: Call, body: bytes) -> bytes:
        decode_as(messages.GetSessionOptionsRequest, body, bare=True)
        with self._statement(call) as (session, run):
            return options.get_options(session, run).SerializeToString()

    def _close_session(self, call: Call, body: bytes) -> bytes:
        decode_as(messages.CloseSessionRequest, body, bare=True)
        self._registry.close(call.session_key, "closed by client")
        closed = messages.CloseSessionResult(status=messages.CloseSessionResult.CLOSED)
        return closed.SerializeToString()

    def _status(self, call: Call, body: bytes) -> bytes:
        sessions = self._registry.metrics()
        status = {
            "version": __version__,
            "state": "draining" if self._draining else "accepting",
            "pid": os.getpid(),
            "sessions": {
                "active": sessions.active,
                "max": self._settings.max_sessions,
                "created": sessions.created,
                "closed": dict(sessions.closed),
                "lifetime_seconds_average": sessions.lifetime_seconds_average,
                "lifetime_seconds_max": sessions.lifetime_seconds_max,
            },
            "statements_running": len(self._registry.watchdog.running()),
            "results_waiting": self._registry.results_waiting,
            "lake_writes": self._registry.lake_writes,
            "lake_reads": self._registry.lake_reads,
            "writers": [asdict(gate) for gate in self._registry.writers],
        }
        return json.dumps(status).encode()

    # ---- inside --------------------------------------------------------------------------------

    @contextmanager
    def _statement(
        self, call: Call, *, while_draining: bool = False
    ) -> Iterator[tuple[Session, Run]]:
        """The caller's session, and a run that lasts as long as the call."""
        if self._draining and not while_draining:
            raise ServerUnavailable(
                "The server is shutting down and takes no new statements; retry elsewhere.",
                identifier="SERVER_DRAINING",
            )
        session = self._registry.get(call.session_key, resume=call.resumes)
        limits = (call.query_timeout, session.query_timeout, self._settings.query_timeout_seconds)
        run = Run(
            self._registry.watchdog,
            session.key,
            query_id=call.query_id,
            timeout=next(limit for limit in limits if limit is not None),
            ingest=lambda: call.ingest(session.options),
        )
        with self._registry.tracking(run), run.call(call.is_cancelled):
            yield session, run


def _execute_bound(session: Session, run: Run, ticket: messages.TicketBoundStatement) -> Outcome:
    """The statement of a ticket, by its text or its handle, with the rows that came with it."""
    bound = binding.rows_of(ticket.parameters) if ticket.parameters else None
    transaction = _transaction(ticket)
    if ticket.prepared_statement_handle:
        prepared = session.prepared(ticket.prepared_statement_handle)
        prepared.bound = bound
        return session.execute_prepared(run, prepared, transaction)
    if bound is None:
        return session.execute(run, ticket.query, transaction)
    return session.execute_bound(run, ticket.query, bound, transaction)


def _without_rows(schema: Any) -> Any:
    return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, []))


def _for_longer_than(seconds: float, condition: Callable[[], bool]) -> Callable[[], bool]:
    """Becomes true when the condition has been true for so long."""
    since: float | None = None

    def holds() -> bool:
        nonlocal since
        if not condition():
            return False
        since = since or time.monotonic()
        return time.monotonic() - since >= seconds

    return holds


def _batches(stream: ResultStream, call: Call) -> Iterator[Any]:
    """The batches of a result for one DoGet; a client that goes away ends it."""
    # To interrupt DuckDB aborts its transaction, in which the client may only want to go on.
    patience = _LEAVING_SECONDS if stream.in_transaction else 0.0
    client_is_gone = _for_longer_than(patience, call.is_cancelled)
    while True:
        # Only inside this block is the call certainly alive, and its probe safe to use.
        with _errors_on_wire(), stream.run.call(client_is_gone):
            batch = stream.read()
        if batch is None:
            return
        yield batch


def _on_wire(pieces: Iterator[Any]) -> Iterator[Any]:
    """The same, whose errors may travel."""
    with _errors_on_wire():
        yield from pieces


def _command_of(descriptor: Any) -> bytes:
    command = descriptor.command
    if not command:
        raise InvalidRequest("The descriptor holds no command; a path names nothing here.")
    return bytes(command)


def _metadata_schema(command: Message) -> Any:
    if isinstance(command, messages.CommandGetTables) and command.include_schema:
        return metadata.TABLES_WITH_SCHEMA
    return _METADATA[type(command)][0]


def _flight_info(schema: Any, descriptor: Any, ticket: bytes, rows: int = -1) -> Any:
    # No location: the result is fetched over the connection that asked for it.
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], rows, -1)


def _transaction(command: Any) -> bytes | None:
    return command.transaction_id if command.HasField("transaction_id") else None


def _handles(info: bytes) -> set[bytes]:
    """The statement handles in the tickets of a serialized FlightInfo."""
    try:
        endpoints = flight.FlightInfo.deserialize(info).endpoints
    except (pa.ArrowException, ValueError, OSError):
        raise InvalidRequest("The bytes are not a FlightInfo.") from None
    tickets = [decode(endpoint.ticket.ticket) for endpoint in endpoints]
    return {
        ticket.statement_handle
        for ticket in tickets
        if isinstance(ticket, messages.TicketStatementQuery)
    }

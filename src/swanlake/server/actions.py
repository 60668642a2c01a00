"""The Flight actions: each is declared once, at its handler.

``@action`` states the name of an action and its description for ListActions. The service answers
DoAction and ListActions from these declarations.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, get_type_hints
from uuid import UUID

import pyarrow as pa
import pyarrow.flight as flight
from google.protobuf.message import Message

from swanlake._internal.disk import read_chunks
from swanlake.access.identity import Identity
from swanlake.errors import InvalidRequest, NotFound, QueryCancelled, Unsupported
from swanlake.jobs.segment_transfer.grants import FETCH_SEGMENT, TransferGrants
from swanlake.protocol import Actions, decode, decode_as, encode, messages
from swanlake.server import jdbc, options
from swanlake.server.call import FlightCall, grant_token
from swanlake.server.errors import flight_errors
from swanlake.server.statements import StatementScopes, transaction_id
from swanlake.sessions.run import Run

log = logging.getLogger("swanlake.server")

_CHUNK_BYTES = 4 * 1024 * 1024
#: What a caller may know of the server, as plain values that JSON can hold.
Describe = Callable[[Identity], Mapping[str, Any]]

if TYPE_CHECKING:
    CancelResult: TypeAlias = messages.ActionCancelQueryResult.CancelResult.ValueType


@dataclass(frozen=True)
class Action:
    """One action: its name, its message and its handler."""

    name: str
    description: str
    #: None: the body is ignored, or is not a message.
    request: type[Message] | None = None
    #: True for the actions of Flight proper: their messages are not wrapped in an Any.
    bare: bool = False
    #: True for an action of Spark workers, which ListActions omits: it needs the token of a grant.
    for_workers: bool = False
    #: None: the name only announces a capability, and cannot be called.
    handler: Callable[..., Any] | None = None


#: All actions by name, in the order in which ListActions gives them.
ACTIONS: dict[str, Action] = {
    Actions.STATEMENT_TICKETS: Action(
        Actions.STATEMENT_TICKETS,
        "Not callable: announces that DoGet accepts a statement as its ticket.",
    )
}


def action(
    name: str, description: str, *, bare: bool = False, for_workers: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declares an action; the decorated method of ``FlightActions`` is its handler.

    The type of the handler's ``request`` says which message the action takes.
    """

    def declare(handler: Callable[..., Any]) -> Callable[..., Any]:
        request = get_type_hints(handler).get("request")
        ACTIONS[name] = Action(name, description, request, bare, for_workers, handler)
        return handler

    return declare


class FlightActions:
    """The handlers of all actions."""

    def __init__(
        self, scopes: StatementScopes, describe: Describe, grants: TransferGrants | None
    ) -> None:
        self._scopes = scopes
        self._describe = describe
        self._registry = scopes.registry
        self._grants = grants

    def run(self, name: str, context: Any, body: bytes) -> Iterable[bytes]:
        """Checks the caller and calls the handler; raises Unsupported for an unknown name."""
        declared = ACTIONS.get(name)
        if declared is None or declared.handler is None:
            raise _unknown_action(name)
        if declared.for_workers:
            pieces: Iterator[bytes] = declared.handler(self, grant_token(context), body)
            return pieces
        call = FlightCall(context)
        if declared.request is None:
            response = declared.handler(self, call)
        else:
            request = decode_as(declared.request, body, bare=declared.bare)
            response = declared.handler(self, call, request)
        if response is None:
            return []
        if not isinstance(response, Message):
            return [response]
        return [response.SerializeToString() if declared.bare else encode(response)]

    @action(Actions.CREATE_PREPARED_STATEMENT, "Parses and describes a statement.")
    def create_prepared_statement(
        self, call: FlightCall, request: messages.ActionCreatePreparedStatementRequest
    ) -> Message:
        with self._scopes.open(call) as (session, run):
            prepared = session.prepare(run, request.query, transaction_id(request))
        columns, parameters = prepared.dataset_schema, prepared.parameter_schema
        if call.is_java:
            columns = jdbc.announced_schema(columns)
            parameters = jdbc.parameter_schema(parameters)
        return messages.ActionCreatePreparedStatementResult(
            prepared_statement_handle=prepared.handle,
            dataset_schema=columns.serialize().to_pybytes(),
            parameter_schema=parameters.serialize().to_pybytes(),
            is_update=prepared.is_update,
        )

    @action(Actions.CLOSE_PREPARED_STATEMENT, "Closes a prepared statement.")
    def close_prepared_statement(
        self, call: FlightCall, request: messages.ActionClosePreparedStatementRequest
    ) -> None:
        session = self._registry.find(call.session_key)
        if session is not None:
            session.close_prepared(request.prepared_statement_handle)

    @action(Actions.BEGIN_TRANSACTION, "Begins a transaction in the session.")
    def begin_transaction(
        self, call: FlightCall, request: messages.ActionBeginTransactionRequest
    ) -> Message:
        with self._scopes.open(call) as (session, run):
            return messages.ActionBeginTransactionResult(transaction_id=session.begin(run))

    @action(Actions.END_TRANSACTION, "Commits or rolls back a transaction.")
    def end_transaction(
        self, call: FlightCall, request: messages.ActionEndTransactionRequest
    ) -> None:
        if request.action == messages.ActionEndTransactionRequest.END_TRANSACTION_UNSPECIFIED:
            raise InvalidRequest("EndTransaction must say whether to commit or to roll back.")
        commit = request.action == messages.ActionEndTransactionRequest.END_TRANSACTION_COMMIT
        with self._scopes.open(call, while_draining=True) as (session, run):
            session.end(run, request.transaction_id, commit)

    @action(Actions.CANCEL_FLIGHT_INFO, "Cancels the statement of a FlightInfo.", bare=True)
    def cancel_flight_info(
        self, call: FlightCall, request: messages.CancelFlightInfoRequest
    ) -> Message:
        # Both enumerations number their values alike.
        status = self._cancel_flight(call, request.info)
        return messages.CancelFlightInfoResult(status=status)  # type: ignore[arg-type]

    @action(Actions.CANCEL_QUERY, "Cancels the statement of a FlightInfo (the older form).")
    def cancel_query(self, call: FlightCall, request: messages.ActionCancelQueryRequest) -> Message:
        return messages.ActionCancelQueryResult(result=self._cancel_flight(call, request.info))

    @action(Actions.CANCEL_BY_QUERY_ID, "Cancels a statement by its x-swanlake-query-id.")
    def cancel_by_query_id(
        self, call: FlightCall, request: messages.ActionCancelByQueryIdRequest
    ) -> Message:
        result = self._cancel(call, lambda run: run.query_id == request.query_id)
        return messages.ActionCancelQueryResult(result=result)

    def _cancel_flight(self, call: FlightCall, info: bytes) -> CancelResult:
        handles = _statement_handles(info)
        return self._cancel(call, lambda run: run.handle in handles)

    def _cancel(self, call: FlightCall, matches: Callable[[Run], bool]) -> CancelResult:
        """Cancels those statements of the caller; CANCELLING if one of them is still running."""
        runs = [run for run in self._registry.runs(call.identity.name) if matches(run)]
        if not runs:
            return messages.ActionCancelQueryResult.CANCEL_RESULT_NOT_CANCELLABLE
        was_running = False
        for run in runs:
            reason = QueryCancelled("The statement was cancelled on request.")
            was_running |= self._registry.cancel(run, reason)
        if was_running:
            return messages.ActionCancelQueryResult.CANCEL_RESULT_CANCELLING
        return messages.ActionCancelQueryResult.CANCEL_RESULT_CANCELLED

    @action(
        Actions.SET_SESSION_OPTIONS,
        "Sets catalog, schema, query_timeout_seconds or a DuckDB setting.",
        bare=True,
    )
    def set_session_options(
        self, call: FlightCall, request: messages.SetSessionOptionsRequest
    ) -> Message:
        with self._scopes.open(call) as (session, run):
            return options.set_options(session, run, request)

    @action(Actions.GET_SESSION_OPTIONS, "Returns the options of the session.", bare=True)
    def get_session_options(
        self, call: FlightCall, request: messages.GetSessionOptionsRequest
    ) -> Message:
        with self._scopes.open(call) as (session, run):
            return options.get_options(session, run)

    @action(Actions.CLOSE_SESSION, "Closes the session and frees its resources.", bare=True)
    def close_session(self, call: FlightCall, request: messages.CloseSessionRequest) -> Message:
        self._registry.close(call.session_key, "closed by client")
        return messages.CloseSessionResult(status=messages.CloseSessionResult.CLOSED)

    @action(Actions.STATUS, "Returns version, state, session counts and memory as JSON.")
    def status(self, call: FlightCall) -> bytes:
        return json.dumps(self._describe(call.identity)).encode()

    @action(FETCH_SEGMENT, "Streams a queue segment to a Spark worker.", for_workers=True)
    def fetch_segment(self, token: str, body: bytes) -> Iterator[bytes]:
        with flight_errors():
            if self._grants is None:
                raise _unknown_action(FETCH_SEGMENT)
            segment = _segment_id(body)
            file = self._grants.find(token, segment)
            sent = 0
            try:
                for chunk in read_chunks(file.path, 0, file.size, _CHUNK_BYTES):
                    sent += len(chunk)
                    yield chunk
            except FileNotFoundError:
                raise NotFound(
                    f"The segment {segment} is not in the queue any more: it is in the lake, or "
                    "another server has it.",
                    identifier="SEGMENT_NOT_FOUND",
                ) from None
            log.info("sent %d bytes of segment %s to a worker", sent, segment)


def _unknown_action(name: str) -> Unsupported:
    return Unsupported(f"There is no action {name!r}; ListActions returns those that exist.")


def _segment_id(body: bytes) -> str:
    try:
        return str(UUID(body.decode()))
    except ValueError:
        raise InvalidRequest("The request is not the id of a segment.") from None


def _statement_handles(info: bytes) -> set[bytes]:
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

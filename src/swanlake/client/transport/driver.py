"""Flight SQL calls, over pyarrow.flight and SwanLake's own messages.

Every method blocks until the server has answered or the deadline of the call has passed. A driver
is one TCP connection and one session. Its calls are made one at a time, except ``cancel`` and
``close_session``, which any thread may call.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from google.protobuf.message import Message

from swanlake._internal.waiting import polling, wait
from swanlake.client.transport.address import Address
from swanlake.client.transport.deadline import ClientTimeout, Deadline
from swanlake.client.transport.errors import error_from_wire, is_from_server
from swanlake.client.transport.fork_guard import check_fork
from swanlake.errors import (
    Code,
    ConfigError,
    InvalidRequest,
    QueryCancelled,
    QueryError,
    SwanLakeError,
)
from swanlake.protocol import AFFECTED_ROWS, Actions, Headers, decode_as, encode, messages

_NO_LIMIT = Deadline(None)
_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    # One TCP connection for each session, so that a failure of one does not affect others.
    ("grpc.use_local_subchannel_pool", 1),
    # By default gRPC waits up to two minutes before it retries a server that restarts.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Detects a silently lost server for calls without a deadline. Servers disconnect clients that
    # ping more often than every five minutes.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # Also for the pings by which gRPC measures bandwidth: it waits for each answer.
    ("grpc.http2.ping_timeout_ms", 20_000),
    # No limit on pings while a long statement sends no row.
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(slots=True)
class CallContext:
    """The id, deadline and headers of one statement, shared by all its calls."""

    deadline: Deadline = _NO_LIMIT
    query_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    headers: Mapping[str, str] = field(default_factory=dict)
    #: The reader of its result, once there is one; stopped with the statement.
    reader: ResultReader | None = None


class ResultReader:
    """The result of a statement: its schema at once, its batches as they arrive."""

    def __init__(
        self, driver: Driver, call: CallContext, tickets: Iterator[Any], reader: Any
    ) -> None:
        self._driver = driver
        self._call = call
        self._tickets = tickets
        self._reader = reader
        call.reader = self
        self.schema = reader.schema
        affected = (reader.schema.metadata or {}).get(AFFECTED_ROWS)
        #: Rows that the statement changed; -1 if unknown.
        self.affected = -1 if affected is None else int(affected)

    def read(self) -> Any | None:
        """The next batch, or None after the last."""
        while True:
            try:
                with self._driver.translate_errors(self._call):
                    return self._reader.read_chunk().data
            except StopIteration:
                ticket = next(self._tickets, None)
                if ticket is None:
                    return None
                self._reader = self._driver.open_reader(ticket, self._call)

    def stop(self) -> None:
        """Stops the server from sending more; from any thread."""
        # Otherwise the reader fetches all remaining rows before it closes.
        self._reader.cancel()


@dataclass(frozen=True, slots=True)
class PreparedHandle:
    """A statement that the server has parsed and described."""

    handle: bytes
    columns: Any
    parameters: Any


class Driver:
    """One connection to a Flight SQL server."""

    def __init__(self, address: Address, connect_timeout: float | None = None) -> None:
        check_fork()
        self.address = address
        self.session_id = str(uuid.uuid4())
        self.actions: frozenset[str] = frozenset()
        #: True once the server has the session: from then on a missing session is an error.
        self._has_session = False
        #: True once it may have the session: a failed statement opens it too.
        self._may_have_session = False
        self._authorization = f"Bearer {address.token}" if address.token else None
        options = [*_CHANNEL_OPTIONS]
        if connect_timeout is not None:
            options.append(("grpc.min_reconnect_backoff_ms", max(1, int(connect_timeout * 1000))))
        try:
            self._client = flight.FlightClient(
                address.url, tls_root_certs=address.tls_root_certs, generic_options=options
            )
        except pa.ArrowException:
            raise ConfigError(f"{address.url} is not the URL of a Flight server.") from None

    def open(self, deadline: Deadline = _NO_LIMIT) -> None:
        """Authenticates, and lists the server's actions."""
        call = CallContext(deadline)
        with self.translate_errors(call):
            if self.address.user is not None:
                header = self._client.authenticate_basic_token(
                    self.address.user, self.address.password, self._call_options(call)
                )
                self._authorization = header[1].decode()
            self.actions = frozenset(
                action.type for action in self._client.list_actions(self._call_options(call))
            )
        if self.address.catalog is not None:
            self._use_catalog(self.address.catalog, call)

    def begin_new_session(self) -> None:
        """Uses a new session from now on, for benchmarks; does not close the old one."""
        self.session_id = str(uuid.uuid4())
        self._has_session = self._may_have_session = False

    def _use_catalog(self, catalog: str, call: CallContext) -> None:
        value = messages.SessionOptionValue(string_value=catalog)
        request = messages.SetSessionOptionsRequest(session_options={"catalog": value})
        body = request.SerializeToString()
        for answer in self._do_action(Actions.SET_SESSION_OPTIONS, body, call):
            if decode_as(messages.SetSessionOptionsResult, answer, bare=True).errors:
                raise QueryError(
                    f"The server does not take {catalog!r} as the session's catalog.",
                    code=Code.INVALID_ARGUMENT,
                )

    def status(self, deadline: Deadline = _NO_LIMIT) -> dict[str, Any]:
        """The server's version, state and counters; opens no session."""
        [answer] = self._do_action(Actions.STATUS, b"", CallContext(deadline))
        status: dict[str, Any] = json.loads(answer)
        return status

    def cancel(self, query_id: str, deadline: Deadline) -> bool:
        """Cancels the statement with that id; False if the server has none."""
        request = encode(messages.ActionCancelByQueryIdRequest(query_id=query_id))
        answers = self._do_action(Actions.CANCEL_BY_QUERY_ID, request, CallContext(deadline))
        results = [decode_as(messages.ActionCancelQueryResult, answer).result for answer in answers]
        return messages.ActionCancelQueryResult.CANCEL_RESULT_NOT_CANCELLABLE not in results

    @property
    def can_cancel(self) -> bool:
        """True if the server can cancel statements by their id."""
        return Actions.CANCEL_BY_QUERY_ID in self.actions

    def close_session(self, deadline: Deadline) -> None:
        """Closes the session on the server, if there is one."""
        if self._may_have_session:
            request = messages.CloseSessionRequest().SerializeToString()
            self._do_action(Actions.CLOSE_SESSION, request, CallContext(deadline))
            self._has_session = self._may_have_session = False

    def disconnect(self) -> None:
        """Closes the connection, not the session."""
        self._client.close()

    def query(
        self, sql: str, call: CallContext, parameters: Any | None, transaction: bytes | None
    ) -> ResultReader:
        """Runs a statement with a table of ``parameters``."""
        if Actions.STATEMENT_TICKETS in self.actions:
            ticket = messages.TicketBoundStatement(query=sql, transaction_id=transaction)
            return self._fetch_by_ticket(ticket, parameters, call)
        if parameters is None:
            command = messages.CommandStatementQuery(query=sql, transaction_id=transaction)
            return self.fetch(command, call)
        with self._prepared_temporarily(sql, call, transaction) as prepared:
            return self.query_prepared(prepared, call, parameters)

    def update(
        self, sql: str, call: CallContext, parameters: Any | None, transaction: bytes | None
    ) -> int:
        """Runs a change once for every row of ``parameters``; returns the affected rows."""
        if parameters is None:
            command = messages.CommandStatementUpdate(query=sql, transaction_id=transaction)
            return self.send_rows(command, None, call)
        fits_ticket = parameters.nbytes <= _MAX_TICKET_PARAMETERS
        if fits_ticket and Actions.STATEMENT_TICKETS in self.actions:
            rows = self.query(sql, call, parameters, transaction)
            while rows.read() is not None:
                pass
            return max(rows.affected, 0)
        with self._prepared_temporarily(sql, call, transaction) as prepared:
            return self.update_prepared(prepared, call, parameters)

    def prepare(
        self, sql: str, call: CallContext, transaction: bytes | None = None
    ) -> PreparedHandle:
        """Has the server parse and describe a statement."""
        request = messages.ActionCreatePreparedStatementRequest(
            query=sql, transaction_id=transaction
        )
        [answer] = self._do_action(Actions.CREATE_PREPARED_STATEMENT, encode(request), call)
        result = decode_as(messages.ActionCreatePreparedStatementResult, answer)
        return PreparedHandle(
            result.prepared_statement_handle,
            _schema(result.dataset_schema),
            _schema(result.parameter_schema),
        )

    def query_prepared(
        self, prepared: PreparedHandle, call: CallContext, parameters: Any | None = None
    ) -> ResultReader:
        """Runs a prepared statement with a table of ``parameters``."""
        handle = prepared.handle
        if Actions.STATEMENT_TICKETS in self.actions:
            ticket = messages.TicketBoundStatement(prepared_statement_handle=handle)
            return self._fetch_by_ticket(ticket, parameters, call)
        command = messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)
        if parameters is not None:
            answer = self._do_put(command, parameters, call)
            if answer:
                result = decode_as(messages.DoPutPreparedStatementResult, answer, bare=True)
                command.prepared_statement_handle = result.prepared_statement_handle or handle
        return self.fetch(command, call)

    def update_prepared(
        self, prepared: PreparedHandle, call: CallContext, parameters: Any | None = None
    ) -> int:
        """Runs a prepared change once for every row; returns the affected rows."""
        command = messages.CommandPreparedStatementUpdate(prepared_statement_handle=prepared.handle)
        return self.send_rows(command, parameters, call)

    def close_prepared(self, prepared: PreparedHandle, call: CallContext) -> None:
        """Frees a prepared statement on the server."""
        request = messages.ActionClosePreparedStatementRequest(
            prepared_statement_handle=prepared.handle
        )
        self._do_action(Actions.CLOSE_PREPARED_STATEMENT, encode(request), call)

    def begin_transaction(self, call: CallContext) -> bytes:
        """Begins a transaction; returns its id."""
        [answer] = self._do_action(
            Actions.BEGIN_TRANSACTION, encode(messages.ActionBeginTransactionRequest()), call
        )
        return decode_as(messages.ActionBeginTransactionResult, answer).transaction_id

    def end_transaction(self, transaction: bytes, call: CallContext, *, commit: bool) -> None:
        """Commits a transaction or rolls it back."""
        kind = messages.ActionEndTransactionRequest
        action = kind.END_TRANSACTION_COMMIT if commit else kind.END_TRANSACTION_ROLLBACK
        self._do_action(
            Actions.END_TRANSACTION, encode(kind(transaction_id=transaction, action=action)), call
        )

    @contextmanager
    def _prepared_temporarily(
        self, sql: str, call: CallContext, transaction: bytes | None
    ) -> Iterator[PreparedHandle]:
        prepared = self.prepare(sql, call, transaction)
        try:
            yield prepared
        finally:
            with suppress(SwanLakeError):  # must not replace the outcome of the statement
                self.close_prepared(prepared, call)

    @contextmanager
    def translate_errors(self, call: CallContext) -> Iterator[None]:
        """Raises pyarrow's errors as SwanLakeError, with the id of the statement."""
        check_fork()
        try:
            yield
        except SwanLakeError as error:
            error.query_id = error.query_id or call.query_id
            raise
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            translated = error_from_wire(error, self.address.url, call.deadline.timeout)
            translated.query_id = call.query_id
            is_client_side = isinstance(translated, QueryCancelled | ClientTimeout)
            if isinstance(translated, QueryError) and not is_client_side:
                self._has_session = True  # the server opened it for the statement
            raise translated from None

    def open_reader(self, ticket: Any, call: CallContext) -> Any:
        """Opens the stream of a ticket."""
        self._may_have_session = True
        with self.translate_errors(call):
            return self._client.do_get(ticket, self._call_options(call))

    def _fetch_by_ticket(
        self, ticket: messages.TicketBoundStatement, parameters: Any | None, call: CallContext
    ) -> ResultReader:
        if parameters is not None:
            ticket.parameters = _stream(parameters)
        reader = self.open_reader(flight.Ticket(encode(ticket)), call)
        self._has_session = True
        return ResultReader(self, call, iter(()), reader)

    def fetch(self, command: Message, call: CallContext) -> ResultReader:
        """Runs a query or a metadata command."""
        descriptor = flight.FlightDescriptor.for_command(encode(command))
        self._may_have_session = True
        with self.translate_errors(call):
            info = self._client.get_flight_info(descriptor, self._call_options(call))
        tickets = iter([endpoint.ticket for endpoint in info.endpoints])
        rows = ResultReader(self, call, tickets, self.open_reader(next(tickets), call))
        self._has_session = True  # not before: describing a metadata command opens no session
        if len(rows.schema) == 0:
            rows.affected = info.total_records
        return rows

    def send_rows(self, command: Message, rows: Any | None, call: CallContext) -> int:
        """Runs a change with its rows (an Arrow reader or table); returns the affected rows."""
        answer = self._do_put(command, rows, call)
        result = decode_as(messages.DoPutUpdateResult, answer or b"", bare=True)
        return result.record_count

    def _do_put(self, command: Message, rows: Any | None, call: CallContext) -> bytes | None:
        """Sends a command with its rows; returns the server's answer."""
        descriptor = flight.FlightDescriptor.for_command(encode(command))
        schema = pa.schema([]) if rows is None else rows.schema
        self._may_have_session = True
        with self.translate_errors(call):
            writer, answers = self._client.do_put(descriptor, schema, self._call_options(call))
            failure = _upload(writer, rows)
            if failure is not None:
                self._abort_upload(writer, call)
            else:
                try:
                    writer.done_writing()
                    answer = answers.read()
                except BaseException:
                    with suppress(flight.FlightError, pa.ArrowException, OSError):
                        writer.close()  # otherwise it prints the error to standard error
                    raise
                writer.close()  # raises the server's error
        if failure is not None:
            raise failure
        self._has_session = True
        return None if answer is None else answer.to_pybytes()

    def _abort_upload(self, writer: Any, call: CallContext) -> None:
        """Ends an upload whose source failed, so that the server keeps none of its rows.

        pyarrow cannot abort an upload: closing or dropping the writer tells the server that it has
        all rows. So the statement is cancelled first. If the server does not confirm that, the
        writer stays open, and the server sees a client that stopped sending.
        """
        deadline = Deadline(_ABORT_TIMEOUT)
        try:
            # Repeated until confirmed: a statement that has not begun cannot be cancelled yet.
            wait(polling(lambda: self.cancel(call.query_id, deadline)))
        except SwanLakeError:
            _abandoned_uploads.append(writer)
        else:
            with suppress(flight.FlightError, pa.ArrowException):
                writer.close()  # raises the cancellation

    def _do_action(self, name: str, body: bytes, call: CallContext) -> list[bytes]:
        in_session = name not in (Actions.STATUS, Actions.CANCEL_BY_QUERY_ID)
        self._may_have_session = self._may_have_session or in_session
        with self.translate_errors(call):
            answers = self._client.do_action(flight.Action(name, body), self._call_options(call))
            bodies = [answer.body.to_pybytes() for answer in answers]
        self._has_session = self._has_session or in_session
        return bodies

    def _call_options(self, call: CallContext) -> Any:
        left = call.deadline.remaining()
        headers = {**self.address.headers, **call.headers}
        headers[Headers.SESSION_ID] = self.session_id
        headers[Headers.QUERY_ID] = call.query_id
        if self._has_session:
            headers[Headers.SESSION_RESUME] = "1"
        if left is not None:
            headers[Headers.QUERY_TIMEOUT] = f"{max(left, 0.001):.3f}"  # 0 is no limit
        if self._authorization:
            headers[Headers.AUTHORIZATION] = self._authorization
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        timeout = None if left is None else left + _SERVER_TIMEOUT_MARGIN
        return flight.FlightCallOptions(timeout=timeout, headers=pairs)


#: Larger parameters of a change are sent as a stream and not in its ticket.
_MAX_TICKET_PARAMETERS = 64 * 1024
#: gRPC waits this much longer than the server, whose own timeout error says more.
_SERVER_TIMEOUT_MARGIN = 0.1
#: How long the server may take to confirm that an upload was cancelled.
_ABORT_TIMEOUT = 5.0
_abandoned_uploads: list[Any] = []


def _upload(writer: Any, rows: Any | None) -> BaseException | None:
    """Sends rows until the server stops reading; returns the error of their source, if any.

    Source and server can raise the same Arrow errors, but only an error of the source must abort
    the upload: the server would take the rows sent so far for all rows.
    """
    if rows is None:
        return None
    batches = iter(rows.to_batches() if isinstance(rows, pa.Table) else rows)
    while True:
        try:
            batch = next(batches, None)
            if batch is not None and batch.schema != rows.schema:
                raise InvalidRequest("The rows change their columns from one batch to the next.")
        except BaseException as failure:  # noqa: BLE001 - raised after the upload was aborted
            return failure
        if batch is None:
            return None
        try:
            writer.write_batch(batch)
        except (flight.FlightError, pa.ArrowException, OSError) as failure:
            # The server's error is raised when its answer is read. A local error means that this
            # batch cannot be sent.
            return None if is_from_server(failure) else failure


def _stream(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _schema(serialized: bytes) -> Any:
    if not serialized:
        return pa.schema([])
    return pa.ipc.read_schema(pa.py_buffer(serialized))

"""The calls of Flight SQL, over pyarrow.flight and SwanLake's own messages.

Every method blocks until the server has answered or the deadline of the call has passed. A driver
is one TCP connection and one session; its calls are made one at a time, but for ``cancel`` and
``close_session``, which any thread may make.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from google.protobuf.message import Message

from swanlake.client.address import Address
from swanlake.client.deadline import Deadline, GivenUp
from swanlake.client.forks import check_fork
from swanlake.client.from_wire import error_from_wire, is_from_server
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
    # One session is one TCP connection, and the troubles of one are not those of another.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC would wait up to two minutes before it looks again for a server that restarts.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Finds out that the other side is gone without a word, for calls that have no deadline. A
    # server hangs up on clients that ask more often than every five minutes.
    ("grpc.keepalive_time_ms", 310_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    # The pings by which gRPC measures the line: while one is unanswered it sends no other.
    ("grpc.http2.ping_timeout_ms", 20_000),
    # Also in the third quarter of an hour in which a statement has not sent a row.
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(slots=True)
class Call:
    """What belongs to one statement whichever way it goes: its name and how long it may take."""

    deadline: Deadline = _NO_LIMIT
    query_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Its result, as soon as there is one: what is to be stopped with the statement.
    rows: Rows | None = None


class Rows:
    """The result of a statement on its way: columns at once, batches as they arrive."""

    def __init__(self, driver: Driver, call: Call, tickets: Iterator[Any], reader: Any) -> None:
        self._driver = driver
        self._call = call
        self._tickets = tickets
        self._reader = reader
        call.rows = self
        self.schema = reader.schema
        found = (reader.schema.metadata or {}).get(AFFECTED_ROWS)
        #: Rows that the statement changed; -1 if it does not say.
        self.affected = -1 if found is None else int(found)

    def read(self) -> Any | None:
        """The next batch, or None after the last."""
        while True:
            try:
                with self._driver.translating(self._call):
                    return self._reader.read_chunk().data
            except StopIteration:
                ticket = next(self._tickets, None)
                if ticket is None:
                    return None
                self._reader = self._driver.open_reader(ticket, self._call)

    def stop(self) -> None:
        """Has the server send no more; from any thread."""
        # Without this the reader would fetch the whole rest before it lets go.
        self._reader.cancel()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A statement that the server has parsed and described."""

    handle: bytes
    columns: Any
    parameters: Any
    is_update: bool


class Driver:
    """One connection to a Flight SQL server."""

    def __init__(self, address: Address, connect_timeout: float | None = None) -> None:
        check_fork()
        self.address = address
        self.session_id = str(uuid.uuid4())
        self.actions: frozenset[str] = frozenset()
        #: True once the server has a session for us: from then on a missing one is an error.
        self._has_session = False
        #: True once it may have one: also a statement that fails opens it.
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

    # ---- the connection --------------------------------------------------------------------------

    def open(self, deadline: Deadline = _NO_LIMIT) -> None:
        """Shows the credentials and asks the server what it can do."""
        call = Call(deadline)
        with self.translating(call):
            if self.address.user is not None:
                header = self._client.authenticate_basic_token(
                    self.address.user, self.address.password, self._options(call)
                )
                self._authorization = header[1].decode()
            self.actions = frozenset(
                action.type for action in self._client.list_actions(self._options(call))
            )
        if self.address.catalog is not None:
            self.set_options({"catalog": self.address.catalog}, call)

    def start_over(self) -> None:
        """From now on speaks in a new session; the one before is left to itself."""
        self.session_id = str(uuid.uuid4())
        self._has_session = self._may_have_session = False

    def set_options(self, options: Mapping[str, str], call: Call) -> None:
        """Sets options of the session: catalog, schema, or settings of DuckDB."""
        values = {
            name: messages.SessionOptionValue(string_value=value) for name, value in options.items()
        }
        request = messages.SetSessionOptionsRequest(session_options=values)
        for answer in self._act("SetSessionOptions", request.SerializeToString(), call):
            result = decode_as(messages.SetSessionOptionsResult, answer, bare=True)
            for name in result.errors:
                raise QueryError(
                    f"The server does not take {options[name]!r} as the session's {name}.",
                    code=Code.INVALID_ARGUMENT,
                )

    def status(self, deadline: Deadline = _NO_LIMIT) -> dict[str, Any]:
        """What a SwanLake server says of itself; makes no session."""
        found: dict[str, Any] = json.loads(self._act(Actions.STATUS, b"", Call(deadline))[0])
        return found

    def cancel(self, query_id: str, deadline: Deadline) -> bool:
        """Stops the statement of that id; False if the server knows none."""
        request = encode(messages.ActionCancelByQueryIdRequest(query_id=query_id))
        answers = self._act(Actions.CANCEL_BY_QUERY_ID, request, Call(deadline))
        results = [decode_as(messages.ActionCancelQueryResult, one).result for one in answers]
        return messages.ActionCancelQueryResult.CANCEL_RESULT_NOT_CANCELLABLE not in results

    @property
    def can_cancel(self) -> bool:
        """True if the server stops statements by their id."""
        return Actions.CANCEL_BY_QUERY_ID in self.actions

    def close_session(self, deadline: Deadline) -> None:
        """Has the server free what the session holds, if there is one."""
        if self._may_have_session:
            request = messages.CloseSessionRequest().SerializeToString()
            self._act("CloseSession", request, Call(deadline))
            self._has_session = self._may_have_session = False

    def disconnect(self) -> None:
        """Closes the connection; says nothing to the server."""
        self._client.close()

    # ---- statements ------------------------------------------------------------------------------

    def query(
        self,
        sql: str,
        call: Call,
        *,
        parameters: Any | None = None,
        transaction: bytes | None = None,
    ) -> Rows:
        """Runs a text once; ``parameters`` is a table of what is bound to it."""
        if Actions.STATEMENT_TICKETS in self.actions:
            return self._fetch_at_once(
                messages.TicketBoundStatement(query=sql, transaction_id=transaction),
                parameters,
                call,
            )
        if parameters is None:
            return self._fetch(
                messages.CommandStatementQuery(query=sql, transaction_id=transaction), call
            )
        with self._prepared_for_once(sql, call, transaction) as prepared:
            return self.query_prepared(prepared, call, parameters)

    def update(
        self,
        sql: str,
        call: Call,
        *,
        parameters: Any | None = None,
        transaction: bytes | None = None,
    ) -> int:
        """Runs a change, once for every row of ``parameters``; the number of affected rows."""
        if parameters is None:
            return self._put(
                messages.CommandStatementUpdate(query=sql, transaction_id=transaction), None, call
            )
        if Actions.STATEMENT_TICKETS in self.actions and parameters.nbytes <= _MOST_IN_A_TICKET:
            rows = self.query(sql, call, parameters=parameters, transaction=transaction)
            while rows.read() is not None:
                pass
            return max(rows.affected, 0)
        with self._prepared_for_once(sql, call, transaction) as prepared:
            return self.update_prepared(prepared, call, parameters)

    def ingest(self, command: messages.CommandStatementIngest, rows: Any, call: Call) -> int:
        """Sends rows (an Arrow reader or table) into a table; how many it took."""
        return self._put(command, rows, call)

    def metadata(self, command: Message, call: Call) -> Rows:
        """What the server says of its catalogs, schemas, tables or itself."""
        return self._fetch(command, call)

    def prepare(self, sql: str, call: Call, transaction: bytes | None = None) -> Prepared:
        """Has the server parse and describe a text."""
        request = messages.ActionCreatePreparedStatementRequest(
            query=sql, transaction_id=transaction
        )
        [answer] = self._act("CreatePreparedStatement", encode(request), call)
        result = decode_as(messages.ActionCreatePreparedStatementResult, answer)
        return Prepared(
            result.prepared_statement_handle,
            _schema(result.dataset_schema),
            _schema(result.parameter_schema),
            result.is_update,
        )

    def query_prepared(self, prepared: Prepared, call: Call, parameters: Any | None = None) -> Rows:
        """Runs a prepared statement with what is bound to it."""
        handle = prepared.handle
        if Actions.STATEMENT_TICKETS in self.actions:
            return self._fetch_at_once(
                messages.TicketBoundStatement(prepared_statement_handle=handle), parameters, call
            )
        command = messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)
        if parameters is not None:
            answer = self._send(command, parameters, call)
            if answer:
                result = decode_as(messages.DoPutPreparedStatementResult, answer, bare=True)
                command.prepared_statement_handle = result.prepared_statement_handle or handle
        return self._fetch(command, call)

    def update_prepared(self, prepared: Prepared, call: Call, parameters: Any | None = None) -> int:
        """Runs a prepared change once for every row; the number of affected rows."""
        command = messages.CommandPreparedStatementUpdate(prepared_statement_handle=prepared.handle)
        return self._put(command, parameters, call)

    def close_prepared(self, prepared: Prepared, call: Call) -> None:
        """Has the server forget a prepared statement."""
        request = messages.ActionClosePreparedStatementRequest(
            prepared_statement_handle=prepared.handle
        )
        self._act("ClosePreparedStatement", encode(request), call)

    def begin(self, call: Call) -> bytes:
        """Opens a transaction; its name."""
        [answer] = self._act(
            "BeginTransaction", encode(messages.ActionBeginTransactionRequest()), call
        )
        return decode_as(messages.ActionBeginTransactionResult, answer).transaction_id

    def end(self, transaction: bytes, call: Call, *, commit: bool) -> None:
        """Commits a transaction or rolls it back."""
        kind = messages.ActionEndTransactionRequest
        action = kind.END_TRANSACTION_COMMIT if commit else kind.END_TRANSACTION_ROLLBACK
        self._act("EndTransaction", encode(kind(transaction_id=transaction, action=action)), call)

    @contextmanager
    def _prepared_for_once(
        self, sql: str, call: Call, transaction: bytes | None
    ) -> Iterator[Prepared]:
        prepared = self.prepare(sql, call, transaction)
        try:
            yield prepared
        finally:
            with suppress(SwanLakeError):  # how the statement ended is what counts
                self.close_prepared(prepared, call)

    # ---- inside ----------------------------------------------------------------------------------

    def heard(self, error: SwanLakeError) -> None:
        """Notes what an error says of the session: a statement that failed had one to fail in."""
        if isinstance(error, QueryError) and not isinstance(error, QueryCancelled | GivenUp):
            self._has_session = True

    def translating(self, call: Call) -> Any:
        """The time of one exchange with the server, whose errors come out as ours."""
        return _Translation(self, call)

    def open_reader(self, ticket: Any, call: Call) -> Any:
        """Begins to fetch what a ticket stands for."""
        self._may_have_session = True
        with self.translating(call):
            return self._client.do_get(ticket, self._options(call))

    def _fetch_at_once(
        self, ticket: messages.TicketBoundStatement, parameters: Any | None, call: Call
    ) -> Rows:
        if parameters is not None:
            ticket.parameters = _stream(parameters)
        reader = self.open_reader(flight.Ticket(encode(ticket)), call)
        self._has_session = True
        return Rows(self, call, iter(()), reader)

    def _fetch(self, command: Message, call: Call) -> Rows:
        descriptor = flight.FlightDescriptor.for_command(encode(command))
        self._may_have_session = True
        with self.translating(call):
            info = self._client.get_flight_info(descriptor, self._options(call))
        self._has_session = True
        tickets = iter([endpoint.ticket for endpoint in info.endpoints])
        rows = Rows(self, call, tickets, self.open_reader(next(tickets), call))
        if len(rows.schema) == 0:
            rows.affected = info.total_records
        return rows

    def _put(self, command: Message, rows: Any | None, call: Call) -> int:
        answer = self._send(command, rows, call)
        result = decode_as(messages.DoPutUpdateResult, answer or b"", bare=True)
        return result.record_count

    def _send(self, command: Message, rows: Any | None, call: Call) -> bytes | None:
        """Sends a command and rows for it, and gives the server's answer."""
        descriptor = flight.FlightDescriptor.for_command(encode(command))
        schema = pa.schema([]) if rows is None else rows.schema
        self._may_have_session = True
        with self.translating(call):
            writer, answers = self._client.do_put(descriptor, schema, self._options(call))
            failure = _upload(writer, rows)
            if failure is not None:
                self._break_off(writer, call)
            else:
                try:
                    writer.done_writing()
                    answer = answers.read()
                except BaseException:
                    with suppress(flight.FlightError, pa.ArrowException, OSError):
                        writer.close()  # else it says on standard error what is known already
                    raise
                writer.close()  # raises what the server raised
        if failure is not None:
            raise failure
        self._has_session = True
        return None if answer is None else answer.to_pybytes()

    def _break_off(self, writer: Any, call: Call) -> None:
        """Ends an upload whose source failed, so that none of it is kept.

        There is no way to hang up: a writer that is dropped counts as one that has sent
        everything. So the statement is cancelled first; and where nobody confirms that, the writer
        is kept for ever, which the server takes for a client that went quiet.
        """
        patience = Deadline(_BREAK_OFF_SECONDS)
        try:
            while not self.cancel(call.query_id, patience):
                time.sleep(_BREAK_OFF_INTERVAL)  # not begun yet, or over already: nobody can tell
        except SwanLakeError:
            _never_finished.append(writer)
        else:
            with suppress(flight.FlightError, pa.ArrowException):
                writer.close()  # says that it was cancelled, which we know

    def _act(self, name: str, body: bytes, call: Call) -> list[bytes]:
        in_session = name not in (Actions.STATUS, Actions.CANCEL_BY_QUERY_ID)
        self._may_have_session = self._may_have_session or in_session
        with self.translating(call):
            answers = self._client.do_action(flight.Action(name, body), self._options(call))
            found = [answer.body.to_pybytes() for answer in answers]
        self._has_session = self._has_session or in_session
        return found

    def _options(self, call: Call) -> Any:
        left = call.deadline.remaining()
        headers = {**self.address.headers, **call.headers}
        headers[Headers.SESSION_ID] = self.session_id
        headers[Headers.QUERY_ID] = call.query_id
        if self._has_session:
            headers[Headers.SESSION_RESUME] = "1"
        if left is not None:
            headers[Headers.QUERY_TIMEOUT] = f"{max(left, 0.001):.3f}"  # 0 would be no limit
        if self._authorization:
            headers[Headers.AUTHORIZATION] = self._authorization
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        timeout = None if left is None else left + _SERVER_FIRST
        return flight.FlightCallOptions(timeout=timeout, headers=pairs)


#: Rows that are bound to a change go along with it if they are small, and as a stream if not.
_MOST_IN_A_TICKET = 64 * 1024
#: By so much gRPC waits longer than the server may take, which then says itself what happened.
_SERVER_FIRST = 0.1
#: For the server to confirm that an upload was cancelled, and between two questions.
_BREAK_OFF_SECONDS = 5.0
_BREAK_OFF_INTERVAL = 0.05
_never_finished: list[Any] = []


class _Translation:
    """Turns pyarrow's errors into ours, with the id of the statement and words that help."""

    __slots__ = ("_call", "_driver")

    def __init__(self, driver: Driver, call: Call) -> None:
        self._driver = driver
        self._call = call

    def __enter__(self) -> None:
        check_fork()

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, SwanLakeError):
            error.query_id = error.query_id or self._call.query_id
        elif isinstance(error, flight.FlightError | pa.ArrowException | OSError):
            url, timeout = self._driver.address.url, self._call.deadline.timeout
            translated = error_from_wire(error, url, timeout)
            translated.query_id = self._call.query_id
            self._driver.heard(translated)
            raise translated from None


def _upload(writer: Any, rows: Any | None) -> BaseException | None:
    """Sends rows as far as the server listens; gives back what their source raised, if it did.

    The two must not be mistaken for each other: both can raise the same errors of Arrow's, and
    after one of the source's the server would take for all what is only a part.
    """
    batches = iter(_batches(rows))
    while True:
        try:
            batch = next(batches, None)
            if batch is not None and batch.schema != rows.schema:  # type: ignore[union-attr]
                raise InvalidRequest("The rows change their columns from one batch to the next.")
        except BaseException as failure:  # noqa: BLE001 - it is raised when the upload is ended
            return failure
        if batch is None:
            return None
        try:
            writer.write_batch(batch)
        except (flight.FlightError, pa.ArrowException, OSError) as failure:
            # If it is the server's, it has stopped listening, and says why when it is asked. If
            # not, the batch cannot be sent, and those before it are not all.
            return None if is_from_server(failure) else failure


def _batches(rows: Any | None) -> Iterable[Any]:
    if rows is None:
        return []
    batches: Iterable[Any] = rows.to_batches() if isinstance(rows, pa.Table) else rows
    return batches


def _stream(table: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _schema(serialized: bytes) -> Any:
    if not serialized:
        return pa.schema([])
    return pa.ipc.read_schema(pa.py_buffer(serialized))

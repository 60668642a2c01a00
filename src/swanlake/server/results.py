"""Results on their way to a client: FlightInfo, and the stream of a DoGet."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from swanlake.protocol import AFFECTED_ROWS, encode, messages
from swanlake.server import jdbc
from swanlake.server.call import FlightCall
from swanlake.server.errors import flight_errors
from swanlake.sessions.execution.prepared import EMPTY_SCHEMA, PreparedStatement
from swanlake.sessions.registry import SessionRegistry
from swanlake.sessions.results.pending import PendingResult
from swanlake.sessions.results.stream import Outcome, ResultStream
from swanlake.sessions.run import Run
from swanlake.sessions.session import Session

#: The statement handle of a result without rows.
_NO_ROWS = b""
#: A statement that takes longer is answered before it ends.
_ANSWER_SECONDS = 0.05
#: How long a batch may take after its client hung up in the middle of a transaction.
_HANG_UP_GRACE_SECONDS = 1.0


class Results:
    """The results of a registry's sessions, as Flight objects."""

    def __init__(self, registry: SessionRegistry) -> None:
        self._registry = registry

    def info(self, outcome: Outcome, descriptor: Any, call: FlightCall) -> Any:
        """The FlightInfo whose ticket fetches the result of a statement."""
        stream = outcome.stream
        if stream is None:
            handle, schema, rows = _NO_ROWS, EMPTY_SCHEMA, outcome.affected
        else:
            self._registry.add_result(stream)
            handle, rows = stream.handle, stream.total_rows
            schema = announced_schema(stream.described_schema, call)
        return flight_info(schema, descriptor, _ticket(handle), -1 if rows is None else rows)

    def info_of_prepared(
        self,
        session: Session,
        run: Run,
        prepared: PreparedStatement,
        descriptor: Any,
        call: FlightCall,
    ) -> Any:
        """Executes a prepared statement; the FlightInfo whose ticket fetches its result.

        Some drivers cannot cancel a statement before they have the FlightInfo. So the answer does
        not wait for a read that takes long: it goes on in the background, and its DoGet waits for
        it and raises its errors. A text that was quick the last time spares the change of thread.
        """
        schema = EMPTY_SCHEMA
        if not session.was_quick(prepared):
            schema = session.describe_execution(run, prepared)
        prepared.last_run = run
        # A copy: the client may bind other rows before the statement begins.
        execute = partial(session.execute_prepared, run, replace(prepared))
        if len(schema) == 0:
            started = time.monotonic()
            outcome = execute()
            run.keep_result()
            is_quick = time.monotonic() - started < _ANSWER_SECONDS
            session.record_speed(prepared, is_quick=is_quick)
            return self.info(outcome, descriptor, call)
        pending = self._registry.start(run, execute, schema)
        is_quick = pending.ends_within(_ANSWER_SECONDS)
        session.record_speed(prepared, is_quick=is_quick)
        if is_quick:
            return self.info(pending.outcome(), descriptor, call)
        self._registry.add_result(pending)
        schema = announced_schema(schema, call)
        return flight_info(schema, descriptor, _ticket(pending.handle))

    def send(self, handle: bytes, call: FlightCall) -> Any:
        """The stream of a result that waits under a handle."""
        if handle == _NO_ROWS:
            return _without_rows(EMPTY_SCHEMA)
        stream = self._wait_for(self._registry.take_result(handle, call.identity.name), call)
        schema = jdbc.result_schema(stream.schema) if call.is_java else stream.schema
        batches = _batches(stream, schema, call)
        # Not a finally in the generator: it would not run if the generator is never started.
        weakref.finalize(batches, self._registry.release_result, stream).atexit = False
        return flight.GeneratorStream(schema, batches)

    def _wait_for(self, result: ResultStream | PendingResult, call: FlightCall) -> ResultStream:
        if isinstance(result, ResultStream):
            return result
        try:
            with result.run.client_waiting(call.is_cancelled):
                return result.stream()
        except BaseException:
            self._registry.release_result(result)
            raise

    def send_outcome(self, outcome: Outcome, call: FlightCall) -> Any:
        """The stream of a statement that the DoGet itself executed."""
        if outcome.stream is None:
            affected = -1 if outcome.affected is None else outcome.affected
            return _without_rows(EMPTY_SCHEMA.with_metadata({AFFECTED_ROWS: str(affected)}))
        self._registry.add_result(outcome.stream)
        return self.send(outcome.stream.handle, call)


def announced_schema(schema: Any, call: FlightCall) -> Any:
    """The schema of a result as the caller's driver needs to see it before it fetches rows."""
    return jdbc.announced_schema(schema) if call.is_java else schema


def flight_info(schema: Any, descriptor: Any, ticket: bytes, rows: int = -1) -> Any:
    """A FlightInfo of one endpoint, without a location: clients fetch over the same connection."""
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], rows, -1)


def _ticket(handle: bytes) -> bytes:
    return encode(messages.TicketStatementQuery(statement_handle=handle))


def _without_rows(schema: Any) -> Any:
    return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, []))


def _batches(stream: ResultStream, schema: Any, call: FlightCall) -> Iterator[Any]:
    """The batches of a result for one DoGet; ends when the client hangs up."""
    # Interrupting DuckDB aborts the transaction, which the client may want to continue.
    grace = _HANG_UP_GRACE_SECONDS if stream.in_transaction else 0.0
    is_client_gone = _for_longer_than(grace, call.is_cancelled)
    while True:
        # call.is_cancelled is safe to use only while the call is alive: inside this block.
        with flight_errors(), stream.run.client_waiting(is_client_gone):
            batch = stream.read()
        if batch is None:
            return
        yield batch if schema is stream.schema else batch.cast(schema)


def _for_longer_than(seconds: float, condition: Callable[[], bool]) -> Callable[[], bool]:
    """True once the condition has been true for so long."""
    since: float | None = None

    def holds() -> bool:
        nonlocal since
        if not condition():
            return False
        since = since or time.monotonic()
        return time.monotonic() - since >= seconds

    return holds

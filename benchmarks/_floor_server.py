"""A Flight server that answers small statements with fixed bytes, for ``benchmarks/small.py``.

It does what any Flight SQL server in Python must: receive the calls, decode them, and answer. The
difference to SwanLake's figures is what SwanLake does. Prints its URL once it accepts connections.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from swanlake.protocol import AFFECTED_ROWS, Actions, decode, encode, messages

ROWS = pa.record_batch({"answer": pa.array([42], pa.int32())})
NO_ROWS = pa.schema([], {AFFECTED_ROWS: "1"})
#: The handle of every statement that returns no rows.
CHANGE = b"change"
QUERY = b"query"


class FloorServer(flight.FlightServerBase):
    """Answers every query with one row, and every INSERT with one affected row."""

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        handle = decode(descriptor.command).prepared_statement_handle  # type: ignore[attr-defined]
        ticket = encode(messages.TicketStatementQuery(statement_handle=handle))
        schema = NO_ROWS if handle == CHANGE else ROWS.schema
        return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], 1, -1)

    def do_get(self, context: Any, ticket: Any) -> Any:
        command = decode(ticket.ticket)
        if isinstance(command, messages.TicketStatementQuery):
            handle = command.statement_handle
        else:
            handle = _handle(command.query)  # type: ignore[attr-defined]
        if handle == CHANGE:
            return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(NO_ROWS, []))
        return flight.GeneratorStream(ROWS.schema, iter([ROWS]))

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        command = decode(descriptor.command)
        reader.read_all()
        if isinstance(command, messages.CommandPreparedStatementQuery):
            handle = command.prepared_statement_handle
            answer = messages.DoPutPreparedStatementResult(prepared_statement_handle=handle)
            writer.write(pa.py_buffer(answer.SerializeToString()))
            return
        result = messages.DoPutUpdateResult(record_count=1)
        writer.write(pa.py_buffer(result.SerializeToString()))

    def list_actions(self, context: Any) -> list[Any]:
        return [flight.ActionType(Actions.STATEMENT_TICKETS, "")]

    def do_action(self, context: Any, action: Any) -> Iterable[bytes]:
        if action.type != Actions.CREATE_PREPARED_STATEMENT:
            return []
        request = decode(action.body.to_pybytes())
        handle = _handle(request.query)  # type: ignore[attr-defined]
        result = messages.ActionCreatePreparedStatementResult(
            prepared_statement_handle=handle,
            dataset_schema=ROWS.schema.serialize().to_pybytes(),
            is_update=handle == CHANGE,
        )
        return [encode(result)]


def _handle(query: str) -> bytes:
    return CHANGE if query.startswith("INSERT") else QUERY


if __name__ == "__main__":
    with FloorServer("grpc://127.0.0.1:0") as server:
        print(f"grpc://127.0.0.1:{server.port}", flush=True)
        server.serve()

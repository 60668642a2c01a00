"""Plain pyarrow.flight with Flight SQL messages, for requests that stock drivers cannot send."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
from google.protobuf.message import Message

from swanlake.protocol import Actions, decode, encode, messages


class FlightSql:
    """One connection that sends messages as given."""

    def __init__(
        self, url: str, *, user_agent: str = "", trusted: str = "", **headers: str
    ) -> None:
        """``trusted`` are the certificates to trust, as PEM."""
        options = [("grpc.primary_user_agent", user_agent)] if user_agent else None
        self.client = flight.FlightClient(
            url, tls_root_certs=trusted or None, generic_options=options
        )
        self._headers = headers

    def options(
        self,
        headers: dict[str, str] | None = None,
        *,
        seconds: float = 240,
        write_options: Any = None,
    ) -> Any:
        named = {
            name.replace("_", "-"): value
            for name, value in (self._headers | (headers or {})).items()
        }
        pairs = [(name.encode(), value.encode()) for name, value in named.items()]
        return flight.FlightCallOptions(timeout=seconds, headers=pairs, write_options=write_options)

    def info(self, command: Message, **headers: str) -> Any:
        descriptor = flight.FlightDescriptor.for_command(encode(command))
        return self.client.get_flight_info(descriptor, self.options(headers))

    def execute(self, sql: str, transaction: bytes | None = None, **headers: str) -> Any:
        command = messages.CommandStatementQuery(query=sql, transaction_id=transaction)
        return self.info(command, **headers)

    def fetch(self, info: Any, **headers: str) -> Any:
        return self.client.do_get(info.endpoints[0].ticket, self.options(headers))

    def query(self, sql: str, transaction: bytes | None = None, **headers: str) -> Any:
        return self.fetch(self.execute(sql, transaction, **headers), **headers).read_all()

    def metadata(self, command: Message) -> Any:
        info = self.info(command)
        table = self.fetch(info).read_all()
        assert table.schema.equals(info.schema)
        return table

    def put(self, command: Message, table: Any = None) -> bytes:
        table = pa.table({}) if table is None else table
        descriptor = flight.FlightDescriptor.for_command(encode(command))
        writer, reader = self.client.do_put(descriptor, table.schema, self.options())
        with writer:
            writer.write_table(table)
            writer.done_writing()
            answer: bytes = reader.read().to_pybytes()
            return answer

    def action(self, name: str, body: Message | bytes = b"", *, bare: bool = False) -> list[bytes]:
        if isinstance(body, Message):
            body = body.SerializeToString() if bare else encode(body)
        results = self.client.do_action(flight.Action(name, body), self.options())
        return [result.body.to_pybytes() for result in results]

    def action_result(self, name: str, body: Message) -> Any:
        """Runs a Flight SQL action and decodes its only result."""
        return decode(self.action(name, body)[0])

    def begin(self) -> bytes:
        answer = self.action_result("BeginTransaction", messages.ActionBeginTransactionRequest())
        handle: bytes = answer.transaction_id
        return handle

    def end(self, transaction: bytes, *, commit: bool) -> None:
        kind = messages.ActionEndTransactionRequest
        action = kind.END_TRANSACTION_COMMIT if commit else kind.END_TRANSACTION_ROLLBACK
        self.action("EndTransaction", kind(transaction_id=transaction, action=action))

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.action(Actions.STATUS)[0])
        return status

    def close_session(self) -> None:
        self.action("CloseSession", messages.CloseSessionRequest(), bare=True)

    def close(self) -> None:
        self.client.close()

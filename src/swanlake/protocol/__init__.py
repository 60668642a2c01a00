"""The Flight SQL protocol, as the server and the client share it: messages, names, encoding.

Commands, tickets and the actions of Flight SQL are wrapped in a ``google.protobuf.Any``; the
messages of Flight's own actions (sessions, CancelFlightInfo) are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message

from swanlake.errors import InvalidRequest
from swanlake.protocol import flight_sql_pb2 as messages

__all__ = ["AFFECTED_ROWS", "Actions", "Headers", "decode", "decode_as", "encode", "messages"]

M = TypeVar("M", bound=Message)

_KNOWN: Mapping[str, type[Message]] = {
    message.DESCRIPTOR.full_name: message
    for message in vars(messages).values()
    if isinstance(message, type) and issubclass(message, Message)
}


class Headers:
    """The call headers that the server reads."""

    AUTHORIZATION = "authorization"
    USER_AGENT = "user-agent"
    SESSION_ID = "x-swanlake-session-id"
    SESSION_RESUME = "x-swanlake-session-resume"
    QUERY_ID = "x-swanlake-query-id"
    QUERY_TIMEOUT = "x-swanlake-query-timeout-seconds"
    #: The W3C trace context of the caller.
    TRACEPARENT = "traceparent"
    INGEST_ID = "x-swanlake-ingest-id"
    INGEST_SEQUENCE = "x-swanlake-ingest-sequence"


class Actions:
    """The names of the Flight actions; ``swanlake.server.actions`` declares the rest of each."""

    CREATE_PREPARED_STATEMENT = "CreatePreparedStatement"
    CLOSE_PREPARED_STATEMENT = "ClosePreparedStatement"
    BEGIN_TRANSACTION = "BeginTransaction"
    END_TRANSACTION = "EndTransaction"
    CANCEL_FLIGHT_INFO = "CancelFlightInfo"
    CANCEL_QUERY = "CancelQuery"
    SET_SESSION_OPTIONS = "SetSessionOptions"
    GET_SESSION_OPTIONS = "GetSessionOptions"
    CLOSE_SESSION = "CloseSession"
    #: SwanLake's own: cancels a statement by its query id.
    CANCEL_BY_QUERY_ID = "swanlake.CancelByQueryId"
    #: SwanLake's own: the server's state as JSON; it needs no session and creates none.
    STATUS = "swanlake.Status"
    #: Not callable: announces that DoGet accepts a statement as its ticket, for one round trip.
    STATEMENT_TICKETS = "swanlake.StatementTickets"


#: Schema metadata of a result without columns: the number of rows that the statement changed.
AFFECTED_ROWS = b"swanlake.affected_rows"


def encode(message: Message) -> bytes:
    """The message, wrapped in an Any."""
    wrapped = AnyMessage()
    wrapped.Pack(message)
    return wrapped.SerializeToString()


def decode(data: bytes) -> Message:
    """The message inside an Any; raises InvalidRequest for an unknown type or malformed bytes."""
    wrapped = _parse(AnyMessage, data)
    name = wrapped.TypeName()
    if name not in _KNOWN:
        raise InvalidRequest(f"{name or 'An empty message'} is not a command of Flight SQL.")
    return _parse(_KNOWN[name], wrapped.value)


def decode_as(message_type: type[M], data: bytes, *, bare: bool = False) -> M:
    """A message of the expected type, wrapped in an Any unless ``bare``."""
    message = _parse(message_type, data) if bare else decode(data)
    if not isinstance(message, message_type):
        expected, found = message_type.DESCRIPTOR.name, message.DESCRIPTOR.name
        raise InvalidRequest(f"Expected a {expected} and found a {found}.")
    return message


def _parse(message_type: type[M], data: bytes) -> M:
    try:
        return message_type.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        raise InvalidRequest(
            f"The bytes are not a {message_type.DESCRIPTOR.name} message."
        ) from None

"""Flight SQL as SwanLake speaks it: the messages, and how they travel.

Commands, tickets and the actions of Flight SQL travel inside a ``google.protobuf.Any``; the
actions of Flight proper (sessions, CancelFlightInfo) travel bare. Shared by the server and the
client.
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
    """The call headers SwanLake reads."""

    AUTHORIZATION = "authorization"
    SESSION_ID = "x-swanlake-session-id"
    SESSION_RESUME = "x-swanlake-session-resume"
    QUERY_ID = "x-swanlake-query-id"
    QUERY_TIMEOUT = "x-swanlake-query-timeout-seconds"
    INGEST_ID = "x-swanlake-ingest-id"
    INGEST_SEQUENCE = "x-swanlake-ingest-sequence"


class Actions:
    """The actions of SwanLake's own, beside those of the specification."""

    #: Stops a statement by its query id: ActionCancelByQueryIdRequest in, ActionCancelQueryResult
    #: out.
    CANCEL_BY_QUERY_ID = "swanlake.CancelByQueryId"
    #: What the server says of itself, as JSON; needs no session and makes none.
    STATUS = "swanlake.Status"
    #: Not an action but a promise: DoGet takes a statement as its ticket, and answers in one call.
    STATEMENT_TICKETS = "swanlake.StatementTickets"


#: In the metadata of a result without columns: how many rows the statement changed.
AFFECTED_ROWS = b"swanlake.affected_rows"


def encode(message: Message) -> bytes:
    """The message with its name around it."""
    wrapped = AnyMessage()
    wrapped.Pack(message)
    return wrapped.SerializeToString()


def decode(data: bytes) -> Message:
    """The message in its own type; raises InvalidRequest for anything that is not one of ours."""
    wrapped = _parse(AnyMessage, data)
    name = wrapped.TypeName()
    if name not in _KNOWN:
        raise InvalidRequest(f"{name or 'An empty message'} is not a command of Flight SQL.")
    return _parse(_KNOWN[name], wrapped.value)


def decode_as(kind: type[M], data: bytes, *, bare: bool = False) -> M:
    """A message that must be of one kind, with its name around it or bare."""
    message = _parse(kind, data) if bare else decode(data)
    if not isinstance(message, kind):
        expected, found = kind.DESCRIPTOR.name, message.DESCRIPTOR.name
        raise InvalidRequest(f"Expected a {expected} and found a {found}.")
    return message


def _parse(kind: type[M], data: bytes) -> M:
    try:
        return kind.FromString(data)
    except (DecodeError, UnicodeDecodeError):
        raise InvalidRequest(f"The bytes are not a {kind.DESCRIPTOR.name} message.") from None

"""Translates errors of the server and of gRPC into SwanLake's exceptions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from swanlake.client.transport.deadline import client_timeout
from swanlake.errors import (
    Code,
    ConnectionLost,
    ConstraintViolated,
    EngineFailed,
    InvalidStatement,
    InvalidValue,
    NotAuthenticated,
    NotFound,
    QueryCancelled,
    QueryError,
    QueryTimeout,
    ResourceFailed,
    ServerUnavailable,
    ServerUnreachable,
    StatementUnsupported,
    SwanLakeError,
)

_IDENTIFIED = re.compile(r"([A-Z][A-Z0-9_]{2,}): (.*)", re.DOTALL)
#: What pyarrow and gRPC add to a message.
_PREPENDED = re.compile(r"^Flight returned [a-z ]+ error, with message: ")
_APPENDED = re.compile(
    r"(?:\.? Detail: (?:Python exception: )?\w+)?"
    r"(?:\.? (?:gRPC client debug context|Client context): .*)?$",
    re.DOTALL,
)
#: gRPC's messages for a failed connect: the request certainly did not reach a server.
_NEVER_CONNECTED = re.compile(
    r"failed to connect to all addresses|DNS resolution failed|Name resolution|UNAVAILABLE: "
    r"(?:connections|ipv)|empty address list",
    re.IGNORECASE,
)

#: What gRPC says before the operating system's reason.
_BEFORE_REASON = re.compile(
    r"^failed to connect to all addresses; last error: \w+: (?:ipv[46]:\S+: )?"
    r"(?:Failed to connect to remote host: )?"
)


def _with_subclasses(kind: type[SwanLakeError]) -> Iterator[type[SwanLakeError]]:
    yield kind
    for subclass in kind.__subclasses__():
        yield from _with_subclasses(subclass)


#: Identifiers of DuckDB errors, and of the server's errors about DuckDB, by exception.
_FAMILIES: dict[type[SwanLakeError], str] = {
    InvalidStatement: "PARSER_ERROR SYNTAX_ERROR BINDER_ERROR CATALOG_ERROR",
    InvalidValue: """CONVERSION_ERROR OUT_OF_RANGE_ERROR INVALID_INPUT_ERROR MISMATCH_TYPE_ERROR
        INVALID_TYPE_ERROR""",
    ConstraintViolated: "CONSTRAINT_ERROR",
    StatementUnsupported: "NOT_IMPLEMENTED_ERROR",
    ResourceFailed: """IO_ERROR HTTP_ERROR OUT_OF_MEMORY_ERROR TRANSACTIONCONTEXT_ERROR
        INTERRUPT_ERROR CONNECTION_ERROR RESULT_CLOSED RESULT_SPILL_FAILED UPLOAD_SPILL_FAILED""",
    EngineFailed: "FATAL_ERROR INTERNAL_ERROR ENGINE_ERROR",
}
_BY_IDENTIFIER = {
    kind.identifier: kind for kind in _with_subclasses(SwanLakeError) if "identifier" in vars(kind)
} | {word: kind for kind, words in _FAMILIES.items() for word in words.split()}
_BY_CODE: list[tuple[Any, type[SwanLakeError], Code]] = [
    (flight.FlightUnavailableError, ServerUnavailable, Code.UNAVAILABLE),
    (flight.FlightUnauthenticatedError, NotAuthenticated, Code.UNAUTHENTICATED),
    (flight.FlightTimedOutError, QueryTimeout, Code.DEADLINE_EXCEEDED),
    (flight.FlightCancelledError, QueryCancelled, Code.CANCELLED),
    (flight.FlightUnauthorizedError, InvalidStatement, Code.PERMISSION_DENIED),
    (pa.ArrowNotImplementedError, StatementUnsupported, Code.UNIMPLEMENTED),
    (pa.ArrowKeyError, NotFound, Code.NOT_FOUND),
    (pa.ArrowInvalid, InvalidStatement, Code.INVALID_ARGUMENT),
]


def is_from_server(error: Exception) -> bool:
    """True if the error came from the server or the network, and not from the local Arrow."""
    if isinstance(error, flight.FlightError):
        return True
    return _IDENTIFIED.fullmatch(_cleaned(error)) is not None


def _cleaned(error: Exception) -> str:
    return _PREPENDED.sub("", _APPENDED.sub("", str(error)))


def error_from_wire(
    error: Exception, server: str = "the server", timeout: float | None = None
) -> SwanLakeError:
    """The SwanLakeError for a pyarrow error: by the server's identifier, else by its gRPC code.

    ``server`` and ``timeout`` complete the messages of errors that did not come from a server.
    """
    message = _cleaned(error)
    kind, code = next(
        ((kind, code) for wire, kind, code in _BY_CODE if isinstance(error, wire)),
        (QueryError, Code.INTERNAL),
    )
    match = _IDENTIFIED.fullmatch(message)
    if match is not None:
        return _BY_IDENTIFIER.get(match[1], kind)(match[2], identifier=match[1], code=code)
    if kind is QueryTimeout and timeout is not None:
        return client_timeout(timeout)
    if kind is ServerUnavailable and _NEVER_CONNECTED.search(message):
        reason = _BEFORE_REASON.sub("", message)
        return ServerUnreachable(f"No server answers at {server}: {reason}")
    if kind is ServerUnavailable:
        return ConnectionLost(f"The connection to {server} was lost: {message}")
    return kind(message, code=code)

"""One connection to a Flight SQL server, over pyarrow.flight and SwanLake's own messages."""

from __future__ import annotations

import json
import re
import ssl
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight as flight

from swanlake.errors import (
    Code,
    ConfigError,
    NotAuthenticated,
    NotFound,
    QueryCancelled,
    QueryError,
    QueryTimeout,
    ServerUnavailable,
    SessionLost,
    SwanLakeError,
)
from swanlake.protocol import Actions, Headers, decode_as, encode, messages

_IDENTIFIED = re.compile(r"([A-Z][A-Z0-9_]{2,}): (.*)", re.DOTALL)
#: What pyarrow and gRPC put around a server's message, or around their own.
_PREPENDED = re.compile(r"^Flight returned [a-z ]+ error, with message: ")
_APPENDED = re.compile(
    r"(?:\.? Detail: (?:Python exception: )?\w+)?"
    r"(?:\.? (?:gRPC client debug context|Client context): .*)?$",
    re.DOTALL,
)

_BY_IDENTIFIER: dict[str, type[SwanLakeError]] = {
    kind.identifier: kind
    for kind in (QueryCancelled, QueryTimeout, SessionLost, NotAuthenticated, ServerUnavailable)
}
_BY_CODE: list[tuple[Any, type[SwanLakeError], Code]] = [
    (flight.FlightUnavailableError, ServerUnavailable, Code.UNAVAILABLE),
    (flight.FlightUnauthenticatedError, NotAuthenticated, Code.UNAUTHENTICATED),
    (flight.FlightTimedOutError, QueryTimeout, Code.DEADLINE_EXCEEDED),
    (flight.FlightCancelledError, QueryCancelled, Code.CANCELLED),
    (flight.FlightUnauthorizedError, QueryError, Code.PERMISSION_DENIED),
    (pa.ArrowNotImplementedError, QueryError, Code.UNIMPLEMENTED),
    (pa.ArrowKeyError, NotFound, Code.NOT_FOUND),
    (pa.ArrowInvalid, QueryError, Code.INVALID_ARGUMENT),
]


@dataclass(frozen=True)
class Result:
    """What a statement gave: its columns, its rows as they arrive, and how many it changed."""

    schema: Any
    batches: Generator[Any, None, None]
    #: Rows of the result, or affected rows where it has no columns; -1 where unknown.
    rows: int

    def read_all(self) -> Any:
        """The whole result as one table."""
        return pa.Table.from_batches(list(self.batches), self.schema)


class Connection:
    """A session on a server: one at a time, from one thread (``cancel`` from any)."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: float | None = None,
        tls_root_certs: bytes | None = None,
    ) -> None:
        _check_address(url, token, tls_root_certs)
        self.session_id = str(uuid.uuid4())
        self._timeout = timeout
        self._token = token
        try:
            self._client = flight.FlightClient(url, tls_root_certs=tls_root_certs)
        except pa.ArrowException:
            raise _not_a_url(url) from None

    def execute(self, sql: str, *, query_id: str | None = None) -> Result:
        """Runs a text once and gives its result as it arrives."""
        options = self._options({Headers.QUERY_ID: query_id} if query_id else {})
        command = encode(messages.CommandStatementQuery(query=sql))
        with _errors_from_wire():
            info = self._client.get_flight_info(
                flight.FlightDescriptor.for_command(command), options
            )
        return Result(info.schema, self._fetch(info, options), info.total_records)

    def cancel(self, query_id: str) -> None:
        """Stops a statement of this identity that was given that id."""
        request = encode(messages.ActionCancelByQueryIdRequest(query_id=query_id))
        for answer in self._action(Actions.CANCEL_BY_QUERY_ID, request):
            decode_as(messages.ActionCancelQueryResult, answer)

    def status(self) -> dict[str, Any]:
        """What the server says of itself; makes no session."""
        answers = self._action(Actions.STATUS, b"")
        found: dict[str, Any] = json.loads(answers[0])
        return found

    def close(self) -> None:
        """Ends the session on the server and the connection to it."""
        try:
            self._action("CloseSession", messages.CloseSessionRequest().SerializeToString())
        except SwanLakeError:
            pass  # a server that is gone has closed it too
        finally:
            self._client.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _fetch(self, info: Any, options: Any) -> Generator[Any, None, None]:
        for endpoint in info.endpoints:
            with _errors_from_wire():
                reader = self._client.do_get(endpoint.ticket, options)
            try:
                while True:
                    with _errors_from_wire():
                        chunk = reader.read_chunk()
                    yield chunk.data
            except StopIteration:
                continue
            except GeneratorExit:
                # Without this the reader would fetch the whole rest before it lets go.
                reader.cancel()
                raise

    def _action(self, name: str, body: bytes) -> list[bytes]:
        with _errors_from_wire():
            answers = self._client.do_action(flight.Action(name, body), self._options({}))
            return [answer.body.to_pybytes() for answer in answers]

    def _options(self, headers: dict[str, str]) -> Any:
        headers = {Headers.SESSION_ID: self.session_id, **headers}
        if self._token:
            headers[Headers.AUTHORIZATION] = f"Bearer {self._token}"
        pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
        return flight.FlightCallOptions(timeout=self._timeout, headers=pairs)


def _check_address(url: str, token: str | None, tls_root_certs: bytes | None) -> None:
    """Refuses here what gRPC would refuse later in words that do not help."""
    try:
        parts = urlsplit(url)
        addressed = bool(parts.hostname or parts.path)
    except ValueError:
        addressed = False
    if not addressed:
        raise _not_a_url(url)
    if token is not None and not (token.isascii() and token.isprintable()):
        raise ConfigError("The token holds characters that no header can carry; it must be ASCII.")
    if tls_root_certs is not None:
        try:
            text = tls_root_certs.decode("ascii", "ignore")  # bundles have comments in any script
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
        except (ssl.SSLError, ValueError):
            raise ConfigError("The certificates to trust are not PEM text.") from None


def _not_a_url(url: str) -> ConfigError:
    return ConfigError(
        f"{url!r} is not the URL of a Flight server; it has the form grpc://host:4214, or "
        "grpc+tls://host:4214 for TLS."
    )


@contextmanager
def _errors_from_wire() -> Iterator[None]:
    try:
        yield
    except (flight.FlightError, pa.ArrowException) as error:
        raise error_from_wire(error) from None


def error_from_wire(error: Exception) -> SwanLakeError:
    """The server's error in our own tree, by its identifier or else by its gRPC code."""
    message = _PREPENDED.sub("", _APPENDED.sub("", str(error)))
    kind, code = next(
        ((kind, code) for wire, kind, code in _BY_CODE if isinstance(error, wire)),
        (QueryError, Code.INTERNAL),
    )
    found = _IDENTIFIED.fullmatch(message)
    if found is None:
        return kind(message, code=code)
    return _BY_IDENTIFIER.get(found[1], kind)(found[2], identifier=found[1], code=code)

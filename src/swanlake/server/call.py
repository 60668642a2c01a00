"""One Flight call: its headers, who makes it, and which session it means."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import pyarrow.flight as flight

from swanlake.errors import InvalidRequest, NotAuthenticated, SwanLakeError
from swanlake.pipeline.loans import Lender
from swanlake.protocol import Headers
from swanlake.queue.names import Ingest
from swanlake.server.auth import Authenticator, Identity, worker_identity
from swanlake.server.wire_errors import raise_on_wire
from swanlake.sessions.ids import SessionKey, peer_address

_MIDDLEWARE = "swanlake"
_MAX_ID_LENGTH = 256
_INGEST = (Headers.INGEST_ID, Headers.INGEST_SEQUENCE)


class Call:
    """What the headers and the connection of a call say."""

    def __init__(self, context: Any) -> None:
        middleware = context.get_middleware(_MIDDLEWARE)
        self.identity: Identity = middleware.identity
        if self.identity.loan:
            raise NotAuthenticated("The token of a worker is good for its segments only.")
        self._headers: Mapping[str, str] = middleware.headers
        self._peer = peer_address(context.peer())
        self.is_cancelled = context.is_cancelled

    @property
    def session_key(self) -> SessionKey:
        """The session by header, else by the address of the connection."""
        given = self._header_id(Headers.SESSION_ID)
        if given:
            return SessionKey(self.identity.name, given)
        return SessionKey(self.identity.name, self._peer or str(uuid.uuid4()), from_peer=True)

    @property
    def resumes(self) -> bool:
        """True if the caller means a session that it has used before."""
        return self._headers.get(Headers.SESSION_RESUME, "0") not in ("", "0", "false")

    @property
    def query_id(self) -> str | None:
        return self._header_id(Headers.QUERY_ID)

    @property
    def query_timeout(self) -> float | None:
        """The limit in seconds that this call sets; 0 is none."""
        text = self._headers.get(Headers.QUERY_TIMEOUT)
        if text is None:
            return None
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < float("inf"):
            raise InvalidRequest(f"{Headers.QUERY_TIMEOUT} is {text!r}, not a number of seconds.")
        return seconds

    def ingest(self, options: Mapping[str, object]) -> Ingest | None:
        """What the producer calls the rows of this call: by header, or by option of the session."""
        named = {name: str(options[name]) for name in _INGEST if name in options}
        named |= {name: self._headers[name] for name in _INGEST if name in self._headers}
        producer = named.get(Headers.INGEST_ID, "").strip()
        if not producer:
            return None
        if len(producer) > _MAX_ID_LENGTH:
            raise InvalidRequest(f"{Headers.INGEST_ID} is longer than {_MAX_ID_LENGTH} characters.")
        number = named.get(Headers.INGEST_SEQUENCE, "").strip()
        if not number.isdecimal() or int(number) >= 2**63:
            raise InvalidRequest(
                f"{Headers.INGEST_ID} needs {Headers.INGEST_SEQUENCE} beside it, a whole number "
                f"that is the batch's own; it is {number!r}."
            )
        return Ingest(producer, int(number))

    def _header_id(self, name: str) -> str | None:
        value = self._headers.get(name, "").strip()
        if len(value) > _MAX_ID_LENGTH:
            raise InvalidRequest(f"{name} is longer than {_MAX_ID_LENGTH} characters.")
        return value or None


def loan_token(context: Any) -> str:
    """The token of the worker that calls; raises NotAuthenticated for everybody else."""
    identity: Identity = context.get_middleware(_MIDDLEWARE).identity
    if not identity.loan:
        raise NotAuthenticated("This action needs the token of a job that is running.")
    return identity.loan


class CallMiddleware(flight.ServerMiddleware):
    """Carries what the headers said from the start of a call to its handler."""

    def __init__(
        self, identity: Identity, headers: Mapping[str, str], answers_handshake: bool
    ) -> None:
        self.identity = identity
        self.headers = headers
        self._answers_handshake = answers_handshake

    def sending_headers(self) -> dict[str, str]:
        if self._answers_handshake and self.identity.bearer:
            return {Headers.AUTHORIZATION: f"Bearer {self.identity.bearer}"}
        return {}


class CallMiddlewareFactory(flight.ServerMiddlewareFactory):
    """Authenticates every call before any handler sees it."""

    def __init__(self, authenticator: Authenticator, lender: Lender | None) -> None:
        super().__init__()
        self._authenticator = authenticator
        self._lender = lender

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> CallMiddleware:
        texts = {
            name.lower(): values[-1]
            for name, values in headers.items()
            if values and isinstance(values[-1], str)
        }
        try:
            identity = self._identify(texts.get(Headers.AUTHORIZATION), info.method)
        except SwanLakeError as refused:
            raise_on_wire(refused)
        return CallMiddleware(identity, texts, info.method == flight.FlightMethod.HANDSHAKE)

    def _identify(self, authorization: str | None, method: Any) -> Identity:
        """A worker can only make the one kind of call that it needs."""
        if self._lender is not None and method == flight.FlightMethod.DO_ACTION:
            worker = worker_identity(authorization, self._lender)
            if worker is not None:
                return worker
        return self._authenticator.identify(authorization)


def middleware(
    authenticator: Authenticator, lender: Lender | None = None
) -> dict[str, flight.ServerMiddlewareFactory]:
    """The middleware a server is built with."""
    return {_MIDDLEWARE: CallMiddlewareFactory(authenticator, lender)}

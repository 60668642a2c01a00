"""A Flight call: its headers, its caller and its session."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow.flight as flight

from swanlake.access.identity import Identity
from swanlake.errors import InvalidRequest, NotAuthenticated
from swanlake.jobs.segment_transfer.grants import TransferGrants
from swanlake.protocol import Headers
from swanlake.queue.batch_ids import BatchId
from swanlake.server.auth import Authenticator, Credentials, identify_worker
from swanlake.server.errors import flight_errors
from swanlake.sessions.ids import SessionKey, peer_address

#: The name of the middleware.
MIDDLEWARE = "swanlake"
_MAX_ID_LENGTH = 256
_INGEST = (Headers.INGEST_ID, Headers.INGEST_SEQUENCE)


class FlightCall:
    """The context of a call: what its headers and its connection say."""

    def __init__(self, context: Any) -> None:
        middleware = context.get_middleware(MIDDLEWARE)
        self.identity: Identity = middleware.identity
        if self.identity.grant_token:
            raise NotAuthenticated("A Spark worker's token only grants access to its segments.")
        self._headers: Mapping[str, str] = middleware.headers
        #: ``host:port`` of the client.
        self.peer = peer_address(context.peer())
        self.is_cancelled = context.is_cancelled

    @property
    def session_key(self) -> SessionKey:
        """The session of the header, else that of the connection's address."""
        session_id = self._header_id(Headers.SESSION_ID)
        if session_id:
            return SessionKey(self.identity.name, session_id)
        return SessionKey(self.identity.name, self.peer or str(uuid.uuid4()), from_peer=True)

    @property
    def resumes_session(self) -> bool:
        """True if the session must exist already."""
        return self._headers.get(Headers.SESSION_RESUME, "0") not in ("", "0", "false")

    @property
    def is_java(self) -> bool:
        """True for clients in Java: the JDBC driver does not name itself more precisely."""
        return "grpc-java" in self._headers.get(Headers.USER_AGENT, "")

    @property
    def query_id(self) -> str | None:
        return self._header_id(Headers.QUERY_ID)

    @property
    def traceparent(self) -> str:
        """The span of the caller; empty if it sends none."""
        return self._headers.get(Headers.TRACEPARENT, "")

    @property
    def query_timeout(self) -> float | None:
        """The timeout in seconds that the call sets; 0 is no limit."""
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

    def ingest(self, options: Mapping[str, object]) -> BatchId | None:
        """The producer's id of the rows of this call, from the headers or the session options."""
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
                f"{Headers.INGEST_ID} requires {Headers.INGEST_SEQUENCE}, a whole number that "
                f"identifies the batch; it is {number!r}."
            )
        return BatchId(producer, int(number))

    def _header_id(self, name: str) -> str | None:
        value = self._headers.get(name, "").strip()
        if len(value) > _MAX_ID_LENGTH:
            raise InvalidRequest(f"{name} is longer than {_MAX_ID_LENGTH} characters.")
        return value or None


def grant_token(context: Any) -> str:
    """The token of a calling Spark worker; raises NotAuthenticated for other callers."""
    identity: Identity = context.get_middleware(MIDDLEWARE).identity
    if not identity.grant_token:
        raise NotAuthenticated("This action requires the token of a running job.")
    return identity.grant_token


class CallMiddleware(flight.ServerMiddleware):
    """Carries the headers of a call to its handler, and its identity once it is authenticated."""

    #: Set by ``authenticate``, which every handler of the service calls first.
    identity: Identity

    def __init__(
        self,
        identify: Callable[[Credentials], Identity],
        headers: Mapping[str, str],
        on_login: Callable[[str | None, str, bool], None],
    ) -> None:
        self.headers = headers
        self._identify = identify
        self._on_login = on_login
        self._handshake_answer: dict[str, str] = {}

    def authenticate(self, address: str = "", subject: str = "") -> None:
        """Identifies the caller; raises NotAuthenticated."""
        authorization = self.headers.get(Headers.AUTHORIZATION, "")
        self.identity = self._identify(Credentials(authorization, address, subject))

    def answer_handshake(self) -> None:
        """Authenticates a Handshake, and answers it with a token for later calls."""
        self.authenticate()
        self._on_login(self.identity.name, "", True)
        if self.identity.bearer:
            bearer = f"Bearer {self.identity.bearer}"
            self._handshake_answer = {Headers.AUTHORIZATION: bearer}

    def sending_headers(self) -> dict[str, str]:
        return self._handshake_answer


def authenticate(context: Any) -> None:
    """Identifies the caller of a call; raises NotAuthenticated."""
    host, _, _ = peer_address(context.peer()).rpartition(":")
    subject = context.peer_identity().decode(errors="replace")
    context.get_middleware(MIDDLEWARE).authenticate(host.strip("[]"), subject)


class CallMiddlewareFactory(flight.ServerMiddlewareFactory):
    """Reads the headers of every call.

    Only the handler of a call knows the client's address and certificate, so it authenticates. A
    Handshake has no handler of ours: it is authenticated here, without them.
    """

    def __init__(self, authenticator: Authenticator, grants: TransferGrants | None) -> None:
        super().__init__()
        self._authenticator = authenticator
        self._grants = grants

    def start_call(self, info: Any, headers: Mapping[str, list[Any]]) -> CallMiddleware:
        texts = {
            name.lower(): values[-1]
            for name, values in headers.items()
            if values and isinstance(values[-1], str)
        }
        # Workers are only identified for DoAction, the one call that they need.
        may_be_worker = info.method == flight.FlightMethod.DO_ACTION
        identify = self._identify_any if may_be_worker else self._authenticator.identify
        middleware = CallMiddleware(identify, texts, self._authenticator.on_login)
        if info.method == flight.FlightMethod.HANDSHAKE:
            with flight_errors():
                middleware.answer_handshake()
        return middleware

    def _identify_any(self, credentials: Credentials) -> Identity:
        worker = None
        if self._grants is not None:
            worker = identify_worker(credentials.authorization, self._grants)
        return worker or self._authenticator.identify(credentials)

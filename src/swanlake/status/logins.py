"""The caller of a request: the same identities as on Flight, and the sessions of browsers.

A program sends a token or a password with each request. A browser logs in once and gets a cookie.
The cookie is a random number: what it stands for is kept here, so a logout ends it, and every
request checks the credentials again. It ends with the server process.
"""

from __future__ import annotations

import base64
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.requests import Request

from swanlake.access.identity import Identity
from swanlake.errors import NotAuthenticated
from swanlake.status.blocking import BlockingCalls

#: From an authorization header and the address of the client; raises NotAuthenticated.
Identify = Callable[[str, str], Identity]

_COOKIE = "swanlake_session"
#: More browsers than this log the oldest one out.
_MAX_SESSIONS = 1000
#: A check of a password may wait for others.
_LOGIN_SECONDS = 15.0


@dataclass(frozen=True)
class _BrowserSession:
    expires_at: float
    authorization: str = field(repr=False)


class BrowserSessions:
    """The logins behind cookies; safe for many threads."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._sessions: dict[str, _BrowserSession] = {}

    def add(self, authorization: str) -> str:
        """The id of a new session, which sends these credentials from now on."""
        session_id = secrets.token_urlsafe(32)
        session = _BrowserSession(time.monotonic() + self._seconds, authorization)
        with self._lock:
            self._sessions[session_id] = session
            if len(self._sessions) > _MAX_SESSIONS:
                del self._sessions[next(iter(self._sessions))]
        return session_id

    def find(self, session_id: str) -> str | None:
        """The credentials of a session; None if it has ended."""
        with self._lock:
            session = self._sessions.get(session_id)
            if session is None:
                return None
            if session.expires_at <= time.monotonic():
                del self._sessions[session_id]
                return None
            return session.authorization

    def remove(self, session_id: str) -> None:
        """Ends a session."""
        with self._lock:
            self._sessions.pop(session_id, None)


class Logins:
    """Finds the caller of a request."""

    def __init__(
        self, identify: Identify, calls: BlockingCalls, *, seconds: float, is_required: bool
    ) -> None:
        self._identify = identify
        self._calls = calls
        self._sessions = BrowserSessions(seconds)
        self._seconds = seconds
        #: False if the server trusts its callers, as with ``auth = "none"``.
        self.is_required = is_required

    async def find_caller(self, request: Request) -> Identity:
        """The caller; raises NotAuthenticated."""
        authorization = request.headers.get("authorization", "")
        if not authorization and (session_id := request.cookies.get(_COOKIE)):
            authorization = self._sessions.find(session_id) or ""
        return await self._check(request, authorization)

    async def log_in(self, request: Request, user: str, password: str) -> str:
        """The value of a new cookie; raises NotAuthenticated. Without a user, it takes a token."""
        authorization = f"Bearer {password}"
        if user:
            basic = base64.b64encode(f"{user}:{password}".encode()).decode()
            authorization = f"Basic {basic}"
        identity = await self._check(request, authorization)
        if not identity.bearer:
            raise NotAuthenticated("These credentials cannot be used in a browser.")
        return self._sessions.add(f"Bearer {identity.bearer}")

    def log_out(self, request: Request) -> None:
        """Ends the session of the request's cookie, if there is one."""
        self._sessions.remove(request.cookies.get(_COOKIE, ""))

    def cookie(self, value: str, *, is_secure: bool) -> str:
        """The Set-Cookie header for a value; an empty one removes the cookie."""
        age = int(self._seconds) if value else 0
        secure = "; Secure" if is_secure else ""
        return f"{_COOKIE}={value}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"

    async def _check(self, request: Request, authorization: str) -> Identity:
        address = request.client.host if request.client else ""
        if not self.is_required:
            return self._identify(authorization, address)
        if not authorization:
            raise NotAuthenticated("Log in, or send a token as 'authorization: Bearer …'.")
        return await self._calls.run(lambda: self._identify(authorization, address), _LOGIN_SECONDS)

"""What happens to every request before its handler, and to every response after it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from swanlake.access.identity import Identity
from swanlake.errors import AccessDenied, NotAuthenticated, SwanLakeError
from swanlake.status.login_page import login_url
from swanlake.status.logins import Logins
from swanlake.status.responses import error_response
from swanlake.status.site import FORM_PATHS, REQUEST_HEADER, SAFE_METHODS, Site

log = logging.getLogger("swanlake.status")

#: Paths of probes, which tell nothing about callers or data and need no login.
HEALTH_PATHS = frozenset({"/livez", "/readyz", "/healthz"})
_STATIC = "/static/"
_HEADERS = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


def caller(request: Request) -> Identity:
    """The caller of a request whose path needs a login."""
    identity: Identity = request.scope["swanlake.identity"]
    return identity


async def current_caller(request: Request) -> Identity:
    """The same, with its credentials checked again: for a response that takes long."""
    find_caller: Callable[[Request], Awaitable[Identity]] = request.scope["swanlake.find_caller"]
    return await find_caller(request)


def require_admin(request: Request) -> Identity:
    """The caller; raises AccessDenied unless it is an admin."""
    identity = caller(request)
    if not identity.is_admin:
        raise AccessDenied(f"Only admins may do this; {identity.name} is a {identity.role}.")
    return identity


class Guard:
    """Refuses requests of other sites and of unknown callers; adds headers to every response."""

    def __init__(self, app: ASGIApp, site: Site, logins: Logins) -> None:
        self._app = app
        self._site = site
        self._logins = logins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        has_started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            refusal = await self._refuse(scope, receive)
            await (refusal or self._app)(scope, receive, send_with_headers)
        except ClientDisconnect:
            return  # nothing is left to answer
        except Exception:
            log.exception("the request for %s failed", scope["path"])
            if not has_started:
                failure = SwanLakeError("The server failed to answer; its log says why.")
                await error_response(failure)(scope, receive, send_with_headers)

    async def _refuse(self, scope: Scope, receive: Receive) -> Response | None:
        """The response for a request that is not passed on; notes the caller of any other."""
        path, headers = scope["path"], Headers(scope=scope)
        if path in HEALTH_PATHS and scope["method"] in SAFE_METHODS:
            return None
        if not self._site.accepts_host(headers.get("host", "")):
            return error_response(
                AccessDenied(
                    "The request names another host than this server. Use its address, or set "
                    "status_url to the URL by which browsers reach it."
                )
            )
        if not self._site.may_change(scope["method"], path, headers):
            return error_response(
                AccessDenied(
                    "Only a page of this server may make this request. Programs add the header "
                    f"{REQUEST_HEADER}: 1."
                )
            )
        if path in FORM_PATHS or path.startswith(_STATIC):
            return None
        request = Request(scope, receive)
        scope["swanlake.find_caller"] = self._logins.find_caller
        try:
            scope["swanlake.identity"] = await self._logins.find_caller(request)
        except NotAuthenticated as unknown:
            if "text/html" in headers.get("accept", "") and scope["method"] in SAFE_METHODS:
                return RedirectResponse(login_url(path), 303)
            return error_response(unknown)
        except SwanLakeError as unavailable:
            return error_response(unavailable)
        return None

"""The application of the status server."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from swanlake.errors import SwanLakeError
from swanlake.status import console, exposition, login_page, probes
from swanlake.status.blocking import BlockingCalls
from swanlake.status.context import StatusContext
from swanlake.status.guard import Guard
from swanlake.status.logins import Identify, Logins
from swanlake.status.responses import error_response
from swanlake.status.site import Site

#: Checks of credentials have threads of their own: they wait for no other call.
_LOGIN_THREADS = 2


def create_app(context: StatusContext, site: Site, identify: Identify) -> Starlette:
    """The application: every route, behind the checks of every request."""
    logins = Logins(
        identify,
        BlockingCalls("swanlake-status-login", _LOGIN_THREADS),
        seconds=context.view.settings.login_seconds,
        is_required=site.has_authentication,
    )
    return Starlette(
        routes=[
            *probes.routes(context),
            *exposition.routes(context),
            *login_page.routes(logins, site),
            *console.routes(context),
        ],
        middleware=[Middleware(Guard, site=site, logins=logins)],
        exception_handlers={SwanLakeError: _refused, HTTPException: _no_page},
    )


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, SwanLakeError)
    return error_response(error)


async def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = {"error": "NOT_FOUND", "message": f"{request.url.path}: {error.detail}."}
    return JSONResponse(body, error.status_code, error.headers)

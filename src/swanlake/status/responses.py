"""Responses of the status server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from swanlake.errors import Code, InvalidRequest, SwanLakeError

_STATUS: Mapping[Code, int] = {
    Code.INVALID_ARGUMENT: 400,
    Code.NOT_FOUND: 404,
    Code.UNIMPLEMENTED: 501,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.CANCELLED: 409,
    Code.DEADLINE_EXCEEDED: 504,
    Code.UNAVAILABLE: 503,
    Code.INTERNAL: 500,
}

#: How long a client may take to send a body.
_BODY_SECONDS = 60.0


def error_response(error: SwanLakeError) -> Response:
    """The error as JSON, with its identifier and message."""
    body = {"error": error.identifier, "message": error.message}
    headers = {"www-authenticate": "Bearer"} if error.code is Code.UNAUTHENTICATED else None
    return JSONResponse(body, _STATUS[error.code], headers)


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request; raises InvalidRequest if it is too long or too slow."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limit:
                    raise InvalidRequest(f"The body of the request is longer than {limit} bytes.")
    except TimeoutError:
        raise InvalidRequest(
            f"The body of the request did not arrive within {_BODY_SECONDS:g} s."
        ) from None
    return bytes(body)

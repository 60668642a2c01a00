"""Whether the process lives, and whether it can do its work."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from swanlake.status.context import StatusContext
from swanlake.status.view import ServerState


def routes(context: StatusContext) -> list[BaseRoute]:
    """The routes of probes: ``/livez``, ``/readyz`` and ``/healthz``."""

    async def live(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(request: Request) -> Response:
        state = context.view.state()
        if state is not ServerState.SERVING:
            return PlainTextResponse(f"not ready: the server is {state}\n", 503)
        return PlainTextResponse("ok\n")

    return [Route("/livez", live), Route("/readyz", ready), Route("/healthz", ready)]

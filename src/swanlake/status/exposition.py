"""``/metrics``: what the server counts, for Prometheus."""

from __future__ import annotations

from contextlib import suppress

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from swanlake.access.scope import Scope
from swanlake.errors import SwanLakeError
from swanlake.status.context import StatusContext
from swanlake.status.guard import caller
from swanlake.status.metrics import Scrape, ScrapeCollector


def routes(context: StatusContext) -> list[BaseRoute]:
    """The route of ``/metrics``."""

    def read(scope: Scope) -> Scrape:
        lake, engines = context.lake_facts.last, context.engines.last
        return Scrape(context.view, context.statements, scope, engines, lake)

    async def metrics(request: Request) -> Response:
        for facts in (context.lake_facts, context.engines):
            with suppress(SwanLakeError):  # some metrics are left out
                await facts.get()
        scope = Scope.from_identity(caller(request))
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        key = "metrics", scope, content_type
        body = await context.answers.get(key, lambda: encode(ScrapeCollector(read(scope))))
        return Response(body, media_type=content_type)

    return [Route("/metrics", metrics)]

"""``/metrics``: what the server counts, for Prometheus."""

from __future__ import annotations

from contextlib import suppress

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from swanlake.errors import SwanLakeError
from swanlake.status.context import StatusContext
from swanlake.status.guard import caller
from swanlake.status.metrics import Scrape, ScrapeCollector


def routes(context: StatusContext) -> list[BaseRoute]:
    """The route of ``/metrics``."""

    async def metrics(request: Request) -> Response:
        scrape = await read_scrape(context, request)
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        body = await context.calls.run(lambda: encode(ScrapeCollector(scrape)))
        return Response(body, media_type=content_type)

    return [Route("/metrics", metrics)]


async def read_scrape(context: StatusContext, request: Request) -> Scrape:
    """What the metrics are read from; a lake that does not answer leaves some of them out."""
    lake = None
    with suppress(SwanLakeError):
        lake = (await context.lake_facts.get()).value
    engines = await context.engines.get()
    return Scrape(context.view, context.statements, caller(request), engines.value, lake)

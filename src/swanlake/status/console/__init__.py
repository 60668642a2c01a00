"""The console: pages for people."""

from __future__ import annotations

import html

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from swanlake.status.context import StatusContext

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>SwanLake</title></head>
<body><h1>SwanLake {version}</h1><p>{url} is {state}. <a href="/readyz">Health</a></p></body></html>
"""


def routes(context: StatusContext) -> list[BaseRoute]:
    """The routes of the pages."""
    view = context.view

    async def overview(request: Request) -> Response:
        facts = {"version": view.version, "url": view.url, "state": view.state()}
        return HTMLResponse(
            _PAGE.format(**{name: html.escape(value) for name, value in facts.items()})
        )

    return [Route("/", overview)]

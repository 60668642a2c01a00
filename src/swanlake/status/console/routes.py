"""The routes of the console."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles

from swanlake.status.console.changes import Changes
from swanlake.status.console.documents import Documents
from swanlake.status.console.feed import Feed
from swanlake.status.console.sql import SqlPage
from swanlake.status.context import StatusContext

_STATIC = Path(__file__).with_name("static")
_PAGES = ("/", "/queue", "/statements", "/lake", "/pipeline", "/sql")


def routes(context: StatusContext) -> list[BaseRoute]:
    """The pages, their data, and what their buttons do."""
    feed = Feed(Documents(context.view, context.history.points), context)
    changes = Changes(context)
    sql = SqlPage(context)
    return [
        *(Route(path, _page, methods=["GET"]) for path in _PAGES),
        Mount("/static", _Static(directory=_STATIC)),
        Route("/api/live", feed.stream, methods=["GET"]),
        Route("/api/call", changes.call, methods=["POST"]),
        Route("/api/statements/cancel", changes.cancel, methods=["POST"]),
        Route("/api/sessions/close", changes.close_session, methods=["POST"]),
        Route("/api/sql/run", sql.run, methods=["POST"]),
        Route("/api/sql/download", sql.download, methods=["GET"]),
        *feed.routes(),
    ]


async def _page(request: Request) -> Response:
    return FileResponse(_STATIC / "index.html", media_type="text/html")


class _Static(StaticFiles):
    """Files that a browser keeps, and asks each time whether they changed."""

    def file_response(self, *arguments: object, **named: object) -> Response:
        response = super().file_response(*arguments, **named)  # type: ignore[arg-type]
        response.headers["cache-control"] = "no-cache"
        return response

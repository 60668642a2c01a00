"""The page where a browser logs in, and the end of its session."""

from __future__ import annotations

import html
from urllib.parse import parse_qs, quote

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from swanlake.errors import NotAuthenticated
from swanlake.status.logins import Logins
from swanlake.status.responses import read_body
from swanlake.status.site import Site

_MAX_FORM_BYTES = 16 * 1024
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Log in · SwanLake</title>
<link rel="icon" href="/static/favicon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/base.css">
<link rel="stylesheet" href="/static/components.css">
<link rel="stylesheet" href="/static/login.css">
<script src="/static/js/theme.js"></script>
</head>
<body class="login">
<main class="card">
<h1><img src="/static/favicon.svg" alt="" width="28" height="28"> SwanLake</h1>
{message}
<form method="post" action="/login">
<input type="hidden" name="next" value="{next}">
<p><label for="user">User, or name of the token</label>
<input id="user" name="user" autocomplete="username" autofocus></p>
<p><label for="password">Password or token</label>
<input id="password" name="password" type="password" autocomplete="current-password" required></p>
<p><button class="primary">Log in</button></p>
</form>
</main>
</body>
</html>
"""


def login_url(path: str) -> str:
    """The login page that leads to the path afterwards."""
    return f"/login?next={quote(path, safe='')}"


def routes(logins: Logins, site: Site) -> list[BaseRoute]:
    """The routes of ``/login`` and ``/logout``."""

    async def show(request: Request) -> Response:
        next_path = _own_path(request.query_params.get("next", "/"))
        if not logins.is_required:
            return RedirectResponse(next_path, 303)
        return _page(next_path, "", 200)

    async def log_in(request: Request) -> Response:
        body = await read_body(request, _MAX_FORM_BYTES)
        form = parse_qs(body.decode(errors="replace"), keep_blank_values=True)
        next_path = _own_path(form.get("next", ["/"])[0])
        user, password = form.get("user", [""])[0].strip(), form.get("password", [""])[0]
        try:
            cookie = await logins.log_in(request, user, password)
        except NotAuthenticated:
            return _page(next_path, "This user and password, or this token, are not valid.", 401)
        response = RedirectResponse(next_path, 303)
        response.headers["set-cookie"] = logins.cookie(cookie, is_secure=site.is_secure)
        return response

    async def log_out(request: Request) -> Response:
        logins.log_out(request)
        response = RedirectResponse("/login", 303)
        response.headers["set-cookie"] = logins.cookie("", is_secure=site.is_secure)
        return response

    return [
        Route("/login", show, methods=["GET"]),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]


def _page(next_path: str, message: str, status: int) -> Response:
    alert = f'<p role="alert">{html.escape(message)}</p>' if message else ""
    page = _PAGE.format(message=alert, next=html.escape(next_path))
    # With no-referrer, a browser would not say which page sent the form.
    return HTMLResponse(page, status, {"referrer-policy": "same-origin"})


def _own_path(path: str) -> str:
    """The path if it leads to a page of this server, else the first page."""
    is_own = path.startswith("/") and path[1:2] not in ("/", "\\") and path.isprintable()
    return path if is_own else "/"

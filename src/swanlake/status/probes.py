"""What programs read: the probes of orchestrators, and the state of the server as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from swanlake.access.identity import Identity
from swanlake.access.scope import Scope
from swanlake.errors import SwanLakeError
from swanlake.status.blocking import Aged
from swanlake.status.context import StatusContext
from swanlake.status.document import Facts, LakeFacts, health_facts, lake_facts, status_facts
from swanlake.status.guard import caller
from swanlake.status.health import CheckReport
from swanlake.status.view import ServerView


def routes(context: StatusContext) -> list[BaseRoute]:
    """The routes of ``/livez``, ``/readyz``, ``/healthz``, ``/status.json``, ``/api/history``."""
    view = context.view

    async def live(request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def ready(request: Request) -> Response:
        reasons = view.not_ready_reasons
        status = 503 if reasons else 200
        if request.query_params.get("format") == "json":
            health = health_facts(view.health.report(), with_details=False)
            body = {"ready": not reasons, "state": view.state(), "reasons": reasons}
            return JSONResponse(body | {"checks": health["checks"]}, status)
        if "verbose" in request.query_params:
            return PlainTextResponse(_verbose(view), status)
        return PlainTextResponse("\n".join(reasons or ("ok",)) + "\n", status)

    async def status(request: Request) -> Response:
        identity = caller(request)
        unreachable: SwanLakeError | None = None
        try:
            await context.lake_facts.get()
        except SwanLakeError as error:  # the rest is all the more needed
            unreachable = error

        def describe() -> bytes:
            lake = _lake(context.lake_facts.aged, unreachable, identity)
            return json.dumps(status_facts(view, identity) | {"lake": lake}).encode()

        key = "status", identity.name, Scope.from_identity(identity)
        body = await context.answers.get(key, describe)
        return Response(body, media_type="application/json")

    async def history(request: Request) -> Response:
        points = await context.calls.run(context.history.points)
        return JSONResponse({"points": [asdict(point) for point in points]})

    return [
        Route("/livez", live),
        Route("/readyz", ready),
        Route("/healthz", ready),
        Route("/status.json", status),
        Route("/api/history", history),
    ]


def _lake(
    known: Aged[LakeFacts] | None, unreachable: SwanLakeError | None, identity: Identity
) -> Facts:
    """The facts about the lake as they are known now, or why there are none."""
    if known is None:
        return {"error": unreachable.wire_message if unreachable and identity.is_admin else None}
    return lake_facts(known.value, identity) | {"age_seconds": round(known.age, 1)}


def _verbose(view: ServerView) -> str:
    """A line per check, for people."""
    lines = [f"state: {view.state()}", *map(_line, view.health.report().checks)]
    lines.append("not ready" if view.not_ready_reasons else "ready")
    return "".join(f"{line}\n" for line in lines)


def _line(check: CheckReport) -> str:
    age = "never" if check.age_seconds is None else f"{check.age_seconds:.1f} s ago"
    state = "ok" if check.is_ok else check.reason
    return f"[{'+' if check.is_ok else '-'}] {check.name} ({age}, {check.seconds:.3f} s): {state}"

"""What the buttons of the console do.

Most of them call a procedure, as any client can with ``CALL``: roles, limits and logs are the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from swanlake.access.identity import Identity
from swanlake.errors import InvalidRequest
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.procedures.registry import PROCEDURES
from swanlake.sql.quoting import literal
from swanlake.status.blocking import BlockingCalls
from swanlake.status.console.documents import plain
from swanlake.status.console.requests import client_address, open_run, read_json, text_of
from swanlake.status.context import StatusContext
from swanlake.status.guard import caller

#: The procedures behind buttons.
_CALLABLE = frozenset(
    "duckling_queue_discard duckling_queue_flush duckling_queue_pause duckling_queue_replay "
    "duckling_queue_resume swanlake_compact".split()
)
#: Threads for them: they may take long, and pages must not wait for them.
_CALL_THREADS = 8
#: A flush or a compaction that takes longer is stopped; it can be repeated.
_CALL_SECONDS = 300.0


class Changes:
    """Calls procedures, cancels statements and closes sessions for a caller."""

    def __init__(self, context: StatusContext) -> None:
        self._context = context
        self._calls = BlockingCalls("swanlake-status-change", _CALL_THREADS)

    async def call(self, request: Request) -> Response:
        """``{"procedure": …, "arguments": {…}}``: the rows that the procedure returns."""
        body = await read_json(request)
        procedure = text_of(body, "procedure")
        statement = call_statement(procedure, body.get("arguments") or {})
        identity, address = caller(request), client_address(request)

        def run() -> list[dict[str, Any]]:
            return self._run(identity, address, statement)

        # Longer than the statement may take: its own error says more.
        rows = await self._calls.run(run, _CALL_SECONDS + 15)
        return _json({"rows": rows})

    async def cancel(self, request: Request) -> Response:
        """``{"query_id": …}``: stops a statement."""
        query_id = text_of(await read_json(request), "query_id")
        identity, activity = caller(request), self._context.view.registry.services.activity
        cancelled = await self._context.calls.run(lambda: activity.cancel(query_id, identity))
        return _json({"was_running": any(each.was_running for each in cancelled)})

    async def close_session(self, request: Request) -> Response:
        """``{"session_id": …, "user": …}``: closes a session."""
        body = await read_json(request)
        session_id, user = text_of(body, "session_id"), text_of(body, "user")
        identity, activity = caller(request), self._context.view.registry.services.activity
        # Closing waits for the statement to end.
        cancelled = await self._context.calls.run(
            lambda: activity.close_session(session_id, identity, user), 20.0
        )
        return _json({"cancelled": len(cancelled)})

    def _run(self, identity: Identity, address: str, statement: str) -> list[dict[str, Any]]:
        """The rows of a statement, in a session of its own: it waits for no other statement."""
        registry = self._context.view.registry
        key = SessionKey(identity.name, f"console-{uuid4()}")
        try:
            with open_run(
                self._context.view, identity, key, address=address, timeout=_CALL_SECONDS
            ) as (session, run):
                outcome = session.execute(run, statement)
                rows: list[dict[str, Any]] = []
                if outcome.stream is not None:
                    while (batch := outcome.stream.read()) is not None:
                        rows += batch.to_pylist()
                return rows
        finally:
            registry.close(key, "done")


def call_statement(procedure: str, arguments: Mapping[str, Any]) -> str:
    """``CALL procedure(value, name := value)``; raises InvalidRequest for what no button calls."""
    if procedure not in _CALLABLE:
        raise InvalidRequest(f"The console does not call {procedure!r}.")
    first = PROCEDURES[procedure].parameters[:1]
    written = []
    for name, value in sorted(arguments.items(), key=lambda item: item[0] not in first):
        if name not in PROCEDURES[procedure].parameters or not isinstance(value, str | bool):
            raise InvalidRequest(f"{procedure} takes no {name} such as {value!r}.")
        text = literal(value) if isinstance(value, str) else str(value).lower()
        # By position: the first parameter of some has the name of a keyword, "table".
        written.append(text if name in first else f"{name} := {text}")
    return f"CALL {procedure}({', '.join(written)})"


def _json(body: Mapping[str, Any]) -> Response:
    # Reports have times and identifiers, which plain JSON lacks.
    return JSONResponse(json.loads(json.dumps(body, default=plain)))

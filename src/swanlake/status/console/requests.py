"""Requests of the console: their bodies, and the statements that they run."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.requests import Request

from swanlake.access.identity import Identity
from swanlake.errors import InvalidRequest, ServerUnavailable
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.run import Run
from swanlake.sessions.session import Session
from swanlake.status.responses import read_body
from swanlake.status.view import ServerState, ServerView

#: Besides the text of a statement.
_MORE_BYTES = 64 * 1024


async def read_json(request: Request, limit: int = 0) -> dict[str, Any]:
    """The body of a request, an object; raises InvalidRequest."""
    try:
        body = json.loads(await read_body(request, limit + _MORE_BYTES))
        # JSON can name halves of characters, which no text in UTF-8 can hold.
        json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise InvalidRequest("The body of the request is not JSON in UTF-8.") from None
    if not isinstance(body, dict):
        raise InvalidRequest("The body of the request is not a JSON object.")
    return body


def text_of(body: dict[str, Any], name: str) -> str:
    """A text in the body of a request; raises InvalidRequest."""
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidRequest(f"The request needs a text {name!r}.")
    return value


def client_address(request: Request) -> str:
    """``host:port`` of the client."""
    client = request.client
    return "" if client is None else f"{client.host}:{client.port}"


@contextmanager
def open_run(
    view: ServerView,
    identity: Identity,
    key: SessionKey,
    *,
    address: str,
    timeout: float,
    query_id: str | None = None,
    is_gone: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Session, Run]]:
    """A session of the caller, and a run that lasts as long as the block."""
    if view.state() is not ServerState.ACCEPTING:
        raise ServerUnavailable(
            f"The server is {view.state()} and accepts no new statements.",
            identifier="SERVER_DRAINING",
        )
    session = view.registry.get(key, identity)
    with view.registry.run(
        session,
        identity,
        address=address,
        query_id=query_id,
        timeout=timeout,
        is_client_gone=is_gone,
    ) as run:
        yield session, run

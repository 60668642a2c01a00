"""The documents of the pages, kept for a moment and streamed to browsers as they change.

A document is made on a thread, once for all requests of one caller that come within a second. With
a busy engine or a lost database documents are old, but no page waits.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from swanlake.access.identity import Identity
from swanlake.access.scope import Scope
from swanlake.errors import NotAuthenticated, NotFound, ServerUnavailable, SwanLakeError
from swanlake.status.blocking import BlockingCalls, Snapshot
from swanlake.status.console.documents import Documents
from swanlake.status.context import StatusContext
from swanlake.status.guard import caller, current_caller

#: How old a document may be that a page gets, and how often a stream looks for a newer one.
_MAX_AGE_SECONDS = 0.9
_INTERVAL_SECONDS = 1.0
#: Documents that are kept: of callers, topics and their parameters.
_MAX_KEPT = 256
#: More streams are refused; their pages ask every few seconds instead.
_MAX_STREAMS = 200
#: Credentials may be revoked, and roles and grants may change, while a stream is open.
_CHECK_SECONDS = 5.0
#: A stream says that it lives, and ends after a while.
_ALIVE_SECONDS = 15.0
_STREAM_SECONDS = 300.0
#: Threads for documents that need the lake's database; it can be slow.
_LAKE_THREADS = 4

Parameters = Mapping[str, str]
_Key = tuple[str, Scope, str, tuple[tuple[str, str], ...]]


class Feed:
    """Gives documents to pages, once or as a stream."""

    def __init__(self, documents: Documents, context: StatusContext) -> None:
        self._documents = documents
        self._calls = context.calls
        self._lake_calls = BlockingCalls("swanlake-status-lake", _LAKE_THREADS)
        self._kept: OrderedDict[_Key, Snapshot[bytes]] = OrderedDict()
        self._streams = 0

    def routes(self) -> list[Route]:
        """A route for each document: ``/api/queue``."""
        return [
            Route(f"/api/{topic}", self._send, methods=["GET"], name=topic)
            for topic in self._documents.topics
        ]

    async def stream(self, request: Request) -> Response:
        """Server-sent events: a topic's document and facts for the navigation, as they change."""
        parameters = dict(request.query_params)
        topic = parameters.pop("topic", "")
        if topic not in self._documents.topics:
            raise NotFound(f"There is no topic {topic!r}.")
        if self._streams >= _MAX_STREAMS:
            raise ServerUnavailable(f"There are {_MAX_STREAMS} live pages already.")
        events = self._events(request, topic, parameters)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _send(self, request: Request) -> Response:
        topic = request.url.path.removeprefix("/api/")
        content = await self._read(caller(request), topic, dict(request.query_params))
        return Response(content, media_type="application/json")

    async def _events(
        self, request: Request, topic: str, parameters: Parameters
    ) -> AsyncIterator[bytes]:
        identity, checked_at = caller(request), time.monotonic()
        self._streams += 1
        try:
            ends_at = time.monotonic() + _STREAM_SECONDS
            sent: dict[str, bytes] = {}
            sent_at = time.monotonic()
            yield b"retry: 2000\n\n"
            while time.monotonic() < ends_at:
                if time.monotonic() > checked_at + _CHECK_SECONDS:
                    identity, checked_at = await current_caller(request), time.monotonic()
                for event in (
                    await self._event("document", identity, topic, parameters),
                    await self._event("server", identity, "server", {}),
                ):
                    name, _, data = event.partition(b"\n")
                    if sent.get(name.decode()) != data:
                        sent[name.decode()] = data
                        sent_at = time.monotonic()
                        yield b"event: " + event + b"\n\n"
                if time.monotonic() > sent_at + _ALIVE_SECONDS:
                    sent_at = time.monotonic()
                    yield b": alive\n\n"
                await asyncio.sleep(_INTERVAL_SECONDS)
        except NotAuthenticated:
            return  # the next request of the page says so
        finally:
            self._streams -= 1

    async def _event(
        self, name: str, identity: Identity, topic: str, parameters: Parameters
    ) -> bytes:
        try:
            return f"{name}\ndata: ".encode() + await self._read(identity, topic, parameters)
        except SwanLakeError as error:
            body = {"error": error.identifier, "message": error.message}
            return b"failure\ndata: " + json.dumps(body).encode()

    async def _read(self, identity: Identity, topic: str, parameters: Parameters) -> bytes:
        key = (
            identity.name,
            Scope.from_identity(identity),
            topic,
            tuple(sorted(parameters.items())),
        )
        snapshot = self._kept.get(key)
        if snapshot is None:
            snapshot = self._kept[key] = Snapshot(
                lambda: self._documents.make(identity, topic, parameters),
                self._lake_calls if topic in self._documents.of_the_lake else self._calls,
                max_age=_MAX_AGE_SECONDS,
            )
            if len(self._kept) > _MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return (await snapshot.get()).value

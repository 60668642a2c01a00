"""The status server: uvicorn, on a thread and an event loop of its own."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
import time

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from swanlake._internal.waiting import polling, wait
from swanlake.errors import StartupError
from swanlake.status.app import create_app
from swanlake.status.context import StatusContext
from swanlake.status.logins import Identify
from swanlake.status.site import Site
from swanlake.status.statements import StatementCounters
from swanlake.status.view import ServerView

__all__ = ["Site", "StatusServer"]

log = logging.getLogger("swanlake.status")

#: More connections than this are refused with 503.
_MAX_CONNECTIONS = 1000
_KEEP_ALIVE_SECONDS = 30
_START_SECONDS = 30.0
#: A connection without a request is closed at the second look at it: else a few clients, also
#: without credentials, would keep probes and pages out.
_LOOK_SECONDS = 30.0
#: How long open requests, such as streams of events, may take to end at a stop.
_GRACE_SECONDS = 1


class _Connection(H11Protocol):
    """A connection that is closed unless its client makes requests."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._look_later()

    def _look_later(self) -> None:
        self.loop.call_later(_LOOK_SECONDS, self._look, self.cycle)

    def _look(self, last: RequestResponseCycle | None) -> None:
        """Closes the connection if it has had no request since the last look."""
        if self.transport.is_closing():
            return
        is_idle = self.cycle is None or self.cycle.response_complete
        if is_idle and self.cycle is last:
            self.transport.close()
        else:
            self._look_later()


class StatusServer:
    """Serves the status pages on a socket, which is listening already."""

    def __init__(
        self,
        view: ServerView,
        statements: StatementCounters,
        site: Site,
        identify: Identify,
        listener: socket.socket,
        tls: ssl.SSLContext | None,
    ) -> None:
        context = StatusContext.open(view, statements)
        self._history = context.history
        config = uvicorn.Config(
            create_app(context, site, identify),
            loop="none",
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # the application logs its failures itself
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
        config.load()
        config.ssl = tls
        self.url = site.public_url or site.url
        self._listener = listener
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="swanlake-status", daemon=True)

    def start(self) -> None:
        """Returns once requests are answered; raises StartupError."""
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS
        is_over = polling(lambda: self._server.started or not self._thread.is_alive())
        wait(is_over, deadline=deadline)
        if not self._server.started:
            raise StartupError("The status server did not start; status = off leaves it out.")
        self._history.start()

    def stop(self, timeout: float) -> None:
        """Ends open requests and closes the socket, within the time."""
        self._server.should_exit = True
        self._history.stop()
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=[self._listener]))
        except Exception:
            log.exception("the status server failed; everything else goes on")

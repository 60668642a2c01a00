"""A server from start to end: built from settings, run until a signal, drained, closed."""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from swanlake._version import __version__
from swanlake.config import Settings
from swanlake.engine.host import EngineHost, open_host
from swanlake.errors import AddressInUse, ConfigError, QueryCancelled, StartupError
from swanlake.lake.lake import DEFAULT_CATALOG, Lake
from swanlake.pipeline.maintain import Maintenance, MaintenanceSettings
from swanlake.pipeline.runners import open_lender, open_runner
from swanlake.pipeline.scheduler import Scheduler
from swanlake.queue.runtime import DucklingQueue
from swanlake.queue.settings import QueueSettings
from swanlake.server.auth import open_authenticator
from swanlake.server.service import SwanLakeService
from swanlake.sessions.peers import connected_peers
from swanlake.sessions.registry import SessionRegistry
from swanlake.sessions.services import SessionServices

log = logging.getLogger("swanlake.server")

_LOOPBACK = ("127.", "localhost", "::1", "[::1]")
_WILDCARDS = ("0.0.0.0", "::")
_SCHEMES = ("grpc", "grpc+tls")
#: Within the grace: time for clients to come for the results of statements that have ended.
_FETCH_SECONDS = 5.0
#: A signal that follows the first one so closely is the same one, sent twice.
_SAME_SIGNAL_SECONDS = 0.5
#: After the grace: time for interrupted statements to end, and for Flight to close connections.
_INTERRUPT_SECONDS = 5.0
_CLOSE_SECONDS = 2.0
_POLL_SECONDS = 0.05
#: So many new objects make Python look for cycles among them; a statement makes thousands.
_COLLECT_AFTER = 20_000


class Server:
    """A running server. It accepts calls as soon as it exists."""

    def __init__(self, settings: Settings) -> None:
        tls = _tls_certificates(settings)
        _check_advertised(settings.advertised_url)
        authenticator = open_authenticator(settings)
        upkeep = MaintenanceSettings.from_settings(settings)
        self._settings = settings
        scheme = "grpc+tls" if tls else "grpc"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        lender = open_lender(settings)
        with ExitStack() as undo:
            self._lake = Lake.from_settings(settings)
            undo.callback(self._lake.close)
            self._host = _open_host(settings, self._lake)
            undo.callback(self._host.close)
            self._runner = open_runner(settings, self._host)
            undo.callback(self._runner.close)
            self._queue = DucklingQueue(
                QueueSettings.from_settings(settings),
                self._lake,
                self._runner,
                lender=lender,
            )
            undo.callback(self._queue.stop, _CLOSE_SECONDS)
            self._maintenance = Maintenance(self._lake, self._runner, upkeep)
            self._scheduler = Scheduler(self._maintenance, settings.maintenance_interval_seconds)
            self.registry = SessionRegistry(
                settings,
                SessionServices(
                    host=self._host,
                    lake=self._lake,
                    queue=self._queue,
                    maintenance=self._maintenance,
                    result_buffer_bytes=settings.result_buffer_bytes,
                    spill_directory=settings.temp_directory,
                ),
                lambda: connected_peers(self.port),
            )
            undo.callback(self.registry.stop)
            try:
                self._service = SwanLakeService(
                    f"{scheme}://{host}:{settings.port}",
                    settings,
                    self.registry,
                    authenticator,
                    tls,
                    lender,
                )
            except Exception as refused:
                raise AddressInUse(
                    f"Cannot listen on {settings.host}:{settings.port}: another process has it, or "
                    "the address is not of this machine. Choose another with --port or --host."
                ) from refused
            undo.pop_all()
        self.url = f"{scheme}://{host}:{self.port}"
        if lender is not None:
            lender.listen(self._advertised_url(scheme), tls[0][0] if tls else None)
        if settings.maintenance == "on":
            self._scheduler.start()
        if settings.auth == "none" and not settings.host.startswith(_LOOPBACK):
            log.warning("listening on %s without authentication; set auth=token", settings.host)

    @property
    def port(self) -> int:
        return int(self._service.port)

    def _advertised_url(self, scheme: str) -> str:
        """Where others find this server: nobody finds it at an address that means all of them."""
        if self._settings.advertised_url:
            return self._settings.advertised_url
        if self._settings.host in _WILDCARDS:
            return f"{scheme}://{socket.gethostname()}:{self.port}"
        return self.url

    def stop(self, grace: float) -> None:
        """Drains and closes; returns within bounds even if a client never reads its result.

        Within the grace running statements end and clients fetch what they gave. What still runs
        then is interrupted.
        """
        deadline = time.monotonic() + grace
        self._service.drain()
        self._scheduler.ask_to_stop()
        self._wait_until_idle(deadline)
        fetch_by = min(deadline, time.monotonic() + _FETCH_SECONDS)
        self._wait_until(lambda: not self.registry.results_waiting, fetch_by)
        # It waits for every open stream, and without a deadline: it must not hold us.
        closing = threading.Thread(
            target=self._service.shutdown, name="swanlake-close", daemon=True
        )
        closing.start()
        closing.join(max(deadline - time.monotonic(), 0))
        self._interrupt()
        self.registry.stop()
        closing.join(_CLOSE_SECONDS)
        self._close_lake(max(deadline - time.monotonic(), _CLOSE_SECONDS))

    def _close_lake(self, grace: float) -> None:
        """The queue and the maintenance first: they need all the others to their end."""
        deadline = time.monotonic() + grace
        self._queue.stop(grace)
        self._scheduler.stop(max(deadline - time.monotonic(), 0))
        self._maintenance.close()
        self._runner.close()
        self._host.close()
        self._lake.close()

    def _interrupt(self) -> None:
        running = self.registry.running()
        if not running:
            return
        log.warning("interrupting %d statement(s) at the end of the grace", len(running))
        for run in running:
            run.cancel(QueryCancelled("The server is shutting down."))
        self._wait_until_idle(time.monotonic() + _INTERRUPT_SECONDS)

    def _wait_until_idle(self, deadline: float) -> None:
        self._wait_until(lambda: not self.registry.running(), deadline)

    def _wait_until(self, reached: Callable[[], bool], deadline: float) -> None:
        looks = 0
        # Two looks: a statement that has just ended may not yet have handed over its result.
        while looks < 2 and time.monotonic() < deadline:
            looks = looks + 1 if reached() else 0
            time.sleep(_POLL_SECONDS)


_ENDING = (signal.SIGTERM, signal.SIGINT)


class _Signals:
    """The first SIGTERM or SIGINT asks for a drain; the second ends the process at once."""

    def __init__(self) -> None:
        self._received = threading.Event()
        # Python runs handlers in the main thread, and one that comes just before it blocks waits
        # until it wakes: the byte that the interpreter writes at once is what counts.
        self._arrivals, arrivals = os.pipe()
        os.set_blocking(arrivals, False)
        for number in _ENDING:
            signal.signal(number, lambda number, frame: None)
        signal.set_wakeup_fd(arrivals, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, name="swanlake-signals", daemon=True).start()

    def wait(self) -> None:
        """Returns when the first signal has come."""
        self._received.wait()

    def _listen(self) -> None:
        log.info("%s received: draining", self._next().name)
        self._received.set()
        first = time.monotonic()
        # Whoever signals a process group, as a terminal or `timeout` does, may send it twice.
        while self._next() and time.monotonic() < first + _SAME_SIGNAL_SECONDS:
            pass
        log.warning("second signal: stopping now")
        os._exit(1)

    def _next(self) -> signal.Signals:
        """The next signal that is meant for us; others that have a handler arrive here too."""
        while (number := os.read(self._arrivals, 1)[0]) not in _ENDING:
            pass
        return signal.Signals(number)


def serve(settings: Settings, ready_file: Path | None, announce: Any) -> None:
    """Runs a server until SIGTERM or SIGINT; never returns later than the graces allow."""
    signals = _Signals()
    server = Server(settings)
    # What is there now is there to stay, and is not looked through again.
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER)
    try:
        if ready_file is not None:
            _write_ready_file(ready_file, server.url)
        log.info("SwanLake %s accepts on %s (pid %d)", __version__, server.url, os.getpid())
        announce(server)
        signals.wait()
    finally:
        if ready_file is not None:
            with suppress(OSError):
                ready_file.unlink()
        _exit_hard_after(settings.shutdown_grace_seconds + _INTERRUPT_SECONDS + 5 * _CLOSE_SECONDS)
        server.stop(settings.shutdown_grace_seconds)
        log.info("stopped")


def _exit_hard_after(seconds: float) -> None:
    """Whatever hangs, the process ends."""
    watchdog = threading.Timer(seconds, os._exit, (0,))
    watchdog.daemon = True
    watchdog.start()


def _write_ready_file(path: Path, url: str) -> None:
    """Appears whole or not at all: a reader never sees half of it."""
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(json.dumps({"flight": url, "status": None, "pid": os.getpid()}) + "\n")
        partial.replace(path)
    except OSError as unwritable:
        raise StartupError(f"The ready file {path} cannot be written: {unwritable}.") from None


def _tls_certificates(settings: Settings) -> list[tuple[bytes, bytes]] | None:
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise ConfigError("tls_cert and tls_key belong together; one of them is missing.")
    try:
        pair = settings.tls_cert.read_bytes(), settings.tls_key.read_bytes()
        # gRPC would only say that it cannot listen. An encrypted key must not make it ask, either.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except ssl.SSLError as unusable:
        raise ConfigError(
            "tls_cert and tls_key must be a PEM certificate and its unencrypted private key: "
            f"{unusable}."
        ) from None
    except OSError as unreadable:
        raise ConfigError(f"The TLS files cannot be read: {unreadable}.") from None
    return [pair]


def _check_advertised(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in _SCHEMES and bool(parts.hostname and parts.port)
    except ValueError:
        is_whole = False
    if url and not is_whole:
        raise ConfigError(
            f"advertised_url: {url!r} is not the URL of this server as others reach it: "
            "grpc://host:port, or grpc+tls://host:port."
        )


def _open_host(settings: Settings, lake: Lake) -> EngineHost:
    try:
        catalog = lake.ensure_catalog(DEFAULT_CATALOG)
        for finding in catalog.check():
            log.warning("catalog %s: %s", catalog.name, finding)
        return open_host(settings, lake.location(catalog.info))
    except OSError as unusable:
        raise StartupError(f"The engine cannot start: {unusable}.") from None

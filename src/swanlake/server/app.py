"""A server from start to end: built from settings, run until a signal, drained, closed."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from swanlake._version import __version__
from swanlake.config import Settings
from swanlake.engine.host import open_host
from swanlake.errors import AddressInUse, ConfigError, QueryCancelled, StartupError
from swanlake.lake.gate import CommitGate
from swanlake.server.auth import open_authenticator
from swanlake.server.service import SwanLakeService
from swanlake.sessions.peers import connected_peers
from swanlake.sessions.registry import SessionRegistry
from swanlake.sessions.session import SessionServices

log = logging.getLogger("swanlake.server")

_LOOPBACK = ("127.", "localhost", "::1", "[::1]")
#: After the grace: time for interrupted statements to end, and for Flight to close its connections.
_INTERRUPT_SECONDS = 5.0
_CLOSE_SECONDS = 5.0


class Server:
    """A running server. It accepts calls as soon as it exists."""

    def __init__(self, settings: Settings) -> None:
        tls = _tls_certificates(settings)
        authenticator = open_authenticator(settings)
        self._settings = settings
        self._host = open_host(settings)
        self.registry = SessionRegistry(
            settings,
            SessionServices(
                host=self._host,
                gate=CommitGate(settings.commit_lock_timeout_seconds),
                result_buffer_bytes=settings.result_buffer_bytes,
                spill_directory=settings.temp_directory,
            ),
            lambda: connected_peers(self.port),
        )
        scheme = "grpc+tls" if tls else "grpc"
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        try:
            self._service = SwanLakeService(
                f"{scheme}://{host}:{settings.port}", settings, self.registry, authenticator, tls
            )
        except Exception as refused:
            self.registry.stop()
            self._host.close()
            raise AddressInUse(
                f"Cannot listen on {settings.host}:{settings.port}: another process has it, or the "
                "address is not of this machine. Choose another with --port or --host."
            ) from refused
        self.url = f"{scheme}://{host}:{self.port}"
        if settings.auth == "none" and not settings.host.startswith(_LOOPBACK):
            log.warning("listening on %s without authentication; set auth=token", settings.host)

    @property
    def port(self) -> int:
        return int(self._service.port)

    def drain(self, grace: float) -> None:
        """Refuses new statements, waits for running ones, then interrupts what is left. Bounded."""
        self._service.drain()
        if self._wait_until_idle(grace):
            return
        running = self.registry.watchdog.running()
        log.warning("interrupting %d statement(s) after %.0f s of grace", len(running), grace)
        for run in running:
            run.cancel(QueryCancelled("The server is shutting down."))
        self._wait_until_idle(_INTERRUPT_SECONDS)

    def close(self) -> None:
        """Ends everything; returns within bounds even if a client never reads its result."""
        self._service.drain()
        self.registry.stop()
        # shutdown() waits for every open stream without a deadline: it must not hold us.
        closing = threading.Thread(
            target=self._service.shutdown, name="swanlake-close", daemon=True
        )
        closing.start()
        closing.join(_CLOSE_SECONDS)
        self._host.close()

    def _wait_until_idle(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.registry.watchdog.running():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


class _Signals:
    """The first SIGTERM or SIGINT asks for a drain; the second ends the process at once."""

    def __init__(self) -> None:
        self._received = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._receive)

    def wait(self) -> None:
        while not self._received.wait(3600):  # a wait without a timeout would not see signals
            pass

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received.is_set():
            log.warning("second signal: stopping now")
            os._exit(1)
        log.info("%s received: draining", signal.Signals(number).name)
        self._received.set()


def serve(settings: Settings, ready_file: Path | None, announce: Any) -> None:
    """Runs a server until SIGTERM or SIGINT; never returns later than the graces allow."""
    signals = _Signals()
    server = Server(settings)
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
        _exit_hard_after(settings.shutdown_grace_seconds + _INTERRUPT_SECONDS + 2 * _CLOSE_SECONDS)
        server.drain(settings.shutdown_grace_seconds)
        server.close()
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
        return [(settings.tls_cert.read_bytes(), settings.tls_key.read_bytes())]
    except OSError as unreadable:
        raise ConfigError(f"The TLS files cannot be read: {unreadable}.") from None

"""The address that the server listens on, and the Flight service behind it.

pyarrow passes certificates to gRPC once, when a service is built, and offers no way to replace
them. When the TLS files change, a new service therefore takes over the port: the old one stops
listening, finishes its calls and closes its connections, and clients connect to the new one with
their next call. Sessions do not belong to a service, so they survive.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from swanlake._internal.waiting import POLL_SECONDS
from swanlake.errors import ConfigError
from swanlake.server.server_tls import ServerTls, expiry_warning
from swanlake.server.service import SwanLakeService

log = logging.getLogger("swanlake.server")

_CHECK_SECONDS = 10.0
_WARN_SECONDS = 86_400.0


class Listener:
    """The current service. ``watch`` replaces it when the TLS files change."""

    def __init__(
        self,
        build: Callable[[int, ServerTls | None], SwanLakeService],
        port: int,
        read_tls: Callable[[], ServerTls | None],
        tls: ServerTls | None,
    ) -> None:
        """Listens at once; raises what the service raises if it cannot."""
        self._build = build
        self._read_tls = read_tls
        self._tls = tls
        self._lock = threading.Lock()
        self._is_draining = False
        self._wake = threading.Event()
        self._service = build(port, tls)
        self.port = int(self._service.port)

    def watch(self, on_change: Callable[[ServerTls], None]) -> None:
        """Checks the TLS files from now on, every ten seconds and on ``check_now``."""
        if self._tls is not None:
            threading.Thread(
                target=self._watch, args=(on_change,), name="swanlake-tls", daemon=True
            ).start()

    def check_now(self) -> None:
        """Lets the watching thread check the TLS files at once."""
        self._wake.set()

    def drain(self) -> None:
        """Refuses new statements from now on; the service is not replaced any more."""
        self._is_draining = True  # before the lock: it ends the wait of a replacement
        with self._lock:
            self._service.drain()

    def shutdown(self) -> None:
        """Closes the service; waits for its calls without a deadline."""
        self._service.shutdown()

    def _watch(self, on_change: Callable[[ServerTls], None]) -> None:
        warned_at, failures = float("-inf"), 0
        while not self._is_draining:
            try:
                tls = self._read_tls()
                if tls is not None and tls != self._tls:
                    self._replace(tls)
                    on_change(tls)
                    warned_at = float("-inf")
                failures = 0
            except ConfigError as unusable:
                failures += 1
                # The first time, the certificate may be new already and its key not yet.
                if failures == 2:
                    log.error("the new TLS files are not used: %s", unusable)
            if self._tls is not None and time.monotonic() - warned_at > _WARN_SECONDS:
                warned_at = time.monotonic()
                if warning := expiry_warning(self._tls.certificate):
                    log.warning("%s", warning)
            self._wake.wait(_CHECK_SECONDS)
            self._wake.clear()

    def _replace(self, tls: ServerTls) -> None:
        warn_at = time.monotonic() + _CHECK_SECONDS
        with self._lock:
            # It gives the port up at once, and then waits for its calls.
            threading.Thread(
                target=self._service.shutdown, name="swanlake-close", daemon=True
            ).start()
            while self._tls is not tls and not self._is_draining:
                try:
                    self._service = self._build(self.port, tls)
                    self._tls = tls
                except Exception as refused:  # noqa: BLE001 - pyarrow raises no class of its own
                    # The port is not free yet. Without a service, to go on is all that is left.
                    if time.monotonic() > warn_at:
                        warn_at += _CHECK_SECONDS
                        log.error("the server cannot listen with the new certificate: %s", refused)
                    time.sleep(POLL_SECONDS)
        if self._tls is tls:
            log.info("the new TLS certificate is in use")

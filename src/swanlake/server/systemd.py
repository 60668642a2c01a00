"""Tells systemd, or another manager with its protocol, that the server is ready and still works.

The protocol of ``sd_notify``: datagrams to the socket that the environment names.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress

from swanlake.status.health import HealthReport

_SOCKET, _INTERVAL, _PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"
_READY, _STOPPING, _ALIVE = b"READY=1", b"STOPPING=1", b"WATCHDOG=1"


class ServiceManager:
    """The socket of the manager; without one, nothing is sent."""

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        """Takes the variables out of the environment: they are not for child processes."""
        variables = os.environ if environment is None else environment
        address = variables.pop(_SOCKET, "")
        pid, interval = variables.pop(_PID, ""), variables.pop(_INTERVAL, "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._has_watchdog = bool(interval) and pid in ("", str(os.getpid()))
        self._is_ready = False

    @property
    def is_present(self) -> bool:
        """True if a manager waits for messages."""
        return bool(self._address)

    @property
    def has_watchdog(self) -> bool:
        """True if the manager ends this process when it sends no messages."""
        return self.is_present and self._has_watchdog

    def follow(self, report: HealthReport) -> None:
        """The health was checked: the process works, and it is ready from the first good report."""
        if report.is_ok:
            self.announce_ready()
        self.announce_alive()

    def announce_ready(self) -> None:
        """The server accepts calls; has an effect once."""
        if not self._is_ready:
            self._is_ready = True
            self._send(_READY)

    def announce_alive(self) -> None:
        """The process works; to be called every few seconds."""
        if self._has_watchdog:
            self._send(_ALIVE)

    def announce_stop(self) -> None:
        """The server drains."""
        self._send(_STOPPING)

    def _send(self, message: bytes) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # an error means that the manager is gone, or does not read
            sender.sendto(message, self._address)

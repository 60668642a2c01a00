"""The server's side of a supervisor: heartbeats, readiness, and the supervisor's end."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import threading
import time
from contextlib import suppress

#: What the server sends on the socket.
BEAT, READY = b".", b"R"
BEAT_SECONDS = 1.0


class Heartbeat:
    """Tells the supervisor that the interpreter runs, and stops the server when it is gone.

    The beats come from a Python thread. They cease when a library keeps the interpreter's lock,
    and every session waits: no other part of the server could report that.
    """

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)
        faulthandler.enable()  # the supervisor sends SIGABRT to a server that hangs
        for target in (self._beat, self._watch):
            threading.Thread(target=target, name="swanlake-heartbeat", daemon=True).start()

    def announce_ready(self) -> None:
        """Tells the supervisor that the server accepts connections."""
        with suppress(OSError):
            self._socket.send(READY)

    def _beat(self) -> None:
        with suppress(OSError):
            while self._socket.send(BEAT):
                time.sleep(BEAT_SECONDS)

    def _watch(self) -> None:
        with suppress(OSError):
            self._socket.recv(1)  # returns when the supervisor has ended
        os.kill(os.getpid(), signal.SIGTERM)

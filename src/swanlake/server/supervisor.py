"""``swanlake serve --supervise``: starts the server again when it crashes or hangs."""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swanlake._internal.backoff import backoff
from swanlake.server.heartbeat import BEAT_SECONDS, READY
from swanlake.server.systemd import ServiceManager

log = logging.getLogger("swanlake.supervisor")

#: A server that ran this long was healthy: its next start does not wait.
_HEALTHY_SECONDS = 60.0
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.5, 30.0
#: Until the first heartbeat: imports may take this long on a busy machine.
_START_SECONDS = 120.0
#: For the stack traces that a hanging server writes on SIGABRT.
_ABORT_SECONDS = 5.0
_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_STOPPING = (signal.SIGTERM, signal.SIGINT)
_WAKEUP_BYTES = 64


@dataclass(frozen=True)
class Ending:
    """How a server process ended."""

    exit_code: int
    was_ready: bool
    seconds: float


@dataclass(frozen=True)
class RestartPolicy:
    """Decides what follows the end of a server."""

    #: Exit codes of errors that another start cannot mend.
    permanent: frozenset[int]
    #: True after the first start that succeeded.
    has_been_ready: bool = False
    failures: int = 0

    def after(self, ending: Ending) -> RestartPolicy | None:
        """The policy for the next start, or None if there is none.

        A server that ends by itself is not started again, nor one whose first start fails: the
        operator is there to read why.
        """
        if ending.exit_code == 0 or ending.exit_code in self.permanent:
            return None
        if not (self.has_been_ready or ending.was_ready):
            return None
        was_healthy = ending.was_ready and ending.seconds >= _HEALTHY_SECONDS
        failures = 1 if was_healthy else self.failures + 1
        return replace(self, has_been_ready=True, failures=failures)

    @property
    def delay(self) -> float:
        """Seconds before the next start."""
        return backoff(self.failures, first=_FIRST_DELAY_SECONDS, longest=_LONGEST_DELAY_SECONDS)


def supervise(
    arguments: Sequence[str],
    watchdog_seconds: float,
    ready_file: Path | None,
    permanent: frozenset[int],
) -> int:
    """Runs ``swanlake`` with these arguments until it ends for good; returns its exit code."""
    manager = ServiceManager()
    signals = _ForwardedSignals(manager)
    policy = RestartPolicy(permanent)
    while True:
        ending = _Server(arguments, signals, manager).run(watchdog_seconds)
        if ready_file is not None:
            ready_file.unlink(missing_ok=True)  # a crashed server leaves it
        following = policy.after(ending)
        if following is None or signals.is_stopping:
            return _own_exit_code(ending)
        policy = following
        delay = policy.delay
        log.error("the server ended (%s); starting it again in %.1f s", _reason(ending), delay)
        if signals.wait(delay):
            return 0


def _own_exit_code(ending: Ending) -> int:
    """The server's exit code, as shells report it for signals."""
    return ending.exit_code if ending.exit_code >= 0 else 128 - ending.exit_code


def _reason(ending: Ending) -> str:
    if ending.exit_code < 0:
        return signal.Signals(-ending.exit_code).name
    return f"exit code {ending.exit_code}"


class _ForwardedSignals:
    """Signals for the supervisor, which it passes on to the server."""

    def __init__(self, manager: ServiceManager) -> None:
        self.is_stopping = False
        self._manager = manager
        self.server: subprocess.Popen[bytes] | None = None
        self.descriptor, wakeup = os.pipe()
        os.set_blocking(wakeup, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in _FORWARDED:
            signal.signal(number, self._forward)

    def _forward(self, number: int, frame: Any) -> None:
        if number in _STOPPING:
            self.is_stopping = True
            self._manager.announce_stop()
        if self.server is not None:
            self.server.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Waits; True at once if the supervisor must stop."""
        deadline = time.monotonic() + seconds
        while not self.is_stopping and (left := deadline - time.monotonic()) > 0:
            self._manager.announce_alive()
            if select.select([self.descriptor], [], [], min(left, BEAT_SECONDS))[0]:
                self.drain()
        return self.is_stopping

    def drain(self) -> None:
        os.read(self.descriptor, _WAKEUP_BYTES)


class _Server:
    """One server process."""

    def __init__(
        self, arguments: Sequence[str], signals: _ForwardedSignals, manager: ServiceManager
    ) -> None:
        self._signals = signals
        self._manager = manager
        self._started = time.monotonic()
        self._was_ready = False
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "swanlake", *arguments),
                    *("--supervisor-socket", str(theirs.fileno())),
                ],
                pass_fds=[theirs.fileno()],
            )
        signals.server = self._process
        if signals.is_stopping:  # a signal came before there was a process to pass it on to
            self._process.terminate()

    def run(self, watchdog_seconds: float) -> Ending:
        """Waits for the end of the process; ends it when its heartbeats cease."""
        with self._socket:
            patience = _START_SECONDS
            last_beat = time.monotonic()
            while (received := self._receive(last_beat + patience)) != b"":
                if received is None:
                    self._abort(time.monotonic() - last_beat)
                    break
                if READY in received:
                    self._was_ready = True
                    self._manager.announce_ready()
                last_beat = time.monotonic()
                patience = watchdog_seconds or float("inf")
        code = self._process.wait()
        self._signals.server = None
        return Ending(code, self._was_ready, time.monotonic() - self._started)

    def _receive(self, deadline: float) -> bytes | None:
        """What the server sent, nothing at its end, or None at the deadline."""
        while (left := deadline - time.monotonic()) > 0:
            waiting: list[socket.socket | int] = [self._socket, self._signals.descriptor]
            self._manager.announce_alive()
            ready, _, _ = select.select(waiting, [], [], min(left, BEAT_SECONDS))
            if self._signals.descriptor in ready:
                self._signals.drain()
            if self._socket in ready:
                with suppress(ConnectionResetError):
                    return self._socket.recv(_WAKEUP_BYTES)
                return b""
        return None

    def _abort(self, silence: float) -> None:
        log.error("the server has not responded for %.0f s; ending it", silence)
        self._process.send_signal(signal.SIGABRT)
        try:
            self._process.wait(_ABORT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()

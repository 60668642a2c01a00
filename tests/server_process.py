"""A SwanLake server in a child process, started as users start it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

START_SECONDS = 240.0
_DEFAULTS = {
    "SWANLAKE_PIPELINE": "inline",
    "SWANLAKE_MAINTENANCE": "off",
    "SWANLAKE_DUCKDB_THREADS": "1",
    # Tests hold locks while others wait, for as long as the machine is slow.
    "SWANLAKE_WRITER_LOCK_SECONDS": "0",
    "SWANLAKE_STATUS": "off",
}
#: Set in every process that coverage observes.
_COVERAGE = "COVERAGE_PROCESS_CONFIG"


class ServerProcess:
    """``swanlake serve`` on a free port; started with ``start()`` or ``with``.

    By default it runs jobs inline, because Spark takes longer to start than most tests run,
    schedules no maintenance, and has no status server, whose modules take a while to load. DuckDB
    has one thread: more take a third more CPU time for the small statements of most tests.
    """

    #: Starts the process, with the interface of ``subprocess.Popen``.
    popen: ClassVar[Callable[..., Any]] = subprocess.Popen

    def __init__(self, home: Path, *flags: str, **environment: str) -> None:
        self.home = home
        self._flags = flags
        self._environment = environment
        self._ready_file = home.with_name(home.name + ".ready")
        self._log = home.with_name(home.name + ".log")
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""
        self.port = 0
        #: The URL of the status server, if it is on.
        self.status_url = ""

    def start(self) -> ServerProcess:
        """Starts the server and waits until it accepts connections."""
        self.launch()
        deadline = time.monotonic() + START_SECONDS
        while not self._ready_file.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the server did not start:\n{self.log_text}")
            time.sleep(0.02)
        ready: dict[str, Any] = json.loads(self._ready_file.read_text())
        assert ready["pid"] == self.process.pid
        self.url = ready["flight"]
        self.status_url = ready["status"] or ""
        self.port = int(self.url.rsplit(":", 1)[1])
        return self

    #: Arguments of the Python interpreter before the command.
    _program: tuple[str, ...] = ("-m", "swanlake")

    def launch(self) -> None:
        """Starts the process without waiting for it."""
        self.home.parent.mkdir(parents=True, exist_ok=True)
        self._ready_file.unlink(missing_ok=True)
        command = [sys.executable, *self._program, "serve", "--home", str(self.home)]
        command += ["--ready-file", str(self._ready_file), *self._flags]
        if "--port" not in self._flags:
            command += ["--port", "0"]
        with self._log.open("ab") as log:
            self._process = self.popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=os.environ | _DEFAULTS | self._environment,
                cwd=self.home.parent,
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was not started"
        return self._process

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    @property
    def is_ready(self) -> bool:
        return self._ready_file.exists()

    @property
    def log_text(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def terminate(self) -> None:
        """Sends SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    def stop(self, timeout: float = 120.0) -> int:
        """Sends SIGTERM, waits, and returns the exit code."""
        self.terminate()
        return self.process.wait(timeout)

    def kill(self) -> None:
        """Sends SIGKILL if the process still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._ready_file.unlink(missing_ok=True)

    def close(self) -> None:
        """Ends the server in the quickest way; under coverage, in one that keeps its data."""
        if _COVERAGE in os.environ and self._process is not None and self.is_alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.stop()
        self.kill()

    def __enter__(self) -> ServerProcess:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

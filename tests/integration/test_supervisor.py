"""``swanlake serve --supervise`` on real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from swanlake.client import FlightSQLClient
from tests.server_process import ServerProcess
from tests.waiting import eventually


class SupervisedServer(ServerProcess):
    """A supervisor, and the server that it started last."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, "--supervise", SWANLAKE_WATCHDOG_SECONDS="3")

    @property
    def server_pid(self) -> int | None:
        """The process that accepts connections."""
        with suppress(FileNotFoundError):
            return int(json.loads(self._ready_file.read_text())["pid"])
        return None

    def launch_and_wait(self) -> int:
        self.launch()
        return self.wait_for_server()

    def wait_for_server(self, *, other_than: int | None = None) -> int:
        """The process id of a server that is not the given one."""

        def is_ready() -> bool:
            assert self.is_alive, self.log_text
            return self.server_pid not in (None, other_than)

        eventually(is_ready)
        pid = self.server_pid
        assert pid is not None
        self.url = json.loads(self._ready_file.read_text())["flight"]
        return pid


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[SupervisedServer]:
    server = SupervisedServer(tmp_path / "home")
    yield server
    server.kill()


def has_ended(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_server_is_started_again_after_a_crash_and_a_hang(supervised: SupervisedServer) -> None:
    first = supervised.launch_and_wait()
    with FlightSQLClient(supervised.url) as client:
        client.execute("CREATE TABLE kept AS SELECT 42 AS a")
    os.kill(first, signal.SIGKILL)
    second = supervised.wait_for_server(other_than=first)
    assert "the server ended (SIGKILL); starting it again" in supervised.log_text

    os.kill(second, signal.SIGSTOP)  # no thread runs, as when a library keeps the GIL
    supervised.wait_for_server(other_than=second)
    assert "the server has not responded" in supervised.log_text
    with FlightSQLClient(supervised.url) as client:
        assert client.query("FROM kept").to_pylist() == [{"a": 42}]

    assert supervised.stop() == 0
    assert supervised.server_pid is None
    assert supervised.log_text.count("SIGTERM received: draining") == 1


def test_server_ends_with_its_supervisor(supervised: SupervisedServer) -> None:
    pid = supervised.launch_and_wait()
    supervised.process.kill()
    eventually(lambda: has_ended(pid))


def test_failed_start_is_not_repeated(supervised: SupervisedServer) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        supervised._flags = ("--supervise", "--port", str(taken.getsockname()[1]))
        supervised.launch()
        assert supervised.process.wait(120) == 3
    assert supervised.log_text.count("Cannot listen on") == 1

"""Notifications to systemd, on a real socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from swanlake.server.systemd import ServiceManager
from swanlake.status.health import CheckReport, HealthReport
from tests.server_process import ServerProcess

SECONDS = 240.0


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket of a service manager."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(tmp_path / "notify"))
        receiver.settimeout(SECONDS)
        yield receiver


def receive_until(manager: socket.socket, message: bytes) -> list[bytes]:
    received: list[bytes] = []
    while message not in received:
        received.append(manager.recv(4096))
    return received


@pytest.mark.parametrize("status", ["on", "off"])
def test_server_tells_when_it_is_ready_alive_and_stopping(
    tmp_path: Path, manager: socket.socket, status: str
) -> None:
    environment = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "30000000",
        "SWANLAKE_STATUS": status,
        "SWANLAKE_STATUS_PORT": "0",
    }
    with ServerProcess(tmp_path / "home", **environment) as server:
        receive_until(manager, b"READY=1")
        assert set(receive_until(manager, b"WATCHDOG=1")) == {b"WATCHDOG=1"}
        server.terminate()
        receive_until(manager, b"STOPPING=1")
        assert server.process.wait(SECONDS) == 0


def test_supervisor_speaks_for_its_server(tmp_path: Path, manager: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000000"}
    server = ServerProcess(tmp_path / "home", "--supervise", **environment)
    server.launch()
    try:
        received = receive_until(manager, b"READY=1")
        assert received.count(b"READY=1") == 1
        assert b"WATCHDOG=1" in received, "the start of a server is no reason to end it"
        server.terminate()
        receive_until(manager, b"STOPPING=1")
        assert server.process.wait(SECONDS) == 0
    finally:
        server.kill()


def test_server_is_ready_only_once_it_is_healthy(tmp_path: Path, manager: socket.socket) -> None:
    notifier = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "1"})
    notifier.follow(HealthReport((CheckReport("disk", False, "The disk fails."),)))
    assert manager.recv(100) == b"WATCHDOG=1"
    for _ in range(2):
        notifier.follow(HealthReport((CheckReport("disk", True),)))
    assert [manager.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]


def test_abstract_socket_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0swanlake-test-{os.getpid()}")
        receiver.settimeout(SECONDS)
        ServiceManager({"NOTIFY_SOCKET": f"@swanlake-test-{os.getpid()}"}).announce_ready()
        assert receiver.recv(100) == b"READY=1"


def test_watchdog_of_another_process_is_not_answered(
    tmp_path: Path, manager: socket.socket
) -> None:
    environment = {
        "NOTIFY_SOCKET": str(tmp_path / "notify"),
        "WATCHDOG_USEC": "1",
        "WATCHDOG_PID": str(os.getppid()),
        "PATH": "/bin",
    }
    notifier = ServiceManager(environment)
    assert environment == {"PATH": "/bin"}, "child processes must not speak to the manager"
    assert not notifier.has_watchdog
    notifier.announce_alive()
    notifier.announce_stop()
    assert manager.recv(100) == b"STOPPING=1"


def test_manager_that_is_gone_disturbs_nothing() -> None:
    notifier = ServiceManager({"NOTIFY_SOCKET": "/nonexistent/notify"})
    notifier.announce_ready()
    assert not ServiceManager({}).is_present

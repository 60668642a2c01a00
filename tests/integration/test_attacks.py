"""Connections of strangers: those that never speak, and many that do."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from swanlake.bench.report import percentile
from swanlake.client import FlightSQLClient
from tests.credentials import write_tokens
from tests.server_process import ServerProcess
from tests.waiting import eventually

TOKEN = "token-of-a-legitimate-client"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
#: Opens this many connections a second for some seconds, and says how many it opened.
FLOOD = """
import socket, sys, time
port, rate, seconds = map(int, sys.argv[1:])
began, opened = time.monotonic(), 0
while (now := time.monotonic() - began) < seconds:
    while opened < now * rate:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.sendall({hello!r})
        opened += 1
    time.sleep(0.002)
print(opened)
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("guarded") / "home"
    write_tokens(home, alice=TOKEN)
    with ServerProcess(home, "--auth", "token") as server:
        yield server


def connect(server: ServerProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port))


def is_closed(connection: socket.socket) -> bool:
    """True once the server has closed its end."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except ConnectionResetError:
        pass
    return True


def test_mute_connections_hinder_no_client(guarded: ServerProcess) -> None:
    with ExitStack() as stack:
        mute = [stack.enter_context(connect(guarded)) for _ in range(200)]
        for number, connection in enumerate(mute):
            connection.sendall(PREFACE[: number % len(PREFACE)])
        with FlightSQLClient(guarded.url, token=TOKEN) as client:
            assert client.query("SELECT 42 AS i").table["i"].to_pylist() == [42]
            assert client.status()["sessions"]["active"] == 1


def test_connection_that_speaks_no_http2_is_closed(guarded: ServerProcess) -> None:
    with connect(guarded) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\nHost: lake\r\n\r\n")
        assert eventually(lambda: is_closed(stranger))


@pytest.mark.slow
@pytest.mark.parametrize("hello", [b"", PREFACE[:10]], ids=["mute", "half"])
def test_connection_that_never_speaks_is_closed(guarded: ServerProcess, hello: bytes) -> None:
    """After a minute, which gRPC sets and pyarrow cannot change."""
    with connect(guarded) as stranger:
        stranger.sendall(hello)
        assert eventually(lambda: is_closed(stranger), 300)


@pytest.mark.slow
@pytest.mark.parametrize("hello", [b"", PREFACE + SETTINGS], ids=["mute", "http2"])
def test_flood_of_connections_slows_a_client_less_than_three_times(
    guarded: ServerProcess, hello: bytes
) -> None:
    with FlightSQLClient(guarded.url, token=TOKEN) as client:

        def median_until(is_over: Callable[[], bool]) -> float:
            spent: list[float] = []
            while not is_over() or len(spent) < 100:
                start = time.perf_counter()
                client.query("SELECT 1")
                spent.append(time.perf_counter() - start)
            return percentile(spent, 50)

        median_until(lambda: True)
        alone = median_until(lambda: True)
        command = [sys.executable, "-c", FLOOD.format(hello=hello), str(guarded.port), "500", "10"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
            flooded = median_until(lambda: flood.poll() is not None)
            assert flood.stdout is not None
            assert int(flood.stdout.read()) >= 4500
    assert flooded < 3 * alone

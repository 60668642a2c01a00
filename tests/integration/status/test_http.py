"""The status server: its address, its start and its stop."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import threading
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from tests.integration.test_lifecycle import start_fails
from tests.queries import ENDLESS_QUERY
from tests.server_process import ServerProcess
from tests.tls import self_signed
from tests.waiting import eventually

ON = {"SWANLAKE_STATUS": "on", "SWANLAKE_STATUS_PORT": "0"}


def test_ready_file_and_output_name_the_status_server(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "home", **ON) as server:
        ready = json.loads((tmp_path / "home.ready").read_text())
        assert ready["status"] == server.status_url
        assert server.status_url.startswith("http://127.0.0.1:")
        eventually(lambda: f"look    {server.status_url}\n" in server.log_text)
        assert httpx.get(f"{server.status_url}/livez").text == "ok\n"
        page = httpx.get(server.status_url)
        assert page.status_code == 200
        assert "<title>SwanLake</title>" in page.text
        assert page.headers["content-security-policy"].startswith("default-src 'self'")
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        assert httpx.get(f"{server.status_url}/nothing").status_code == 404
        assert server.stop() == 0


def test_taken_port_stops_the_start_only_if_the_status_server_is_required(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, log = start_fails(tmp_path / "home", "--status", "on", "--status-port", port)
        assert code == 3
        assert f"Cannot listen on 127.0.0.1:{port} for the console" in log
        assert "Traceback" not in log
        assert not (tmp_path / "home").exists(), "nothing is initialised"
        flags = ("--status", "auto", "--status-port", port)
        with ServerProcess(tmp_path / "home", *flags) as server:
            assert server.status_url == ""
            assert f"Cannot listen on 127.0.0.1:{port} for the console" in server.log_text


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--status-host", "0.0.0.0"), "Other machines can reach 0.0.0.0"),
        (("--status-url", "lake.example.org"), "is not the URL of a host"),
        (("--status-url", "https://lake.example.org/console"), "is not the URL of a host"),
    ],
)
def test_unsafe_or_malformed_address_fails_the_start(
    tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    code, log = start_fails(tmp_path / "home", "--status", "auto", *flags)
    assert code == 2
    assert sentence in log


def test_tls_is_that_of_flight_and_follows_a_new_certificate(tmp_path: Path) -> None:
    certificate, key = self_signed(tmp_path)
    flags = ("--tls-cert", str(certificate), "--tls-key", str(key))
    with ServerProcess(tmp_path / "home", *flags, **ON) as server:
        assert server.status_url.startswith("https://127.0.0.1:")
        assert _answers(server, certificate)
        old = certificate.read_bytes()
        self_signed(tmp_path)  # replaces the files
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: _answers(server, certificate))
        certificate.write_bytes(old)
        assert not _answers(server, certificate)


def _answers(server: ServerProcess, authority: Path) -> bool:
    context = ssl.create_default_context(cafile=str(authority))
    try:
        return httpx.get(f"{server.status_url}/livez", verify=context).status_code == 200
    except httpx.ConnectError:
        return False


def test_pages_answer_while_the_server_drains(tmp_path: Path) -> None:
    def run(client: FlightSQLClient) -> None:
        with suppress(SwanLakeError):
            client.execute(ENDLESS_QUERY)

    with ServerProcess(tmp_path / "home", **ON) as server:
        with FlightSQLClient(server.url) as client, FlightSQLClient(server.url) as observer:
            statement = threading.Thread(target=run, args=(client,))
            statement.start()
            eventually(lambda: observer.status()["statements_running"])
            server.terminate()
            eventually(lambda: "draining" in httpx.get(f"{server.status_url}/readyz").text)
            assert httpx.get(f"{server.status_url}/readyz").status_code == 503
            assert httpx.get(f"{server.status_url}/livez").status_code == 200
            server.kill()
            statement.join()

"""The server that runs, or the addresses that one would use."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swanlake._version import __version__
from swanlake.cli.doctor.finding import ANSWER_SECONDS, OK, PROBLEM, WARNING, Finding
from swanlake.cli.remote import connect
from swanlake.config import Settings
from swanlake.errors import NotAuthenticated, ServerUnavailable, SwanLakeError


def ask_server(
    settings: Settings, token_file: Path | None, tls_ca: Path | None
) -> dict[str, Any] | SwanLakeError:
    """What the server at the settings' address says, or why it says nothing."""
    scheme = "grpc" if settings.tls_cert is None else "grpc+tls"
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    host = f"[{host}]" if ":" in host else host
    try:
        ca = tls_ca or settings.tls_cert
        with connect(
            f"{scheme}://{host}:{settings.port}", token_file, ca, ANSWER_SECONDS
        ) as client:
            return dict(client.status())
    except SwanLakeError as failed:
        return failed


def server_findings(
    server: dict[str, Any] | SwanLakeError, settings: Settings
) -> Iterator[Finding]:
    """The state of the port and of the server behind it."""
    where = f"{settings.host}:{settings.port}"
    if isinstance(server, NotAuthenticated):
        yield Finding("server", OK, f"a server answers at {where}; --token-file shows more")
        return
    if isinstance(server, SwanLakeError):
        if _is_free(settings.host, settings.port):
            yield Finding("server", OK, f"none runs; the address {where} is free")
        else:
            yield Finding(
                "server", PROBLEM, f"{where} is used by a program that does not answer",
                "Stop it, or choose another --port." if isinstance(server, ServerUnavailable)
                else str(server),
            )  # fmt: skip
        return
    yield Finding("server", OK if server.get("state") == "accepting" else WARNING,
                  f"{server.get('version')} at {where} is {server.get('state')}")  # fmt: skip
    if server.get("version") != __version__:
        yield Finding(
            "server", WARNING, f"it runs {server.get('version')}; {__version__} is installed",
            "Restart it.",
        )  # fmt: skip
    for check in server.get("health", {}).get("checks", ()):
        if not check["ok"]:
            detail = check.get("detail") or check.get("reason", "")
            yield Finding(f"server {check['name']}", PROBLEM, detail, "See the server's log.")
    pipeline = server.get("pipeline")
    if pipeline and pipeline.get("state") != "ready":
        yield Finding("server spark", WARNING, str(pipeline.get("state")), "See the server's log.")


def check_console(settings: Settings) -> Iterator[Finding]:
    """The console's address."""
    if settings.status == "off" or settings.status_port == 0:
        return
    where = f"{settings.status_host}:{settings.status_port}"
    if _is_free(settings.status_host, settings.status_port):
        yield Finding("console", OK, f"the address {where} is free")
        return
    scheme = "http" if settings.tls_cert is None else "https"
    if scheme == "https" or _answers(f"{scheme}://{where}/livez"):
        yield Finding("console", OK, f"{scheme}://{where}/ answers")
    else:
        yield Finding(
            "console", WARNING, f"another program uses {where}", "Choose another --status-port."
        )


def _answers(url: str) -> bool:
    from urllib.request import urlopen  # slow to load

    try:
        with urlopen(url, timeout=ANSWER_SECONDS) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True

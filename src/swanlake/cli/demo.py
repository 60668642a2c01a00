"""``swanlake demo``: shows every part of a server at work within a minute."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from swanlake.cli.banner import own_command
from swanlake.cli.options import Duration
from swanlake.cli.output import show_table
from swanlake.cli.remote import (
    ServerCommand,
    call_procedure,
    connect,
    connection_options,
    display_url,
)
from swanlake.client import FlightSQLClient
from swanlake.errors import ServerUnreachable, StartupError, SwanLakeError

_START_SECONDS = 120.0
_FORK = "swanlake_demo"
_CITIES = (("Bern", "CH"), ("Lund", "SE"), ("Oslo", "NO"), ("Riga", "LV"), ("Turku", "FI"))
_HISTORY_ROWS = 20_000
_LOAD = (
    "CREATE SCHEMA IF NOT EXISTS demo",
    "CREATE OR REPLACE TABLE demo.cities (city VARCHAR, country VARCHAR)",
    "INSERT INTO demo.cities VALUES " + ", ".join(f"('{a}', '{b}')" for a, b in _CITIES),
    "CREATE OR REPLACE TABLE demo.events (id BIGINT, city VARCHAR, happened_at TIMESTAMP, "
    "price DOUBLE)",
    f"""INSERT INTO demo.events SELECT range, (['Bern', 'Lund', 'Oslo', 'Riga', 'Turku'])
        [1 + range % 5], now()::TIMESTAMP - INTERVAL (range) MINUTE, range % 97
    FROM range({_HISTORY_ROWS})""",
)
_QUESTION = """SELECT country, city, count(*) AS events, round(avg(price), 2) AS mean_price
FROM demo.events JOIN demo.cities USING (city) GROUP BY ALL ORDER BY ALL"""


@click.command(cls=ServerCommand)
@click.option(
    "--rate",
    type=click.IntRange(1, 20_000),
    default=500,
    show_default=True,
    help="Events per second.",
)
@click.option(
    "--duration",
    type=Duration(),
    default="15s",
    show_default=True,
    help="How long events are sent.",
)
@click.option(
    "--home",
    type=click.Path(path_type=Path),
    default=None,
    help="Start a server in this home directory for the demo, in place of the one at --url.",
)
@click.option("--browser/--no-browser", default=True, help="Open the console in a browser.")
@connection_options
@click.pass_context
def demo(
    ctx: click.Context,
    /,
    rate: int,
    duration: timedelta,
    home: Path | None,
    browser: bool,
    **server: Any,
) -> None:
    """Load a small data set, send events through the queue, flush, compact and fork.

    It uses the server at --url. With --home, or if none runs at the default address, it starts one
    for the time of the demo, in that directory or in a temporary one. Its tables are in the schema
    demo. Exit codes: 0 success, 1 a step failed, 2 wrong arguments or no connection.
    """
    is_chosen = ctx.get_parameter_source("url") is not click.core.ParameterSource.DEFAULT
    with ExitStack() as stack:
        target = _open(stack, server, home, may_start=not is_chosen)
        if target.console:
            click.echo(f"Watch it in the console: {target.console}")
            if browser:
                open_browser(target.console)
        _run(target.client, rate, duration.total_seconds())
        if target.is_own and not sys.stdin.isatty():
            return
        shell = f"{own_command()} sql --url {target.url}"
        click.echo(f"\nQuery it:   {shell} -c 'FROM demo.events LIMIT 5'")
        if target.is_own:
            click.pause("The server of the demo runs until you press a key.")
        else:
            drop = f"CALL swanlake_drop_catalog('{_FORK}')"
            click.echo(f"Remove it:  {shell} -c 'DROP SCHEMA demo CASCADE' -c \"{drop}\"")


@dataclass(frozen=True)
class _Target:
    """The server of a demo."""

    client: FlightSQLClient
    url: str
    console: str | None
    #: True if the demo started it.
    is_own: bool = False


def _open(
    stack: ExitStack, server: dict[str, Any], home: Path | None, *, may_start: bool
) -> _Target:
    """The server at the URL; a new one in ``home``, or if none runs and none was named."""
    if home is None:
        try:
            client = stack.enter_context(connect(**server))
            url = display_url(server["url"])
            return _Target(client, url, _console_of(client, url))
        except ServerUnreachable:
            if not may_start:
                raise
    with _step("start a server"):
        url, console = stack.enter_context(_own_server(home))
    return _Target(stack.enter_context(connect(url, None, None)), url, console, is_own=True)


def _console_of(client: FlightSQLClient, url: str) -> str | None:
    """The console's address, as far as the settings of the server tell."""
    names = "'status', 'status_host', 'status_port', 'status_url'"
    with suppress(SwanLakeError):
        rows = client.query(
            f"SELECT name, value FROM swanlake_settings() WHERE name IN ({names})"
        ).rows()
        settings = {str(name): str(value) for name, value in rows}
        if settings.get("status") == "off" or settings.get("status_port") == "0":
            return None
        scheme = "https" if url.startswith("grpc+tls") else "http"
        address = f"{scheme}://{settings['status_host']}:{settings['status_port']}/"
        return settings["status_url"] if "://" in settings["status_url"] else address
    return None


@contextmanager
def _own_server(home: Path | None) -> Iterator[tuple[str, str | None]]:
    """A server for the time of the demo: its URL, and the console's."""
    directory = Path(tempfile.mkdtemp(prefix="swanlake-demo-"))
    ready = directory / "ready.json"
    command = [sys.executable, "-m", "swanlake", "serve", "--home", str(home or directory / "home")]
    command += ["--port", "0", "--status-port", "0", "--ready-file", str(ready)]
    if shutil.which("java") is None:
        command += ["--pipeline", "inline"]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise StartupError((directory / "log").read_text().strip()[-500:])
            time.sleep(0.1)
        facts = json.loads(ready.read_text())
        yield facts["flight"], facts["status"]
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(directory, ignore_errors=True)


def open_browser(url: str) -> bool:
    """Opens a browser if this session has a screen."""
    import webbrowser  # slow to load

    has_screen = sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return has_screen and webbrowser.open(url)


def _run(client: FlightSQLClient, rate: int, seconds: float) -> None:
    with _step(f"load {len(_CITIES)} cities and {_HISTORY_ROWS:,} events"):
        for statement in _LOAD:
            client.execute(statement)
    sent = _stream(client, rate, seconds)
    with _step(
        "flush the queue: its rows become one file of the lake (the first one starts Spark)"
    ):
        flushed = call_procedure(client, "duckling_queue_flush", "demo.events")
    rows = sum(flushed["rows"].to_pylist())
    click.echo(f"  {rows:,} rows in {sum(flushed['files'].to_pylist())} files")
    with _step("compact: small files become large ones"):
        call_procedure(client, "swanlake_compact", "demo.events")
    with _step(f"fork the catalog as {_FORK} and change the fork; no file is copied"):
        _fork(client)
    question = client.query(_QUESTION).table
    show_table(question, "table")
    total = sum(question["events"].to_pylist())
    if total != _HISTORY_ROWS + sent:
        raise SwanLakeError(f"{_HISTORY_ROWS + sent} events were sent, and {total} are there.")
    click.echo(f"{total:,} events: each one that was sent, once.")


def _fork(client: FlightSQLClient) -> None:
    parent = client.query("SELECT current_catalog()").scalar()
    with suppress(SwanLakeError):  # of an earlier demo
        call_procedure(client, "swanlake_drop_catalog", _FORK)
    client.execute(f"CALL swanlake_fork_catalog('{parent}', '{_FORK}')")
    client.execute(f"DELETE FROM {_FORK}.demo.events WHERE city = 'Oslo'")


def _stream(client: FlightSQLClient, rate: int, seconds: float) -> int:
    """Sends events through the queue at the rate; returns how many were sent."""
    began = time.monotonic()
    total = max(1, round(rate * seconds))
    sent = 0
    with client.writer("events", schema="demo") as writer:
        while sent < total:
            due = min(total, int((time.monotonic() - began) * rate) + 1)
            for number in range(sent, due):
                writer.write(_event(_HISTORY_ROWS + number))
            sent = due
            _show_progress(sent, total, time.monotonic() - began)
            time.sleep(0.05)
    click.echo(
        f"{_clear()}sent {sent:,} events through the queue in {time.monotonic() - began:.1f} s; "
        "each was synced to disk before it was acknowledged"
    )
    return sent


def _event(number: int) -> dict[str, Any]:
    city, _ = random.choice(_CITIES)
    return {
        "id": number,
        "city": city,
        "happened_at": datetime.now(UTC).replace(tzinfo=None),
        "price": round(random.uniform(1, 100), 2),
    }


def _show_progress(sent: int, total: int, seconds: float) -> None:
    if sys.stdout.isatty():
        click.echo(f"{_clear()}sending events: {sent:,} of {total:,}, {seconds:.0f} s", nl=False)


def _clear() -> str:
    return "\r\x1b[K" if sys.stdout.isatty() else ""


@contextmanager
def _step(title: str) -> Iterator[None]:
    """Prints the step and how long it took."""
    click.echo(f"{title} … ", nl=False)
    began = time.monotonic()
    try:
        yield
    except BaseException:
        click.echo("failed")
        raise
    click.echo(f"{time.monotonic() - began:.1f} s")

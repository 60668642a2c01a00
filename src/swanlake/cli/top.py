"""``swanlake top``: a live view of a running server in the terminal."""

from __future__ import annotations

import json
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

import click

from swanlake.cli.activity import (
    duration_text,
    json_option,
    open_sessions,
    running_statements,
    size_text,
)
from swanlake.cli.remote import (
    ServerCommand,
    call_procedure,
    connection_options,
    display_url,
    open_client,
)
from swanlake.cli.table_layout import printable
from swanlake.client import FlightSQLClient

_TOTALS = """SELECT coalesce(sum(count), 0) AS statements, coalesce(sum(errors), 0) AS errors,
    coalesce(sum("rows"), 0) AS "rows", coalesce(sum(total_seconds), 0) AS seconds
FROM swanlake_slow_queries()"""
_MAX_QUEUED = 8


@dataclass(frozen=True)
class Sample:
    """What a server said at one moment."""

    taken_at: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    statements: Sequence[Mapping[str, Any]] = ()
    sessions: Sequence[Mapping[str, Any]] = ()
    queue: Sequence[Mapping[str, Any]] = ()
    totals: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Rates:
    """What happened per second between two samples; None before the second one."""

    statements: float | None = None
    errors: float | None = None
    rows: float | None = None
    mean_seconds: float | None = None


def rates(before: Sample | None, now: Sample) -> Rates:
    """The rates between two samples; a counter that went back counts from zero."""
    if before is None or now.taken_at <= before.taken_at:
        return Rates()
    seconds = now.taken_at - before.taken_at
    grown = {
        name: max(float(value) - float(before.totals.get(name, 0)), 0.0)
        for name, value in now.totals.items()
    }
    statements = grown.get("statements", 0.0)
    return Rates(
        statements / seconds,
        grown.get("errors", 0.0) / seconds,
        grown.get("rows", 0.0) / seconds,
        grown.get("seconds", 0.0) / statements if statements else None,
    )


@click.command(cls=ServerCommand)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2),
    default=2.0,
    show_default=True,
    help="Seconds between two samples.",
)
@click.option("--once", is_flag=True, help="Take two samples, print the view and exit.")
@json_option
@connection_options
def top(interval: float, once: bool, output: str, **server: Any) -> None:
    """Watch a running server: statements, sessions, queue, rates. q or Ctrl-C quits.

    With --format json, or without a terminal, it prints two samples' outcome and exits. Exit codes:
    0 success, 1 refused, 2 wrong arguments or no connection.
    """
    url = display_url(server["url"])
    with open_client(**server) as client:
        if output == "json" or once or not (sys.stdin.isatty() and sys.stdout.isatty()):
            before = _sample(client)
            time.sleep(interval)
            now = _sample(client)
            _print(url, now, rates(before, now), output)
        else:
            _watch(client, url, interval)


def _print(url: str, now: Sample, current: Rates, output: str) -> None:
    if output == "json":
        text = json.dumps({"rates": asdict(current), **asdict(now)}, indent=2, default=str)
        click.echo(text)
        return
    from rich.console import Console

    Console(width=None if sys.stdout.isatty() else 120).print(_view(url, now, current, 40))


def _watch(client: FlightSQLClient, url: str, interval: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    before: Sample | None = None
    try:
        with _single_keys(), Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                now = _sample(client)
                view = _view(url, now, rates(before, now), console.size.height)
                live.update(view, refresh=True)
                before = now
                if _quit_within(interval):
                    return
    except KeyboardInterrupt:
        return


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys are read without Enter, and are not shown."""
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    settings = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard)
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, settings)


def _quit_within(seconds: float) -> bool:
    """Waits for the time; True at once for q."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([sys.stdin], [], [], left)[0] and sys.stdin.read(1) in ("q", "Q", ""):
            return True
    return False


def _sample(client: FlightSQLClient) -> Sample:
    [totals] = client.query(_TOTALS).to_pylist()
    return Sample(
        time.monotonic(),
        client.status(),
        running_statements(client).to_pylist(),
        open_sessions(client).to_pylist(),
        call_procedure(client, "duckling_queue_status").to_pylist(),
        {name: float(value) for name, value in totals.items()},
    )


def _view(url: str, now: Sample, current: Rates, height: int) -> Any:
    from rich.console import Group
    from rich.text import Text

    queue = _queue_table(now.queue[:_MAX_QUEUED])
    left = max(height - len(now.queue[:_MAX_QUEUED]) - 12, 3)
    lines = [Text(line, no_wrap=True, overflow="ellipsis") for line in heading(url, now, current)]
    lines[0].stylize("bold")
    return Group(*lines, Text(), _statement_table(now.statements, left), Text(), queue)


def heading(url: str, now: Sample, current: Rates) -> Iterator[str]:
    """The lines above the tables."""
    facts = now.facts
    up = facts.get("uptime_seconds")
    yield (
        f"SwanLake {facts.get('version', '?')} at {url}: {facts.get('state', '?')}"
        + ("" if up is None else f", up {duration_text(up)}")
    )
    mean = current.mean_seconds
    yield (
        f"statements {_rate(current.statements)}   errors {_rate(current.errors)}   "
        f"rows {_rate(current.rows)}   mean " + ("-" if mean is None else f"{1000 * mean:.1f} ms")
    )
    busy = sum(1 for session in now.sessions if session.get("in_transaction"))
    limit = facts.get("sessions", {}).get("max", "?")
    memory = facts.get("memory", {}).get("process_bytes")
    yield (
        f"sessions {len(now.sessions)} of {limit}, {busy} in transactions   "
        f"running {len(now.statements)}"
        + ("" if memory is None else f"   memory {size_text(memory)}")
    )


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}/s"


def _statement_table(statements: Sequence[Mapping[str, Any]], limit: int) -> Any:
    table = _table("user", ">seconds", ">rows", ">%", "state", "query id", "statement")
    for row in statements[:limit]:
        table.add_row(
            *map(_text, (row["user"], row["seconds"], f"{row['rows'] or 0:,}", row["percent"])),
            *map(_text, (row["state"], row["query_id"][:12], row["sql"])),
        )
    if not statements:
        table.add_row("", "", "", "", "", "", "no statement runs")
    elif len(statements) > limit:
        table.add_row("", "", "", "", "", "", f"and {len(statements) - limit} more")
    return table


def _queue_table(queue: Sequence[Mapping[str, Any]]) -> Any:
    table = _table("queued for", ">rows", ">size", ">oldest", "state", "last error")
    for row in queue:
        oldest = row["oldest_seconds"]
        table.add_row(
            *map(_text, (row["table_name"], f"{row['rows']:,}", size_text(row["bytes"]))),
            *map(_text, ("" if oldest is None else duration_text(oldest), row["state"])),
            _text(row["last_error"]),
        )
    if not queue:
        table.add_row("the queue is empty", "", "", "", "", "")
    return table


def _table(*headings: str) -> Any:
    from rich.table import Table

    table = Table(box=None, expand=True, pad_edge=False, header_style="reverse")
    for name in headings:
        last = name == headings[-1]
        table.add_column(
            name.lstrip(">"),
            justify="right" if name.startswith(">") else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if last else None,
        )
    return table


def _text(value: Any) -> Any:
    from rich.text import Text

    return Text("" if value is None else printable(str(value)))

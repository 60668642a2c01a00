"""``swanlake status``, ``ps``, ``sessions`` and ``kill``: what a running server does."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import click
import pyarrow as pa

from swanlake.cli.output import format_option
from swanlake.cli.remote import (
    ServerCommand,
    call_procedure,
    connection_options,
    display_url,
    open_client,
    show_rows,
)
from swanlake.client import FlightSQLClient, QueryOptions
from swanlake.errors import SwanLakeError

_UNITS = ("B", "kB", "MB", "GB", "TB")

json_option = click.option(
    "--format", "output", type=click.Choice(["table", "json"]), default="table", show_default=True
)


@click.command(cls=ServerCommand)
@json_option
@connection_options
def status(output: str, **server: Any) -> None:
    """Show how a running server is: health, sessions, queue, Spark, memory.

    Exit codes: 0 it accepts statements and is healthy, 1 it is not, 2 wrong arguments or no
    connection.
    """
    with open_client(**server) as client:
        facts = dict(client.status())
        facts["queue"] = call_procedure(client, "duckling_queue_status").to_pylist()
    if output == "json":
        click.echo(json.dumps(facts, indent=2, default=str))
    else:
        click.echo("\n".join(status_lines(display_url(server["url"]), facts)))
    problems = _problems(facts)
    if problems:
        raise SwanLakeError(" ".join(problems))


def status_lines(url: str, facts: Mapping[str, Any]) -> Iterator[str]:
    """The text of ``swanlake status``; facts that the caller may not see are left out."""
    up = facts.get("uptime_seconds")
    since = "" if up is None else f", up {duration_text(up)}"
    yield f"SwanLake {facts.get('version', '?')} at {url}: {facts.get('state', '?')}{since}"
    if sessions := facts.get("sessions"):
        running = facts.get("statements_running", 0)
        yield f"sessions   {sessions['active']} of {sessions['max']}, {running} statements running"
    queue = facts.get("queue", ())
    rows, size = (sum(table[name] or 0 for table in queue) for name in ("rows", "bytes"))
    yield f"queue      {rows:,} rows, {size_text(size)} in {_count(len(queue), 'table')}"
    if pipeline := facts.get("pipeline"):
        yield f"pipeline   {' '.join(str(value) for value in _brief(pipeline))}"
    for check in facts.get("health", {}).get("checks", ()):
        reason = "ok" if check["ok"] else f"FAILED: {check.get('detail') or check['reason']}"
        yield f"{check['name']:<10} {reason}"
    if memory := facts.get("memory"):
        yield f"memory     {size_text(memory['process_bytes'])}"


def _brief(pipeline: Mapping[str, Any]) -> Iterator[Any]:
    for name in ("kind", "state", "location"):
        if pipeline.get(name):
            yield pipeline[name]


def _problems(facts: Mapping[str, Any]) -> list[str]:
    problems = [] if facts.get("state") == "accepting" else [f"The server is {facts['state']}."]
    checks = facts.get("health", {}).get("checks", ())
    return problems + [check["reason"] for check in checks if not check["ok"]]


@click.command(cls=ServerCommand)
@format_option
@connection_options
def ps(output: str, **server: Any) -> None:
    """Show the statements that run now, the longest first.

    Exit codes: 0 success, 1 refused, 2 wrong arguments or no connection.
    """
    with open_client(**server) as client:
        rows = running_statements(client)
    show_rows(rows, output, when_empty="No statement runs.", hidden_columns=("kind", "address"))


@click.command(cls=ServerCommand)
@format_option
@connection_options
def sessions(output: str, **server: Any) -> None:
    """Show the open sessions, without the one that this command needs.

    Exit codes: 0 success, 1 refused, 2 wrong arguments or no connection.
    """
    with open_client(**server) as client:
        rows = open_sessions(client)
    show_rows(rows, output, when_empty="No session is open.")


@click.command(cls=ServerCommand)
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option("--session", "is_session", is_flag=True, help="The ids are those of sessions.")
@format_option
@connection_options
def kill(ids: tuple[str, ...], is_session: bool, output: str, **server: Any) -> None:
    """Cancel statements by their query id, or close sessions with --session.

    Exit codes: 0 success, 1 there is no such statement or session, or it may not be killed, 2
    wrong arguments or no connection.
    """
    procedure = f"swanlake_kill_{'session' if is_session else 'query'}"
    with open_client(**server) as client:
        rows = pa.concat_tables([call_procedure(client, procedure, id) for id in ids])
    show_rows(rows, output, when_empty="Nothing was killed.")


def running_statements(client: FlightSQLClient) -> Any:
    """The rows of ``swanlake_queries()`` without this query itself."""
    own = uuid.uuid4().hex
    return client.query(
        f"""SELECT query_id, "user", kind, address, round(seconds, 1) AS seconds, "rows", state,
            round(100 * progress) AS percent, regexp_replace(trim(sql), '\\s+', ' ', 'g') AS sql
        FROM swanlake_queries() WHERE query_id <> '{own}' ORDER BY seconds DESC""",
        options=QueryOptions(query_id=own),
    ).table


def open_sessions(client: FlightSQLClient) -> Any:
    """The rows of ``swanlake_sessions()`` without this session itself."""
    return client.query(
        f"""SELECT session_id, "user", role, address, state, round(idle_seconds, 1) AS idle_seconds,
            in_transaction, statements, catalog_name
        FROM swanlake_sessions() WHERE session_id <> '{client.session_id}' ORDER BY opened_at"""
    ).table


def duration_text(seconds: float) -> str:
    """``90.0`` is ``1 min``; the largest unit that fits."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def size_text(size: float) -> str:
    """``1500`` is ``1.5 kB``."""
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

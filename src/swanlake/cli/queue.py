"""``swanlake queue``: the Duckling Queue of a running server."""

from __future__ import annotations

from typing import Any

import click

from swanlake.cli.options import confirmed
from swanlake.cli.output import format_option
from swanlake.cli.remote import ServerCommands, call_procedure, connection_options, show_rows
from swanlake.cli.remote import open_client as connected
from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError

#: A table would wrap paths and make them hard to copy.
_NOT_IN_TABLES = ("path",)


@click.group(cls=ServerCommands)
def queue() -> None:
    """Show, flush, pause and resume the queue of a running server; replay or discard dead letters.

    Exit codes: 0 success, 1 refused or failed, 2 wrong arguments or no connection.
    """


@queue.command(name="list")
@format_option
@connection_options
def list_(output: str, **server: Any) -> None:
    """Show the tables with queued rows and the state of each."""
    with connected(**server) as client:
        _show(_call(client, "status"), output, nothing="The queue is empty.")


@queue.command(name="show")
@click.argument("table", required=False)
@format_option
@connection_options
def show_(table: str | None, output: str, **server: Any) -> None:
    """Show the segments of TABLE, or all; --format json, csv and arrow include their paths."""
    with connected(**server) as client:
        _show(_call(client, "segments", table), output, nothing=_nothing_queued(table))


@queue.command(name="dead-letters")
@format_option
@connection_options
def dead_letters(output: str, **server: Any) -> None:
    """Show the segments that can never be flushed, and why."""
    with connected(**server) as client:
        _show(_call(client, "dead_letters"), output, nothing="There are no dead letters.")


@queue.command()
@click.argument("table", required=False)
@format_option
@connection_options
def flush(table: str | None, output: str, **server: Any) -> None:
    """Flush TABLE, or all tables, to the lake and wait for the result."""
    with connected(**server) as client:
        done = _call(client, "flush", table)
    _show(done, output, nothing=_nothing_queued(table))
    count = sum(done["dead_letters"].to_pylist())
    if count:
        became = "segment became a dead letter" if count == 1 else "segments became dead letters"
        raise SwanLakeError(f"{count} {became}; `swanlake queue dead-letters` shows why.")


@queue.command()
@click.argument("segment_id", required=False)
@click.option(
    "--all", "everything", is_flag=True, help="Replay all dead letters that contain rows."
)
@format_option
@connection_options
def replay(segment_id: str | None, everything: bool, output: str, **server: Any) -> None:
    """Return the dead letter SEGMENT_ID, or all, to the queue."""
    if (segment_id is None) != everything:
        raise click.UsageError("Name the id of one dead letter, or use --all.")
    with connected(**server) as client:
        letters = _call(client, "replay", segment_id)
    _show(letters, output, nothing="There is nothing to replay.")
    refused = [reason for reason in letters["refused"].to_pylist() if reason]
    if refused:
        stay = "dead letter stays" if len(refused) == 1 else "dead letters stay"
        raise SwanLakeError(f"{len(refused)} {stay}: {refused[0]}")


@queue.command()
@click.argument("segment_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@format_option
@connection_options
def discard(segment_id: str, yes: bool, output: str, **server: Any) -> None:
    """Delete the dead letter SEGMENT_ID and its rows; they cannot be restored."""
    if not yes and not confirmed(f"Delete the dead letter {segment_id} and its rows?"):
        return
    with connected(**server) as client:
        letters = _call(client, "discard", segment_id)
    _show(letters, output, nothing="There is no such dead letter.")


@queue.command()
@connection_options
def pause(**server: Any) -> None:
    """Stop flushing until `resume`, also after a restart. Inserts are still accepted."""
    with connected(**server) as client:
        _call(client, "pause")
    click.echo("The queue is paused: it accepts rows but does not flush them.")


@queue.command()
@connection_options
def resume(**server: Any) -> None:
    """Resume flushing."""
    with connected(**server) as client:
        _call(client, "resume")
    click.echo("The queue has resumed flushing.")


def _call(client: FlightSQLClient, procedure: str, argument: str | None = None) -> Any:
    """The rows of a queue procedure, as a table."""
    return call_procedure(client, f"duckling_queue_{procedure}", argument)


def _show(rows: Any, output: str, *, nothing: str) -> None:
    show_rows(rows, output, when_empty=nothing, hidden_columns=_NOT_IN_TABLES)


def _nothing_queued(table: str | None) -> str:
    return "The queue is empty." if table is None else f"Nothing is queued for {table}."

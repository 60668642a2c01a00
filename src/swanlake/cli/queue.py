"""``swanlake queue``: what the Duckling Queue of a running server holds, and what becomes of it."""

from __future__ import annotations

from typing import Any

import click

from swanlake.cli.connection import connection_options
from swanlake.cli.output import format_option
from swanlake.cli.remote import ServerCommands, call, show_rows
from swanlake.cli.remote import server as connected
from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError

#: A path is there to be copied, and a table would fold it.
_NOT_IN_TABLES = ("path",)


@click.group(cls=ServerCommands)
def queue() -> None:
    """Look at the queue of a running server, flush it, pause it, and bring dead letters back.

    Exit codes: 0 done, 1 refused or failed, 2 wrong arguments or no connection.
    """


# ---- looking -------------------------------------------------------------------------------------


@queue.command(name="list")
@format_option
@connection_options
def list_(output: str, **server: Any) -> None:
    """Show the tables that have rows in the queue, and what they wait for."""
    with connected(**server) as client:
        _show(_call(client, "status"), output, nothing="The queue is empty.")


@queue.command(name="show")
@click.argument("table", required=False)
@format_option
@connection_options
def show_(table: str | None, output: str, **server: Any) -> None:
    """Show the segments of TABLE, or all; --format json, csv and arrow have their paths too."""
    with connected(**server) as client:
        _show(_call(client, "segments", table), output, nothing=_nothing_queued(table))


@queue.command(name="dead-letters")
@format_option
@connection_options
def dead_letters(output: str, **server: Any) -> None:
    """Show the segments that can never be flushed, and why."""
    with connected(**server) as client:
        _show(_call(client, "dead_letters"), output, nothing="There are no dead letters.")


# ---- changing ------------------------------------------------------------------------------------


@queue.command()
@click.argument("table", required=False)
@format_option
@connection_options
def flush(table: str | None, output: str, **server: Any) -> None:
    """Bring what TABLE, or every table, has in the queue to the lake now, and wait for it."""
    with connected(**server) as client:
        done = _call(client, "flush", table)
    _show(done, output, nothing=_nothing_queued(table))
    buried = sum(done["dead_letters"].to_pylist())
    if buried:
        became = "segment became a dead letter" if buried == 1 else "segments became dead letters"
        raise SwanLakeError(f"{buried} {became}; `swanlake queue dead-letters` says why.")


@queue.command()
@click.argument("segment_id", required=False)
@click.option("--all", "everything", is_flag=True, help="All dead letters that hold rows.")
@format_option
@connection_options
def replay(segment_id: str | None, everything: bool, output: str, **server: Any) -> None:
    """Put the dead letter SEGMENT_ID, or all, back into the queue."""
    if (segment_id is None) != everything:
        raise click.UsageError("Give the id of one dead letter, or --all.")
    with connected(**server) as client:
        letters = _call(client, "replay", segment_id)
    _show(letters, output, nothing="There is nothing to replay.")
    refused = [reason for reason in letters["refused"].to_pylist() if reason]
    if refused:
        stay = "dead letter stays" if len(refused) == 1 else "dead letters stay"
        raise SwanLakeError(f"{len(refused)} {stay}: {refused[0]}")


@queue.command()
@connection_options
def pause(**server: Any) -> None:
    """Begin no flush until resume, also after a restart; rows are still taken and kept."""
    with connected(**server) as client:
        _call(client, "pause")
    click.echo("The queue is paused: it takes rows and flushes none.")


@queue.command()
@connection_options
def resume(**server: Any) -> None:
    """Begin to flush again."""
    with connected(**server) as client:
        _call(client, "resume")
    click.echo("The queue flushes again.")


# ---- shared --------------------------------------------------------------------------------------


def _call(client: FlightSQLClient, procedure: str, argument: str | None = None) -> Any:
    """The rows of a procedure of the queue, as a table."""
    return call(client, f"duckling_queue_{procedure}", argument)


def _show(rows: Any, output: str, *, nothing: str) -> None:
    show_rows(rows, output, nothing=nothing, not_in_tables=_NOT_IN_TABLES)


def _nothing_queued(table: str | None) -> str:
    return "The queue is empty." if table is None else f"Nothing is queued for {table}."

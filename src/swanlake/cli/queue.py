"""``swanlake queue``: what the Duckling Queue of a running server holds, and what becomes of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from swanlake.cli.connection import connect, connection_options
from swanlake.cli.exits import exit_with
from swanlake.cli.output import format_option, show
from swanlake.client.driver import Connection, Result
from swanlake.errors import ConfigError, ServerUnavailable, SwanLakeError
from swanlake.sql.quoting import literal

EXIT_REFUSED, EXIT_CONFIG, EXIT_NO_CONNECTION = 1, 2, 2
#: A path is there to be copied, and a table would fold it.
_NOT_IN_TABLES = "path"


class QueueCommands(click.Group):
    """Commands whose errors are one sentence and an exit code, whichever of them fails."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as wrong:
            exit_with(EXIT_CONFIG, wrong)
        except SwanLakeError as refused:
            lost = refused.identifier == ServerUnavailable.identifier
            exit_with(EXIT_NO_CONNECTION if lost else EXIT_REFUSED, refused)


@click.group(cls=QueueCommands)
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
    with _server(**server) as connection:
        _show(_call(connection, "status"), output, nothing="The queue is empty.")


@queue.command(name="show")
@click.argument("table", required=False)
@format_option
@connection_options
def show_(table: str | None, output: str, **server: Any) -> None:
    """Show the segments of TABLE, or all; --format json, csv and arrow have their paths too."""
    with _server(**server) as connection:
        _show(_call(connection, "segments", table), output, nothing=_nothing_queued(table))


@queue.command(name="dead-letters")
@format_option
@connection_options
def dead_letters(output: str, **server: Any) -> None:
    """Show the segments that can never be flushed, and why."""
    with _server(**server) as connection:
        _show(_call(connection, "dead_letters"), output, nothing="There are no dead letters.")


# ---- changing ------------------------------------------------------------------------------------


@queue.command()
@click.argument("table", required=False)
@format_option
@connection_options
def flush(table: str | None, output: str, **server: Any) -> None:
    """Bring what TABLE, or every table, has in the queue to the lake now, and wait for it."""
    with _server(**server) as connection:
        done = _call(connection, "flush", table)
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
    with _server(**server) as connection:
        letters = _call(connection, "replay", segment_id)
    _show(letters, output, nothing="There is nothing to replay.")
    refused = [reason for reason in letters["refused"].to_pylist() if reason]
    if refused:
        stay = "dead letter stays" if len(refused) == 1 else "dead letters stay"
        raise SwanLakeError(f"{len(refused)} {stay}: {refused[0]}")


@queue.command()
@connection_options
def pause(**server: Any) -> None:
    """Begin no flush until resume, also after a restart; rows are still taken and kept."""
    with _server(**server) as connection:
        _call(connection, "pause")
    click.echo("The queue is paused: it takes rows and flushes none.")


@queue.command()
@connection_options
def resume(**server: Any) -> None:
    """Begin to flush again."""
    with _server(**server) as connection:
        _call(connection, "resume")
    click.echo("The queue flushes again.")


# ---- shared --------------------------------------------------------------------------------------


@contextmanager
def _server(url: str, token_file: Path | None, tls_ca: Path | None) -> Iterator[Connection]:
    connection = connect(url, token_file, tls_ca)
    try:
        connection.status()
    except SwanLakeError as unreachable:
        exit_with(EXIT_NO_CONNECTION, unreachable, f"Cannot connect to {url}")
    with connection:
        yield connection


def _call(connection: Connection, procedure: str, argument: str | None = None) -> Any:
    """The rows of a procedure of the queue, as a table."""
    given = "" if argument is None else literal(argument)
    return connection.execute(f"CALL duckling_queue_{procedure}({given})").read_all()


def _show(rows: Any, output: str, *, nothing: str) -> None:
    if output == "table":
        if not rows.num_rows:
            click.echo(nothing)
            return
        rows = rows.drop_columns([name for name in rows.column_names if name == _NOT_IN_TABLES])
    batches = (batch for batch in rows.to_batches())
    show(Result(rows.schema, batches, rows.num_rows), output, quiet=True)
    sys.stdout.flush()  # what the console wrote must come before what click writes


def _nothing_queued(table: str | None) -> str:
    return "The queue is empty." if table is None else f"Nothing is queued for {table}."

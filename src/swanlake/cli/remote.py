"""What the commands share that have a running server do the work."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from swanlake.cli.connection import connect
from swanlake.cli.exits import exit_with
from swanlake.cli.output import Result, show
from swanlake.client import FlightSQLClient
from swanlake.errors import ConfigError, ConnectionLost, ServerUnreachable, SwanLakeError
from swanlake.sql.quoting import literal

EXIT_REFUSED, EXIT_CONFIG, EXIT_NO_CONNECTION = 1, 2, 2


class ServerCommands(click.Group):
    """Commands whose errors are one sentence and an exit code, whichever of them fails."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as wrong:
            exit_with(EXIT_CONFIG, wrong)
        except SwanLakeError as refused:
            exit_with(EXIT_NO_CONNECTION if is_lost(refused) else EXIT_REFUSED, refused)


def is_lost(error: SwanLakeError) -> bool:
    """True if it says that the server is not there any more."""
    return isinstance(error, ServerUnreachable | ConnectionLost)


@contextmanager
def server(url: str, token_file: Path | None, tls_ca: Path | None) -> Iterator[FlightSQLClient]:
    """The server of the connection options; ends the command if it does not answer."""
    try:
        client = connect(url, token_file, tls_ca)
    except ConfigError:
        raise
    except SwanLakeError as unreachable:
        exit_with(EXIT_NO_CONNECTION, unreachable, f"Cannot connect to {url}")
    with client:
        yield client


def call(
    client: FlightSQLClient,
    procedure: str,
    first: str | None = None,
    **others: str | int | bool | None,
) -> Any:
    """The rows of a procedure, as a table; arguments that are None are not given.

    The first argument goes by its place: ``table`` means something else in SQL.
    """
    given = [] if first is None else [literal(first)]
    given += [
        f"{name} := {literal(value) if isinstance(value, str) else value}"
        for name, value in others.items()
        if value is not None
    ]
    return client.execute(f"CALL {procedure}({', '.join(given)})").table


def show_rows(rows: Any, output: str, *, nothing: str, not_in_tables: tuple[str, ...] = ()) -> None:
    """Writes rows; a table leaves out what one would copy and it would fold."""
    if output == "table":
        if not rows.num_rows:
            click.echo(nothing)
            return
        rows = rows.drop_columns([name for name in rows.column_names if name in not_in_tables])
    show(Result(rows.schema, rows.to_batches()), output, quiet=True)
    sys.stdout.flush()  # what the console wrote must come before what click writes

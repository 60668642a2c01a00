"""Shared by the commands that talk to a running server: options, connections, procedures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click

from swanlake.cli.output import exit_with, show_table
from swanlake.client import CONNECT_TIMEOUT, FlightSQLClient
from swanlake.errors import ConfigError, ConnectionLost, ServerUnreachable, SwanLakeError
from swanlake.sql.quoting import literal

DEFAULT_URL = "grpc://127.0.0.1:4214"
EXIT_REFUSED, EXIT_CONFIG, EXIT_NO_CONNECTION = 1, 2, 2


def connection_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds ``--url``, ``--token-file`` and ``--tls-ca``, the arguments of ``connect``."""
    url = click.option("--url", envvar="SWANLAKE_URL", default=DEFAULT_URL, show_default=True)
    return url(_credential_options(command))


def connections_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for several servers with the same credentials: ``--url`` may be repeated."""
    url = click.option(
        "--url",
        "urls",
        multiple=True,
        envvar="SWANLAKE_URL",
        default=(DEFAULT_URL,),
        show_default=True,
        help="May be repeated, for several servers on one lake.",
    )
    return url(_credential_options(command))


def _credential_options(command: Callable[..., None]) -> Callable[..., None]:
    path = click.Path(path_type=Path)
    tls_ca = click.option("--tls-ca", type=path, help="PEM file with trusted certificates.")
    token_file = click.option(
        "--token-file", type=path, help="File with the access token. Default: SWANLAKE_TOKEN."
    )
    return token_file(tls_ca(command))


def connect(
    url: str, token_file: Path | None, tls_ca: Path | None, timeout: float | None = None
) -> FlightSQLClient:
    """A client of the server; raises ConfigError, or the reason why it cannot connect."""
    token = _read(token_file).strip() if token_file else os.environ.get("SWANLAKE_TOKEN")
    connect_timeout = CONNECT_TIMEOUT if timeout is None else timeout
    return FlightSQLClient(
        url, token=token, tls_ca=tls_ca, timeout=timeout, connect_timeout=connect_timeout
    )


def display_url(url: str) -> str:
    """The URL without a user and a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as unreadable:
        raise ConfigError(f"{file} cannot be read: {unreadable.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not a text file.") from None


class _ReportsErrors(click.Command):
    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except SwanLakeError as error:
            exit_with(self.exit_code(error), error)

    def exit_code(self, error: SwanLakeError) -> int:
        if isinstance(error, ConfigError):
            return EXIT_CONFIG
        return EXIT_NO_CONNECTION if is_connection_error(error) else EXIT_REFUSED


class ServerCommand(_ReportsErrors):
    """A command that reports errors as one sentence and an exit code."""


class ServerCommands(_ReportsErrors, click.Group):
    """A group whose commands report errors as one sentence and an exit code."""


def is_connection_error(error: SwanLakeError) -> bool:
    """True if the server cannot be reached any more."""
    return isinstance(error, ServerUnreachable | ConnectionLost)


@contextmanager
def open_client(
    url: str, token_file: Path | None, tls_ca: Path | None
) -> Iterator[FlightSQLClient]:
    """A client for the connection options; ends the command if it cannot connect."""
    try:
        client = connect(url, token_file, tls_ca)
    except ConfigError:
        raise
    except SwanLakeError as unreachable:
        exit_with(EXIT_NO_CONNECTION, unreachable, f"Cannot connect to {display_url(url)}")
    with client:
        yield client


def call_procedure(
    client: FlightSQLClient,
    procedure: str,
    first: str | None = None,
    **named: str | int | bool | None,
) -> Any:
    """The rows of a procedure, as a table; arguments that are None are omitted.

    The first argument is positional: SQL reserves the name ``table``.
    """
    arguments = [] if first is None else [literal(first)]
    arguments += [
        f"{name} := {literal(value) if isinstance(value, str) else value}"
        for name, value in named.items()
        if value is not None
    ]
    return client.execute(f"CALL {procedure}({', '.join(arguments)})").table


def show_rows(
    rows: Any, output: str, *, when_empty: str, hidden_columns: tuple[str, ...] = ()
) -> None:
    """Prints rows; the table format omits the hidden columns."""
    if output == "table":
        if not rows.num_rows:
            click.echo(when_empty)
            return
        rows = rows.drop_columns([name for name in rows.column_names if name in hidden_columns])
    show_table(rows, output)

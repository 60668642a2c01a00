"""Which server a command talks to, and as whom: options that all such commands share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import click

from swanlake.client import CONNECT_TIMEOUT, FlightSQLClient
from swanlake.errors import ConfigError

DEFAULT_URL = "grpc://127.0.0.1:4214"


def connection_options(command: Callable[..., None]) -> Callable[..., None]:
    """``--url``, ``--token-file`` and ``--tls-ca``: what ``connect`` takes."""
    return _options(
        command,
        click.option("--url", envvar="SWANLAKE_URL", default=DEFAULT_URL, show_default=True),
    )


def connections_options(command: Callable[..., None]) -> Callable[..., None]:
    """The same for several servers that know the same callers: ``--url`` more than once."""
    return _options(
        command,
        click.option(
            "--url",
            "urls",
            multiple=True,
            envvar="SWANLAKE_URL",
            default=(DEFAULT_URL,),
            show_default=True,
            help="May be given more than once, for several servers on one lake.",
        ),
    )


def _options(
    command: Callable[..., None],
    url_option: Callable[[Callable[..., None]], Callable[..., None]],
) -> Callable[..., None]:
    for option in (
        click.option(
            "--tls-ca",
            type=click.Path(path_type=Path),
            help="PEM file with the certificates to trust.",
        ),
        click.option(
            "--token-file",
            type=click.Path(path_type=Path),
            help="File with the access token; without it SWANLAKE_TOKEN.",
        ),
        url_option,
    ):
        command = option(command)
    return command


def connect(
    url: str, token_file: Path | None, tls_ca: Path | None, timeout: float | None = None
) -> FlightSQLClient:
    """A client of the server; raises ConfigError, or why the server does not answer."""
    token = _read(token_file).strip() if token_file else os.environ.get("SWANLAKE_TOKEN")
    connect_timeout = CONNECT_TIMEOUT if timeout is None else timeout
    return FlightSQLClient(
        url, token=token, tls_ca=tls_ca, timeout=timeout, connect_timeout=connect_timeout
    )


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError as unreadable:
        raise ConfigError(f"{file} cannot be read: {unreadable.strerror}.") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not a text file.") from None

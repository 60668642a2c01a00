"""The ``swanlake`` command, its subcommands and their options."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from swanlake import config
from swanlake._internal.arrow_memory import ARROW_HEADROOM_BYTES
from swanlake._internal.memory import caller_bytes
from swanlake._version import __version__
from swanlake.cli.activity import kill, ps, sessions, status
from swanlake.cli.banner import banner_lines, own_command
from swanlake.cli.bench import bench
from swanlake.cli.catalog import catalog
from swanlake.cli.credentials import token, user
from swanlake.cli.demo import demo
from swanlake.cli.doctor.command import doctor
from swanlake.cli.logs import configure_logging
from swanlake.cli.maintain import maintain
from swanlake.cli.options import MisuseExits, config_option, setting_option
from swanlake.cli.output import exit_with
from swanlake.cli.queue import queue
from swanlake.cli.remote import connect, connection_options
from swanlake.cli.settings_reference import settings_reference
from swanlake.cli.sql import sql
from swanlake.cli.top import top
from swanlake.errors import (
    ConfigError,
    NotAuthenticated,
    StartupError,
    SwanLakeError,
)

_SUPERVISE = "--supervise"
EXIT_CONFIG = 2
PING_ACCEPTING, PING_REJECTING, PING_NO_RESPONSE, PING_BAD_ARGUMENTS = 0, 1, 2, 3


class DefaultToServe(click.Group):
    """``swanlake --port 0`` means ``swanlake serve --port 0``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own = ("--help", "--version")
        if not args or (args[0].startswith("-") and args[0] not in own):
            args = ["serve", *args]
        return super().parse_args(ctx, args)


@click.group(cls=DefaultToServe)
@click.version_option(__version__, prog_name="swanlake")
def swanlake() -> None:
    """SwanLake: a lakehouse server. Arrow Flight SQL, DuckDB sessions, DuckLake storage."""


swanlake.add_command(catalog)
swanlake.add_command(queue)
swanlake.add_command(maintain)
swanlake.add_command(token)
swanlake.add_command(user)
swanlake.add_command(bench)
swanlake.add_command(sql)
swanlake.add_command(status)
swanlake.add_command(top)
swanlake.add_command(ps)
swanlake.add_command(sessions)
swanlake.add_command(kill)
swanlake.add_command(doctor)
swanlake.add_command(demo)


def _settings_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds a flag for every setting except secrets: process lists show flags."""
    for row in reversed(list(config.SETTINGS.values())):
        if not row.secret:
            command = setting_option(row)(command)
    return command


@swanlake.command()
@config_option
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path),
    default=None,
    help="File to create, with the server's URL, once it accepts connections; removed at the end.",
)
@click.option(_SUPERVISE, is_flag=True, help="Start the server again when it crashes or hangs.")
@click.option("--supervisor-socket", type=int, default=None, hidden=True)
@_settings_options
def serve(
    config_file: Path | None,
    ready_file: Path | None,
    supervise: bool,
    supervisor_socket: int | None,
    **flags: str | None,
) -> None:
    """Run the server (the default command)."""
    configuration = _load(flags, config_file)
    settings = configuration.settings
    configure_logging(settings.log_level, settings.log_format)
    if supervise:
        raise SystemExit(_supervise(settings, ready_file))
    limit_arrow_memory: Callable[[int], None] | None = click.get_current_context().obj
    if limit_arrow_memory is not None:  # not in a program that calls the command itself
        callers = caller_bytes(settings.caller_memory_bytes, settings.duckdb_memory_limit)
        limit_arrow_memory(callers + ARROW_HEADROOM_BYTES)
    from swanlake.server.app import Server
    from swanlake.server.app import serve as run
    from swanlake.server.heartbeat import Heartbeat

    def announce(server: Server) -> None:
        lines = banner_lines(own_command(), server.url, server.status_url, settings)
        click.echo("\n".join(lines))

    heartbeat = Heartbeat(supervisor_socket) if supervisor_socket is not None else None
    try:
        run(configuration, ready_file, announce, heartbeat)
    except ConfigError as wrong:
        exit_with(EXIT_CONFIG, wrong)
    except StartupError as failed:
        exit_with(failed.exit_code, failed)
    sys.stdout.flush()
    sys.stderr.flush()
    # Flight's threads may still wait for clients that hung up.
    os._exit(0)


def _supervise(settings: config.Settings, ready_file: Path | None) -> int:
    """Runs this command in a child process, without the flag that leads here."""
    from swanlake.server.supervisor import supervise

    arguments = [argument for argument in sys.argv[1:] if argument != _SUPERVISE]
    permanent = frozenset({EXIT_CONFIG})
    return supervise(arguments, settings.watchdog_seconds, ready_file, permanent)


@swanlake.group(name="config")
def config_group() -> None:
    """Show the settings."""


@config_group.command(name="show")
@config_option
def config_show(config_file: Path | None) -> None:
    """Print every setting with its value and its source."""
    loaded = _load({}, config_file)
    rows = [
        (name, row.show(getattr(loaded.settings, name)), loaded.sources[name])
        for name, row in config.SETTINGS.items()
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    for name, value, source in rows:
        click.echo(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {source}")


@config_group.command(name="docs")
def config_docs() -> None:
    """Print the settings reference as Markdown."""
    click.echo(settings_reference(), nl=False)


@swanlake.command(cls=MisuseExits, misuse_exit_code=PING_BAD_ARGUMENTS)
@connection_options
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=3.0,
    show_default=True,
    help="Timeout in seconds.",
)
@click.option("--quiet", is_flag=True, help="Print nothing; use the exit code.")
@click.pass_context
def ping(
    ctx: click.Context,
    url: str,
    token_file: Path | None,
    tls_ca: Path | None,
    timeout: float,
    quiet: bool,
) -> None:
    """Check whether a server accepts statements, and reaches what it needs for them.

    Exit codes as of pg_isready: 0 accepting, 1 rejecting, 2 no response, 3 no attempt was made.
    """
    code, text = _ping(url, token_file, tls_ca, timeout)
    if not quiet:
        click.echo(f"{url} - {text}")
    ctx.exit(code)


def _ping(
    url: str, token_file: Path | None, tls_ca: Path | None, timeout: float
) -> tuple[int, str]:
    try:
        with connect(url, token_file, tls_ca, timeout) as client:
            status = client.status()
    except ConfigError as wrong:
        return PING_BAD_ARGUMENTS, f"no attempt: {wrong}"
    except NotAuthenticated as refused:
        return PING_REJECTING, f"rejecting: {refused}"
    except SwanLakeError:
        return PING_NO_RESPONSE, "no response"
    return _readiness(status)


def _readiness(status: Mapping[str, Any]) -> tuple[int, str]:
    """The exit code and the words for what a server says about itself."""
    state = status["state"]
    if state != "accepting":
        return PING_REJECTING, state
    # An older server does not tell.
    failed = [check for check in status.get("health", {}).get("checks", ()) if not check["ok"]]
    if failed:
        reasons = " ".join(check["reason"] for check in failed)
        return PING_REJECTING, f"not ready: {reasons}"
    return PING_ACCEPTING, state


def _load(flags: dict[str, Any], config_file: Path | None) -> config.Configuration:
    try:
        return config.load(flags, config_file=config_file)
    except ConfigError as wrong:
        exit_with(EXIT_CONFIG, wrong)

"""``swanlake sql``: its options, and where its statements come from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import click

from swanlake.cli.options import MisuseExits
from swanlake.cli.output import View, exit_with, format_option, warm_up
from swanlake.cli.remote import (
    EXIT_NO_CONNECTION,
    connect,
    connection_options,
    display_url,
    is_connection_error,
)
from swanlake.errors import ConfigError, ServerUnavailable, SwanLakeError

EXIT_LOCAL_FAULT, EXIT_SQL_ERROR = 1, 3
_ORDER = "swanlake.sql.order"


class OrderedInputs(MisuseExits):
    """Remembers the order of ``-c`` and ``-f``, which click gives as two lists."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        _, _, order = self.make_parser(ctx).parse_args(list(args))
        ctx.meta[_ORDER] = [option.name for option in order]
        return super().parse_args(ctx, args)


@click.command(cls=OrderedInputs, misuse_exit_code=EXIT_LOCAL_FAULT)
@connection_options
@click.option(
    "-c", "--command", "commands", multiple=True, help="Run this SQL and exit. May be repeated."
)
@click.option(
    "-f",
    "--file",
    "files",
    type=click.File(encoding="utf-8"),
    multiple=True,
    help="Run the SQL in this file and exit; - is standard input. May be repeated, also with -c: "
    "all run in their order, in one session.",
)
@format_option
@click.option("--quiet", is_flag=True, help="Print results only.")
@click.option(
    "--bail/--no-bail",
    default=True,
    show_default=True,
    help="Stop at the first statement that fails, or run the others too.",
)
@click.pass_context
def sql(
    ctx: click.Context,
    url: str,
    token_file: Path | None,
    tls_ca: Path | None,
    commands: tuple[str, ...],
    files: tuple[IO[str], ...],
    output: str,
    quiet: bool,
    bail: bool,
) -> None:
    """Run SQL from -c, files, standard input or an interactive prompt.

    A script may contain the commands of the prompt, such as \\timing or .mode; \\? lists them.
    Exit codes: 0 success, 1 a local problem such as wrong arguments, 2 no connection, 3 a
    statement failed.
    """
    from swanlake.cli.shell.link import Link  # slow to load, and only needed here
    from swanlake.cli.shell.shell import ScriptFailed, Shell

    is_interactive = not (commands or files) and sys.stdin.isatty()
    open_client = partial(connect, url, token_file, tls_ca)
    try:
        link = Link(open_client, open_client())
    except ConfigError as wrong:
        exit_with(EXIT_LOCAL_FAULT, wrong)
    except SwanLakeError as unreachable:
        exit_with(EXIT_NO_CONNECTION, unreachable, f"Cannot connect to {display_url(url)}")
    view = View(output, quiet=quiet, types=True, pager=is_interactive)
    shell = Shell(link, url, view, is_interactive=is_interactive)
    try:
        if is_interactive:
            _interact(shell, open_client)
            return
        failures = []
        for name, text in _inputs(ctx.meta[_ORDER], commands, files):
            try:
                shell.run_script(text, name, bail=bail)
            except ScriptFailed as failed:
                failures.append(failed.error)
                if bail or is_connection_error(failed.error):
                    break
        sys.stdout.flush()  # a closed pipe is an error at the exit, but not here
    except UnicodeError:
        exit_with(EXIT_LOCAL_FAULT, ConfigError("The SQL is not UTF-8 text."))
    finally:
        shell.close_output()
        link.close()
    if failures:
        is_lost = isinstance(failures[-1], ServerUnavailable)
        raise SystemExit(EXIT_NO_CONNECTION if is_lost else EXIT_SQL_ERROR)


def _interact(shell: Any, open_client: Any) -> None:
    from swanlake.cli.shell.names_source import NamesSource
    from swanlake.cli.shell.progress import Progress

    warm_up()
    names, progress = NamesSource(open_client), Progress(open_client)
    try:
        shell.interact(names, progress.find)
    finally:
        names.close()
        progress.close()


def _inputs(
    order: list[str], commands: tuple[str, ...], files: tuple[IO[str], ...]
) -> Iterator[tuple[str, str]]:
    """Names and texts of the inputs, in the order of their options."""
    texts, paths = iter(commands), iter(files)
    if not (commands or files):
        yield "", sys.stdin.read()
    for option in order:
        if option == "commands":
            yield "", next(texts)
        elif option == "files":
            file = next(paths)
            yield file.name, file.read()

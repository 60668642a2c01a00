"""Options that several commands have: durations, confirmations, and the settings of a server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import click

from swanlake import config
from swanlake.durations import parse_duration
from swanlake.errors import ConfigError


class MisuseExits(click.Command):
    """A command with its own exit code for wrong arguments, in place of click's 2."""

    def __init__(self, *arguments: Any, misuse_exit_code: int, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._misuse_exit_code = misuse_exit_code

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **options)
        except click.UsageError as misuse:
            misuse.exit_code = self._misuse_exit_code  # type: ignore[misc]
            raise


class Duration(click.ParamType[timedelta]):
    """A number and its unit, such as ``36h``."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        try:
            return parse_duration(value)
        except ValueError as unreadable:
            self.fail(str(unreadable), param, ctx)


config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    default=None,
    help="TOML file with settings. Default: ./swanlake.toml, if it exists.",
)


def setting_option(row: config.Setting) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The flag of a setting."""
    text = row.help.replace("`", "") + f" [{row.env}]"
    if row.type is bool:  # the value may be omitted
        return click.option(
            row.flag, row.name, default=None, help=text, is_flag=False, flag_value="true"
        )
    return click.option(row.flag, row.name, default=None, help=text, metavar="VALUE")


def confirmed(question: str) -> bool:
    """Asks before something is deleted; raises ConfigError if there is no terminal."""
    if not sys.stdin.isatty():
        raise ConfigError("There is no terminal for the confirmation; use --yes to skip it.")
    return click.confirm(question)

"""How a command ends when it cannot do what it was asked for."""

from __future__ import annotations

from typing import NoReturn

import click

from swanlake.errors import SwanLakeError


def exit_with(code: int, error: SwanLakeError, prefix: str = "") -> NoReturn:
    """Ends the command with one sentence on standard error."""
    click.echo(f"swanlake: {prefix + ': ' if prefix else ''}{error}", err=True)
    raise SystemExit(code)

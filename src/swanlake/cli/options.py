"""Options that take a length of time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click

from swanlake.durations import parse_duration


class Duration(click.ParamType[timedelta]):
    """``36h``: a number and its unit."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> timedelta:
        try:
            return parse_duration(value)
        except ValueError as unreadable:
            self.fail(str(unreadable), param, ctx)

"""Progress on standard error: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import Any

import click


@contextmanager
def progress_counter(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A function to call, from any thread, for each of many small steps.

    Without a terminal it shows nothing: the steps are too many for a line each.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with _progress() as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


@contextmanager
def progress_steps(title: str, total: int) -> Iterator[Callable[[str], None]]:
    """A function to call with the name of each step when it begins."""
    begun = count()
    if not sys.stderr.isatty():
        yield lambda name: click.echo(f"{title} {name} ({next(begun) + 1} of {total})", err=True)
        return
    with _progress() as progress:
        task = progress.add_task(title, total=total)
        yield lambda name: progress.update(
            task, description=f"{title} {name}", completed=next(begun)
        )
        progress.update(task, completed=total)


def _progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=Console(stderr=True), transient=True)


def spinner(what: str) -> AbstractContextManager[Any]:
    """Shows a spinner during the block, on a terminal only."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(what)

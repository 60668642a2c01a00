"""How far a command is: bars on a terminal, plain lines elsewhere, both on standard error."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import click


class Steps(ABC):
    """Work of a known number of steps."""

    @abstractmethod
    def step(self, name: str) -> AbstractContextManager[None]:
        """One of them, for the time of the block."""


@contextmanager
def counted(title: str, total: int) -> Iterator[Callable[[], None]]:
    """Gives what is to be called, from any thread, for each of many small things that are done.

    They are too many to be told one by one where there is no terminal.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    with _progress() as progress:
        task = progress.add_task(title, total=total)
        yield lambda: progress.advance(task)


@contextmanager
def steps(title: str, total: int) -> Iterator[Steps]:
    """Shows how many steps are done and which one is under way."""
    if not sys.stderr.isatty():
        yield _Lines(title, total)
        return
    with _progress() as progress:
        yield _Bar(progress, progress.add_task(title, total=total), title)


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


def working(what: str) -> AbstractContextManager[Any]:
    """Shows that something is done that takes a while; nothing where nobody looks."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(what)


class _Bar(Steps):
    def __init__(self, progress: Any, task: Any, title: str) -> None:
        self._progress, self._task, self._title = progress, task, title

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._progress.update(self._task, description=f"{self._title} {name}")
        yield
        self._progress.advance(self._task)


class _Lines(Steps):
    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._begun = title, total, 0

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self._begun += 1
        click.echo(f"{self._title} {name} ({self._begun} of {self._total})", err=True)
        yield

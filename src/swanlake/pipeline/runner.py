"""Units of work on the files of the lake, and what runs them.

Flush and compaction have one shape: plan units from metadata, have them run somewhere, commit what
they wrote. A unit is a plain value that can be sent to another process or another machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import duckdb

R = TypeVar("R")


class Unit(Protocol[R]):
    """Work that writes new files, to which nothing refers until they are committed."""

    def run(self, connection: duckdb.DuckDBPyConnection) -> R:
        """Writes the files and describes them."""

    def undo(self, result: R) -> None:
        """Removes what was written; a file that is gone already is no error."""


class Runner(Protocol):
    """Where units are run."""

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        """The results of all units, in their order; if one fails, all of them are undone.

        The title says which table is worked on and why.
        """

"""Units of work on the files of the lake, and what runs them.

Flush and compaction have one shape: plan units from metadata, have them run somewhere, commit what
they wrote. A unit is a plain value that can be sent to another process or another machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import duckdb
import pyarrow as pa

from swanlake.errors import TransformFailed
from swanlake.lake.layout import DataFile, Table

R = TypeVar("R")


@dataclass(frozen=True)
class TransformPlan:
    """A transform that is to be run: by which name it is known, and what it goes into."""

    key: str
    source: Table
    into: tuple[str, ...]


class Unit(Protocol[R]):
    """Work that writes new files, to which nothing refers until they are committed."""

    def run(self, connection: duckdb.DuckDBPyConnection) -> R:
        """Writes the files and describes them."""

    def undo(self, result: R) -> None:
        """Removes what was written; a file that is gone already is no error."""


class RowsUnit(Protocol):
    """Rows of a table that a transform may change."""

    def rows(self, connection: duckdb.DuckDBPyConnection) -> Iterator[pa.RecordBatch]:
        """All rows, in types that Spark has."""


class Runner(Protocol):
    """Where units are run."""

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        """The results of all units, in their order; if one fails, all of them are undone.

        The title says which table is worked on and why.
        """


class FlushRunner(Runner, Protocol):
    """Where units of the queue are run, whose rows may go through a transform."""

    def transform_of(self, catalog: str, table: Table) -> TransformPlan | None:
        """The transform that rows for a table go through, if there is one."""

    def transform(
        self,
        plan: TransformPlan,
        units: Sequence[RowsUnit],
        targets: Mapping[str, Table],
        title: str,
    ) -> dict[str, tuple[DataFile, ...]]:
        """The files that a transform's results became, by table; if it fails, there are none."""


class WithoutTransforms:
    """The part of a runner that has no Spark, for which transforms are written."""

    def transform_of(self, catalog: str, table: Table) -> None:
        """There are none."""

    def transform(
        self,
        plan: TransformPlan,
        units: Sequence[RowsUnit],
        targets: Mapping[str, Table],
        title: str,
    ) -> dict[str, tuple[DataFile, ...]]:
        raise TransformFailed(f"The transform of {plan.key} needs Spark.")

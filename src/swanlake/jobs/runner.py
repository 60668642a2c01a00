"""Work units on the files of the lake, and the runners that execute them.

Flush and compaction have the same shape: plan units from metadata, run them, commit the files they
wrote. A unit is a plain value that can be sent to another process or machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import duckdb
import pyarrow as pa

from swanlake.errors import TransformFailed
from swanlake.lake.model.layout import DataFile, Table

R = TypeVar("R")


@dataclass(frozen=True)
class RunnerStatus:
    """Where units run, whether they can run now, and the transforms that are declared."""

    #: ``spark`` or ``inline``.
    kind: str
    #: ``ready``, or why it is not.
    state: str
    #: Spark's master or server; empty for an inline runner.
    location: str = ""
    #: The address of Spark's own pages, if they are on.
    ui_url: str | None = None
    #: The target tables of each transform, by its key.
    transforms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class TransformPlan:
    """A transform to run: its key, its source table and the names of its target tables."""

    key: str
    source: Table
    into: tuple[str, ...]


class Unit(Protocol[R]):
    """Work that writes new files; nothing refers to them until they are committed."""

    def run(self, connection: duckdb.DuckDBPyConnection) -> R:
        """Writes the files and describes them."""

    def undo(self, result: R) -> None:
        """Removes the files; one that is gone already is no error."""


class RowsUnit(Protocol):
    """A unit that yields rows of a table for a transform."""

    def rows(self, connection: duckdb.DuckDBPyConnection) -> Iterator[pa.RecordBatch]:
        """All rows, in types that Spark has."""


class Runner(Protocol):
    """Executes units."""

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        """The results of all units, in order; if one fails, all are undone and it raises.

        The title names the table and the purpose, for logs and errors.
        """


class FlushRunner(Runner, Protocol):
    """Executes units of the queue, whose rows may go through a transform."""

    def find_transform(self, catalog: str, table: Table) -> TransformPlan | None:
        """The transform for the rows of a table, if there is one."""

    def transform(
        self,
        plan: TransformPlan,
        units: Sequence[RowsUnit],
        targets: Mapping[str, Table],
        title: str,
    ) -> dict[str, tuple[DataFile, ...]]:
        """The files with a transform's results, by target table; on an error none remain."""


class ServerRunner(FlushRunner, Protocol):
    """The runner of a server, which tells its state."""

    def status(self) -> RunnerStatus:
        """Whether it can run units now."""


class WithoutTransforms:
    """The transform methods of a runner without Spark: there are no transforms."""

    def find_transform(self, catalog: str, table: Table) -> None:
        """None: transforms need Spark."""

    def transform(
        self,
        plan: TransformPlan,
        units: Sequence[RowsUnit],
        targets: Mapping[str, Table],
        title: str,
    ) -> dict[str, tuple[DataFile, ...]]:
        raise TransformFailed(f"The transform of {plan.key} needs Spark.")

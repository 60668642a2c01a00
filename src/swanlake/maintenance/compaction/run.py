"""Compaction of a table: the same rows in few large, sorted files without deleted rows.

Merges, rewrites and flushes of inlined rows are a commit each. They work on disjoint files, so a
run does what its dry run lists, unless the table changes in between.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

from swanlake._internal.waiting import never_cancelled
from swanlake.errors import CommitConflict, SwanLakeError
from swanlake.jobs.runner import Runner
from swanlake.jobs.shared_directories import check_files_visible, make_table_directories
from swanlake.lake.catalog import Catalog
from swanlake.lake.commit.protocol import Retries
from swanlake.lake.model.operations import (
    Commit,
    Compaction,
    FlushInlined,
    InlinedSource,
    Merge,
    Rewrite,
    RewriteSource,
)
from swanlake.lake.model.table_files import TableFiles
from swanlake.maintenance.compaction.plan import (
    CompactionPlan,
    CompactOptions,
    FileGroup,
    SkippedFile,
    plan_compaction,
)
from swanlake.maintenance.compaction.units import (
    CompactResult,
    FlushInlinedUnit,
    MergeUnit,
    RewriteUnit,
)

log = logging.getLogger("swanlake.pipeline")

#: Attempts and back-off while the table is changed concurrently.
RETRIES = Retries(attempts=5, first_wait=0.1, longest_wait=5.0)

U = TypeVar("U", MergeUnit, RewriteUnit, FlushInlinedUnit)


@dataclass(frozen=True)
class CompactStep:
    """Files or inlined rows that become new files; a dry run does not know the new names."""

    #: ``merge``, ``rewrite`` or ``fold``.
    kind: str
    #: Paths, or the metadata table that holds the inlined rows.
    sources: tuple[str, ...]
    #: The paths of the new files; in a dry run the directory of the table.
    outputs: tuple[str, ...]
    rows: int
    bytes_before: int
    #: Estimated in a dry run.
    bytes_after: int


@dataclass(frozen=True)
class CompactReport:
    """The steps that a compaction did or, in a dry run, would do."""

    table: str
    steps: tuple[CompactStep, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()
    snapshot_ids: tuple[int, ...] = ()

    @property
    def files_merged(self) -> int:
        return sum(len(step.sources) for step in self._steps("merge"))

    @property
    def files_rewritten(self) -> int:
        return sum(len(step.sources) for step in self._steps("rewrite"))

    @property
    def inlined_rows_flushed(self) -> int:
        return sum(step.rows for step in self._steps("fold"))

    @property
    def files_made(self) -> int:
        return sum(len(step.outputs) for step in self.steps)

    @property
    def bytes_before(self) -> int:
        return sum(step.bytes_before for step in self.steps)

    @property
    def bytes_after(self) -> int:
        return sum(step.bytes_after for step in self.steps)

    def _steps(self, kind: str) -> list[CompactStep]:
        return [step for step in self.steps if step.kind == kind]


def compact(
    catalog: Catalog,
    table_id: int,
    runner: Runner,
    options: CompactOptions | None = None,
    *,
    dry_run: bool = False,
    check: Callable[[], None] = never_cancelled,
    retries: Retries = RETRIES,
    sleep: Callable[[float], None] = time.sleep,
) -> CompactReport:
    """Compacts a table; a dry run only lists the steps.

    Raises CommitConflict if the table is changed during every attempt; steps that were committed
    before stay. ``check`` is called before each kind of step, never after one: what is committed
    must be reported as done.
    """
    options = options or CompactOptions()
    files = catalog.files(table_id)
    plan = plan_compaction(files, options)
    report = CompactReport(files.table.full_name, skipped=plan.skipped)
    for kind in (_Merges, _Rewrites, _InlinedFlushes):
        steps = kind(catalog, table_id, runner, options, check, retries, sleep)
        report = steps.preview(report, files, plan) if dry_run else steps.run(report)
    return report


@dataclass(frozen=True)
class _Steps(ABC, Generic[U]):
    """The steps of one kind on a table, in a commit of their own."""

    catalog: Catalog
    table_id: int
    runner: Runner
    options: CompactOptions
    check: Callable[[], None]
    retries: Retries
    sleep: Callable[[float], None]
    name: ClassVar[str]

    @abstractmethod
    def units(self, files: TableFiles, plan: CompactionPlan) -> list[U]:
        """The units of a plan."""

    @abstractmethod
    def operations(
        self, files: TableFiles, done: Sequence[tuple[U, CompactResult]]
    ) -> tuple[Compaction, ...]:
        """The operations that commit the results."""

    def preview(
        self, report: CompactReport, files: TableFiles, plan: CompactionPlan
    ) -> CompactReport:
        """The report with the steps that a run would do."""
        steps = tuple(_step(self.name, unit) for unit in self.units(files, plan))
        return replace(report, steps=report.steps + steps)

    def run(self, report: CompactReport) -> CompactReport:
        """Runs and commits the steps; starts over if the table changes meanwhile."""
        for attempt in range(1, self.retries.attempts):
            try:
                return self._attempt(report)
            except CommitConflict as conflict:
                log.info("%s of %s, attempt %d: %s", self.name, report.table, attempt, conflict)
                self.sleep(self.retries.wait_before(attempt))
        return self._attempt(report)

    def _attempt(self, report: CompactReport) -> CompactReport:
        files = self.catalog.files(self.table_id)
        units = self.units(files, plan_compaction(files, self.options))
        if not units:
            return report
        self.check()
        make_table_directories([files.table])
        try:
            results = self.runner.run(units, f"{self.name} files of {report.table}")
            check_files_visible(
                [(files.table, [file for result in results for file in result.written_files])]
            )
        except Exception as error:
            self._check_replaced(files, error)
            raise
        done = list(zip(units, results, strict=True))
        skipped = tuple(
            SkippedFile(path, result.skipped)
            for unit, result in done
            if result.skipped is not None
            for path in _step(self.name, unit).sources
        )
        report = replace(report, skipped=report.skipped + skipped)
        done = [(unit, result) for unit, result in done if result.skipped is None]
        if not done:
            return report
        snapshot_id = self._commit(files, done)
        steps = tuple(self._finished_step(files, unit, result) for unit, result in done)
        snapshot_ids = (*report.snapshot_ids, snapshot_id)
        return replace(report, steps=report.steps + steps, snapshot_ids=snapshot_ids)

    def _commit(self, files: TableFiles, done: Sequence[tuple[U, CompactResult]]) -> int:
        change = Commit(self.operations(files, done), base=files.snapshot_id)
        try:
            writer = f"compaction of {files.table.full_name}"
            return self.catalog.commit(change, writer).snapshot_id
        except SwanLakeError as error:
            if not error.in_doubt:
                for unit, result in done:
                    unit.undo(result)
            raise

    def _check_replaced(self, files: TableFiles, error: Exception) -> None:
        """Raises CommitConflict if files were replaced: they may be deleted while they are read."""
        now = {file.id for file in self.catalog.files(self.table_id).files}
        if any(file.id not in now for file in files.files):
            raise CommitConflict(
                f"Files of the table {files.table.full_name} were replaced while they were read. "
                "Read the table again and repeat it."
            ) from error

    def _finished_step(self, files: TableFiles, unit: U, result: CompactResult) -> CompactStep:
        return replace(
            _step(self.name, unit),
            outputs=tuple(files.table.directory + placed.file.path for placed in result.files),
            bytes_after=sum(placed.file.file_size_bytes for placed in result.files),
        )


@dataclass(frozen=True)
class _Merges(_Steps[MergeUnit]):
    name: ClassVar[str] = "merge"

    def units(self, files: TableFiles, plan: CompactionPlan) -> list[MergeUnit]:
        return [MergeUnit(files.table, group.files) for group in plan.merges]

    def operations(
        self, files: TableFiles, done: Sequence[tuple[MergeUnit, CompactResult]]
    ) -> tuple[Compaction, ...]:
        return tuple(
            Merge(
                files.table,
                tuple(file.id for file in unit.files),
                placed.file,
                placed.begin_snapshot,
                placed.row_id_start,
                placed.partial_max,
            )
            for unit, result in done
            for placed in result.files
        )


@dataclass(frozen=True)
class _Rewrites(_Steps[RewriteUnit]):
    name: ClassVar[str] = "rewrite"

    def units(self, files: TableFiles, plan: CompactionPlan) -> list[RewriteUnit]:
        return [
            RewriteUnit(files.table, group.files, files.oldest_snapshot) for group in plan.rewrites
        ]

    def operations(
        self, files: TableFiles, done: Sequence[tuple[RewriteUnit, CompactResult]]
    ) -> tuple[Compaction, ...]:
        sources = tuple(
            RewriteSource(file.id, file.current_deletes.id if file.current_deletes else None)
            for unit, _ in done
            for file in unit.files
        )
        placed = tuple(file for _, result in done for file in result.files)
        return (Rewrite(files.table, sources, placed),)


@dataclass(frozen=True)
class _InlinedFlushes(_Steps[FlushInlinedUnit]):
    name: ClassVar[str] = "fold"

    def units(self, files: TableFiles, plan: CompactionPlan) -> list[FlushInlinedUnit]:
        return [
            FlushInlinedUnit(
                files.table,
                inlined,
                tuple(self.catalog.inlined_rows(inlined.name, files.snapshot_id)),
                files.oldest_snapshot,
            )
            for inlined in plan.inlined
        ]

    def operations(
        self, files: TableFiles, done: Sequence[tuple[FlushInlinedUnit, CompactResult]]
    ) -> tuple[Compaction, ...]:
        inlined = tuple(InlinedSource(unit.inlined.name, len(unit.rows)) for unit, _ in done)
        placed = tuple(file for _, result in done for file in result.files)
        return (FlushInlined(files.table, inlined, placed),)


def _step(kind: str, unit: MergeUnit | RewriteUnit | FlushInlinedUnit) -> CompactStep:
    """The step of a unit before it has run."""
    outputs = (unit.table.directory,)
    if isinstance(unit, FlushInlinedUnit):
        return CompactStep(kind, (unit.inlined.name,), outputs, unit.inlined.rows, 0, 0)
    group = FileGroup(unit.files)
    return CompactStep(
        kind,
        tuple(file.path for file in unit.files),
        outputs,
        group.rows,
        sum(file.size_bytes for file in unit.files),
        group.size_bytes,
    )

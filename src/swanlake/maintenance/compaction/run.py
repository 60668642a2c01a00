"""Compaction of a table: few large, sorted files without deleted rows, and the same rows.

Merges, rewrites and folds are a commit each. None of them touches what another is about, so what
a dry run lists is what a run does, unless somebody changes the table in between.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar

from swanlake.errors import CommitConflict, SwanLakeError
from swanlake.lake.commit import Retries
from swanlake.lake.lake import Catalog
from swanlake.lake.live_files import TableFiles
from swanlake.lake.operations import (
    Commit,
    Compaction,
    DeletedFrom,
    Fold,
    InlinedRows,
    Merge,
    Rewrite,
)
from swanlake.pipeline.compact_plan import (
    CompactionPlan,
    CompactOptions,
    Group,
    Skipped,
    plan_compaction,
)
from swanlake.pipeline.compact_units import (
    Compacted,
    FoldUnit,
    MergeUnit,
    RewriteUnit,
)
from swanlake.pipeline.runner import Runner
from swanlake.pipeline.sharing import check_seen, share

log = logging.getLogger("swanlake.pipeline")

#: How often, and after which pauses, a table that is changed under it is looked at again.
RETRIES = Retries(attempts=5, first_wait=0.1, longest_wait=5.0)

U = TypeVar("U", MergeUnit, RewriteUnit, FoldUnit)


@dataclass(frozen=True)
class Step:
    """Files, or inlined rows, that become other files; a dry run does not know their names."""

    #: ``merge``, ``rewrite`` or ``fold``.
    kind: str
    #: Paths, or the name of the table of the metadata that keeps the rows.
    sources: tuple[str, ...]
    #: Where the new files are; the table's directory before they are written.
    outputs: tuple[str, ...]
    rows: int
    bytes_before: int
    #: Estimated before the files are written.
    bytes_after: int


@dataclass(frozen=True)
class CompactReport:
    """What a compaction did, or would do."""

    table: str
    steps: tuple[Step, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    snapshot_ids: tuple[int, ...] = ()
    milliseconds: float = 0.0
    dry_run: bool = False

    @property
    def files_merged(self) -> int:
        """How many small files there were."""
        return sum(len(step.sources) for step in self._steps("merge"))

    @property
    def files_rewritten(self) -> int:
        """How many files had deleted rows."""
        return sum(len(step.sources) for step in self._steps("rewrite"))

    @property
    def rows_folded(self) -> int:
        """How many rows were in the metadata."""
        return sum(step.rows for step in self._steps("fold"))

    @property
    def files_made(self) -> int:
        """How many files took their places."""
        return sum(len(step.outputs) for step in self.steps)

    @property
    def bytes_before(self) -> int:
        """The size of all files that were replaced."""
        return sum(step.bytes_before for step in self.steps)

    @property
    def bytes_after(self) -> int:
        """The size of all files that were made."""
        return sum(step.bytes_after for step in self.steps)

    def _steps(self, kind: str) -> list[Step]:
        return [step for step in self.steps if step.kind == kind]


@dataclass(frozen=True)
class Progress:
    """How far one kind of work on a table is."""

    table: str
    kind: str
    done: int
    total: int


def compact(
    catalog: Catalog,
    table_id: int,
    runner: Runner,
    options: CompactOptions | None = None,
    *,
    dry_run: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    retries: Retries = RETRIES,
    sleep: Callable[[float], None] = time.sleep,
) -> CompactReport:
    """Compacts a table, or says what there is to do.

    Raises CommitConflict if others change the table each time it is tried; what was committed by
    then stays.
    """
    started = time.monotonic()
    options = options or CompactOptions()
    files = catalog.files(table_id)
    plan = plan_compaction(files, options)
    report = CompactReport(files.table.full_name, skipped=plan.skipped, dry_run=dry_run)
    job = _Job(catalog, table_id, runner, options, on_progress or _quiet, retries, sleep)
    for kind in (_Merges(job), _Rewrites(job), _Folds(job)):
        report = kind.preview(report, files, plan) if dry_run else kind.run(report)
    seconds = time.monotonic() - started
    return replace(report, milliseconds=round(seconds * 1000, 1))


def _quiet(progress: Progress) -> None:
    pass


@dataclass(frozen=True)
class _Job:
    """Everything that the kinds of work have in common."""

    catalog: Catalog
    table_id: int
    runner: Runner
    options: CompactOptions
    on_progress: Callable[[Progress], None]
    retries: Retries
    sleep: Callable[[float], None]


@dataclass(frozen=True)
class _Kind(ABC, Generic[U]):
    """One kind of work on a table, in a commit of its own."""

    job: _Job
    name: ClassVar[str]

    @abstractmethod
    def units(self, files: TableFiles, plan: CompactionPlan) -> list[U]:
        """What there is to do."""

    @abstractmethod
    def operations(
        self, files: TableFiles, done: Sequence[tuple[U, Compacted]]
    ) -> tuple[Compaction, ...]:
        """What makes the results part of the lake."""

    @abstractmethod
    def step(self, unit: U) -> Step:
        """What a unit is going to do."""

    def preview(
        self, report: CompactReport, files: TableFiles, plan: CompactionPlan
    ) -> CompactReport:
        """The report with what would be done."""
        steps = tuple(self.step(unit) for unit in self.units(files, plan))
        return replace(report, steps=report.steps + steps)

    def run(self, report: CompactReport) -> CompactReport:
        """Does it, again from the start if the table is changed meanwhile."""
        retries = self.job.retries
        for attempt in range(1, retries.attempts):
            try:
                return self._attempt(report)
            except CommitConflict as conflict:
                log.info("%s of %s, attempt %d: %s", self.name, report.table, attempt, conflict)
                self.job.sleep(retries.wait_before(attempt))
        return self._attempt(report)

    def _attempt(self, report: CompactReport) -> CompactReport:
        files = self.job.catalog.files(self.job.table_id)
        units = self.units(files, plan_compaction(files, self.job.options))
        if not units:
            return report
        self._tell(report, 0, len(units))
        share([files.table])
        try:
            results = self.job.runner.run(units, f"{self.name} files of {report.table}")
            check_seen([(files.table, [file for one in results for file in one.written])])
        except Exception as error:
            self._check_still_there(files, error)
            raise
        done = list(zip(units, results, strict=True))
        report = replace(
            report,
            skipped=report.skipped
            + tuple(
                Skipped(path, result.skipped)
                for unit, result in done
                if result.skipped is not None
                for path in self.step(unit).sources
            ),
        )
        done = [(unit, result) for unit, result in done if result.skipped is None]
        if not done:
            return report
        snapshot_id = self._commit(files, done)
        self._tell(report, len(units), len(units))
        return replace(
            report,
            steps=report.steps + tuple(self._done(files, unit, result) for unit, result in done),
            snapshot_ids=(*report.snapshot_ids, snapshot_id),
        )

    def _commit(self, files: TableFiles, done: Sequence[tuple[U, Compacted]]) -> int:
        change = Commit(self.operations(files, done), base=files.snapshot_id)
        try:
            writer = f"compaction of {files.table.full_name}"
            return self.job.catalog.commit(change, writer).snapshot_id
        except SwanLakeError as error:
            if not error.in_doubt:
                for unit, result in done:
                    unit.undo(result)
            raise

    def _check_still_there(self, files: TableFiles, error: Exception) -> None:
        """Files that others replaced may be deleted while they are read: that is a conflict."""
        now = {file.id for file in self.job.catalog.files(self.job.table_id).files}
        if any(file.id not in now for file in files.files):
            raise CommitConflict(
                f"Files of the table {files.table.full_name} were replaced while they were read. "
                "Read the table again and repeat it."
            ) from error

    def _done(self, files: TableFiles, unit: U, result: Compacted) -> Step:
        return replace(
            self.step(unit),
            outputs=tuple(files.table.directory + placed.file.path for placed in result.files),
            bytes_after=sum(placed.file.file_size_bytes for placed in result.files),
        )

    def _tell(self, report: CompactReport, done: int, total: int) -> None:
        self.job.on_progress(Progress(report.table, self.name, done, total))


@dataclass(frozen=True)
class _Merges(_Kind[MergeUnit]):
    name: ClassVar[str] = "merge"

    def units(self, files: TableFiles, plan: CompactionPlan) -> list[MergeUnit]:
        return [MergeUnit(files.table, group.files) for group in plan.merges]

    def operations(
        self, files: TableFiles, done: Sequence[tuple[MergeUnit, Compacted]]
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

    def step(self, unit: MergeUnit) -> Step:
        return _of_files(self.name, unit)


@dataclass(frozen=True)
class _Rewrites(_Kind[RewriteUnit]):
    name: ClassVar[str] = "rewrite"

    def units(self, files: TableFiles, plan: CompactionPlan) -> list[RewriteUnit]:
        return [
            RewriteUnit(files.table, group.files, files.oldest_snapshot) for group in plan.rewrites
        ]

    def operations(
        self, files: TableFiles, done: Sequence[tuple[RewriteUnit, Compacted]]
    ) -> tuple[Compaction, ...]:
        sources = tuple(
            DeletedFrom(file.id, file.current_deletes.id if file.current_deletes else None)
            for unit, _ in done
            for file in unit.files
        )
        placed = tuple(file for _, result in done for file in result.files)
        return (Rewrite(files.table, sources, placed),)

    def step(self, unit: RewriteUnit) -> Step:
        return _of_files(self.name, unit)


@dataclass(frozen=True)
class _Folds(_Kind[FoldUnit]):
    name: ClassVar[str] = "fold"

    def units(self, files: TableFiles, plan: CompactionPlan) -> list[FoldUnit]:
        return [
            FoldUnit(
                files.table,
                inlined,
                tuple(self.job.catalog.inlined_rows(inlined.name, files.snapshot_id)),
                files.oldest_snapshot,
            )
            for inlined in plan.folds
        ]

    def operations(
        self, files: TableFiles, done: Sequence[tuple[FoldUnit, Compacted]]
    ) -> tuple[Compaction, ...]:
        inlined = tuple(InlinedRows(unit.inlined.name, len(unit.rows)) for unit, _ in done)
        placed = tuple(file for _, result in done for file in result.files)
        return (Fold(files.table, inlined, placed),)

    def step(self, unit: FoldUnit) -> Step:
        return Step(
            self.name, (unit.inlined.name,), (unit.table.directory,), unit.inlined.rows, 0, 0
        )


def _of_files(kind: str, unit: MergeUnit | RewriteUnit) -> Step:
    group = Group(unit.files)
    return Step(
        kind,
        tuple(file.path for file in unit.files),
        (unit.table.directory,),
        group.rows,
        sum(file.size_bytes for file in unit.files),
        group.size_bytes,
    )

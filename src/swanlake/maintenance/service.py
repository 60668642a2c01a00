"""Maintenance of catalogs: what a session, a command or the scheduler can have done.

A dry run only reads: it needs no lock and leaves no trace in the history. The stock ``CHECKPOINT``
is never run: it knows neither forks nor the commit fence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb

from swanlake.errors import InvalidRequest, MaintenanceRunning, NotFound, SwanLakeError
from swanlake.jobs.runner import Runner
from swanlake.lake.catalog import Catalog
from swanlake.lake.lake import Lake
from swanlake.lake.lifecycle.expiry import ExpireReport
from swanlake.lake.lifecycle.file_cleanup import DeletableFile
from swanlake.lake.lifecycle.history import MaintenanceEntry
from swanlake.lake.lifecycle.retention import check_rule
from swanlake.lake.read.survey import CatalogSurvey, TableSurvey
from swanlake.maintenance.compaction.run import CompactReport, compact
from swanlake.maintenance.registry import JOBS
from swanlake.maintenance.runs import (
    DEFAULT_CONTROL,
    HISTORY_LIMIT,
    STOPPED,
    WHOLE_LAKE,
    RunControl,
    RunLock,
    Runs,
    one_line,
)
from swanlake.maintenance.settings import MaintenanceSettings
from swanlake.maintenance.triggers import JobTarget, PastRun

#: An uncommitted write may take this long, so younger files are never taken for orphans.
MIN_ORPHAN_AGE = timedelta(hours=1)
#: Errors that do not point to a defect of ours.
_EXPECTED = (SwanLakeError, duckdb.Error, OSError)


@dataclass(frozen=True)
class TableReport:
    """The compaction of one table, or why it failed."""

    catalog: str
    table: TableSurvey
    compaction: CompactReport
    error: str | None = None


class Maintenance:
    """The maintenance jobs of a lake, and what they need to decide when to run."""

    def __init__(
        self,
        lake: Lake,
        runner: Runner,
        settings: MaintenanceSettings,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.settings = settings
        self.runs = Runs(lake, settings.lock_timeout, clock)
        self._lake = lake
        self._runner = runner

    def close(self) -> None:
        """Releases the maintenance locks of this server."""
        self.runs.close()

    def catalogs(self) -> list[str]:
        """The names of all catalogs."""
        return [info.name for info in self._lake.catalogs()]

    def survey(self, catalog: str) -> CatalogSurvey:
        """The numbers of a catalog by which jobs become due."""
        return self._survey(self._lake.catalog(catalog))

    def _survey(self, catalog: Catalog) -> CatalogSurvey:
        options = self.settings.options
        return catalog.survey(options.target_file_size, options.small_file_ratio)

    def history(
        self, catalog: str | None = None, job: str | None = None, limit: int = 100
    ) -> list[MaintenanceEntry]:
        """The runs of all servers, newest first."""
        return self._lake.history(catalog, job, limit)

    def past_runs(self) -> Iterator[PastRun]:
        """The runs of each catalog and of the lake, as far as the history goes back."""
        for catalog in (*self.catalogs(), WHOLE_LAKE):
            for entry in self.history(catalog, limit=HISTORY_LIMIT):
                if entry.job not in JOBS:
                    continue  # recorded by a newer version of the server
                name = None if entry.catalog == WHOLE_LAKE else entry.catalog
                yield PastRun(
                    JobTarget(entry.job, name, entry.table_name),
                    entry.finished_at or entry.started_at,
                    entry.outcome,
                )

    def compact(
        self,
        catalog: str,
        table: tuple[str, str] | None = None,
        control: RunControl = DEFAULT_CONTROL,
        *,
        dry_run: bool = False,
    ) -> list[TableReport]:
        """Compacts a table, by schema and name, or all tables of a catalog that need it.

        Of all tables, a failure of one does not keep the others from being compacted.
        """
        opened = self._lake.catalog(catalog)
        if table is not None:
            layout = opened.table(*table)
            survey = TableSurvey(layout.id, layout.schema, layout.name)
            if dry_run:
                return [self._preview(opened, survey)]
            with self.runs.lock(opened, control) as lock:
                return [self._compact(lock, opened, survey)]
        if dry_run:
            return list(self._previews(opened, control))
        with self.runs.lock(opened, control) as lock:
            return [
                self._try_compact(lock, opened, preview)
                for preview in self._previews(opened, control)
                if preview.compaction.steps
            ]

    def expire(
        self,
        catalog: str,
        control: RunControl = DEFAULT_CONTROL,
        *,
        older_than: timedelta | datetime | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
    ) -> ExpireReport:
        """Expires snapshots of a catalog by the given rule, or by that of the settings."""
        opened = self._lake.catalog(catalog)
        if older_than is None and keep_last is None:
            rules = self.settings.rules
            older_than, keep_last = rules.snapshot_max_age, rules.snapshot_keep_last
        check_rule(older_than, keep_last)
        if dry_run:
            return opened.expire(older_than=older_than, keep_last=keep_last, dry_run=True)
        with self.runs.lock(opened, control) as lock, self.runs.record(lock, "expire") as run:
            report = opened.expire(older_than=older_than, keep_last=keep_last)
            run.succeed(_summarize_expiry(report), idle=not report.snapshots)
            return report

    def cleanup(
        self,
        control: RunControl = DEFAULT_CONTROL,
        *,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> list[DeletableFile]:
        """Deletes files that no snapshot of any catalog has needed for a while."""
        age = self.settings.rules.cleanup_age if older_than is None else older_than
        return self._delete("cleanup", self._lake.cleanup, age, control, dry_run)

    def orphans(
        self,
        control: RunControl = DEFAULT_CONTROL,
        *,
        older_than: timedelta | None = None,
        dry_run: bool = False,
    ) -> list[DeletableFile]:
        """Deletes files under the data paths of catalogs that no catalog refers to."""
        age = self.settings.orphan_age if older_than is None else older_than
        if age < MIN_ORPHAN_AGE:
            raise InvalidRequest(
                "Files that no catalog knows may be about to be committed: those of the last hour "
                f"are never deleted, so {age} is too short."
            )
        return self._delete("orphans", self._lake.delete_orphans, age, control, dry_run)

    def _delete(
        self,
        job: str,
        delete: Callable[..., list[DeletableFile]],
        age: timedelta,
        control: RunControl,
        dry_run: bool,
    ) -> list[DeletableFile]:
        if dry_run:
            return delete(age=age, dry_run=True)
        with self.runs.lock(None, control) as lock, self.runs.record(lock, job) as run:
            files = delete(age=age, dry_run=False)
            run.succeed(_summarize_deletion(files), idle=not files)
            return files

    def _previews(self, catalog: Catalog, control: RunControl) -> Iterator[TableReport]:
        """Dry runs of the tables of a catalog, each made when it is asked for.

        Tables without anything to do are left out, and those whose options ask for it.
        """
        for table in self._survey(catalog).tables:
            control.check()
            may_have_work = table.files > 1 or table.deleted_rows or table.inlined_rows
            if may_have_work and table.options.auto_compact:
                try:
                    yield self._preview(catalog, table)
                except NotFound:
                    continue  # dropped meanwhile

    def _preview(self, catalog: Catalog, table: TableSurvey) -> TableReport:
        report = compact(catalog, table.id, self._runner, self.settings.options, dry_run=True)
        return TableReport(catalog.name, table, report)

    def _try_compact(self, lock: RunLock, catalog: Catalog, preview: TableReport) -> TableReport:
        """Returns an expected error in the report, so that the other tables are compacted too."""
        try:
            return self._compact(lock, catalog, preview.table)
        except (*STOPPED, MaintenanceRunning):
            raise
        except _EXPECTED as error:
            nothing = CompactReport(preview.compaction.table)
            return replace(preview, compaction=nothing, error=one_line(error))

    def _compact(self, lock: RunLock, catalog: Catalog, table: TableSurvey) -> TableReport:
        with self.runs.record(lock, "compact", table.full_name) as run:
            report = compact(
                catalog, table.id, self._runner, self.settings.options, check=lock.check
            )
            run.succeed(_summarize_compaction(report), idle=not report.steps)
        return TableReport(catalog.name, table, report)


def _summarize_compaction(report: CompactReport) -> dict[str, Any]:
    return {
        "files_merged": report.files_merged,
        "files_rewritten": report.files_rewritten,
        "rows_folded": report.inlined_rows_flushed,
        "files_made": report.files_made,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "files_skipped": len(report.skipped),
        "snapshots": list(report.snapshot_ids),
    }


def _summarize_expiry(report: ExpireReport) -> dict[str, Any]:
    return {
        "snapshots": len(report.snapshots),
        "kept": report.kept,
        "files": len(report.files),
        "bytes": report.bytes,
        "tables": list(report.tables),
    }


def _summarize_deletion(files: list[DeletableFile]) -> dict[str, Any]:
    deleted = [file for file in files if file.problem is None]
    report: dict[str, Any] = {"files": len(deleted), "bytes": sum(file.size for file in deleted)}
    problems = [file.problem for file in files if file.problem is not None]
    return report | {"stuck": len(problems), "problem": problems[0]} if problems else report

"""Maintenance of catalogs: one run at a time on each, whoever asks and on whichever server.

Every run is kept in the history of the lake. A dry run only reads, needs no turn and leaves no
trace. The stock ``CHECKPOINT`` is never run: it knows neither forks nor the fence.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb

from swanlake.config import Settings
from swanlake.errors import (
    CommitConflict,
    InvalidRequest,
    MaintenanceRunning,
    NotFound,
    QueryCancelled,
    QueryTimeout,
    SwanLakeError,
)
from swanlake.lake.expiry import ExpireReport, check_rule
from swanlake.lake.gc import Garbage
from swanlake.lake.history import MaintenanceEntry, Outcome
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.survey import CatalogSurvey, TableSurvey
from swanlake.pipeline.compact import CompactReport, Progress, compact
from swanlake.pipeline.compact_plan import CompactOptions
from swanlake.pipeline.runner import Runner
from swanlake.pipeline.triggers import Job, PastRun, Rules, Subject, parse_window

log = logging.getLogger("swanlake.maintenance")

#: Writes may take this long from the first byte of a file to its commit, whatever one asks for.
LEAST_ORPHAN_AGE = timedelta(hours=1)
#: Stands in the history for all catalogs together; none can be called so.
WHOLE_LAKE = "*"
_POLL_SECONDS = 0.1
#: How far back one looks for earlier runs.
_LOOKED_AT = 1000
_KNOWN_JOBS = frozenset(job.value for job in Job)
#: What one would not look for a defect here after.
_EXPECTED = (SwanLakeError, duckdb.Error, OSError)
_STOPPED = (QueryCancelled, QueryTimeout)


@dataclass(frozen=True)
class MaintenanceSettings:
    """What maintenance can be told."""

    options: CompactOptions = field(default_factory=CompactOptions)
    rules: Rules = field(default_factory=Rules)
    orphan_age: timedelta = timedelta(days=2)
    #: How long somebody who asks for maintenance waits for what is under way, in seconds.
    patience: float = 30.0

    @classmethod
    def from_settings(cls, settings: Settings) -> MaintenanceSettings:
        """What the settings say; raises ConfigError."""
        age = settings.maintenance_snapshot_max_age_seconds
        return cls(
            CompactOptions(
                target_file_size=settings.maintenance_target_file_size_bytes,
                deleted_ratio=settings.maintenance_deleted_ratio,
            ),
            Rules(
                small_files=settings.maintenance_small_files,
                small_file_ratio=settings.maintenance_small_file_ratio,
                deleted_ratio=settings.maintenance_deleted_ratio,
                inlined_rows=settings.maintenance_inlined_rows,
                snapshot_max_age=timedelta(seconds=age) if age else None,
                snapshot_keep_last=settings.maintenance_snapshot_keep_last or None,
                cleanup_age=timedelta(seconds=settings.maintenance_cleanup_age_seconds),
                pause=timedelta(seconds=settings.maintenance_pause_seconds),
                window=parse_window(settings.maintenance_window),
            ),
            timedelta(seconds=settings.maintenance_orphan_age_seconds),
            settings.commit_lock_timeout_seconds,
        )


@dataclass(frozen=True)
class TableReport:
    """What became of one table: what was done, or why that failed."""

    catalog: str
    table_id: int
    schema: str
    name: str
    done: CompactReport
    error: str | None = None


def _go_on() -> None:
    pass


@dataclass(frozen=True)
class Caller:
    """Who asks for maintenance: how long they wait for their turn, and whether they still want it.

    ``check`` raises when they do not; it is called between steps, and while waiting.
    """

    check: Callable[[], None] = _go_on
    #: In seconds; None for what the settings say.
    patience: float | None = None


ANYONE = Caller()


class Maintenance:
    """All that a session, a command or the scheduler can have done to the lake."""

    def __init__(
        self,
        lake: Lake,
        runner: Runner,
        settings: MaintenanceSettings,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.settings = settings
        self._lake = lake
        self._runner = runner
        self._clock = clock
        self._claims = lake.claims()
        self._server = f"{socket.gethostname()}:{os.getpid()}"
        #: A claim is the process's; threads need locks beside it.
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def close(self) -> None:
        """Lets others have what this server was maintaining."""
        self._claims.close()

    # ---- looking -------------------------------------------------------------------------------

    def catalogs(self) -> list[str]:
        """The catalogs there are."""
        return [info.name for info in self._lake.catalogs()]

    def survey(self, catalog: str) -> CatalogSurvey:
        """How a catalog is doing, in numbers."""
        return self._survey(self._lake.catalog(catalog))

    def _survey(self, catalog: Catalog) -> CatalogSurvey:
        options = self.settings.options
        return catalog.survey(options.target_file_size, options.small_file_ratio)

    def history(
        self, catalog: str | None = None, job: str | None = None, limit: int = 100
    ) -> list[MaintenanceEntry]:
        """The runs of all servers, newest first."""
        return self._lake.history(catalog, job, limit)

    def past(self) -> Iterator[PastRun]:
        """What the history knows of each catalog, for the decision what is due."""
        for catalog in (*self.catalogs(), WHOLE_LAKE):
            for entry in self.history(catalog, limit=_LOOKED_AT):
                if entry.job not in _KNOWN_JOBS:
                    continue  # noted by a server of a newer version
                yield PastRun(
                    Subject(Job(entry.job), _catalog_of(entry), entry.table_name),
                    entry.finished_at or entry.started_at,
                    entry.outcome,
                )

    # ---- the jobs ------------------------------------------------------------------------------

    def compact(
        self,
        catalog: str,
        table: tuple[str, str] | None = None,
        caller: Caller = ANYONE,
        *,
        dry_run: bool = False,
    ) -> list[TableReport]:
        """Compacts a table, by schema and name, or all tables of a catalog that need it.

        Of all tables, one that fails does not keep the others from being compacted.
        """
        opened = self._lake.catalog(catalog)
        if table is not None:
            found = opened.table(*table)
            one = TableSurvey(found.id, found.schema, found.name)
            if dry_run:
                return [self._preview(opened, one)]
            with self._turn(opened, caller) as turn:
                return [self._compact(turn, opened, one)]
        if dry_run:
            return list(self._previews(opened, caller))
        with self._turn(opened, caller) as turn:
            return [
                self._guarded_compact(turn, opened, preview)
                for preview in self._previews(opened, caller)
                if preview.done.steps
            ]

    def expire(
        self,
        catalog: str,
        caller: Caller = ANYONE,
        *,
        older_than: timedelta | datetime | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
    ) -> ExpireReport:
        """Lets snapshots of a catalog go, by the rule that is given or else by the settings'."""
        opened = self._lake.catalog(catalog)
        if older_than is None and keep_last is None:
            rules = self.settings.rules
            older_than, keep_last = rules.snapshot_max_age, rules.snapshot_keep_last
        check_rule(older_than, keep_last)

        def work(*, dry_run: bool) -> ExpireReport:
            return opened.expire(older_than=older_than, keep_last=keep_last, dry_run=dry_run)

        if dry_run:
            return work(dry_run=True)
        with self._turn(opened, caller) as turn, self._recorded(turn, Job.EXPIRE) as run:
            report = work(dry_run=False)
            run.ended(_expired(report), idle=not report.snapshots)
            return report

    def cleanup(
        self,
        caller: Caller = ANYONE,
        *,
        age: timedelta | None = None,
        dry_run: bool = False,
    ) -> list[Garbage]:
        """Deletes files that no snapshot of any catalog has needed for a while."""
        age = self.settings.rules.cleanup_age if age is None else age
        return self._collect(Job.CLEANUP, self._lake.cleanup, age, caller, dry_run)

    def orphans(
        self,
        caller: Caller = ANYONE,
        *,
        age: timedelta | None = None,
        dry_run: bool = False,
    ) -> list[Garbage]:
        """Deletes files in the places of catalogs that none of them knows."""
        age = self.settings.orphan_age if age is None else age
        if age < LEAST_ORPHAN_AGE:
            raise InvalidRequest(
                "Files that no catalog knows may be about to be committed: those of the last hour "
                f"are never deleted, so {age} is too short."
            )
        return self._collect(Job.ORPHANS, self._lake.orphans, age, caller, dry_run)

    def _collect(
        self,
        job: Job,
        work: Callable[..., list[Garbage]],
        age: timedelta,
        caller: Caller,
        dry_run: bool,
    ) -> list[Garbage]:
        if dry_run:
            return work(age=age, dry_run=True)
        with self._turn(None, caller) as turn, self._recorded(turn, job) as run:
            found = work(age=age, dry_run=False)
            run.ended(_collected(found), idle=not found)
            return found

    # ---- compaction ----------------------------------------------------------------------------

    def _previews(self, catalog: Catalog, caller: Caller) -> Iterator[TableReport]:
        """What there is to do in a catalog, table by table; each is looked at when it is asked for.

        Tables in which there cannot be anything to do are left out, and those whose options ask
        for it.
        """
        for table in self._survey(catalog).tables:
            caller.check()
            something = table.files > 1 or table.deleted_rows or table.inlined_rows
            if something and table.options.auto_compact:
                try:
                    yield self._preview(catalog, table)
                except NotFound:
                    continue  # dropped meanwhile

    def _preview(self, catalog: Catalog, table: TableSurvey) -> TableReport:
        report = compact(catalog, table.id, self._runner, self.settings.options, dry_run=True)
        return TableReport(catalog.name, table.id, table.schema, table.name, report)

    def _guarded_compact(self, turn: _Turn, catalog: Catalog, preview: TableReport) -> TableReport:
        """A failure as an answer, so that the other tables have their turn too."""
        try:
            table = TableSurvey(preview.table_id, preview.schema, preview.name)
            return self._compact(turn, catalog, table)
        except (*_STOPPED, MaintenanceRunning):
            raise
        except _EXPECTED as error:
            nothing = CompactReport(preview.done.table)
            return replace(preview, done=nothing, error=_one_line(error))

    def _compact(self, turn: _Turn, catalog: Catalog, table: TableSurvey) -> TableReport:
        def between_steps(progress: Progress) -> None:
            # Before a step, and not after it: what is committed must be reported as done.
            if progress.done < progress.total:
                turn.check()

        with self._recorded(turn, Job.COMPACT, table.full_name) as run:
            report = compact(
                catalog,
                table.id,
                self._runner,
                self.settings.options,
                on_progress=between_steps,
            )
            run.ended(_compacted(report), idle=not report.steps)
        return TableReport(catalog.name, table.id, table.schema, table.name, report)

    # ---- turns and the history -----------------------------------------------------------------

    @contextmanager
    def _turn(self, catalog: Catalog | None, caller: Caller) -> Iterator[_Turn]:
        """Nobody else maintains the catalog, or cleans the lake up, during the block."""
        name = WHOLE_LAKE if catalog is None else catalog.name
        claim = f"maintenance:{WHOLE_LAKE if catalog is None else catalog.info.id}"
        patience = self.settings.patience if caller.patience is None else caller.patience
        deadline = time.monotonic() + patience
        lock = self._locks[claim]
        while not self._taken(claim, lock):
            caller.check()
            if time.monotonic() >= deadline:
                raise MaintenanceRunning(self._who_is_at_it(name))
            time.sleep(_POLL_SECONDS)

        def check() -> None:
            caller.check()
            if not self._claims.take(claim):  # the connection that held it was lost
                raise MaintenanceRunning(self._who_is_at_it(name))

        try:
            turn = _Turn(name, check)
            self._close_abandoned(turn)
            yield turn
        finally:
            try:
                self._claims.give(claim)
            finally:
                lock.release()

    def _taken(self, claim: str, lock: threading.Lock) -> bool:
        if not lock.acquire(blocking=False):
            return False
        try:
            taken = self._claims.take(claim)
        except BaseException:
            lock.release()
            raise
        if not taken:
            lock.release()
        return taken

    def _who_is_at_it(self, catalog: str) -> str:
        what = "The lake" if catalog == WHOLE_LAKE else f"The catalog {catalog}"
        for entry in self._running(catalog):
            of = f" of {entry.table_name}" if entry.table_name else ""
            return (
                f"{what} is being maintained: {entry.job}{of} by {entry.server} since "
                f"{entry.started_at:%H:%M:%S} UTC. Nothing was done; try again when that is over."
            )
        return f"{what} is being maintained by somebody else. Nothing was done; try again later."

    def _running(self, catalog: str) -> Iterator[MaintenanceEntry]:
        """The runs on a catalog, or on the whole lake, that have no end."""
        for entry in self.history(catalog, limit=_LOOKED_AT):
            if entry.finished_at is None:
                yield entry

    def _close_abandoned(self, turn: _Turn) -> None:
        """Who has the turn knows that whatever else claims to run has died."""
        for entry in self._running(turn.catalog):
            died = {"error": "The server ended before the run did."}
            self._note(entry.finished(Outcome.STOPPED, died, self._clock()))

    @contextmanager
    def _recorded(self, turn: _Turn, job: Job, table: str | None = None) -> Iterator[_Run]:
        """A run in the history: begun, and how it ended."""
        turn.check()
        entry = MaintenanceEntry(turn.catalog, job, self._server, table, self._clock())
        self._lake.record(entry)
        run = _Run()
        try:
            yield run
        except BaseException as error:
            run.outcome = _outcome_of(error)
            run.report = {"error": _one_line(error)}
            raise
        finally:
            self._note(entry.finished(run.outcome, run.report, self._clock()))
            _tell(turn, job, table, run)

    def _note(self, entry: MaintenanceEntry) -> None:
        """Keeps how a run ended; what it did is done, whether or not that can be noted."""
        try:
            self._lake.record(entry)
        except SwanLakeError as unreachable:
            log.warning("the end of %s cannot be noted: %s", entry.job, unreachable)


@dataclass(frozen=True)
class _Turn:
    """The time in which only this caller maintains a catalog, or the lake."""

    catalog: str
    #: Raises if the caller does not want to go on, or the turn was lost.
    check: Callable[[], None]


@dataclass
class _Run:
    """What is said of a run when it is over."""

    outcome: Outcome = Outcome.FAILED
    report: dict[str, Any] = field(default_factory=dict)

    def ended(self, report: dict[str, Any], *, idle: bool) -> None:
        """It did what there was to do."""
        self.outcome, self.report = Outcome.IDLE if idle else Outcome.DONE, report


def _tell(turn: _Turn, job: Job, table: str | None, run: _Run) -> None:
    place = "the lake" if turn.catalog == WHOLE_LAKE else turn.catalog
    where = place if table is None else f"{place} {table}"
    told = ", ".join(f"{key} {value}" for key, value in run.report.items())
    level = logging.WARNING if run.outcome is Outcome.FAILED else logging.INFO
    log.log(level, "%s of %s: %s; %s", job, where, run.outcome, told)


def _compacted(report: CompactReport) -> dict[str, Any]:
    return {
        "files_merged": report.files_merged,
        "files_rewritten": report.files_rewritten,
        "rows_folded": report.rows_folded,
        "files_made": report.files_made,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "files_skipped": len(report.skipped),
        "snapshots": list(report.snapshot_ids),
    }


def _expired(report: ExpireReport) -> dict[str, Any]:
    return {
        "snapshots": len(report.snapshots),
        "kept": report.kept,
        "files": len(report.files),
        "bytes": report.bytes,
        "tables": list(report.tables),
    }


def _collected(found: list[Garbage]) -> dict[str, Any]:
    deleted = [garbage for garbage in found if garbage.problem is None]
    report: dict[str, Any] = {
        "files": len(deleted),
        "bytes": sum(garbage.size for garbage in deleted),
    }
    problems = [garbage.problem for garbage in found if garbage.problem is not None]
    return report | {"stuck": len(problems), "problem": problems[0]} if problems else report


def _catalog_of(entry: MaintenanceEntry) -> str | None:
    return None if entry.catalog == WHOLE_LAKE else entry.catalog


def _outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, CommitConflict):
        return Outcome.SKIPPED  # others change the table all the time
    if isinstance(error, _STOPPED) or not isinstance(error, Exception):
        return Outcome.STOPPED
    return Outcome.FAILED


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

"""The maintenance jobs, each declared once.

The procedure ``CALL swanlake_<name>()``, the command ``swanlake maintain <name>`` and the scheduler
derive from the declarations. To add a job, add it to ``JOBS``. The command line imports this
module, so it must not import the lake.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from swanlake.maintenance.triggers import (
    Candidates,
    DueJob,
    JobTarget,
    PastRun,
    Rules,
    Surveys,
    catalogs_to_expire,
    files_to_delete,
    in_window,
    next_runs,
    orphan_search,
    tables_to_compact,
)

if TYPE_CHECKING:
    from swanlake.lake.lifecycle.expiry import ExpireReport
    from swanlake.lake.lifecycle.file_cleanup import DeletableFile
    from swanlake.maintenance.service import TableReport

Rows = list[dict[str, Any]]

#: Clocks of servers differ by less. A run that is dated later was recorded by a server whose clock
#: is wrong, and would block the job until then.
_MAX_CLOCK_SKEW = timedelta(hours=1)


class ArgumentType(Enum):
    """What an argument is; the procedure and the command parse it accordingly."""

    #: ``t``, ``schema.t`` or ``catalog.schema.t``; a job gets schema and name.
    TABLE = auto()
    #: A job always gets one: by default the catalog of the session.
    CATALOG = auto()
    AGE = auto()
    COUNT = auto()
    FLAG = auto()


@dataclass(frozen=True)
class Argument:
    """An optional argument: ``name := value`` in SQL, ``--name`` on the command line."""

    name: str
    type: ArgumentType
    help: str


@dataclass(frozen=True)
class MaintenanceJob:
    """A kind of maintenance: how it is called, when it is due, and what it reports."""

    #: Also that of the method of the service that does the work and returns a report.
    name: str
    help: str
    #: In the order of the procedure's parameters.
    arguments: tuple[Argument, ...]
    #: The columns of a report, and its rows; the flag says whether it was a dry run.
    columns: pa.Schema
    to_rows: Callable[[Any, bool], Rows]
    candidates: Candidates
    #: The least time between two runs that did not fail; by default the pause of the rules.
    min_interval: timedelta = timedelta(0)
    #: What the command shows while it waits, and instead of an empty report.
    activity: str = "working"
    when_empty: str = "There is nothing to do."

    @property
    def procedure(self) -> str:
        return f"swanlake_{self.name}"


def find_due_jobs(
    now: datetime, rules: Rules, catalogs: Surveys, past: Iterable[PastRun] = ()
) -> list[DueJob]:
    """The jobs to run now, in this order."""
    if not in_window(rules, now):
        return []
    intervals = {job.name: job.min_interval for job in JOBS.values()}
    waits = next_runs((run for run in past if run.at <= now + _MAX_CLOCK_SKEW), rules, intervals)
    due = [
        DueJob(JobTarget(job.name, candidate.catalog, candidate.table_name), candidate)
        for job in JOBS.values()
        for candidate in job.candidates(now, rules, catalogs)
    ]
    return [job for job in due if job.target not in waits or now >= waits[job.target]]


def _table_rows(report: TableReport, dry_run: bool) -> Rows:
    rows: Rows = [
        {
            "action": step.kind,
            "files": 0 if step.kind == "fold" else len(step.sources),
            "rows": step.rows,
            "bytes_before": step.bytes_before,
            "files_made": None if dry_run else len(step.outputs),
            "bytes_after": step.bytes_after,
            "sources": step.sources,
            "outputs": step.outputs,
        }
        for step in report.compaction.steps
    ]
    rows += [
        {"action": "skip", "files": 1, "reason": skipped.reason, "sources": [skipped.path]}
        for skipped in report.compaction.skipped
    ]
    if report.error is not None:
        rows.append({"action": "failed", "reason": report.error})
    common = {
        "catalog_name": report.catalog,
        "schema_name": report.table.schema,
        "table_name": report.table.name,
        "dry_run": dry_run,
    }
    return [common | row for row in rows]


def _expire_rows(report: ExpireReport, dry_run: bool) -> Rows:
    rows: Rows = [
        {
            "kind": "snapshot",
            "name": snapshot.changes,
            "snapshot_id": snapshot.id,
            "snapshot_time": snapshot.time,
        }
        for snapshot in report.snapshots
    ]
    rows += [{"kind": "table", "name": name} for name in report.tables]
    rows += [{"kind": "file", "name": file.path, "bytes": file.size} for file in report.files]
    rows += [{"kind": "rows", "name": name, "rows": count} for name, count in report.rows.items()]
    common = {"catalog_name": report.catalog, "dry_run": dry_run}
    return [common | row for row in rows]


def _deletion_rows(files: list[DeletableFile], dry_run: bool) -> Rows:
    return [
        {
            "catalog_name": file.catalog,
            "reason": file.reason.value,
            "bytes": file.size,
            "dry_run": dry_run,
            "problem": file.problem,
            "path": file.path,
        }
        for file in files
    ]


_DRY_RUN = Argument("dry_run", ArgumentType.FLAG, "Only say what would be done.")
_CATALOG = Argument("catalog", ArgumentType.CATALOG, "The catalog; without it the server's own.")

_DELETED_FILES = pa.schema(
    [
        ("catalog_name", pa.string()),
        ("reason", pa.string()),
        ("bytes", pa.int64()),
        ("dry_run", pa.bool_()),
        # Why the file could not be deleted.
        ("problem", pa.string()),
        ("path", pa.string()),
    ]
)


_JOBS = (
    # In this order: compaction replaces files and expiry frees them, for the clean-up after them.
    MaintenanceJob(
        "compact",
        help="Merge small files, rewrite those with deleted rows, and flush inlined rows to files.",
        arguments=(
            Argument(
                "table", ArgumentType.TABLE, "Only this table: t, schema.t or catalog.schema.t"
            ),
            _DRY_RUN,
            _CATALOG,
        ),
        columns=pa.schema(
            [
                ("catalog_name", pa.string()),
                ("schema_name", pa.string()),
                ("table_name", pa.string()),
                # merge, rewrite, fold; skip and failed have a reason.
                ("action", pa.string()),
                ("files", pa.int64()),
                ("rows", pa.int64()),
                ("bytes_before", pa.int64()),
                ("files_made", pa.int64()),
                ("bytes_after", pa.int64()),
                ("reason", pa.string()),
                ("dry_run", pa.bool_()),
                ("sources", pa.list_(pa.string())),
                ("outputs", pa.list_(pa.string())),
            ]
        ),
        to_rows=lambda reports, dry_run: [
            row for report in reports for row in _table_rows(report, dry_run)
        ],
        candidates=tables_to_compact,
        activity="compacting",
        when_empty="There is nothing to compact.",
    ),
    MaintenanceJob(
        "expire",
        help=(
            "Expire old snapshots: time travel to them ends, and the files that only they need are "
            "free.\n\nWithout --older-than and --keep-last by the server's settings."
        ),
        arguments=(
            Argument("older_than", ArgumentType.AGE, "Only snapshots that are older."),
            Argument(
                "keep_last",
                ArgumentType.COUNT,
                "Not the newest N. With --older-than both conditions must hold.",
            ),
            _DRY_RUN,
            _CATALOG,
        ),
        columns=pa.schema(
            [
                ("catalog_name", pa.string()),
                # snapshot, table, file, rows
                ("kind", pa.string()),
                # For a snapshot its changes; for rows their table in the metadata.
                ("name", pa.string()),
                ("snapshot_id", pa.int64()),
                ("snapshot_time", pa.timestamp("us", tz="UTC")),
                ("rows", pa.int64()),
                ("bytes", pa.int64()),
                ("dry_run", pa.bool_()),
            ]
        ),
        to_rows=_expire_rows,
        candidates=catalogs_to_expire,
        activity="expiring snapshots",
        when_empty="There is no snapshot to expire.",
    ),
    MaintenanceJob(
        "cleanup",
        help="Delete the files that no snapshot of any catalog needs any more.",
        arguments=(
            Argument(
                "older_than", ArgumentType.AGE, "Only files that have been unneeded for longer."
            ),
            _DRY_RUN,
        ),
        columns=_DELETED_FILES,
        to_rows=_deletion_rows,
        candidates=files_to_delete,
        activity="looking for files",
        when_empty="There is nothing to delete.",
    ),
    MaintenanceJob(
        "orphans",
        help="Delete the files that no catalog has ever known, such as those of failed writes.",
        arguments=(
            Argument(
                "older_than",
                ArgumentType.AGE,
                "Only files that are older; never those of the last hour.",
            ),
            _DRY_RUN,
        ),
        columns=_DELETED_FILES,
        to_rows=_deletion_rows,
        candidates=orphan_search,
        # The job lists all files of the lake.
        min_interval=timedelta(days=1),
        activity="looking for files",
        when_empty="There is nothing to delete.",
    ),
)

#: All jobs by name, in the order in which the scheduler runs them.
JOBS: Mapping[str, MaintenanceJob] = {job.name: job for job in _JOBS}

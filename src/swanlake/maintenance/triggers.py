"""Which maintenance is due: decisions over numbers, with the time passed in and no I/O.

A run costs something even if it finds nothing to do, so runs of one job on one target keep a pause
between them. The pause grows while runs fail or find nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, TypeAlias

from swanlake._internal.backoff import backoff
from swanlake.errors import ConfigError

if TYPE_CHECKING:  # the command line imports this module, and must not import the lake
    from swanlake.lake.lifecycle.history import Outcome
    from swanlake.lake.read.survey import CatalogSurvey, TableSurvey

#: The pause after runs without effect grows up to this.
_MAX_PAUSE = timedelta(hours=1)
_WITHOUT_EFFECT = frozenset({"idle", "skipped", "failed"})


@dataclass(frozen=True)
class JobTarget:
    """A job, and the catalog or table it works on; without a catalog, the whole lake."""

    job: str
    catalog: str | None = None
    #: ``schema.table``
    table: str | None = None


@dataclass(frozen=True)
class Candidate:
    """Something that a job may be run on, and why."""

    reason: str
    catalog: str | None = None
    table: TableSurvey | None = None

    @property
    def table_name(self) -> str | None:
        return None if self.table is None else self.table.full_name


@dataclass(frozen=True)
class DueJob:
    """A job to run now."""

    target: JobTarget
    candidate: Candidate


@dataclass(frozen=True)
class PastRun:
    """A run that is over or under way."""

    target: JobTarget
    #: When it ended, or started if it has not.
    at: datetime
    #: None while it is under way.
    outcome: Outcome | None


@dataclass(frozen=True)
class Window:
    """Hours of the day, in UTC; a window that ends before it begins spans midnight."""

    begin: time
    end: time

    def __contains__(self, now: datetime) -> bool:
        at = now.time()
        if self.begin < self.end:
            return self.begin <= at < self.end
        return at >= self.begin or at < self.end


def parse_window(text: str) -> Window | None:
    """The window that a setting describes; None for all day. Raises ConfigError."""
    if not text.strip():
        return None
    try:
        begin, end = (time.fromisoformat(part.strip()) for part in text.split("-"))
        if begin == end or begin.tzinfo or end.tzinfo:
            raise ValueError(text)
    except ValueError:
        raise ConfigError(
            f"maintenance_window: {text!r} is not two times in UTC such as 01:00-05:00."
        ) from None
    return Window(begin, end)


@dataclass(frozen=True)
class Rules:
    """When a job is worth running."""

    small_files: int = 10
    small_file_ratio: float = 0.25
    deleted_ratio: float = 0.25
    inlined_rows: int = 1000
    #: Without these two, snapshots never expire.
    snapshot_max_age: timedelta | None = None
    snapshot_keep_last: int | None = None
    cleanup_age: timedelta = timedelta(days=1)
    pause: timedelta = timedelta(minutes=10)
    window: Window | None = None


def in_window(rules: Rules, now: datetime) -> bool:
    """True if automatic maintenance may start at this time."""
    return rules.window is None or now in rules.window


Surveys: TypeAlias = "Mapping[str, CatalogSurvey]"
Candidates = Callable[[datetime, Rules, Surveys], Iterable[Candidate]]


def tables_to_compact(now: datetime, rules: Rules, catalogs: Surveys) -> Iterator[Candidate]:
    """The tables that are worth compacting."""
    for name, survey in catalogs.items():
        for table in survey.tables:
            if reason := compact_reason(table, rules):
                yield Candidate(reason, name, table)


def catalogs_to_expire(now: datetime, rules: Rules, catalogs: Surveys) -> Iterator[Candidate]:
    """The catalogs with snapshots that the rules let expire."""
    for name, survey in catalogs.items():
        if reason := expire_reason(survey, rules, now):
            yield Candidate(reason, name)


def files_to_delete(now: datetime, rules: Rules, catalogs: Surveys) -> Iterator[Candidate]:
    """The lake, if it has files that were not needed for the clean-up age."""
    waiting = [
        survey.unneeded_files
        for survey in catalogs.values()
        if survey.unneeded_since is not None and now - survey.unneeded_since > rules.cleanup_age
    ]
    if waiting:
        yield Candidate(f"{sum(waiting)} files wait to be deleted")


def orphan_search(now: datetime, rules: Rules, catalogs: Surveys) -> Iterator[Candidate]:
    """The lake, always: orphans cannot be counted without a search."""
    yield Candidate("files that no catalog knows are looked for every day")


def compact_reason(table: TableSurvey, rules: Rules) -> str | None:
    """Why a table is worth compacting; None if it is not."""
    if not table.options.auto_compact:
        return None
    if (
        table.small_files >= rules.small_files
        and table.small_files >= rules.small_file_ratio * table.files
    ):
        return f"{table.small_files} of {table.files} files are small"
    ratio = table.options.deleted_ratio
    ratio = rules.deleted_ratio if ratio is None else ratio
    if table.deleted_rows and table.deleted_rows >= ratio * table.rows:
        return f"{table.deleted_rows} of {table.rows} rows are deleted"
    if table.inlined_rows >= rules.inlined_rows:
        return f"{table.inlined_rows} rows are in the metadata"
    return None


def expire_reason(survey: CatalogSurvey, rules: Rules, now: datetime) -> str | None:
    """Why snapshots of a catalog expire; None if none does.

    Under both rules a snapshot expires only if each of them lets it.
    """
    age, keep = rules.snapshot_max_age, rules.snapshot_keep_last
    if age is None and keep is None:
        return None
    if survey.snapshots <= (keep or 1):
        return None
    if age is not None and (survey.oldest_snapshot is None or now - survey.oldest_snapshot <= age):
        return None
    return f"{survey.snapshots} snapshots are kept, the oldest of {survey.oldest_snapshot}"


def next_runs(
    past: Iterable[PastRun], rules: Rules, min_intervals: Mapping[str, timedelta]
) -> dict[JobTarget, datetime]:
    """The earliest time of the next run, for each target that has past runs."""
    runs: dict[JobTarget, list[PastRun]] = {}
    for run in past:
        runs.setdefault(run.target, []).append(run)
    return {
        target: max(run.at for run in target_runs)
        + _pause(target_runs, rules, min_intervals.get(target.job, timedelta(0)))
        for target, target_runs in runs.items()
    }


def _pause(runs: list[PastRun], rules: Rules, min_interval: timedelta) -> timedelta:
    newest_first = sorted(runs, key=lambda run: run.at, reverse=True)
    if min_interval and newest_first[0].outcome != "failed":
        return max(rules.pause, min_interval)
    if rules.pause >= _MAX_PAUSE:
        return rules.pause
    without_effect = len(list(takewhile(lambda run: run.outcome in _WITHOUT_EFFECT, newest_first)))
    seconds = backoff(
        without_effect + 1,
        first=rules.pause.total_seconds(),
        longest=_MAX_PAUSE.total_seconds(),
        jitter=0,
    )
    return timedelta(seconds=seconds)

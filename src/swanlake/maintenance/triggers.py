"""Which maintenance is due: decisions over numbers, with the time passed in and no I/O.

A run costs something even if it finds nothing to do, so runs of one kind keep a distance; runs that
bring nothing, because they fail or find nothing, keep a growing one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from enum import StrEnum
from itertools import takewhile

from swanlake.errors import ConfigError
from swanlake.lake.history import Outcome
from swanlake.lake.survey import CatalogSurvey, TableSurvey

#: However often it brought nothing, a job is tried again after this time.
_LONGEST_PAUSE = timedelta(hours=1)
#: Of a pause; the longest one is reached before, unless it was next to nothing.
_MOST_DOUBLINGS = 20
#: The clocks of servers are no further apart. A run that is said to be later was noted by one whose
#: clock is wrong, and would keep all others from the job until that time has come.
_CLOCKS_APART = timedelta(hours=1)
#: All files of the lake are listed for it.
_ORPHANS_PAUSE = timedelta(days=1)


class Job(StrEnum):
    """The kinds of maintenance, in the order in which they are done.

    Compaction replaces files and expiry frees them, for the clean-up that comes after them.
    """

    COMPACT = "compact"
    EXPIRE = "expire"
    CLEANUP = "cleanup"
    ORPHANS = "orphans"


_FRUITLESS = frozenset({Outcome.IDLE, Outcome.SKIPPED, Outcome.FAILED})


@dataclass(frozen=True)
class Subject:
    """What a job is done on; clean-ups are done on the whole lake."""

    job: Job
    catalog: str | None = None
    #: ``schema.table``
    table: str | None = None


@dataclass(frozen=True)
class Due:
    """A job to be done now, and why."""

    subject: Subject
    reason: str
    #: The table of the subject.
    table: TableSurvey | None = None


@dataclass(frozen=True)
class PastRun:
    """A run that is over or under way, and when it was last heard of."""

    subject: Subject
    at: datetime
    #: None while it is under way.
    outcome: Outcome | None


@dataclass(frozen=True)
class Window:
    """Hours of the day, in UTC; one that ends before it begins goes across midnight."""

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
    """When something is worth doing."""

    small_files: int = 10
    small_file_ratio: float = 0.25
    deleted_ratio: float = 0.25
    inlined_rows: int = 1000
    #: Without these two snapshots are kept for ever.
    snapshot_max_age: timedelta | None = None
    snapshot_keep_last: int | None = None
    cleanup_age: timedelta = timedelta(days=1)
    pause: timedelta = timedelta(minutes=10)
    window: Window | None = None


def is_open(rules: Rules, now: datetime) -> bool:
    """True if maintenance may begin by itself at this time."""
    return rules.window is None or now in rules.window


def due(
    now: datetime,
    rules: Rules,
    catalogs: Mapping[str, CatalogSurvey],
    past: Iterable[PastRun] = (),
) -> list[Due]:
    """What is to be done now, in this order."""
    if not is_open(rules, now):
        return []
    waits = _waits((run for run in past if run.at <= now + _CLOCKS_APART), rules)
    return [
        one
        for one in _wanted(now, rules, catalogs)
        if one.subject not in waits or now >= waits[one.subject]
    ]


def _wanted(now: datetime, rules: Rules, catalogs: Mapping[str, CatalogSurvey]) -> Iterator[Due]:
    for name, survey in catalogs.items():
        for table in survey.tables:
            reason = compact_reason(table, rules)
            if reason:
                yield Due(Subject(Job.COMPACT, name, table.full_name), reason, table)
    for name, survey in catalogs.items():
        reason = expire_reason(survey, rules, now)
        if reason:
            yield Due(Subject(Job.EXPIRE, name), reason)
    waiting = [
        survey.unneeded_files
        for survey in catalogs.values()
        if survey.unneeded_since is not None and now - survey.unneeded_since > rules.cleanup_age
    ]
    if waiting:
        yield Due(Subject(Job.CLEANUP), f"{sum(waiting)} files wait to be deleted")
    yield Due(Subject(Job.ORPHANS), "files that no catalog knows are looked for every day")


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
    """Why snapshots of a catalog may go; None if none may.

    Under both rules at once only a snapshot that both let go does.
    """
    age, keep = rules.snapshot_max_age, rules.snapshot_keep_last
    if age is None and keep is None:
        return None
    if survey.snapshots <= (keep or 1):
        return None
    if age is not None and (survey.oldest_snapshot is None or now - survey.oldest_snapshot <= age):
        return None
    return f"{survey.snapshots} snapshots are kept, the oldest of {survey.oldest_snapshot}"


def _waits(past: Iterable[PastRun], rules: Rules) -> dict[Subject, datetime]:
    """Until when each subject is left alone."""
    runs: dict[Subject, list[PastRun]] = {}
    for run in past:
        runs.setdefault(run.subject, []).append(run)
    return {
        subject: max(run.at for run in of_subject) + _pause(subject, of_subject, rules)
        for subject, of_subject in runs.items()
    }


def _pause(subject: Subject, runs: list[PastRun], rules: Rules) -> timedelta:
    newest_first = sorted(runs, key=lambda run: run.at, reverse=True)
    if subject.job is Job.ORPHANS and newest_first[0].outcome is not Outcome.FAILED:
        return max(rules.pause, _ORPHANS_PAUSE)
    if rules.pause >= _LONGEST_PAUSE:
        return rules.pause
    fruitless = len(list(takewhile(lambda run: run.outcome in _FRUITLESS, newest_first)))
    doublings: int = 2 ** min(fruitless, _MOST_DOUBLINGS)
    return min(_LONGEST_PAUSE, rules.pause * doublings)

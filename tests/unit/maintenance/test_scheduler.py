"""The scheduler with a clock of the test's own, and nothing behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any, cast

import pytest

from swanlake.errors import CatalogUnreachable, MaintenanceRunning, QueryCancelled
from swanlake.lake.history import Outcome
from swanlake.lake.survey import CatalogSurvey, TableSurvey
from swanlake.pipeline.maintain import Caller, Maintenance, MaintenanceSettings
from swanlake.pipeline.scheduler import Scheduler
from swanlake.pipeline.triggers import Job, PastRun, Rules, Subject, Window

DAY = timedelta(days=1)
WAIT_SECONDS = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class PretendedMaintenance:
    """Notes what it is told to do; ``troubles`` are raised in its place."""

    def __init__(self, clock: Clock, rules: Rules) -> None:
        self.settings = MaintenanceSettings(rules=rules)
        self.done: list[Subject] = []
        self.troubles: dict[str, Exception] = {}
        self._clock = clock
        self._past: list[PastRun] = []
        worn = TableSurvey(1, "main", "t", files=20, small_files=20)
        self.worn = CatalogSurvey((worn,), 9, clock.now - 9 * DAY, 4, clock.now - 3 * DAY)

    def catalogs(self) -> list[str]:
        return ["a", "b"]

    def survey(self, catalog: str) -> CatalogSurvey:
        self._trouble(f"survey {catalog}")
        return self.worn

    def past(self) -> Iterator[PastRun]:
        self._trouble("past")
        return iter(self._past)

    def compact(self, catalog: str, table: tuple[str, str], caller: Caller) -> None:
        self._do(Subject(Job.COMPACT, catalog, ".".join(table)), caller)

    def expire(self, catalog: str, caller: Caller) -> None:
        self._do(Subject(Job.EXPIRE, catalog), caller)

    def cleanup(self, caller: Caller) -> None:
        self._do(Subject(Job.CLEANUP), caller)

    def orphans(self, caller: Caller) -> None:
        self._do(Subject(Job.ORPHANS), caller)

    def _do(self, subject: Subject, caller: Caller) -> None:
        assert caller.patience == 0
        caller.check()
        self.done.append(subject)
        outcome = Outcome.FAILED if subject.job in self.troubles else Outcome.DONE
        self._past.append(PastRun(subject, self._clock(), outcome))
        self._trouble(subject.job)

    def _trouble(self, what: str) -> None:
        if what in self.troubles:
            raise self.troubles[what]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def pretended(clock: Clock, **rules: Any) -> tuple[PretendedMaintenance, Scheduler]:
    maintenance = PretendedMaintenance(clock, Rules(snapshot_max_age=7 * DAY, **rules))
    return maintenance, Scheduler(cast("Maintenance", maintenance), 300.0, clock)


EVERYTHING = [
    Subject(Job.COMPACT, "a", "main.t"),
    Subject(Job.COMPACT, "b", "main.t"),
    Subject(Job.EXPIRE, "a"),
    Subject(Job.EXPIRE, "b"),
    Subject(Job.CLEANUP),
    Subject(Job.ORPHANS),
]


def test_everything_that_is_due_is_done_once(clock: Clock) -> None:
    maintenance, scheduler = pretended(clock)
    scheduler.look()
    assert maintenance.done == EVERYTHING
    scheduler.look()
    assert maintenance.done == EVERYTHING
    clock.now += timedelta(minutes=10)
    scheduler.look()
    assert maintenance.done == EVERYTHING + EVERYTHING[:-1]  # orphans once a day


def test_nothing_begins_outside_the_window(clock: Clock) -> None:
    maintenance, scheduler = pretended(clock, window=Window(time(4), time(5)))
    scheduler.look()
    assert maintenance.done == []
    clock.now += timedelta(hours=1)
    scheduler.look()
    assert maintenance.done == EVERYTHING


def test_the_window_may_close_between_two_jobs(clock: Clock) -> None:
    maintenance, scheduler = pretended(clock, window=Window(time(3), time(4)))
    begun = maintenance.compact

    def slow(catalog: str, table: tuple[str, str], caller: Caller) -> None:
        begun(catalog, table, caller)
        clock.now += timedelta(hours=1)

    maintenance.compact = slow  # type: ignore[method-assign]
    scheduler.look()
    assert maintenance.done == EVERYTHING[:1]


@pytest.mark.parametrize(
    "trouble",
    [
        CatalogUnreachable("The lake is gone."),
        MaintenanceRunning("Somebody else is at it."),
        RuntimeError("a defect"),
    ],
)
def test_a_failure_does_not_keep_the_rest_from_being_done(
    clock: Clock, trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    maintenance, scheduler = pretended(clock)
    maintenance.troubles = {"compact": trouble, "cleanup": trouble}
    with caplog.at_level("INFO"):
        scheduler.look()
    assert maintenance.done == EVERYTHING
    assert any(str(trouble) in record.getMessage() or record.exc_info for record in caplog.records)


def test_a_catalog_that_cannot_be_looked_at_does_not_hide_the_others(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    maintenance, scheduler = pretended(clock)
    maintenance.troubles = {"survey a": CatalogUnreachable("It is gone.")}
    scheduler.look()
    assert {subject.catalog for subject in maintenance.done} == {"b", None}
    assert "the catalog a cannot be looked at: It is gone." in caplog.messages


def test_without_the_history_nothing_is_done(clock: Clock) -> None:
    maintenance, scheduler = pretended(clock)
    maintenance.troubles = {"past": CatalogUnreachable("It is gone.")}
    scheduler.look()
    assert maintenance.done == []


def test_a_stop_ends_what_is_under_way_at_its_next_step(clock: Clock) -> None:
    maintenance, _ = pretended(clock)
    reached, ended = threading.Event(), threading.Event()

    def blocked(catalog: str, table: tuple[str, str], caller: Caller) -> None:
        reached.set()
        raises_when_stopped(caller.check)
        ended.set()
        raise QueryCancelled("The server is shutting down.")

    maintenance.compact = blocked  # type: ignore[method-assign]
    scheduler = Scheduler(cast("Maintenance", maintenance), 0.01, clock)
    scheduler.start()
    assert reached.wait(WAIT_SECONDS)
    scheduler.stop(WAIT_SECONDS)
    assert ended.is_set()
    assert maintenance.done == []


def raises_when_stopped(check: Callable[[], None]) -> None:
    """Steps one after the other, until the caller does not want more."""
    step = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.01)):
        try:
            check()
        except QueryCancelled:
            return
        step.wait(0.01)
    raise AssertionError("nobody stopped it")


def test_a_stop_before_the_start_is_none(clock: Clock) -> None:
    _, scheduler = pretended(clock)
    scheduler.stop(0)

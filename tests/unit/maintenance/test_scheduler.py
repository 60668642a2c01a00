"""The scheduler with a fake clock and a fake service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any, cast

import pytest

from swanlake.config import Settings
from swanlake.errors import CatalogUnreachable, MaintenanceRunning, QueryCancelled
from swanlake.lake.lifecycle.history import Outcome
from swanlake.lake.read.survey import CatalogSurvey, TableSurvey
from swanlake.maintenance.runs import RunControl
from swanlake.maintenance.scheduler import Scheduler
from swanlake.maintenance.service import Maintenance
from swanlake.maintenance.settings import MaintenanceSettings
from swanlake.maintenance.triggers import JobTarget, PastRun, Rules, Window

DAY = timedelta(days=1)
WAIT_SECONDS = 30.0


class Clock:
    def __init__(self) -> None:
        self.now = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


class FakeMaintenance:
    """Records the jobs it runs; ``errors`` are raised instead of running."""

    def __init__(self, clock: Clock, rules: Rules) -> None:
        self.settings = MaintenanceSettings(rules=rules)
        self.done: list[JobTarget] = []
        self.errors: dict[str, Exception] = {}
        self._clock = clock
        self._past: list[PastRun] = []
        worn = TableSurvey(1, "main", "t", files=20, small_files=20)
        self.worn = CatalogSurvey((worn,), 9, clock.now - 9 * DAY, 4, clock.now - 3 * DAY)

    def catalogs(self) -> list[str]:
        return ["a", "b"]

    def survey(self, catalog: str) -> CatalogSurvey:
        self._raise_for(f"survey {catalog}")
        return self.worn

    def past_runs(self) -> Iterator[PastRun]:
        self._raise_for("past")
        return iter(self._past)

    def compact(self, catalog: str, table: tuple[str, str], control: RunControl) -> None:
        self._do(JobTarget("compact", catalog, ".".join(table)), control)

    def expire(self, catalog: str, control: RunControl) -> None:
        self._do(JobTarget("expire", catalog), control)

    def cleanup(self, control: RunControl) -> None:
        self._do(JobTarget("cleanup"), control)

    def orphans(self, control: RunControl) -> None:
        self._do(JobTarget("orphans"), control)

    def _do(self, subject: JobTarget, control: RunControl) -> None:
        assert control.lock_timeout == 0
        control.check()
        self.done.append(subject)
        outcome = Outcome.FAILED if subject.job in self.errors else Outcome.DONE
        self._past.append(PastRun(subject, self._clock(), outcome))
        self._raise_for(subject.job)

    def _raise_for(self, what: str) -> None:
        if what in self.errors:
            raise self.errors[what]


@pytest.fixture
def clock() -> Clock:
    return Clock()


def fake_scheduler(clock: Clock, **rules: Any) -> tuple[FakeMaintenance, Scheduler]:
    maintenance = FakeMaintenance(clock, Rules(snapshot_max_age=7 * DAY, **rules))
    return maintenance, Scheduler(cast("Maintenance", maintenance), 300.0, clock)


EVERYTHING = [
    JobTarget("compact", "a", "main.t"),
    JobTarget("compact", "b", "main.t"),
    JobTarget("expire", "a"),
    JobTarget("expire", "b"),
    JobTarget("cleanup"),
    JobTarget("orphans"),
]


def test_due_jobs_run_once(clock: Clock) -> None:
    maintenance, scheduler = fake_scheduler(clock)
    scheduler.run_due_jobs()
    assert maintenance.done == EVERYTHING
    scheduler.run_due_jobs()
    assert maintenance.done == EVERYTHING
    clock.now += timedelta(minutes=10)
    scheduler.run_due_jobs()
    assert maintenance.done == EVERYTHING + EVERYTHING[:-1]  # orphans once a day


def test_no_job_starts_outside_the_window(clock: Clock) -> None:
    maintenance, scheduler = fake_scheduler(clock, window=Window(time(4), time(5)))
    scheduler.run_due_jobs()
    assert maintenance.done == []
    clock.now += timedelta(hours=1)
    scheduler.run_due_jobs()
    assert maintenance.done == EVERYTHING


def test_settings_limit_the_window_and_the_pause(clock: Clock) -> None:
    settings = Settings(maintenance_window="22:00-04:00", maintenance_pause_seconds=1200)
    rules = replace(MaintenanceSettings.from_settings(settings).rules, snapshot_max_age=7 * DAY)
    maintenance = FakeMaintenance(clock, rules)
    scheduler = Scheduler(cast("Maintenance", maintenance), 300.0, clock)
    runs = []
    for minutes in (59, 60, 79, 80, 179, 419, 420):  # after 21:00
        clock.now = datetime(2026, 11, 16, 21, 0, tzinfo=UTC) + timedelta(minutes=minutes)
        before = len(maintenance.done)
        scheduler.run_due_jobs()
        if JobTarget("cleanup") in maintenance.done[before:]:
            runs.append(f"{clock.now:%H:%M}")
    assert runs == ["22:00", "22:20", "23:59", "03:59"]


def test_window_may_close_between_two_jobs(clock: Clock) -> None:
    maintenance, scheduler = fake_scheduler(clock, window=Window(time(3), time(4)))
    begun = maintenance.compact

    def slow(catalog: str, table: tuple[str, str], control: RunControl) -> None:
        begun(catalog, table, control)
        clock.now += timedelta(hours=1)

    maintenance.compact = slow  # type: ignore[method-assign]
    scheduler.run_due_jobs()
    assert maintenance.done == EVERYTHING[:1]


@pytest.mark.parametrize(
    "trouble",
    [
        CatalogUnreachable("The lake is gone."),
        MaintenanceRunning("Another server runs it."),
        RuntimeError("a defect"),
    ],
)
def test_failure_does_not_stop_other_jobs(
    clock: Clock, trouble: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    maintenance, scheduler = fake_scheduler(clock)
    maintenance.errors = {"compact": trouble, "cleanup": trouble}
    with caplog.at_level("INFO"):
        scheduler.run_due_jobs()
    assert maintenance.done == EVERYTHING
    assert any(str(trouble) in record.getMessage() or record.exc_info for record in caplog.records)


def test_unreachable_catalog_does_not_hide_the_others(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    maintenance, scheduler = fake_scheduler(clock)
    maintenance.errors = {"survey a": CatalogUnreachable("It is gone.")}
    scheduler.run_due_jobs()
    assert {subject.catalog for subject in maintenance.done} == {"b", None}
    assert "the catalog a cannot be surveyed: It is gone." in caplog.messages


def test_no_job_runs_without_the_history(clock: Clock) -> None:
    maintenance, scheduler = fake_scheduler(clock)
    maintenance.errors = {"past": CatalogUnreachable("It is gone.")}
    scheduler.run_due_jobs()
    assert maintenance.done == []


def test_stop_ends_a_running_job_at_its_next_step(clock: Clock) -> None:
    maintenance, _ = fake_scheduler(clock)
    reached, ended = threading.Event(), threading.Event()

    def blocked(catalog: str, table: tuple[str, str], control: RunControl) -> None:
        reached.set()
        raises_when_stopped(control.check)
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
    """Runs steps until the check raises."""
    step = threading.Event()
    for _ in range(int(WAIT_SECONDS / 0.01)):
        try:
            check()
        except QueryCancelled:
            return
        step.wait(0.01)
    raise AssertionError("the job was not stopped")


def test_stop_before_start_does_nothing(clock: Clock) -> None:
    _, scheduler = fake_scheduler(clock)
    scheduler.stop(0)

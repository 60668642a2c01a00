"""Health checks: each result, and what a check that hangs holds up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator

import pytest

from swanlake.errors import QueueUnavailable
from swanlake.status.health import Check, CheckReport, HealthMonitor
from tests.waiting import eventually


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Lets the hanging checks of a test end, at the latest with the test."""
    event = threading.Event()
    yield event
    event.set()


def run_once(monitor: HealthMonitor) -> list[CheckReport]:
    """The results once every check that is due has ended."""
    monitor.tick()
    ended = eventually(lambda: [one for one in [monitor.report()] if _all_ended(one.checks)])
    return list(ended[0].checks)


def _all_ended(checks: tuple[CheckReport, ...]) -> bool:
    return all(check.age_seconds is not None for check in checks)


def check(name: str, run: Callable[[], object], interval: float = 5.0) -> Check:
    return Check(name, f"The {name} fails.", run, interval)


def test_unchecked_server_is_not_ready() -> None:
    monitor = HealthMonitor([check("disk", lambda: None)], Clock())
    report = monitor.report()
    assert not report.is_ok
    assert report.reasons == ("The disk was not checked yet.",)


def test_failure_is_reported_without_its_details() -> None:
    def fail() -> None:
        raise QueueUnavailable("no space\nfor password=secret")

    monitor = HealthMonitor([check("disk", fail), check("memory", lambda: None)], Clock())
    disk, memory = run_once(monitor)
    assert not disk.is_ok
    assert disk.reason == "The disk fails."
    assert disk.detail == "QUEUE_UNAVAILABLE: no space for password=secret"
    assert memory.is_ok
    assert monitor.report().reasons == ("The disk fails.",)


def test_result_has_an_age_and_is_renewed_after_the_interval() -> None:
    clock, calls = Clock(), []
    monitor = HealthMonitor([check("disk", lambda: calls.append(1))], clock)
    run_once(monitor)
    clock.now += 4
    monitor.tick()
    assert monitor.report().checks[0].age_seconds == 4
    clock.now += 1
    monitor.tick()
    eventually(lambda: len(calls) == 2)
    eventually(lambda: monitor.report().checks[0].age_seconds == 0)


def test_check_that_hangs_fails_at_its_deadline_and_holds_up_no_other(
    gate: threading.Event,
) -> None:
    clock, others = Clock(), []
    monitor = HealthMonitor(
        [check("disk", gate.wait), check("memory", lambda: others.append(1))], clock
    )
    monitor.tick()
    eventually(lambda: others)
    clock.now += 11
    monitor.tick()
    eventually(lambda: len(others) == 2)
    disk = monitor.report().checks[0]
    assert not disk.is_ok
    assert "no answer within" in disk.detail
    gate.set()
    eventually(lambda: monitor.report().checks[0].is_ok)


def test_running_monitor_logs_a_change_once(caplog: pytest.LogCaptureFixture) -> None:
    works = threading.Event()
    called = 0

    def run() -> None:
        nonlocal called
        called += 1
        if not works.is_set():
            raise OSError("gone")

    caplog.set_level(logging.INFO, "swanlake.status")
    monitor = HealthMonitor([check("disk", run, interval=0)])
    reports: list[bool] = []
    monitor.listeners.append(lambda report: reports.append(report.is_ok))
    monitor.start()
    assert monitor.is_running
    try:
        eventually(lambda: called >= 2 and reports)
        works.set()
        eventually(lambda: reports[-1])
    finally:
        monitor.stop()
    assert [record.getMessage() for record in caplog.records] == [
        "The disk fails. gone",
        "the disk works again",
    ]


def test_checks_run_on_demand_at_most_once_per_interval() -> None:
    clock, runs = Clock(), []
    monitor = HealthMonitor([check("disk", lambda: runs.append(clock()))], clock)
    assert eventually(lambda: monitor.current().is_ok)
    assert monitor.current().is_ok
    assert runs == [1000.0]
    clock.now += 60
    assert eventually(lambda: monitor.current().is_ok and len(runs) == 2)


def test_check_on_demand_that_hangs_is_not_waited_for(gate: threading.Event) -> None:
    monitor = HealthMonitor([check("disk", gate.wait), check("lake", lambda: None)], Clock())
    eventually(lambda: monitor.current().checks[1].is_ok)
    assert monitor.current().reasons == ("The disk was not checked yet.",)

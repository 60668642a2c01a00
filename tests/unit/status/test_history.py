"""The history of the charts: what a point says, and how it survives a restart."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from swanlake._internal.histogram import SHORT, Histogram
from swanlake.status.history import MINUTES, History, Reading, load, point_between, store

START = 1_700_000_000.0


def reading(at: float = START) -> Reading:
    nothing = Histogram(SHORT).read()
    return Reading(at, nothing, 0, 0, nothing, nothing, 0, 0, 0, 0)


def busy(at: float) -> Reading:
    statements, flushes = Histogram(SHORT), Histogram(SHORT)
    for _ in range(99):
        statements.observe(0.002)
    statements.observe(20.0)
    flushes.observe(2.0)
    return replace(
        reading(at),
        statements=statements.read(),
        errors=6,
        rows=6000,
        flushes=flushes.read(),
        queue_rows=7,
        sessions=3,
    )


class Readings:
    """Readings that tests set."""

    def __init__(self) -> None:
        self.next = reading()

    def __call__(self) -> Reading:
        return self.next


def test_point_has_rates_and_latencies_of_its_time() -> None:
    point = point_between(reading(), busy(START + 60))
    assert point.statements_per_second == pytest.approx(100 / 60, abs=0.001)
    assert point.errors_per_second == 0.1
    assert point.rows_per_second == 100
    assert point.statement_p50_seconds is not None
    assert 0.001 < point.statement_p50_seconds <= 0.0025
    assert point.statement_p99_seconds is not None
    assert point.statement_p99_seconds <= 0.0025
    assert point.flushes == 1
    assert point.commit_p50_seconds is None
    assert (point.queue_rows, point.sessions) == (7, 3)


def test_point_counts_only_what_happened_since_the_last_reading() -> None:
    before = busy(START)
    point = point_between(before, replace(before, at=START + 60))
    assert point.statements_per_second == 0
    assert point.statement_p99_seconds is None


def test_current_minute_is_shown_so_far(tmp_path: Path) -> None:
    readings = Readings()
    history = History(readings, tmp_path / "history.json")
    assert history.points() == []
    readings.next = busy(START + 10)
    [point] = history.points()
    assert point.seconds == 10
    assert point.rows_per_second == 600


def test_points_survive_a_restart_for_an_hour(tmp_path: Path) -> None:
    file, readings = tmp_path / "history.json", Readings()
    history = History(readings, file)
    for minute in range(1, MINUTES + 11):
        readings.next = replace(readings.next, at=START + 60 * minute)
        history.end_minute()
    kept = history.points()
    assert len(kept) == MINUTES
    assert kept[-1].at == START + 60 * (MINUTES + 10)
    assert file.stat().st_mode & 0o077 == 0
    assert History(readings, file).points() == kept
    readings.next = replace(readings.next, at=START + 60 * (MINUTES + 20))
    assert len(History(readings, file).points()) == MINUTES - 10
    readings.next = replace(readings.next, at=START + 60 * 1000)
    assert History(readings, file).points() == []


def test_clock_that_is_set_back_adds_no_point(tmp_path: Path) -> None:
    readings = Readings()
    history = History(readings, tmp_path / "history.json")
    readings.next = reading(START - 3600)
    history.end_minute()
    assert history.points() == []


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '{"version": 1}',
        '{"version": 1, "points": [{"at": 1}]}',
        '{"version": 1, "points": 7}',
        "\0\0\0",
    ],
)
def test_damaged_file_is_ignored_with_a_log_line(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "history.json"
    file.write_text(content)
    with caplog.at_level(logging.WARNING, "swanlake.status"):
        assert load(file, START) == []
    [record] = caplog.records
    assert "cannot be read" in record.getMessage()


def test_value_of_a_wrong_type_is_damage(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    store(file, [point_between(reading(), busy(START + 60))])
    content = json.loads(file.read_text())
    content["points"][0]["sessions"] = "many"
    file.write_text(json.dumps(content))
    assert load(file, START + 60) == []


def test_file_of_another_version_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    file.write_text('{"version": 99, "points": []}')
    assert load(file, START) == []

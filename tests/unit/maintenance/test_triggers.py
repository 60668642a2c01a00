"""The decision which jobs are due."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.errors import ConfigError
from swanlake.lake.lifecycle.history import Outcome
from swanlake.lake.model.layout import TableOptions
from swanlake.lake.read.survey import CatalogSurvey, TableSurvey
from swanlake.maintenance.registry import JOBS, find_due_jobs
from swanlake.maintenance.triggers import (
    DueJob,
    JobTarget,
    PastRun,
    Rules,
    Window,
    compact_reason,
    expire_reason,
    in_window,
    next_runs,
    parse_window,
)

NOW = datetime(2026, 11, 16, 3, 0, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
COMPACT, ORPHANS = JobTarget("compact", "a", "main.t"), JobTarget("orphans")
#: A table that is due for compaction.
WORN = TableSurvey(1, "main", "t", files=20, small_files=20, rows=100)
PATIENT = TableOptions(deleted_ratio=0.5)


def subjects(found: list[DueJob]) -> list[JobTarget]:
    return [one.target for one in found]


# ---- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (TableSurvey(1, "main", "t"), None),
        (TableSurvey(1, "main", "t", files=9, small_files=9), None),
        (TableSurvey(1, "main", "t", files=10, small_files=10), "10 of 10 files are small"),
        (TableSurvey(1, "main", "t", files=40, small_files=10), "10 of 40 files are small"),
        (TableSurvey(1, "main", "t", files=41, small_files=10), None),
        (TableSurvey(1, "main", "t", files=1, rows=100, deleted_rows=24), None),
        (
            TableSurvey(1, "main", "t", files=1, rows=100, deleted_rows=25),
            "25 of 100 rows are deleted",
        ),
        (
            TableSurvey(1, "main", "t", rows=100, deleted_rows=25, options=PATIENT),
            None,
        ),
        (
            TableSurvey(1, "main", "t", rows=100, deleted_rows=50, options=PATIENT),
            "50 of 100 rows are deleted",
        ),
        (replace(WORN, options=TableOptions(auto_compact=False)), None),
        (TableSurvey(1, "main", "t", inlined_rows=999), None),
        (TableSurvey(1, "main", "t", inlined_rows=1000), "1000 rows are in the metadata"),
    ],
)
def test_compact_reason(table: TableSurvey, reason: str | None) -> None:
    assert compact_reason(table, Rules()) == reason


# ---- snapshots -----------------------------------------------------------------------------------


def expires(snapshots: int, oldest: timedelta, age: timedelta | None, keep: int | None) -> bool:
    survey = CatalogSurvey(snapshots=snapshots, oldest_snapshot=NOW - oldest)
    rules = Rules(snapshot_max_age=age, snapshot_keep_last=keep)
    return expire_reason(survey, rules, NOW) is not None


def test_snapshots_never_expire_without_a_rule() -> None:
    assert not expires(1_000_000, 1000 * DAY, None, None)


def test_snapshots_expire_by_age_count_or_both() -> None:
    assert expires(5, 8 * DAY, 7 * DAY, None)
    assert not expires(5, 6 * DAY, 7 * DAY, None)
    assert expires(11, MINUTE, None, 10)
    assert not expires(10, MINUTE, None, 10)
    assert expires(11, 8 * DAY, 7 * DAY, 10)
    assert not expires(11, 6 * DAY, 7 * DAY, 10)
    assert not expires(10, 8 * DAY, 7 * DAY, 10)
    assert not expires(1, 8 * DAY, 7 * DAY, None)  # the newest never goes
    assert expires(2, 8 * DAY, 7 * DAY, None)


def test_snapshot_of_exactly_the_maximum_age_does_not_expire() -> None:
    assert not expires(5, 7 * DAY, 7 * DAY, None)
    assert expires(5, 7 * DAY + timedelta(microseconds=1), 7 * DAY, None)


def test_snapshots_of_unknown_age_do_not_expire_by_age() -> None:
    survey = CatalogSurvey(snapshots=5, oldest_snapshot=None)
    assert expire_reason(survey, Rules(snapshot_max_age=DAY), NOW) is None
    assert expire_reason(survey, Rules(snapshot_keep_last=2), NOW) is not None


# ---- the order, and the whole lake ---------------------------------------------------------------


def test_due_jobs_are_in_order() -> None:
    worn = CatalogSurvey((WORN,), 5, NOW - 9 * DAY, 3, NOW - 2 * DAY)
    found = find_due_jobs(NOW, Rules(snapshot_max_age=7 * DAY), {"a": worn, "b": worn})
    assert subjects(found) == [
        JobTarget("compact", "a", "main.t"),
        JobTarget("compact", "b", "main.t"),
        JobTarget("expire", "a"),
        JobTarget("expire", "b"),
        JobTarget("cleanup"),
        ORPHANS,
    ]
    assert found[4].candidate.reason == "6 files wait to be deleted"


def test_cleanup_is_due_after_the_cleanup_age() -> None:
    young = CatalogSurvey(unneeded_files=3, unneeded_since=NOW - 23 * HOUR)
    assert subjects(find_due_jobs(NOW, Rules(), {"a": young})) == [ORPHANS]
    assert subjects(find_due_jobs(NOW + HOUR, Rules(), {"a": young})) == [ORPHANS]
    later = NOW + HOUR + timedelta(microseconds=1)
    assert JobTarget("cleanup") in subjects(find_due_jobs(later, Rules(), {"a": young}))


# ---- distance ------------------------------------------------------------------------------------


def waits_for(*outcomes: Outcome | None, subject: JobTarget = COMPACT) -> float:
    """Minutes after the newest of these runs, a minute apart, until the job is due again."""
    runs = [
        PastRun(subject, NOW - place * MINUTE, outcome)
        for place, outcome in enumerate(reversed(outcomes))
    ]
    catalogs = {"a": CatalogSurvey((WORN,))}
    for minute in range(60 * 25):
        if subject in subjects(find_due_jobs(NOW + minute * MINUTE, Rules(), catalogs, runs)):
            return minute
    raise AssertionError("never")


def test_pause_grows_while_runs_have_no_effect() -> None:
    done, idle, failed = Outcome.DONE, Outcome.IDLE, Outcome.FAILED
    assert waits_for(done) == 10
    assert waits_for(done, done, done) == 10
    assert waits_for(failed) == 20
    assert waits_for(failed, failed) == 40
    assert waits_for(idle, failed) == 40
    assert waits_for(*[failed] * 100) == 60
    assert waits_for(failed, failed, done) == 10
    assert waits_for(done, failed) == 20
    assert waits_for(failed, Outcome.STOPPED) == 10
    assert waits_for(None) == 10
    assert waits_for(Outcome.SKIPPED) == 20


def test_orphans_run_daily_and_sooner_after_a_failure() -> None:
    assert waits_for(Outcome.DONE, subject=ORPHANS) == 24 * 60
    assert waits_for(Outcome.IDLE, subject=ORPHANS) == 24 * 60
    assert waits_for(Outcome.DONE, Outcome.FAILED, subject=ORPHANS) == 20


def pause_after(outcome: Outcome, target: JobTarget, pause: timedelta) -> timedelta:
    """The pause after one run, for a job that runs at least daily if it is the orphan search."""
    runs = [PastRun(target, NOW, outcome)]
    return next_runs(runs, Rules(pause=pause), {"orphans": DAY})[target] - NOW


def test_pause_of_an_hour_or_more_does_not_grow_and_is_not_capped() -> None:
    for pause in (HOUR, 2 * HOUR, 3 * DAY):
        for outcome in (Outcome.DONE, Outcome.IDLE, Outcome.FAILED):
            assert pause_after(outcome, COMPACT, pause) == pause


def test_pause_of_a_job_without_an_interval_grows() -> None:
    assert pause_after(Outcome.DONE, COMPACT, 10 * MINUTE) == 10 * MINUTE
    assert pause_after(Outcome.IDLE, COMPACT, 10 * MINUTE) == 20 * MINUTE


def test_pause_of_the_orphan_search_is_the_longer_of_its_interval_and_the_setting() -> None:
    for outcome in (Outcome.DONE, Outcome.IDLE):
        assert pause_after(outcome, ORPHANS, 10 * MINUTE) == DAY
        assert pause_after(outcome, ORPHANS, 2 * DAY) == 2 * DAY
    assert pause_after(Outcome.FAILED, ORPHANS, 10 * MINUTE) == 20 * MINUTE
    assert pause_after(Outcome.FAILED, ORPHANS, 2 * DAY) == 2 * DAY


def test_runs_of_other_tables_do_not_count() -> None:
    other = TableSurvey(2, "main", "u", files=20, small_files=20)
    past = [PastRun(JobTarget("compact", "a", "main.t"), NOW, Outcome.DONE)]
    found = find_due_jobs(NOW, Rules(), {"a": CatalogSurvey((WORN, other))}, past)
    assert JobTarget("compact", "a", "main.u") in subjects(found)
    assert JobTarget("compact", "a", "main.t") not in subjects(found)


def test_runs_dated_in_the_future_are_ignored() -> None:
    catalogs = {"a": CatalogSurvey((WORN,))}
    wrong = [PastRun(one, NOW + 400 * DAY, Outcome.DONE) for one in (COMPACT, ORPHANS)]
    assert subjects(find_due_jobs(NOW, Rules(), catalogs, wrong)) == [COMPACT, ORPHANS]
    right = [PastRun(one, NOW - MINUTE, Outcome.DONE) for one in (COMPACT, ORPHANS)]
    assert find_due_jobs(NOW, Rules(), catalogs, [*wrong, *right]) == []
    somewhat = [PastRun(one, NOW + MINUTE, Outcome.DONE) for one in (COMPACT, ORPHANS)]
    assert find_due_jobs(NOW, Rules(), catalogs, somewhat) == []


# ---- the window ----------------------------------------------------------------------------------


def test_parse_window() -> None:
    assert parse_window("") is None
    assert parse_window(" 01:00-05:30 ") == Window(time(1), time(5, 30))
    wrong = "01:00 1-5 05:00-05:00 25:00-26:00 night 01:00-02:00-03:00 01:00Z-05:00 01:00-05:00Z"
    for text in wrong.split():
        with pytest.raises(ConfigError, match="maintenance_window"):
            parse_window(text)


def test_window_may_span_midnight() -> None:
    night = Window(time(22), time(4))
    assert datetime(2026, 1, 1, 23, tzinfo=UTC) in night
    assert datetime(2026, 1, 1, 3, 59, tzinfo=UTC) in night
    assert datetime(2026, 1, 1, 4, tzinfo=UTC) not in night
    assert datetime(2026, 1, 1, 12, tzinfo=UTC) not in night


def test_window_includes_its_begin_but_not_its_end() -> None:
    for window in (Window(time(1), time(5)), Window(time(22), time(4))):
        begin = datetime.combine(NOW, window.begin, UTC)
        end = datetime.combine(NOW, window.end, UTC)
        assert begin in window
        assert begin - timedelta(microseconds=1) not in window
        assert end not in window
        assert end - timedelta(microseconds=1) in window


def test_jobs_are_due_only_in_the_window() -> None:
    inside, outside = Rules(window=Window(time(2), time(4))), Rules(window=Window(time(4), time(6)))
    assert in_window(Rules(), NOW)
    assert in_window(inside, NOW)
    assert not in_window(outside, NOW)
    catalogs = {"a": CatalogSurvey((WORN,))}
    assert subjects(find_due_jobs(NOW, inside, catalogs)) == [COMPACT, ORPHANS]
    assert find_due_jobs(NOW, outside, catalogs) == []


times = st.times()


@given(times, times, st.datetimes(timezones=st.just(UTC)))
def test_complementary_windows_cover_the_day(begin: time, end: time, now: datetime) -> None:
    if begin != end:
        assert (now in Window(begin, end)) != (now in Window(end, begin))


# ---- whatever the numbers ------------------------------------------------------------------------

numbers = st.integers(0, 2000)
moments = st.datetimes(datetime(2026, 11, 1), datetime(2026, 11, 30), timezones=st.just(UTC))


@st.composite
def tables(draw: st.DrawFn) -> TableSurvey:
    files, rows = draw(numbers), draw(numbers)
    return TableSurvey(
        draw(st.integers(1, 5)),
        "main",
        draw(st.sampled_from("tuv")),
        files,
        draw(st.integers(0, files)),
        rows,
        draw(st.integers(0, rows)),
        draw(numbers),
    )


surveys = st.builds(
    CatalogSurvey,
    st.lists(tables(), max_size=3, unique_by=lambda table: table.name).map(tuple),
    st.integers(1, 50),
    moments,
    numbers,
    st.none() | moments,
)
rules = st.builds(
    Rules,
    small_files=st.integers(2, 50),
    small_file_ratio=st.floats(0, 1),
    deleted_ratio=st.floats(0.001, 1),
    inlined_rows=st.integers(1, 2000),
    snapshot_max_age=st.none() | st.timedeltas(MINUTE, 20 * DAY),
    snapshot_keep_last=st.none() | st.integers(1, 50),
    cleanup_age=st.timedeltas(timedelta(0), 9 * DAY),
    pause=st.timedeltas(timedelta(0), 2 * DAY),
    window=st.none()
    | st.builds(Window, times, times).filter(lambda window: window.begin != window.end),
)
catalogs = st.dictionaries(st.sampled_from("abc"), surveys, max_size=3)


@given(moments, rules, catalogs, st.data())
def test_due_jobs_respect_order_window_and_pause(
    now: datetime, rules: Rules, catalogs: dict[str, CatalogSurvey], data: st.DataObject
) -> None:
    first = find_due_jobs(now, rules, catalogs)
    if rules.window is not None and now not in rules.window:
        assert first == []
        return
    jobs = [one.target.job for one in first]
    assert jobs == sorted(jobs, key=list(JOBS).index)
    assert len(set(subjects(first))) == len(first)
    if rules.snapshot_max_age is None and rules.snapshot_keep_last is None:
        assert "expire" not in jobs
    past = [
        PastRun(one.target, now, data.draw(st.sampled_from(Outcome)))
        for one in first
        if data.draw(st.booleans())
    ]
    # Within the pause no job runs again, and jobs that did not run are still due.
    if rules.pause:
        left = set(subjects(first)) - {run.target for run in past}
        assert set(subjects(find_due_jobs(now, rules, catalogs, past))) == left
    # After a day and the pause everything is due, whatever the outcome was.
    later = now + DAY + rules.pause
    if rules.window is None:
        again = {one.target for one in find_due_jobs(later, rules, catalogs, past)}
        assert again >= set(subjects(first))

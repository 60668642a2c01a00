"""Statements that have ended: kept, grouped, and told to listeners once; bounded in number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from swanlake.access.identity import Identity, Role
from swanlake.errors import InvalidRequest, QueryError
from swanlake.sessions.activity import Activity
from swanlake.sessions.activity.groups import (
    MAX_GROUPS,
    OTHER_STATEMENTS,
    Durations,
)
from swanlake.sessions.activity.log import MAX_SQL_CHARACTERS
from swanlake.sessions.activity.records import FinishedStatement
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.run import Run, Watchdog
from tests.waiting import eventually

ADMIN = Identity("root", Role.ADMIN)
ANN = Identity("ann", Role.WRITER)


@pytest.fixture
def watchdog() -> Iterator[Watchdog]:
    watchdog = Watchdog()
    yield watchdog
    watchdog.close()


@pytest.fixture
def activity() -> Iterator[Activity]:
    activity = Activity()
    yield activity
    activity.close()


class Statements:
    """Runs statements that do nothing."""

    def __init__(self, watchdog: Watchdog, activity: Activity) -> None:
        self._watchdog = watchdog
        self._activity = activity

    def __call__(
        self, sql: str, error: BaseException | None = None, by: Identity = ANN, **values: Any
    ) -> Run:
        run = Run(
            self._watchdog,
            SessionKey(by.name, "s1"),
            identity=by,
            on_end=self._activity.log.add,
        )
        run.sql = sql
        for name, value in values.items():
            setattr(run, name, value)
        run.end(error)
        return run


@pytest.fixture
def statement(watchdog: Watchdog, activity: Activity) -> Statements:
    return Statements(watchdog, activity)


def test_statements_are_listed_newest_first(activity: Activity, statement: Statements) -> None:
    statement("SELECT 1", rows=1)
    statement("SELECT 2", QueryError("It failed.", identifier="BINDER_ERROR"))
    second, first = activity.recent(ANN)
    assert (first.sql, first.rows, first.outcome, first.error) == ("SELECT 1", 1, "ok", None)
    assert (second.outcome, second.error) == ("BINDER_ERROR", "It failed.")
    assert (second.user, second.role, second.session_id) == ("ann", Role.WRITER, "s1")
    assert first.started_at <= first.ended_at <= second.ended_at
    assert activity.errors(ANN) == [second]


def test_statement_that_ends_twice_is_listed_once(
    activity: Activity, statement: Statements
) -> None:
    run = statement("SELECT 1")
    run.end(InvalidRequest("too late"))
    [only] = activity.recent(ANN)
    assert only.outcome == "ok"


def test_calls_without_a_statement_are_not_listed(
    activity: Activity, statement: Statements
) -> None:
    statement("")
    statement("SELECT 1", describes_only=True)
    assert activity.recent(ADMIN) == []
    statement("SELEC", InvalidRequest("unknown"), describes_only=True)
    assert len(activity.errors(ADMIN)) == 1


def test_others_than_admins_see_their_own_statements(
    activity: Activity, statement: Statements
) -> None:
    statement("SELECT 1")
    statement("SELECT 2", InvalidRequest("no"), by=Identity("bob", Role.READER))
    for listed in (activity.recent, activity.slow):
        assert {one.user for one in listed(ANN)} == {"ann"}
        assert {one.user for one in listed(ADMIN)} == {"ann", "bob"}
    assert activity.errors(ANN) == []
    assert len(activity.errors(ADMIN)) == 1


def test_long_texts_are_cut_off(activity: Activity, statement: Statements) -> None:
    statement("SELECT '" + "x" * 2 * MAX_SQL_CHARACTERS)
    [only] = activity.recent(ANN)
    assert len(only.sql) == MAX_SQL_CHARACTERS + 1
    [group] = activity.slow(ANN)
    assert group.text == "SELECT …"


def test_statements_are_grouped_by_what_they_do(activity: Activity, statement: Statements) -> None:
    for number in range(5):
        statement(f"SELECT * FROM t WHERE i = {number}", rows=2)
    statement("SELECT * FROM T WHERE i = 'x'", InvalidRequest("no"))
    statement("SELECT 1")
    groups = {group.text: group for group in activity.slow(ANN)}
    assert set(groups) == {"SELECT * FROM t WHERE i = ?", "SELECT ?"}
    group = groups["SELECT * FROM t WHERE i = ?"]
    assert (group.count, group.errors, group.rows) == (6, 1, 10)
    assert 0 < group.p50_seconds <= group.p99_seconds
    assert group.mean_seconds <= group.max_seconds <= group.total_seconds


def test_number_of_groups_is_bounded(activity: Activity, statement: Statements) -> None:
    for number in range(2 * MAX_GROUPS):
        statement(f"SELECT c{number}")
        if number % 20 == 0:
            activity.log.digest()
    assert len(activity.slow(ADMIN, limit=10 * MAX_GROUPS)) <= MAX_GROUPS


def test_too_many_new_texts_are_one_group(activity: Activity, statement: Statements) -> None:
    for number in range(1000):
        statement(f"SELECT c{number}")
    groups = activity.slow(ADMIN, limit=10 * MAX_GROUPS)
    assert sum(group.count for group in groups) == 1000
    assert OTHER_STATEMENTS in {group.text for group in groups}


def test_listener_is_called_once_for_each_statement(
    activity: Activity, statement: Statements
) -> None:
    heard: list[FinishedStatement] = []

    def fail(finished: FinishedStatement) -> None:
        raise RuntimeError("a defect of a listener")

    statement("SELECT 0")
    activity.add_listener(fail)
    activity.add_listener(heard.append)
    for number in range(1, 4):
        statement(f"SELECT {number}")
        activity.recent(ADMIN)
    eventually(lambda: len(heard) == 3)
    assert [one.sql for one in heard] == ["SELECT 1", "SELECT 2", "SELECT 3"]


def test_last_statements_are_told_to_listeners_when_the_activity_is_closed(
    activity: Activity, statement: Statements
) -> None:
    heard: list[FinishedStatement] = []
    activity.add_listener(heard.append)
    statement("SELECT 1")
    activity.close()
    assert len(heard) == 1


def test_quantiles_are_close() -> None:
    durations = Durations()
    for number in range(1, 1001):
        durations.add(number / 1000)
    assert durations.quantile(0.5) == pytest.approx(0.5, rel=0.1)
    assert durations.quantile(0.99) == pytest.approx(0.99, rel=0.1)
    assert Durations().quantile(0.5) == 0

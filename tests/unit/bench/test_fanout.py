"""The fan-out on DuckDB in memory: what it plans, how it is run, and what its report says."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import duckdb
import pytest

from swanlake.bench.fanout import CYCLE, Content, FanOut, Holdings, Kind, Row
from swanlake.bench.report import Report, Step, holdings_of, percentile, summed_up
from swanlake.bench.runner import MAX_ATTEMPTS, Execute, differences, perform, prepare
from swanlake.errors import CommitConflict, CommitFailed, ConnectionLost, SwanLakeError

PLAN = FanOut("0", "memory", tasks=2, statements=52)


@pytest.fixture
def execute() -> Iterator[Execute]:
    """Plain DuckDB, in which the run is prepared."""
    with duckdb.connect() as duck:

        def run(sql: str) -> Sequence[Row]:
            return duck.execute(sql).fetchall()

        prepare(PLAN, run)
        yield run


def failing(execute: Execute, error: SwanLakeError, when: Callable[[int, str], bool]) -> Execute:
    """Raises an error in place of some of the statements, by their place and text."""
    asked = -1

    def run(sql: str) -> Sequence[Row]:
        nonlocal asked
        asked += 1
        if when(asked, sql):
            raise error
        return execute(sql)

    return run


def perform_all(execute: Execute) -> list[list[Step]]:
    return [list(perform(PLAN.task(number), execute)) for number in range(PLAN.tasks)]


# ---- the plan ------------------------------------------------------------------------------------


def test_a_task_makes_its_tables_and_then_goes_round() -> None:
    held, kinds = Holdings(), []
    for number in range(2 + 2 * len(CYCLE)):
        statement = PLAN.task(0).statement(number, held)
        held = statement.leaves
        kinds.append(statement.kind)
    assert kinds == [Kind.CREATE, Kind.CREATE, *CYCLE, *CYCLE]
    assert set(kinds) == set(Kind)


def test_only_reading_commits_nothing() -> None:
    assert [kind for kind in Kind if not kind.commits] == [Kind.READ]


def test_inserts_have_one_to_three_rows() -> None:
    held = Holdings(tables=2)
    places = [2, 7, 12]
    sizes = [len(PLAN.task(0).statement(place, held).leaves.own) for place in places]
    assert sorted(sizes) == [1, 2, 3]


def test_a_task_without_rows_inserts_where_it_would_change_one() -> None:
    held = Holdings(tables=2)
    for place, kind in enumerate(CYCLE, start=2):
        expected = Kind.INSERT if kind in (Kind.UPDATE, Kind.DELETE) else kind
        assert PLAN.task(0).statement(place, held).kind is expected


def test_tasks_and_runs_share_one_table_and_no_other() -> None:
    def tables(plan: FanOut) -> set[str]:
        return {table for number in range(plan.tasks) for table in plan.task(number).tables}

    other = FanOut("1", PLAN.catalog, PLAN.tasks, PLAN.statements)
    assert len(tables(PLAN)) == 2 * PLAN.tasks
    assert tables(PLAN) & tables(other) == set()
    assert PLAN.shared_table != other.shared_table
    assert PLAN.shared_table not in tables(PLAN)


# ---- the run -------------------------------------------------------------------------------------


def test_everything_is_as_planned(execute: Execute) -> None:
    tasks = perform_all(execute)
    report = summed_up(tasks)
    assert report.problem is None
    assert (report.failures, report.wrong_counts) == ((), ())
    assert (report.retries, report.conflicts) == (0, 0)
    kinds = Counter(step.kind for task in tasks for step in task)
    assert {kind: latency.statements for kind, latency in report.by_kind.items()} == kinds
    assert report.commits == report.latency.statements == PLAN.tasks * (2 + 5 * 8)
    assert report.commits_per_second == report.commits / report.seconds
    holdings = holdings_of(tasks)
    assert holdings == [PLAN.task(number).holdings() for number in range(PLAN.tasks)]
    checks = PLAN.checks(holdings)
    assert len(checks) == 1 + 2 * PLAN.tasks
    assert all(check.answer[0][-1] > 0 for check in checks)
    assert differences(checks, execute) == []
    execute(PLAN.removal)


@pytest.mark.parametrize("table", ["own_1", "copies_0", "shared"])
def test_a_row_that_vanishes_is_found(execute: Execute, table: str) -> None:
    tasks = perform_all(execute)
    execute(
        f"DELETE FROM {PLAN.schema}.{table} "
        f"WHERE rowid = (SELECT min(rowid) FROM {PLAN.schema}.{table})"
    )
    [wrong] = differences(PLAN.checks(holdings_of(tasks)), execute)
    assert table in wrong
    problem = summed_up(tasks, wrong_counts=[wrong]).problem
    assert problem is not None
    assert problem.startswith("1 count came out wrong. The first: SELECT")


def test_a_task_that_does_not_read_what_it_wrote_says_so(execute: Execute) -> None:
    def forgets(sql: str) -> Sequence[Row]:
        return [] if sql.startswith("INSERT") and ".shared" in sql else execute(sql)

    report = summed_up([list(perform(PLAN.task(0), forgets))])
    assert report.failures == ()
    assert len(report.wrong_counts) == report.by_kind[Kind.READ].statements
    assert report.wrong_counts[0].startswith("task 0, read back: SELECT")
    assert "(2, 0, 0)], and it is" in report.wrong_counts[0]


def test_a_conflict_is_repeated(execute: Execute) -> None:
    conflict = CommitConflict("Others were faster.")
    steps = list(perform(PLAN.task(0), failing(execute, conflict, lambda i, _: i in (3, 4, 9))))
    report = summed_up([steps])
    assert (report.conflicts, report.retries, report.failures) == (3, 3, ())
    assert report.problem is None
    assert len(steps) == PLAN.statements
    assert [step.attempts for step in steps if step.conflicts] == [3, 2]


def test_a_conflict_that_does_not_end_is_a_failure(execute: Execute) -> None:
    conflict = CommitConflict("Others were faster.")
    conflicting = failing(execute, conflict, lambda _, sql: sql.startswith("DELETE"))
    report = summed_up([list(perform(PLAN.task(0), conflicting))])
    assert len(report.failures) == 5
    assert report.conflicts == 5 * MAX_ATTEMPTS
    assert report.retries == 5 * (MAX_ATTEMPTS - 1)
    assert report.failures[0] == "task 0, delete: COMMIT_CONFLICT: Others were faster."
    assert report.wrong_counts == ()


def test_a_statement_that_failed_has_changed_nothing(execute: Execute) -> None:
    failed = CommitFailed("It was\ntoo much.")
    steps = list(perform(PLAN.task(0), failing(execute, failed, lambda i, _: i % 3 == 0)))
    report = summed_up([steps, []])
    assert len(report.failures) == len([i for i in range(PLAN.statements) if i % 3 == 0])
    assert report.failures[0] == "task 0, create table: COMMIT_FAILED: It was too much."
    assert report.wrong_counts == ()
    assert differences(PLAN.checks(holdings_of([steps, []])), execute) == []
    assert report.problem is not None
    assert report.problem.startswith("18 statements failed. The first: task 0, create table")


def test_a_task_ends_with_its_session(execute: Execute) -> None:
    lost = ConnectionLost("The connection was lost.")
    steps = list(perform(PLAN.task(1), failing(execute, lost, lambda i, _: i == 5)))
    assert [step.failure for step in steps[:5]] == [None] * 5
    assert [step.failure for step in steps[5:]] == ["CONNECTION_LOST: The connection was lost."]
    assert steps[5].holdings == steps[4].holdings


# ---- the report ----------------------------------------------------------------------------------


def step(kind: Kind, began: float, seconds: float, failure: str | None = None) -> Step:
    return Step(kind, began, seconds, Holdings(), failure=failure)


def test_times_are_those_of_statements_that_commit_or_fail_to() -> None:
    report = summed_up(
        [
            [step(Kind.INSERT, 10.0, 0.5), step(Kind.READ, 10.5, 9.0)],
            [step(Kind.UPDATE, 11.0, 0.25), step(Kind.DELETE, 12.0, 3.0, "no")],
        ]
    )
    assert report.seconds == 9.5
    assert report.commits == 2
    assert (report.latency.p50, report.latency.p99, report.latency.max) == (500, 3000, 3000)
    assert set(report.by_kind) == {Kind.INSERT, Kind.UPDATE, Kind.READ, Kind.DELETE}
    assert report.by_kind[Kind.READ].max == 9000
    assert report.failures == ("task 1, delete: no",)


def test_a_report_is_json() -> None:
    told = json.loads(json.dumps(summed_up([[step(Kind.INSERT, 0.0, 0.5)]]).as_json()))
    assert told == {
        "seconds": 0.5,
        "commits": 1,
        "commits_per_second": 2.0,
        "latency_ms": {"statements": 1, "p50": 500.0, "p99": 500.0, "max": 500.0},
        "kinds": {"insert": {"statements": 1, "p50": 500.0, "p99": 500.0, "max": 500.0}},
        "retries": 0,
        "conflicts": 0,
        "failures": [],
        "wrong_counts": [],
    }


def test_a_run_of_nothing_has_a_report() -> None:
    report: Report = summed_up([[], []])
    assert (report.commits, report.commits_per_second, report.latency.max) == (0, 0.0, 0.0)
    assert report.problem is None


def test_percentiles() -> None:
    assert percentile([3, 1, 2], 50) == 2
    assert percentile(range(1, 101), 99) == 99
    assert percentile([7], 99) == 7


def test_content_grows() -> None:
    assert Content(2, 10).plus(iter([3, 4])) == Content(4, 17)

"""The fan-out benchmark on in-memory DuckDB: its plan, its run and its report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import duckdb
import pytest

from swanlake.bench.fanout import CYCLE, FanOut, Row, StatementKind, TableContent, TaskState
from swanlake.bench.report import Report, StatementOutcome, final_states, percentile, summarize
from swanlake.bench.runner import MAX_ATTEMPTS, Execute, find_differences, prepare, run_task
from swanlake.errors import CommitConflict, CommitFailed, ConnectionLost, SwanLakeError

PLAN = FanOut("0", "memory", tasks=2, statements=52)


@pytest.fixture
def execute() -> Iterator[Execute]:
    """Executes statements in plain DuckDB, with the run's tables prepared."""
    with duckdb.connect() as duck:

        def run(sql: str) -> Sequence[Row]:
            return duck.execute(sql).fetchall()

        prepare(PLAN, run)
        yield run


def failing(execute: Execute, error: SwanLakeError, when: Callable[[int, str], bool]) -> Execute:
    """Raises an error instead of the statements selected by number and text."""
    number = -1

    def run(sql: str) -> Sequence[Row]:
        nonlocal number
        number += 1
        if when(number, sql):
            raise error
        return execute(sql)

    return run


def run_all_tasks(execute: Execute) -> list[list[StatementOutcome]]:
    return [list(run_task(PLAN.task(number), execute)) for number in range(PLAN.tasks)]


# ---- the plan ------------------------------------------------------------------------------------


def test_task_creates_its_tables_and_repeats_the_cycle() -> None:
    state, kinds = TaskState(), []
    for number in range(2 + 2 * len(CYCLE)):
        statement = PLAN.task(0).statement(number, state)
        state = statement.state_after
        kinds.append(statement.kind)
    assert kinds == [StatementKind.CREATE, StatementKind.CREATE, *CYCLE, *CYCLE]
    assert set(kinds) == set(StatementKind)


def test_every_kind_except_read_commits() -> None:
    assert [kind for kind in StatementKind if not kind.commits] == [StatementKind.READ]


def test_inserts_have_one_to_three_rows() -> None:
    state = TaskState(tables=2)
    numbers = [2, 7, 12]
    sizes = [len(PLAN.task(0).statement(number, state).state_after.own) for number in numbers]
    assert sorted(sizes) == [1, 2, 3]


def test_task_without_rows_inserts_instead_of_changing_one() -> None:
    state = TaskState(tables=2)
    for number, kind in enumerate(CYCLE, start=2):
        expected = (
            StatementKind.INSERT if kind in (StatementKind.UPDATE, StatementKind.DELETE) else kind
        )
        assert PLAN.task(0).statement(number, state).kind is expected


def test_tasks_share_one_table_and_runs_share_none() -> None:
    def tables(plan: FanOut) -> set[str]:
        return {table for number in range(plan.tasks) for table in plan.task(number).tables}

    other = FanOut("1", PLAN.catalog, PLAN.tasks, PLAN.statements)
    assert len(tables(PLAN)) == 2 * PLAN.tasks
    assert tables(PLAN) & tables(other) == set()
    assert PLAN.shared_table != other.shared_table
    assert PLAN.shared_table not in tables(PLAN)


# ---- the run -------------------------------------------------------------------------------------


def test_run_matches_the_plan(execute: Execute) -> None:
    tasks = run_all_tasks(execute)
    report = summarize(tasks)
    assert report.problem is None
    assert (report.failures, report.wrong_counts) == ((), ())
    assert (report.retries, report.conflicts) == (0, 0)
    kinds = Counter(step.kind for task in tasks for step in task)
    assert {kind: latency.statements for kind, latency in report.by_kind.items()} == kinds
    assert report.commits == report.latency.statements == PLAN.tasks * (2 + 5 * 8)
    assert report.commits_per_second == report.commits / report.seconds
    states = final_states(tasks)
    assert states == [PLAN.task(number).final_state() for number in range(PLAN.tasks)]
    checks = PLAN.checks(states)
    assert len(checks) == 1 + 2 * PLAN.tasks
    assert all(check.answer[0][-1] > 0 for check in checks)
    assert find_differences(checks, execute) == []
    execute(PLAN.teardown_statement)


@pytest.mark.parametrize("table", ["own_1", "copies_0", "shared"])
def test_lost_row_is_detected(execute: Execute, table: str) -> None:
    tasks = run_all_tasks(execute)
    execute(
        f"DELETE FROM {PLAN.schema}.{table} "
        f"WHERE rowid = (SELECT min(rowid) FROM {PLAN.schema}.{table})"
    )
    [wrong] = find_differences(PLAN.checks(final_states(tasks)), execute)
    assert table in wrong
    problem = summarize(tasks, wrong_counts=[wrong]).problem
    assert problem is not None
    assert problem.startswith("1 count came out wrong. The first: SELECT")


def test_task_that_reads_wrong_counts_reports_them(execute: Execute) -> None:
    def drop_inserts(sql: str) -> Sequence[Row]:
        return [] if sql.startswith("INSERT") and ".shared" in sql else execute(sql)

    report = summarize([list(run_task(PLAN.task(0), drop_inserts))])
    assert report.failures == ()
    assert len(report.wrong_counts) == report.by_kind[StatementKind.READ].statements
    assert report.wrong_counts[0].startswith("task 0, read back: SELECT")
    assert "(2, 0, 0)] instead of" in report.wrong_counts[0]


def test_conflict_is_retried(execute: Execute) -> None:
    conflict = CommitConflict("Others were faster.")
    steps = list(run_task(PLAN.task(0), failing(execute, conflict, lambda i, _: i in (3, 4, 9))))
    report = summarize([steps])
    assert (report.conflicts, report.retries, report.failures) == (3, 3, ())
    assert report.problem is None
    assert len(steps) == PLAN.statements
    assert [step.attempts for step in steps if step.conflicts] == [3, 2]


def test_repeated_conflict_becomes_a_failure(execute: Execute) -> None:
    conflict = CommitConflict("Others were faster.")
    conflicting = failing(execute, conflict, lambda _, sql: sql.startswith("DELETE"))
    report = summarize([list(run_task(PLAN.task(0), conflicting))])
    assert len(report.failures) == 5
    assert report.conflicts == 5 * MAX_ATTEMPTS
    assert report.retries == 5 * (MAX_ATTEMPTS - 1)
    assert report.failures[0] == "task 0, delete: COMMIT_CONFLICT: Others were faster."
    assert report.wrong_counts == ()


def test_failed_statement_leaves_the_state_unchanged(execute: Execute) -> None:
    failed = CommitFailed("It was\ntoo much.")
    steps = list(run_task(PLAN.task(0), failing(execute, failed, lambda i, _: i % 3 == 0)))
    report = summarize([steps, []])
    assert len(report.failures) == len([i for i in range(PLAN.statements) if i % 3 == 0])
    assert report.failures[0] == "task 0, create table: COMMIT_FAILED: It was too much."
    assert report.wrong_counts == ()
    assert find_differences(PLAN.checks(final_states([steps, []])), execute) == []
    assert report.problem is not None
    assert report.problem.startswith("18 statements failed. The first: task 0, create table")


def test_lost_connection_ends_the_task(execute: Execute) -> None:
    lost = ConnectionLost("The connection was lost.")
    steps = list(run_task(PLAN.task(1), failing(execute, lost, lambda i, _: i == 5)))
    assert [step.failure for step in steps[:5]] == [None] * 5
    assert [step.failure for step in steps[5:]] == ["CONNECTION_LOST: The connection was lost."]
    assert steps[5].state == steps[4].state


# ---- the report ----------------------------------------------------------------------------------


def step(
    kind: StatementKind, began: float, seconds: float, failure: str | None = None
) -> StatementOutcome:
    return StatementOutcome(kind, began, seconds, TaskState(), failure=failure)


def test_latency_covers_committing_statements_only() -> None:
    report = summarize(
        [
            [step(StatementKind.INSERT, 10.0, 0.5), step(StatementKind.READ, 10.5, 9.0)],
            [step(StatementKind.UPDATE, 11.0, 0.25), step(StatementKind.DELETE, 12.0, 3.0, "no")],
        ]
    )
    assert report.seconds == 9.5
    assert report.commits == 2
    assert (report.latency.p50, report.latency.p99, report.latency.max) == (500, 3000, 3000)
    assert set(report.by_kind) == {
        StatementKind.INSERT,
        StatementKind.UPDATE,
        StatementKind.READ,
        StatementKind.DELETE,
    }
    assert report.by_kind[StatementKind.READ].max == 9000
    assert report.failures == ("task 1, delete: no",)


def test_report_serializes_to_json() -> None:
    report = json.loads(json.dumps(summarize([[step(StatementKind.INSERT, 0.0, 0.5)]]).as_json()))
    assert report == {
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


def test_empty_run_has_a_report() -> None:
    report: Report = summarize([[], []])
    assert (report.commits, report.commits_per_second, report.latency.max) == (0, 0.0, 0.0)
    assert report.problem is None


def test_percentile_uses_the_nearest_rank() -> None:
    assert percentile([3, 1, 2], 50) == 2
    assert percentile(range(1, 101), 99) == 99
    assert percentile([7], 99) == 7


def test_table_content_adds_values() -> None:
    assert TableContent(2, 10).with_values(iter([3, 4])) == TableContent(4, 17)

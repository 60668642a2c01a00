"""Runs the fan-out on servers, or on anything else that executes SQL."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from swanlake.bench.fanout import CountCheck, FanOut, Row, Task, TaskState, TaskStatement
from swanlake.bench.report import Report, StatementOutcome, final_states, summarize
from swanlake.client import FlightSQLClient
from swanlake.errors import (
    AlreadyExists,
    ClientClosed,
    CommitConflict,
    ServerUnavailable,
    SessionError,
    SwanLakeError,
)
from swanlake.sql.quoting import literal

#: Executes a statement and returns its rows; raises SwanLakeError, and CommitConflict for a
#: statement that may be retried.
Execute = Callable[[str], Sequence[Row]]
Connect = Callable[[str], FlightSQLClient]

MAX_ATTEMPTS = 10
#: Errors after which no statement of the session can succeed.
_SESSION_IS_GONE = (ServerUnavailable, SessionError, ClientClosed)


def run_task(task: Task, execute: Execute) -> Iterator[StatementOutcome]:
    """Runs the statements of a task in order; yields the outcome of each."""
    state = TaskState()
    for number in range(task.plan.statements):
        statement = task.statement(number, state)
        began = time.monotonic()
        attempt = _attempt(statement.sql, execute)
        seconds = time.monotonic() - began
        state = state if attempt.error else statement.state_after
        yield StatementOutcome(
            statement.kind,
            began,
            seconds,
            state,
            attempt.attempts,
            attempt.conflicts,
            failure=_sentence(attempt.error) if attempt.error else None,
            wrong=None if attempt.error else _difference(statement, attempt.rows),
        )
        if isinstance(attempt.error, _SESSION_IS_GONE):
            return


@dataclass(frozen=True)
class _Attempt:
    """A statement, retried after commit conflicts."""

    attempts: int
    conflicts: int
    rows: tuple[Row, ...] = ()
    error: SwanLakeError | None = None


def _attempt(sql: str, execute: Execute) -> _Attempt:
    for attempt in range(1, MAX_ATTEMPTS + 1):
        try:
            return _Attempt(attempt, attempt - 1, rows=tuple(execute(sql)))
        except CommitConflict as conflict:
            last = conflict
        except SwanLakeError as failed:
            return _Attempt(attempt, attempt - 1, error=failed)
    return _Attempt(MAX_ATTEMPTS, MAX_ATTEMPTS, error=last)


def run_fanout(
    plan: FanOut,
    servers: Sequence[str],
    connect: Connect,
    *,
    keep: bool = False,
    on_statement: Callable[[], None] = lambda: None,
) -> Report:
    """Runs all tasks concurrently, spread over the servers; then every server counts the rows.

    The catalog is created if it does not exist. The tables are dropped at the end, unless ``keep``
    is set. Raises SwanLakeError if the run cannot start.
    """
    with ExitStack() as opened:

        def session(number: int) -> Execute:
            client = opened.enter_context(connect(servers[number % len(servers)]))
            return lambda sql: client.execute(sql).rows()

        with ThreadPoolExecutor(plan.tasks) as threads:
            sessions = list(threads.map(session, range(plan.tasks)))
        with suppress(AlreadyExists):
            sessions[0](f"CALL swanlake_create_catalog({literal(plan.catalog)})")
        failures: list[str] = []
        wrong: list[str] = []
        try:
            prepare(plan, sessions[0])
            tasks = _run_tasks(plan, sessions, on_statement)
            checks = plan.checks(final_states(tasks))
            for server, execute in zip(servers, sessions, strict=False):
                try:
                    wrong += (f"{server}: {found}" for found in find_differences(checks, execute))
                except SwanLakeError as unchecked:
                    failures.append(f"the counts of {server}: {_sentence(unchecked)}")
        finally:
            if not keep:
                drop = plan.teardown_statement
                if error := _attempt(drop, sessions[0]).error:
                    failures.append(f"{drop}: {_sentence(error)}")
        return summarize(tasks, failures=failures, wrong_counts=wrong)


def prepare(plan: FanOut, execute: Execute) -> None:
    """Creates the shared objects in an existing catalog."""
    for sql in plan.setup_statements:
        if error := _attempt(sql, execute).error:
            raise error


def find_differences(checks: Iterable[CountCheck], execute: Execute) -> list[str]:
    """The checks that fail, each as a phrase."""
    results = (_difference(check, tuple(execute(check.sql))) for check in checks)
    return [difference for difference in results if difference is not None]


def _run_tasks(
    plan: FanOut, sessions: Sequence[Execute], on_statement: Callable[[], None]
) -> list[list[StatementOutcome]]:
    interrupted = threading.Event()

    def work(number: int) -> list[StatementOutcome]:
        steps = []
        for step in run_task(plan.task(number), sessions[number]):
            steps.append(step)
            on_statement()
            if interrupted.is_set():
                break
        return steps

    # After an interrupt, running statements end first: then their tables can be dropped.
    with ThreadPoolExecutor(plan.tasks, "swanlake-bench") as threads:
        try:
            return list(threads.map(work, range(plan.tasks)))
        finally:
            interrupted.set()


def _difference(query: TaskStatement | CountCheck, rows: tuple[Row, ...]) -> str | None:
    if query.answer is None or rows == query.answer:
        return None
    return f"{query.sql} returned {list(rows)} instead of {list(query.answer)}"


def _sentence(error: SwanLakeError) -> str:
    return " ".join(error.wire_message.split())

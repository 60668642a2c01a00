"""Runs the fan-out: through servers, or through anything else that takes SQL and gives rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from swanlake.bench.fanout import Check, FanOut, Holdings, Row, Statement, Task
from swanlake.bench.report import Report, Step, holdings_of, summed_up
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

#: Runs a statement and gives its rows; raises SwanLakeError, and CommitConflict where a statement
#: was not done because of what others did.
Execute = Callable[[str], Sequence[Row]]
Connect = Callable[[str], FlightSQLClient]

MAX_ATTEMPTS = 10
#: After these nothing that the session is asked for can succeed.
_SESSION_IS_GONE = (ServerUnavailable, SessionError, ClientClosed)


def executing(client: FlightSQLClient) -> Execute:
    """What runs statements in the session of a client."""
    return lambda sql: client.execute(sql).rows()


# ---- one task ------------------------------------------------------------------------------------


def perform(task: Task, execute: Execute) -> Iterator[Step]:
    """Runs the statements of a task one after the other, and says of each how it went."""
    held = Holdings()
    for number in range(task.plan.statements):
        statement = task.statement(number, held)
        began = time.monotonic()
        attempt = _attempt(statement.sql, execute)
        seconds = time.monotonic() - began
        held = held if attempt.error else statement.leaves
        yield Step(
            statement.kind,
            began,
            seconds,
            held,
            attempt.attempts,
            attempt.conflicts,
            failure=_sentence(attempt.error) if attempt.error else None,
            wrong=None if attempt.error else _difference(statement, attempt.rows),
        )
        if isinstance(attempt.error, _SESSION_IS_GONE):
            return


@dataclass(frozen=True)
class _Attempt:
    """A statement that was repeated as long as others were in its way."""

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


# ---- all of them ---------------------------------------------------------------------------------


def fan_out(
    plan: FanOut,
    servers: Sequence[str],
    connect: Connect,
    *,
    keep: bool = False,
    stepped: Callable[[], None] = lambda: None,
) -> Report:
    """Runs all tasks at once, spread over the servers, and has every server count what is there.

    The catalog is made if it is not there, and stays; what the run made in it is dropped at the
    end, unless it is to be kept. Raises SwanLakeError if the run cannot even begin.
    """
    with ExitStack() as opened:

        def session(number: int) -> Execute:
            return executing(opened.enter_context(connect(servers[number % len(servers)])))

        with ThreadPoolExecutor(plan.tasks) as threads:
            sessions = list(threads.map(session, range(plan.tasks)))
        with suppress(AlreadyExists):
            sessions[0](f"CALL swanlake_create_catalog({literal(plan.catalog)})")
        failures: list[str] = []
        wrong: list[str] = []
        try:
            prepare(plan, sessions[0])
            tasks = _perform_all(plan, sessions, stepped)
            checks = plan.checks(holdings_of(tasks))
            for server, execute in zip(servers, sessions, strict=False):
                try:
                    wrong += (f"{server}: {found}" for found in differences(checks, execute))
                except SwanLakeError as unchecked:
                    failures.append(f"the counts of {server}: {_sentence(unchecked)}")
        finally:
            if not keep:
                failures += _remove(plan, sessions[0])
        return summed_up(tasks, failures=failures, wrong_counts=wrong)


def prepare(plan: FanOut, execute: Execute) -> None:
    """Makes what all tasks share, in a catalog that is there."""
    for sql in plan.preparation:
        if error := _attempt(sql, execute).error:
            raise error


def differences(checks: Iterable[Check], execute: Execute) -> list[str]:
    """The checks that do not hold, each as a phrase."""
    found = (_difference(check, tuple(execute(check.sql))) for check in checks)
    return [difference for difference in found if difference is not None]


def _perform_all(
    plan: FanOut, sessions: Sequence[Execute], stepped: Callable[[], None]
) -> list[list[Step]]:
    interrupted = threading.Event()

    def work(number: int) -> list[Step]:
        steps = []
        for step in perform(plan.task(number), sessions[number]):
            steps.append(step)
            stepped()
            if interrupted.is_set():
                break
        return steps

    # Whoever stops it waits for the statements under way: what they write is dropped after them.
    with ThreadPoolExecutor(plan.tasks, "swanlake-bench") as threads:
        try:
            return list(threads.map(work, range(plan.tasks)))
        finally:
            interrupted.set()


def _remove(plan: FanOut, execute: Execute) -> list[str]:
    error = _attempt(plan.removal, execute).error
    return [] if error is None else [f"{plan.removal}: {_sentence(error)}"]


def _difference(asked: Statement | Check, rows: tuple[Row, ...]) -> str | None:
    if asked.answer is None or rows == asked.answer:
        return None
    return f"{asked.sql} gave {list(rows)}, and it is {list(asked.answer)} that was written"


def _sentence(error: SwanLakeError) -> str:
    return " ".join(error.wire_message.split())

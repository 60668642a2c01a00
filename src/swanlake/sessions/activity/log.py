"""The statements that have ended: the latest ones, the latest errors, and groups of them.

A statement that ends costs its own thread a few microseconds: it appends one tuple. A thread of the
log turns these into values, groups them and calls the listeners a moment later. A reader of the log
does the same first, and so sees every statement that has ended.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from swanlake.access.identity import Identity
from swanlake.errors import SwanLakeError
from swanlake.sessions.activity.groups import StatementGroups
from swanlake.sessions.activity.records import OK, FinishedStatement, StatementGroup
from swanlake.sessions.run import Run
from swanlake.sql.statement import Statement

log = logging.getLogger("swanlake.sessions")

#: Longer texts are cut off.
MAX_SQL_CHARACTERS = 4096
_MAX_ERROR_CHARACTERS = 2000
_MAX_RECENT = 1000
_MAX_ERRORS = 500
#: Statements that wait for the log's thread; the next one is not left to it.
_MAX_PENDING = 5000
#: How long the thread lets statements gather: fewer changes of threads.
_GATHER_SECONDS = 0.25
#: New texts that are read for their group in one pass, a few milliseconds of work.
_MAX_NEW_TEXTS = 20

Listener = Callable[[FinishedStatement], object]
IsVisible = Callable[[str], bool]


class StatementLog:
    """Keeps the latest statements that have ended, and tells listeners of each."""

    def __init__(self) -> None:
        self._pending: deque[_Ended] = deque()
        self._lock = threading.Lock()
        self._recent: deque[FinishedStatement] = deque(maxlen=_MAX_RECENT)
        self._errors: deque[FinishedStatement] = deque(maxlen=_MAX_ERRORS)
        self._groups = StatementGroups()
        self._listeners: list[Listener] = []
        self._has_work = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, run: Run) -> None:
        """Records a statement that has ended."""
        error = run.error
        if not run.sql or (run.describes_only and error is None):
            return  # a metadata call, or a statement that was only prepared
        outcome, message = (OK, None) if error is None else _describe(error)
        ended = run.executed_at or time.monotonic()
        self._pending.append(
            _Ended(
                run.query_id,
                run.session.id,
                run.identity,
                run.address,
                cut_off(run.sql),
                run.statement,
                run.may_change,
                run.action,
                run.started,
                ended,
                run.rows,
                outcome,
                message,
            )
        )
        if not self._has_work.is_set():
            self._has_work.set()
            if self._thread is None:
                self._start()
        if len(self._pending) > _MAX_PENDING:
            self.digest()

    def add_listener(self, listener: Listener) -> None:
        """Registers a function that another thread calls with each statement that ends."""
        with self._lock:
            self._digest()
            self._listeners.append(listener)

    def recent(self, limit: int, is_visible: IsVisible) -> list[FinishedStatement]:
        """The latest statements, newest first."""
        return self._latest(self._recent, limit, is_visible)

    def errors(self, limit: int, is_visible: IsVisible) -> list[FinishedStatement]:
        """The latest statements that failed, newest first."""
        return self._latest(self._errors, limit, is_visible)

    def slow(self, limit: int, is_visible: IsVisible) -> list[StatementGroup]:
        """The groups of statements that took the most time."""
        with self._lock:
            self._digest()
            return self._groups.slowest(limit, is_visible)

    def digest(self) -> None:
        """Takes in all statements that have ended."""
        with self._lock:
            self._digest()

    def close(self) -> None:
        """Tells the listeners of the last statements, and ends the thread."""
        self._closed.set()
        self._has_work.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
        self.digest()

    def _latest(
        self, statements: deque[FinishedStatement], limit: int, is_visible: IsVisible
    ) -> list[FinishedStatement]:
        with self._lock:
            self._digest()
            visible = [each for each in reversed(statements) if is_visible(each.user)]
        return visible[:limit]

    def _start(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._digest_periodically, name="swanlake-activity", daemon=True
                )
                self._thread.start()

    def _digest_periodically(self) -> None:
        while not self._closed.is_set():
            self._has_work.wait()
            self._closed.wait(_GATHER_SECONDS)
            self._has_work.clear()  # first: what ends from now on sets it again
            try:
                self.digest()
            except Exception:
                log.exception("statements that ended could not be recorded")

    def _digest(self) -> None:
        offset = clock_offset()
        statements: list[FinishedStatement] = []
        for _ in range(len(self._pending)):
            statements.append(_finished(self._pending.popleft(), offset))
        self._recent.extend(statements)
        self._errors.extend(each for each in statements if each.is_failed)
        self._groups.add_all(statements, _MAX_NEW_TEXTS)
        for listener in self._listeners:
            for statement in statements:
                try:
                    listener(statement)
                except Exception:
                    log.exception("a listener failed for the statement %s", statement.query_id)


class _Ended(NamedTuple):
    """What is kept of a run until it becomes a value."""

    query_id: str
    session_id: str
    identity: Identity
    address: str
    sql: str
    statement: Statement | None
    may_change: bool | None
    action: str | None
    started: float
    ended: float
    rows: int
    outcome: str
    error: str | None


def cut_off(sql: str) -> str:
    """A text of a statement, with an ellipsis in place of what is too much to keep."""
    return sql if len(sql) <= MAX_SQL_CHARACTERS else sql[:MAX_SQL_CHARACTERS] + "…"


def type_name(statement: Statement | None) -> str:
    """DuckDB's name for the type of a statement; empty if it was not parsed."""
    return "" if statement is None else statement.type.name


def clock_offset() -> float:
    """Add it to a time of the monotonic clock for seconds since 1970, as the clock is now set."""
    return time.time() - time.monotonic()


def _describe(error: BaseException) -> tuple[str, str]:
    if isinstance(error, SwanLakeError):
        return error.identifier, error.message[:_MAX_ERROR_CHARACTERS]
    return "INTERNAL_ERROR", type(error).__name__


def _may_change(ended: _Ended) -> bool:
    if ended.may_change is not None:
        return ended.may_change
    return ended.statement is not None and ended.statement.may_write


def _finished(ended: _Ended, offset: float) -> FinishedStatement:
    return FinishedStatement(
        query_id=ended.query_id,
        session_id=ended.session_id,
        user=ended.identity.name,
        role=ended.identity.role,
        address=ended.address,
        sql=ended.sql,
        kind=type_name(ended.statement),
        started=offset + ended.started,
        seconds=ended.ended - ended.started,
        rows=ended.rows,
        outcome=ended.outcome,
        error=ended.error,
        may_change=_may_change(ended),
        action=ended.action,
    )

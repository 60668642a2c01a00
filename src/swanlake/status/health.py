"""Whether the server can do its work: checks that run in the background, and their last results.

A check that hangs holds up neither the other checks nor the callers, who get the last results.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swanlake._internal.waiting import polling, wait
from swanlake._internal.worker_threads import WorkerThreads
from swanlake.errors import SwanLakeError

log = logging.getLogger("swanlake.status")

#: How often the thread looks for checks that are due.
_TICK_SECONDS = 1.0
#: A check that takes longer has failed.
_DEADLINE_SECONDS = 10.0
#: A caller waits this long for checks that run because it asked.
_PATIENCE = 1.5


@dataclass(frozen=True)
class Check:
    """Something that the server needs."""

    name: str
    #: What is wrong if it fails, for callers who may know nothing about the server.
    failure: str
    #: Raises if it fails.
    run: Callable[[], object]
    interval: float = 5.0


@dataclass(frozen=True)
class CheckReport:
    """The last result of a check."""

    name: str
    is_ok: bool
    #: Why not; safe to show to anyone.
    reason: str = ""
    #: The message of the error, for admins.
    detail: str = ""
    #: Since the check ended; None before the first one did.
    age_seconds: float | None = None
    #: How long it took.
    seconds: float = 0.0


@dataclass(frozen=True)
class HealthReport:
    """The last results of all checks."""

    checks: tuple[CheckReport, ...]

    @property
    def is_ok(self) -> bool:
        """True if every check succeeded."""
        return all(check.is_ok for check in self.checks)

    @property
    def reasons(self) -> tuple[str, ...]:
        """What is wrong, a sentence each."""
        return tuple(check.reason for check in self.checks if not check.is_ok)


@dataclass
class _State:
    """A check and its last result; the times are on the monotonic clock."""

    check: Check
    started_at: float = float("-inf")
    ended_at: float | None = None
    #: From the start of the last check that ended.
    seconds: float = 0.0
    error: BaseException | None = None
    is_running: bool = False
    #: What was logged last.
    was_ok: bool = True

    def is_due(self, now: float) -> bool:
        return not self.is_running and now >= self.started_at + self.check.interval

    def report(self, now: float) -> CheckReport:
        name, age = self.check.name, None if self.ended_at is None else now - self.ended_at
        if self.is_running and now - self.started_at > _DEADLINE_SECONDS:
            detail = f"no answer within {_DEADLINE_SECONDS:g} s"
            return CheckReport(name, False, self.check.failure, detail, age, now - self.started_at)
        if age is None:
            return CheckReport(name, False, f"The {name} was not checked yet.")
        if self.error is None:
            return CheckReport(name, True, age_seconds=age, seconds=self.seconds)
        return CheckReport(
            name, False, self.check.failure, _one_line(self.error), age, self.seconds
        )


class HealthMonitor:
    """Runs checks at their intervals, and remembers the results."""

    def __init__(
        self, checks: Sequence[Check], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._states = [_State(check) for check in checks]
        self._clock = clock
        self._lock = threading.Lock()
        self._workers = WorkerThreads("swanlake-health-check")
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        #: Called after every tick with the report, about once a second.
        self.listeners: list[Callable[[HealthReport], None]] = []

    @property
    def is_running(self) -> bool:
        """False for a server that does not check its health."""
        return self._thread is not None

    def start(self) -> None:
        """Starts the checks; the first results are there a moment later."""
        self._thread = threading.Thread(target=self._run, name="swanlake-health", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Starts no more checks."""
        self._stopping.set()

    def report(self) -> HealthReport:
        """The last results; never waits for a check."""
        with self._lock:
            now = self._clock()
            return HealthReport(tuple(state.report(now) for state in self._states))

    def current(self) -> HealthReport:
        """The last results; if no thread runs the checks, starts those that are due first.

        Waits a moment for these; a check that takes longer has its last result.
        """
        if not self.is_running:
            self.tick()
            wait(polling(lambda: not self._is_busy()), deadline=time.monotonic() + _PATIENCE)
        return self.report()

    def _is_busy(self) -> bool:
        with self._lock:
            return any(state.is_running for state in self._states)

    def tick(self) -> None:
        """Starts the checks that are due."""
        with self._lock:
            now = self._clock()
            due = [state for state in self._states if state.is_due(now)]
            for state in due:
                state.is_running, state.started_at = True, now
        for state in due:
            self._workers.run(lambda state=state: self._check(state))  # type: ignore[misc]

    def _check(self, state: _State) -> None:
        error: BaseException | None = None
        try:
            state.check.run()
        except BaseException as failure:  # noqa: BLE001 - the result of the check
            error = failure
        with self._lock:
            state.error, state.is_running, state.ended_at = error, False, self._clock()
            state.seconds = state.ended_at - state.started_at

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.tick()
                report = self.report()
                self._log_changes(report)
                for listener in self.listeners:
                    listener(report)
            except Exception:
                log.exception("the health of the server cannot be checked")
            self._stopping.wait(_TICK_SECONDS)

    def _log_changes(self, report: HealthReport) -> None:
        for state, result in zip(self._states, report.checks, strict=True):
            if result.age_seconds is None and not result.detail:
                continue  # it has no result yet
            if result.is_ok != state.was_ok:
                state.was_ok = result.is_ok
                if result.is_ok:
                    log.info("the %s works again", result.name)
                else:
                    log.warning("%s %s", result.reason, result.detail)


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return f"{error.identifier}: {text}" if isinstance(error, SwanLakeError) else text

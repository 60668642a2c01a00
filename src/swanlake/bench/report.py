"""The report of a run: rates, latencies and failures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from swanlake.bench.fanout import StatementKind, TaskState


@dataclass(frozen=True)
class StatementOutcome:
    """The outcome of a statement: its duration, its attempts and its effect."""

    kind: StatementKind
    #: On the monotonic clock.
    started_at: float
    #: From the first attempt to the last answer.
    seconds: float
    #: The state of the task's tables afterwards.
    state: TaskState
    attempts: int = 1
    #: Attempts that failed with a commit conflict.
    conflicts: int = 0
    #: Why it failed in the end.
    failure: str | None = None
    #: How its answer differs from the expected one.
    wrong: str | None = None


@dataclass(frozen=True)
class Latency:
    """The latency of statements in milliseconds, including those that failed."""

    statements: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class Report:
    """The report of a run; ``summarize`` makes it."""

    seconds: float
    commits: int
    #: Of all statements that commit.
    latency: Latency
    by_kind: dict[StatementKind, Latency]
    retries: int
    conflicts: int
    #: The statements that failed, with their reasons.
    failures: tuple[str, ...]
    #: The answers that were wrong.
    wrong_counts: tuple[str, ...]

    @property
    def commits_per_second(self) -> float:
        """Over the time from the first statement to the last answer."""
        return self.commits / self.seconds if self.seconds else 0.0

    @property
    def problem(self) -> str | None:
        """One sentence about the failures; None without any."""
        problems = []
        if self.failures:
            problems.append(_count(len(self.failures), "statement") + " failed")
        if self.wrong_counts:
            problems.append(_count(len(self.wrong_counts), "count") + " came out wrong")
        if not problems:
            return None
        first = (*self.failures, *self.wrong_counts)[0]
        return f"{' and '.join(problems)}. The first: {first}"

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "seconds": round(self.seconds, 3),
            "commits": self.commits,
            "commits_per_second": round(self.commits_per_second, 2),
            "latency_ms": _rounded(self.latency),
            "kinds": {str(kind): _rounded(latency) for kind, latency in self.by_kind.items()},
            "retries": self.retries,
            "conflicts": self.conflicts,
            "failures": list(self.failures),
            "wrong_counts": list(self.wrong_counts),
        }


def summarize(
    tasks: Sequence[Sequence[StatementOutcome]],
    *,
    failures: Iterable[str] = (),
    wrong_counts: Iterable[str] = (),
) -> Report:
    """The report of all tasks, with further failures and wrong counts."""
    steps = [step for task in tasks for step in task]
    named = [(f"task {number}", step) for number, task in enumerate(tasks) for step in task]
    to_commit = [step for step in steps if step.kind.commits]
    return Report(
        seconds=max((step.started_at + step.seconds for step in steps), default=0.0)
        - min((step.started_at for step in steps), default=0.0),
        commits=sum(step.failure is None for step in to_commit),
        latency=_latency(to_commit),
        by_kind={
            kind: _latency([step for step in steps if step.kind is kind])
            for kind in StatementKind
            if any(step.kind is kind for step in steps)
        },
        retries=sum(step.attempts - 1 for step in steps),
        conflicts=sum(step.conflicts for step in steps),
        failures=(
            *(f"{task}, {step.kind}: {step.failure}" for task, step in named if step.failure),
            *failures,
        ),
        wrong_counts=(
            *(f"{task}, {step.kind}: {step.wrong}" for task, step in named if step.wrong),
            *wrong_counts,
        ),
    )


def final_states(tasks: Iterable[Sequence[StatementOutcome]]) -> list[TaskState]:
    """The state of every task's tables at the end."""
    return [task[-1].state if task else TaskState() for task in tasks]


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that ``percent`` of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def _latency(steps: Sequence[StatementOutcome]) -> Latency:
    if not steps:
        return Latency(0, 0.0, 0.0, 0.0)
    spent = [step.seconds * 1000 for step in steps]
    return Latency(len(spent), percentile(spent, 50), percentile(spent, 99), max(spent))


def _rounded(latency: Latency) -> dict[str, Any]:
    return {
        name: round(value, 2) if isinstance(value, float) else value
        for name, value in asdict(latency).items()
    }


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

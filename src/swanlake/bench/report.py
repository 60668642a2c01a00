"""What a run of a workload came to: rates, times, and what went wrong."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from swanlake.bench.fanout import Holdings, Kind


@dataclass(frozen=True)
class Step:
    """A statement of a task, run to its end: how long, how often, and to what effect."""

    kind: Kind
    #: On a clock that all tasks share.
    began: float
    #: From the first attempt to the last answer.
    seconds: float
    #: What the task's tables hold now.
    holdings: Holdings
    attempts: int = 1
    #: Attempts that others were in the way of.
    conflicts: int = 0
    #: Why it was not done, in the end.
    failure: str | None = None
    #: How its answer differs from what it had to be.
    wrong: str | None = None


@dataclass(frozen=True)
class Latency:
    """How long statements took in milliseconds, whether they were done or failed in the end."""

    statements: int
    p50: float
    p99: float
    max: float


@dataclass(frozen=True)
class Report:
    """What a run came to; ``summed_up`` makes it."""

    seconds: float
    commits: int
    #: Of all statements that were to commit, each from its first attempt to its last answer.
    latency: Latency
    by_kind: dict[Kind, Latency]
    retries: int
    conflicts: int
    #: Statements that were not done, each with its reason.
    failures: tuple[str, ...]
    #: Answers that were not what they had to be.
    wrong_counts: tuple[str, ...]

    @property
    def commits_per_second(self) -> float:
        """Over the time from the first statement of any task to the last answer."""
        return self.commits / self.seconds if self.seconds else 0.0

    @property
    def problem(self) -> str | None:
        """One sentence about what went wrong; None if nothing did."""
        found = [
            _count(len(self.failures), "statement") + " failed" if self.failures else "",
            _count(len(self.wrong_counts), "count") + " came out wrong"
            if self.wrong_counts
            else "",
        ]
        if not any(found):
            return None
        first = (*self.failures, *self.wrong_counts)[0]
        return f"{' and '.join(filter(None, found))}. The first: {first}"

    def as_json(self) -> dict[str, Any]:
        """The report as values that JSON has."""
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


def summed_up(
    tasks: Sequence[Sequence[Step]],
    *,
    failures: Iterable[str] = (),
    wrong_counts: Iterable[str] = (),
) -> Report:
    """The report of all steps of all tasks, and of what was found besides."""
    steps = [step for task in tasks for step in task]
    named = [(f"task {number}", step) for number, task in enumerate(tasks) for step in task]
    to_commit = [step for step in steps if step.kind.commits]
    return Report(
        seconds=max((step.began + step.seconds for step in steps), default=0.0)
        - min((step.began for step in steps), default=0.0),
        commits=sum(step.failure is None for step in to_commit),
        latency=_latency(to_commit),
        by_kind={
            kind: _latency([step for step in steps if step.kind is kind])
            for kind in Kind
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


def holdings_of(tasks: Iterable[Sequence[Step]]) -> list[Holdings]:
    """What every task's tables hold at the end."""
    return [task[-1].holdings if task else Holdings() for task in tasks]


def percentile(samples: Sequence[float], percent: float) -> float:
    """The smallest sample that at least ``percent`` of the samples do not exceed."""
    ordered = sorted(samples)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def _latency(steps: Sequence[Step]) -> Latency:
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

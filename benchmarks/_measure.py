"""Percentiles of timings, targets, and the table that benchmarks print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swanlake.bench.report import percentile

_HEADINGS = ("question", "baseline", "SwanLake", "ratio", "target", "reached")


def p50(samples: Sequence[float]) -> float:
    """The median."""
    return percentile(samples, 50)


def p99(samples: Sequence[float]) -> float:
    """The 99th percentile."""
    return percentile(samples, 99)


@dataclass(frozen=True)
class Target:
    """A condition on SwanLake's number, relative to the baseline's."""

    text: str
    reached: Callable[[float, float], bool]


def at_most(factor: float, text: str) -> Target:
    """SwanLake needs at most this fraction of the baseline: ``at_most(1 / 50, "1/50")``."""
    return Target(f"<= {text}", lambda baseline, swanlake: swanlake <= baseline * factor)


def at_least(factor: float) -> Target:
    """SwanLake reaches at least this multiple of the baseline."""
    return Target(f">= {factor:g}", lambda baseline, swanlake: swanlake >= baseline * factor)


def at_most_in_all(most: float, unit: str) -> Target:
    """SwanLake needs at most this much, whatever the baseline needs."""
    return Target(f"<= {most:g} {unit}".rstrip(), lambda baseline, swanlake: swanlake <= most)


def at_most_more(difference: float, unit: str) -> Target:
    """SwanLake needs at most this much more than the baseline."""
    return Target(
        f"<= +{difference:g} {unit}",
        lambda baseline, swanlake: swanlake <= baseline + difference,
    )


@dataclass(frozen=True)
class Answer:
    """One line of the table; without a baseline it is informational."""

    question: str
    baseline: float | None
    swanlake: float
    unit: str
    target: Target | None = None

    def cells(self) -> tuple[str, ...]:
        """The cells as text, in the order of the headings."""
        if self.baseline is None:
            return (self.question, "", _number(self.swanlake, self.unit), "", "", "")
        numbers = (_number(self.baseline, self.unit), _number(self.swanlake, self.unit))
        ratio = _ratio(self.swanlake / self.baseline) if self.baseline else "-"
        if self.target is None:
            return (self.question, *numbers, ratio, "", "")
        reached = "yes" if self.target.reached(self.baseline, self.swanlake) else "no"
        return (self.question, *numbers, ratio, self.target.text, reached)


def print_table(title: str, answers: Sequence[Answer]) -> None:
    """Prints a titled table with right-aligned numbers."""
    lines = [_HEADINGS, *(answer.cells() for answer in answers)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(_HEADINGS))]
    print(f"\n{title}")
    for line in lines:
        first, *rest = (
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        print("  " + "  ".join((first, *rest)).rstrip())


def _number(value: float, unit: str) -> str:
    return f"{value:.{0 if abs(value) >= 100 else 2}f} {unit}"


def _ratio(value: float) -> str:
    return f"{value:.2f}x" if value >= 0.1 else f"1/{1 / value:.0f}" if value > 0 else "0"

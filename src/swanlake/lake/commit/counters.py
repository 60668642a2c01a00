"""What the writers of this process have done since it started."""

from __future__ import annotations

from dataclasses import dataclass, field

from swanlake._internal.counts import Counts
from swanlake._internal.histogram import SHORT, Histogram

#: The outcome of a commit that succeeded, and of one that the extension made or not.
COMMITTED, EXCLUSIVE = "committed", "exclusive"


@dataclass(frozen=True)
class CommitCounters:
    """Counts and durations of commits, of all catalogs."""

    #: From the arrival of a writer until it has the lock.
    wait_seconds: Histogram = field(default_factory=lambda: Histogram(SHORT))
    hold_seconds: Histogram = field(default_factory=lambda: Histogram(SHORT))
    #: Commits by outcome: ``committed``, ``exclusive`` or the identifier of an error.
    outcomes: Counts = field(default_factory=lambda: Counts(COMMITTED, EXCLUSIVE))

    def count(self, outcome: str, waited: float, held: float) -> None:
        """A writer that had the lock is done."""
        self.wait_seconds.observe(max(waited, 0.0))
        self.hold_seconds.observe(held)
        self.outcomes.increment(outcome)

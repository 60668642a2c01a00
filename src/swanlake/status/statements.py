"""What statements have done since the server started, for metrics and charts."""

from __future__ import annotations

from dataclasses import dataclass, field

from swanlake._internal.counts import Counts
from swanlake._internal.histogram import SHORT, Histogram
from swanlake.sessions.activity import OK, FinishedStatement


@dataclass(frozen=True)
class StatementCounters:
    """Counts and durations of the statements that ended."""

    seconds: Histogram = field(default_factory=lambda: Histogram(SHORT))
    outcomes: Counts = field(default_factory=lambda: Counts(OK))
    rows: Counts = field(default_factory=lambda: Counts("rows"))

    def count(self, statement: FinishedStatement) -> None:
        """Counts a statement that has ended; a thread of the activity calls it."""
        self.seconds.observe(statement.seconds)
        self.outcomes.increment(statement.outcome)
        self.rows.increment("rows", statement.rows)

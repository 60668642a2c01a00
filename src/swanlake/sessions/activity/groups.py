"""Groups statements that differ in values only, and counts them; bounded in number."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from swanlake.sessions.activity.records import FinishedStatement, StatementGroup
from swanlake.sql.fingerprint import cache_key, fingerprint, redacted

MAX_GROUPS = 1000
#: Removed at once when there are too many: those that took the least time.
_REMOVED = 100
#: The bounds of two buckets differ by 9 %.
_BUCKETS_PER_DOUBLING = 8
_SHORTEST_SECONDS = 1e-6
#: The texts whose group is known without the lexer.
_MAX_TEXTS = 4 * MAX_GROUPS
#: Stands for the texts that were too many to read.
OTHER_STATEMENTS = "(other statements)"


class Durations:
    """A histogram of durations with buckets of equal ratios."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Counts a duration."""
        ratio = max(seconds, _SHORTEST_SECONDS) / _SHORTEST_SECONDS
        self._counts[math.ceil(math.log2(ratio) * _BUCKETS_PER_DOUBLING)] += 1

    def quantile(self, share: float) -> float:
        """A duration that this share of all does not exceed; at most a tenth too high."""
        rest = math.ceil(share * self._counts.total())
        for bucket in sorted(self._counts):
            rest -= self._counts[bucket]
            if rest <= 0:
                return _SHORTEST_SECONDS * math.exp2(bucket / _BUCKETS_PER_DOUBLING)
        return 0.0


@dataclass
class _Group:
    user: str
    kind: str
    text: str
    count: int = 0
    errors: int = 0
    rows: int = 0
    seconds: float = 0.0
    max_seconds: float = 0.0
    durations: Durations = field(default_factory=Durations)
    last_seen: float = 0.0

    def add(self, statement: FinishedStatement) -> None:
        self.count += 1
        self.errors += statement.is_failed
        self.rows += statement.rows
        self.seconds += statement.seconds
        self.max_seconds = max(self.max_seconds, statement.seconds)
        self.durations.add(statement.seconds)
        self.last_seen = max(self.last_seen, statement.started + statement.seconds)


class StatementGroups:
    """Statements grouped by user and fingerprint. One thread uses it at a time."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, str], _Group] = {}
        #: The group of a user's texts, by their ``cache_key``.
        self._by_text: dict[tuple[str, str], _Group] = {}

    def add_all(self, statements: Sequence[FinishedStatement], max_new_texts: int) -> None:
        """Counts statements in their groups.

        Reading a text takes a twentieth of a millisecond. So only those texts are read, if there
        are many new ones, whose statements took the longest; the others are one group.
        """
        for statement in sorted(statements, key=lambda one: one.seconds, reverse=True):
            key = statement.user, cache_key(statement.sql)
            group = self._by_text.get(key)
            if group is None and max_new_texts > 0:
                max_new_texts -= 1
                text = redacted(statement.sql)
                group = self._get(statement, fingerprint(text), text)
                if len(self._by_text) >= _MAX_TEXTS:
                    self._by_text.clear()
                self._by_text[key] = group
            elif group is None:
                group = self._get(statement, OTHER_STATEMENTS, OTHER_STATEMENTS)
            group.add(statement)

    def slowest(self, limit: int, is_visible: Callable[[str], bool]) -> list[StatementGroup]:
        """The groups of the users that are visible; those first that took the most time."""
        groups = [group for group in self._groups.items() if is_visible(group[1].user)]
        groups.sort(key=lambda entry: entry[1].seconds, reverse=True)
        return [_as_record(shape, group) for (_, shape), group in groups[:limit]]

    def _get(self, statement: FinishedStatement, shape: str, text: str) -> _Group:
        key = statement.user, shape
        group = self._groups.get(key)
        if group is None:
            if len(self._groups) >= MAX_GROUPS:
                self._remove_shortest()
            group = self._groups[key] = _Group(statement.user, statement.kind, text)
        return group

    def _remove_shortest(self) -> None:
        by_seconds = sorted(self._groups, key=lambda key: self._groups[key].seconds)
        for key in by_seconds[:_REMOVED]:
            del self._groups[key]
        self._by_text.clear()


def _as_record(shape: str, group: _Group) -> StatementGroup:
    return StatementGroup(
        fingerprint=hashlib.sha256(shape.encode()).hexdigest()[:16],
        user=group.user,
        kind=group.kind,
        text=group.text,
        count=group.count,
        errors=group.errors,
        rows=group.rows,
        total_seconds=group.seconds,
        mean_seconds=group.seconds / group.count,
        p50_seconds=group.durations.quantile(0.5),
        p99_seconds=group.durations.quantile(0.99),
        max_seconds=group.max_seconds,
        last_seen_at=datetime.fromtimestamp(group.last_seen, UTC),
    )

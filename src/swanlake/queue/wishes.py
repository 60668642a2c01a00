"""Who waits for what to reach the lake, and what became of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from uuid import UUID

from swanlake.queue.flush import FlushReport
from swanlake.queue.names import QueueTable


@dataclass(eq=False)
class Wish:
    """Somebody waits until these segments are in the lake."""

    segments: dict[QueueTable, set[UUID]]
    reports: dict[QueueTable, FlushReport] = field(default_factory=dict)
    errors: dict[QueueTable, str] = field(default_factory=dict)

    @property
    def fulfilled(self) -> bool:
        return all(not ids or table in self.errors for table, ids in self.segments.items())


class Wishes:
    """All wishes that are not fulfilled yet; whoever changes them holds the queue's lock."""

    def __init__(self) -> None:
        self._wishes: list[Wish] = []

    def add(self, wish: Wish) -> None:
        self._wishes.append(wish)

    def remove(self, wish: Wish) -> None:
        self._wishes.remove(wish)

    def flushed(self, table: QueueTable, ids: Collection[UUID], report: FlushReport) -> None:
        """These segments are in the lake, or among the dead letters."""
        for wish in self._concerned(table, ids):
            wish.reports[table] = wish.reports.get(table, FlushReport(table)) + report
            wish.segments[table].difference_update(ids)

    def failed(self, table: QueueTable, ids: Collection[UUID], error: str) -> None:
        """These segments stay in the queue."""
        for wish in self._concerned(table, ids):
            wish.errors[table] = error

    def give_up(self, reason: str) -> None:
        """Nothing of what is still waited for will come."""
        for wish in self._wishes:
            for table, ids in wish.segments.items():
                if ids:
                    wish.errors.setdefault(table, reason)

    def _concerned(self, table: QueueTable, ids: Collection[UUID]) -> list[Wish]:
        return [wish for wish in self._wishes if wish.segments.get(table, set()) & set(ids)]

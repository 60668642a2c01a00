"""What was committed since the base of a commit."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from swanlake.errors import CommitConflict
from swanlake.lake.commit.changes import parse_changes
from swanlake.lake.commit.conflicts import CommittedChange
from swanlake.lake.commit.queries import head_query
from swanlake.lake.metastore.store import CatalogStore, Query


class SnapshotHistory:
    """The snapshots read under one lock, and what each of them changed.

    Each commit of a group is checked against the changes since its own base. Those are mostly the
    same, so they are read once, and then only what was added.
    """

    def __init__(self, base: int | None) -> None:
        self._base = base
        self._ids: list[int] = []
        #: Parsed lazily: an unreadable entry fails only the commits that need it.
        self._changes: list[str | list[CommittedChange]] = []

    def query(self, store: CatalogStore) -> Query:
        """The query for the newest snapshot and all that are not known yet."""
        return head_query(store, self._ids[-1] if self._ids else self._base)

    def add(self, rows: Sequence[Row[Any]]) -> None:
        """Adds the rows of the query."""
        for row in rows:
            if self._ids and row.snapshot_id <= self._ids[-1]:
                continue
            self._ids.append(row.snapshot_id)
            self._changes.append(row.changes_made or "")

    def after(self, base: int, catalog: str) -> list[CommittedChange]:
        """The changes after a snapshot; raises CommitConflict if some are unknown."""
        _check_history(catalog, self._ids, base)
        indexes = range(bisect_right(self._ids, base), len(self._ids))
        return [change for index in indexes for change in self._at(index)]

    def _at(self, index: int) -> list[CommittedChange]:
        changes = self._changes[index]
        if isinstance(changes, str):
            changes = [
                CommittedChange(self._ids[index], change) for change in parse_changes(changes)
            ]
            self._changes[index] = changes
        return changes


def _check_history(catalog: str, ids: Sequence[int], base: int) -> None:
    """Raises CommitConflict unless every snapshot since the base is known.

    Ids have no gaps, so a missing snapshot was expired and what it changed is unknown.
    """
    newest = ids[-1]
    if base > newest:
        raise CommitConflict(
            f"The commit is based on snapshot {base}, but the newest one of the catalog {catalog} "
            f"is {newest}; it may have been restored from a backup. Read again and repeat it."
        )
    known = ids[bisect_left(ids, base) :]
    if len(known) <= newest - base:
        missing = next(id for id in range(base, newest) if id not in set(known))
        raise CommitConflict(
            f"The commit is based on snapshot {base} of the catalog {catalog}, and snapshot "
            f"{missing} has been expired since, so it cannot be checked for conflicts up to "
            f"snapshot {newest}. Read again and repeat it; keep snapshots for longer than the "
            "longest transaction."
        )

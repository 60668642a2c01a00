"""Which snapshots expire, and what the remaining ones can see: decisions without I/O."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from datetime import datetime, timedelta

from swanlake.errors import InvalidRequest
from swanlake.lake.lifecycle import clock
from swanlake.lake.read.metadata import Snapshot


def select_expired(
    snapshots: Iterable[Snapshot],
    now: datetime,
    older_than: timedelta | datetime | None,
    keep_last: int | None,
) -> list[Snapshot]:
    """The snapshots that expire, oldest first; the newest one never does.

    With both an age and a number, a snapshot expires only if it is older *and* not among the last
    ``keep_last``. With neither, none does.
    """
    if older_than is None and keep_last is None:
        return []
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.id)
    candidates = ordered[: -max(1, keep_last or 1)]
    if older_than is None:
        return candidates
    before = older_than if isinstance(older_than, datetime) else clock.time_before(now, older_than)
    return [snapshot for snapshot in candidates if snapshot.time < before]


def check_rule(older_than: timedelta | datetime | None, keep_last: int | None) -> None:
    """Raises InvalidRequest for a rule that selects nothing, or is impossible."""
    if older_than is None and keep_last is None:
        raise InvalidRequest("Say which snapshots expire: by age, by how many to keep, or both.")
    if keep_last is not None and keep_last < 1:
        raise InvalidRequest(
            f"Cannot keep the last {keep_last} snapshots: the newest one always stays."
        )
    if isinstance(older_than, datetime) and older_than.tzinfo is None:
        raise InvalidRequest(f"The time {older_than} has no time zone.")


class RetainedSnapshots:
    """The snapshots that remain after an expiry."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._ids = sorted(ids)

    def can_see(self, begin: int, end: int | None) -> bool:
        """True if one of them sees a row that lives from ``begin`` until ``end``."""
        if end is None:
            return True
        first = bisect_left(self._ids, begin)
        return first < len(self._ids) and self._ids[first] < end

    @property
    def oldest(self) -> int:
        return self._ids[0]

    def __len__(self) -> int:
        return len(self._ids)

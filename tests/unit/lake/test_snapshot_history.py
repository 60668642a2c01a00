"""The snapshot history that a group of commits shares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from swanlake.errors import CommitConflict, SwanLakeError
from swanlake.lake.commit.snapshot_history import SnapshotHistory


def seen(history: SnapshotHistory, *changes: tuple[int, str]) -> None:
    rows: list[Any] = [SimpleNamespace(snapshot_id=id, changes_made=made) for id, made in changes]
    history.add(rows)


def ids(history: SnapshotHistory, base: int) -> list[int]:
    return [change.snapshot_id for change in history.after(base, "sales")]


def test_history_gives_the_changes_after_a_base() -> None:
    history = SnapshotHistory(3)
    seen(history, (3, 'created_schema:"a"'), (4, "inserted_into_table:1"))
    assert ids(history, 3) == [4]
    assert ids(history, 4) == []
    seen(history, (4, "inserted_into_table:1"), (5, "deleted_from_table:1,inserted_into_table:1"))
    assert ids(history, 3) == [4, 5, 5]


def test_unreadable_change_fails_only_commits_with_an_older_base() -> None:
    history = SnapshotHistory(2)
    seen(history, (2, ""), (3, "reshaped_table:1"), (4, "inserted_into_table:1"))
    for _ in range(2):
        with pytest.raises(SwanLakeError, match="reshaped_table"):
            history.after(2, "sales")
    assert ids(history, 3) == [4]


def test_missing_snapshot_is_a_conflict() -> None:
    history = SnapshotHistory(2)
    seen(history, (2, ""), (4, "inserted_into_table:1"))
    with pytest.raises(CommitConflict, match="3"):
        history.after(2, "sales")

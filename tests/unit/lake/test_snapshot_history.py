"""The snapshot history that a group of commits shares."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from swanlake.errors import CommitConflict, SwanLakeError
from swanlake.lake.commit import snapshot_history
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


@pytest.mark.parametrize("newest", [2, 4])
def test_base_newer_than_the_newest_snapshot_is_a_conflict(newest: int) -> None:
    history = SnapshotHistory(5)
    seen(history, *((id, "") for id in range(1, newest + 1)))
    assert ids(history, newest) == []
    with pytest.raises(CommitConflict, match=f"{newest}; it may have been restored from a backup"):
        history.after(newest + 1, "sales")


def test_only_unknown_snapshots_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_history, "head_query", lambda store, after: after)
    history: Any = SnapshotHistory(3)
    assert history.query(None) == 3
    seen(history, (3, ""), (4, ""), (5, ""))
    assert history.query(None) == 5


def test_snapshot_without_changes_has_none() -> None:
    history = SnapshotHistory(1)
    rows: list[Any] = [SimpleNamespace(snapshot_id=id, changes_made=None) for id in (1, 2)]
    history.add(rows)
    assert ids(history, 1) == []


def test_changes_are_parsed_once() -> None:
    history = SnapshotHistory(1)
    seen(history, (1, ""), (2, "inserted_into_table:1"))
    [change] = history.after(1, "sales")
    assert history.after(1, "sales")[0] is change

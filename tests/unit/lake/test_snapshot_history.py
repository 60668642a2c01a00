"""What commits that are made together know of the past."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from swanlake.errors import CommitConflict, SwanLakeError
from swanlake.lake.state import History


def seen(history: History, *changes: tuple[int, str]) -> None:
    rows: list[Any] = [SimpleNamespace(snapshot_id=id, changes_made=made) for id, made in changes]
    history.add(rows)


def ids(history: History, base: int) -> list[int]:
    return [happened.snapshot_id for happened in history.after(base, "sales")]


def test_each_commit_is_told_what_came_after_its_own_base() -> None:
    history = History(3)
    seen(history, (3, 'created_schema:"a"'), (4, "inserted_into_table:1"))
    assert ids(history, 3) == [4]
    assert ids(history, 4) == []
    seen(history, (4, "inserted_into_table:1"), (5, "deleted_from_table:1,inserted_into_table:1"))
    assert ids(history, 3) == [4, 5, 5]


def test_what_cannot_be_read_is_in_the_way_of_those_who_must_know_it_every_time() -> None:
    history = History(2)
    seen(history, (2, ""), (3, "reshaped_table:1"), (4, "inserted_into_table:1"))
    for _ in range(2):
        with pytest.raises(SwanLakeError, match="reshaped_table"):
            history.after(2, "sales")
    assert ids(history, 3) == [4]


def test_a_snapshot_that_is_gone_may_have_changed_anything() -> None:
    history = History(2)
    seen(history, (2, ""), (4, "inserted_into_table:1"))
    with pytest.raises(CommitConflict, match="3"):
        history.after(2, "sales")

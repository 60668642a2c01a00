"""How long a commit waits for the lock, and when it comes back to be tried in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from swanlake.errors import CommitLockTimeout, CommitStateUnknown
from swanlake.lake import commit
from swanlake.lake.commit import Committed, Retries
from swanlake.lake.operations import Commit
from swanlake.lake.store import CatalogStore, Trouble

SHORT = Retries(attempts=3, first_wait=0, timeout=0.2, lock_wait=0.01)


class Busy(Exception):
    """Somebody else has the lock."""


class Deadlock(Exception):
    """The database chose this one."""


class Store:
    """A catalog of which nothing is asked but what an error means."""

    name = "sales"
    errors = (Busy, Deadlock)

    def trouble(self, error: Exception) -> Trouble:
        return Trouble.LOCK_TIMEOUT if isinstance(error, Busy) else Trouble.TRANSIENT


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float | None]]:
    """Has attempts end as is said, and notes how long each would have waited for the lock."""

    def set_up(*ends: Exception | Committed) -> list[float | None]:
        left, seen = list(ends), list[float | None]()

        def attempt(store: Any, change: Commit, retries: Retries, *rest: Any) -> Committed:
            seen.append(retries.lock_wait)
            end = left.pop(0)
            if isinstance(end, Exception):
                raise end
            return end

        monkeypatch.setattr(commit, "_attempt", attempt)
        return seen

    return set_up


def apply(retries: Retries = SHORT) -> Committed:
    store = cast("CatalogStore", Store())
    return commit.apply(store, Commit(()), retries, sleep=lambda seconds: None)


def test_a_short_wait_comes_back_at_once(waits: Callable[..., list[float | None]]) -> None:
    seen = waits(Busy())
    with pytest.raises(CommitLockTimeout):
        apply()
    assert seen == [0.01]


def test_who_may_have_committed_waits_as_long_as_it_may(
    waits: Callable[..., list[float | None]],
) -> None:
    seen = waits(commit._LostDuringCommit(), Committed(7))
    assert apply() == Committed(7)
    assert seen == [0.01, None]


def test_who_may_have_committed_is_not_told_that_nothing_was_written(
    waits: Callable[..., list[float | None]],
) -> None:
    waits(commit._LostDuringCommit(), Busy(), Busy())
    with pytest.raises(CommitStateUnknown):
        apply()


def test_commits_of_a_group_that_failed_wait_as_long_as_they_may(
    waits: Callable[..., list[float | None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> list[Committed]:
        raise Deadlock

    monkeypatch.setattr(commit, "_attempt_all", fail)
    seen = waits(Committed(1), Committed(2))
    store = cast("CatalogStore", Store())
    assert commit.apply_all(store, [Commit(()), Commit(())], SHORT) == [Committed(1), Committed(2)]
    assert seen == [None, None]


def test_a_group_for_which_there_is_no_lock_comes_back_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*arguments: Any) -> list[Committed]:
        raise Busy

    monkeypatch.setattr(commit, "_attempt_all", fail)
    store = cast("CatalogStore", Store())
    outcomes = commit.apply_all(store, [Commit(()), Commit(())], SHORT)
    assert [type(one) for one in outcomes] == [CommitLockTimeout, CommitLockTimeout]

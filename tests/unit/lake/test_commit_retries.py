"""How long a commit waits for the lock, and when it is retried."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swanlake.errors import (
    CatalogNotWritable,
    CommitConflict,
    CommitLockTimeout,
    CommitStateUnknown,
)
from swanlake.lake.commit import protocol
from swanlake.lake.commit.protocol import Committed, Retries
from swanlake.lake.metastore.store import CatalogStore, ErrorKind
from swanlake.lake.model.operations import Commit

SHORT = Retries(attempts=3, first_wait=0, timeout=0.2, lock_wait=0.01)


class Busy(Exception):
    """The lock is held by another connection."""


class Deadlock(Exception):
    """The database aborted this transaction."""


class NoTable(Exception):
    """A table of the metadata does not exist."""


class Store:
    """A store that only classifies errors."""

    name = "sales"
    errors = (Busy, Deadlock, NoTable)

    def classify(self, error: Exception) -> ErrorKind:
        kinds = {Busy: ErrorKind.LOCK_TIMEOUT, NoTable: ErrorKind.MISSING_TABLE}
        return kinds.get(type(error), ErrorKind.TRANSIENT)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float | None]]:
    """Scripts the results of attempts, and records the lock wait of each."""

    def set_up(*ends: Exception | Committed) -> list[float | None]:
        left, seen = list(ends), list[float | None]()

        def attempt(store: Any, commits: Any, retries: Retries, *rest: Any) -> list[Committed]:
            seen.append(retries.lock_wait)
            end = left.pop(0)
            if isinstance(end, Exception):
                raise end
            return [end]

        monkeypatch.setattr(protocol, "_attempt", attempt)
        return seen

    return set_up


def apply(retries: Retries = SHORT) -> Committed:
    store = cast("CatalogStore", Store())
    return protocol.apply(store, Commit(()), retries, sleep=lambda seconds: None)


def test_short_lock_wait_is_not_retried(waits: Callable[..., list[float | None]]) -> None:
    seen = waits(Busy())
    with pytest.raises(CommitLockTimeout):
        apply()
    assert seen == [0.01]


def test_retry_after_a_lost_commit_waits_without_the_short_limit(
    waits: Callable[..., list[float | None]],
) -> None:
    seen = waits(protocol._LostDuringCommit(), Committed(7))
    assert apply() == Committed(7, attempts=2)
    assert seen == [0.01, None]


def test_lock_timeout_after_a_lost_commit_reports_unknown_state(
    waits: Callable[..., list[float | None]],
) -> None:
    waits(protocol._LostDuringCommit(), Busy(), Busy())
    with pytest.raises(CommitStateUnknown):
        apply()


@pytest.mark.parametrize("error", [Busy(), NoTable(), protocol._RowsLocked()])
@pytest.mark.parametrize("is_last", [False, True])
def test_no_error_after_a_lost_commit_says_that_nothing_was_written(
    waits: Callable[..., list[float | None]],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    is_last: bool,
) -> None:
    clock = iter([0.0, 0.0, *([1.0] * 10 if is_last else [0.0] * 10)])  # the deadline is at 0.2
    monkeypatch.setattr(protocol, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    waits(protocol._LostDuringCommit(), error, error)
    with pytest.raises(CommitStateUnknown, match="its outcome could not be read"):
        apply()


@pytest.mark.parametrize(
    ("error", "refusal"),
    [
        (NoTable(), CatalogNotWritable),
        (protocol._RowsLocked(), CommitConflict),
        (Busy(), CommitLockTimeout),
    ],
)
def test_error_before_the_commit_says_that_nothing_was_written(
    waits: Callable[..., list[float | None]], error: Exception, refusal: type[Exception]
) -> None:
    waits(error)
    with pytest.raises(refusal):
        apply()


def test_commits_of_a_failed_group_wait_without_the_short_limit(
    waits: Callable[..., list[float | None]],
) -> None:
    seen = waits(Deadlock(), Committed(1), Committed(2))
    store = cast("CatalogStore", Store())
    assert protocol.apply_all(store, [Commit(()), Commit(())], SHORT) == [
        Committed(1),
        Committed(2),
    ]
    assert seen == [0.01, None, None]


def test_lock_timeout_of_a_group_fails_every_commit(
    waits: Callable[..., list[float | None]],
) -> None:
    waits(Busy())
    store = cast("CatalogStore", Store())
    outcomes = protocol.apply_all(store, [Commit(()), Commit(())], SHORT)
    assert [type(one) for one in outcomes] == [CommitLockTimeout, CommitLockTimeout]


def test_commits_of_a_lost_group_are_looked_up_before_they_are_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, bool]] = []

    def attempt(
        store: Any, commits: Any, retries: Any, deadline: float, looks_up: bool = False
    ) -> list[Committed]:
        seen.append((len(commits), looks_up))
        if len(commits) > 1:
            raise protocol._LostDuringCommit
        return [Committed(len(seen))]

    monkeypatch.setattr(protocol, "_attempt", attempt)
    store = cast("CatalogStore", Store())
    outcomes = protocol.apply_all(store, [Commit(()), Commit(())], SHORT)
    assert outcomes == [Committed(2), Committed(3)]
    assert seen == [(2, False), (1, True), (1, True)]

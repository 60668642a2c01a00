"""The commit gate: one at a time, in order, with a deadline; commits in groups."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from swanlake.errors import CommitConflict, CommitLockTimeout, QueryCancelled, SwanLakeError
from swanlake.lake.commit import Committed
from swanlake.lake.gate import CommitGate
from swanlake.lake.operations import Commit, CreateSchema
from swanlake.lake.turns import FileTurns
from tests.flight import eventually


def nothing() -> None:
    pass


@pytest.fixture
def turns(tmp_path: Path) -> FileTurns:
    return FileTurns(tmp_path / "turns")


@pytest.fixture
def gate(turns: FileTurns) -> CommitGate:
    return CommitGate(turns, timeout_seconds=10)


def names_at(gate: CommitGate) -> list[str]:
    status = gate.status("sales")
    return [] if status is None else [one.name for one in (status.holder, *status.waiters)]


def is_at(gate: CommitGate, names: list[str]) -> bool:
    return names_at(gate) == names


def has_length(gate: CommitGate, length: int) -> bool:
    return len(names_at(gate)) == length


class Waiter(threading.Thread):
    """Takes the gate, notes its name, and holds the gate until told to go on."""

    def __init__(self, gate: CommitGate, name: str, order: list[str]) -> None:
        super().__init__(daemon=True)
        self._gate = gate
        self._label = name
        self._order = order
        self.entered = threading.Event()
        self.may_leave = threading.Event()

    def run(self) -> None:
        with self._gate.turn(self._label, nothing):
            self._order.append(self._label)
            self.entered.set()
            self.may_leave.wait(10)


def test_waiters_enter_in_the_order_of_arrival(gate: CommitGate) -> None:
    order: list[str] = []
    names = [str(number) for number in range(5)]
    waiters = [Waiter(gate, name, order) for name in names]
    for number, waiter in enumerate(waiters):
        waiter.start()
        eventually(partial(is_at, gate, names[: number + 1]))
    for waiter in waiters:
        eventually(waiter.entered.is_set)
        waiter.may_leave.set()
    for waiter in waiters:
        waiter.join()
    assert order == names
    assert gate.status("sales") is None


def test_a_waiter_gives_up_at_its_deadline_and_blocks_nobody(turns: FileTurns) -> None:
    gate = CommitGate(turns, timeout_seconds=0.1)
    with gate.turn("a", nothing):
        with pytest.raises(CommitLockTimeout, match="was not run") as caught:
            with gate.turn("b", nothing):
                pass
        assert caught.value.identifier == "COMMIT_LOCK_TIMEOUT"
    with gate.turn("c", nothing):
        pass


def test_writers_of_other_processes_are_waited_for_until_the_deadline(turns: FileTurns) -> None:
    """Two gates stand for two servers: all they share is the file at which they take turns."""
    mine = CommitGate(turns, timeout_seconds=0.1)
    with CommitGate(FileTurns(turns.path), timeout_seconds=10).turn("theirs", nothing):
        with pytest.raises(CommitLockTimeout, match="was not run"):
            with mine.turn("mine", nothing):
                pass
    with mine.turn("mine", nothing):
        assert names_at(mine) == ["mine"]


def test_a_cancelled_waiter_leaves_the_line(gate: CommitGate) -> None:
    def cancelled() -> None:
        raise QueryCancelled("no longer wanted")

    with gate.turn("a", nothing):
        with pytest.raises(QueryCancelled):
            with gate.turn("b", cancelled):
                pass
        with pytest.raises(QueryCancelled):
            gate.commit(change(), "c", cancelled, never)
        assert names_at(gate) == ["a"]


def test_an_error_inside_passes_the_turn_on(gate: CommitGate) -> None:
    with pytest.raises(RuntimeError), gate.turn("a", nothing):
        raise RuntimeError
    with gate.turn("b", nothing):
        pass


# ---- groups --------------------------------------------------------------------------------------


def change(name: str = "raw") -> Commit:
    return Commit((CreateSchema(name),))


def never(changes: Sequence[Commit], **how: object) -> Sequence[Committed | SwanLakeError]:
    raise AssertionError


class Catalog:
    """Takes commits, notes in which groups they come, and numbers them."""

    def __init__(self, outcome: Callable[[Commit], SwanLakeError | None] = lambda _: None) -> None:
        self.groups: list[list[str]] = []
        self._outcome = outcome
        self._count = 0

    def commit_all(
        self, changes: Sequence[Commit], **how: object
    ) -> Sequence[Committed | SwanLakeError]:
        self.groups.append([_name(one) for one in changes])
        return [self._outcome(one) or self._next() for one in changes]

    def _next(self) -> Committed:
        self._count += 1
        return Committed(self._count)


def _name(commit: Commit) -> str:
    [operation] = commit.operations
    assert isinstance(operation, CreateSchema)
    return operation.name


def test_commits_that_wait_are_made_together_and_in_order(gate: CommitGate) -> None:
    catalog = Catalog()
    with ThreadPoolExecutor(6) as threads:
        with gate.turn("first", nothing):
            made = []
            for number in range(6):
                name = f"s{number}"
                made.append(
                    threads.submit(gate.commit, change(name), name, nothing, catalog.commit_all)
                )
                eventually(partial(has_length, gate, number + 2))
        assert [one.result(10).snapshot_id for one in made] == [1, 2, 3, 4, 5, 6]
    assert catalog.groups == [["s0", "s1", "s2", "s3", "s4", "s5"]]
    assert gate.status("sales") is None


def test_nobody_is_passed_by_a_group(gate: CommitGate) -> None:
    """Who needs the catalog for itself keeps its place between two commits."""
    catalog = Catalog()
    order: list[str] = []
    waiter = Waiter(gate, "alone", order)
    with ThreadPoolExecutor(2) as threads:
        with gate.turn("first", nothing):
            before = threads.submit(gate.commit, change("a"), "a", nothing, catalog.commit_all)
            eventually(partial(is_at, gate, ["first", "a"]))
            waiter.start()
            eventually(partial(is_at, gate, ["first", "a", "alone"]))
            after = threads.submit(gate.commit, change("b"), "b", nothing, catalog.commit_all)
            eventually(partial(is_at, gate, ["first", "a", "alone", "b"]))
        before.result(10)
        eventually(waiter.entered.is_set)
        assert catalog.groups == [["a"]]
        waiter.may_leave.set()
        after.result(10)
    assert catalog.groups == [["a"], ["b"]]


def test_each_of_a_group_hears_of_its_own_fate(gate: CommitGate) -> None:
    def outcome(commit: Commit) -> SwanLakeError | None:
        return CommitConflict("too late") if _name(commit) == "b" else None

    catalog = Catalog(outcome)
    with ThreadPoolExecutor(3) as threads:
        with gate.turn("first", nothing):
            made = {}
            for number, name in enumerate("abc"):
                made[name] = threads.submit(
                    gate.commit, change(name), name, nothing, catalog.commit_all
                )
                eventually(partial(has_length, gate, number + 2))
        assert made["a"].result(10).snapshot_id == 1
        with pytest.raises(CommitConflict, match="too late"):
            made["b"].result(10)
        assert made["c"].result(10).snapshot_id == 2


def test_a_group_that_fails_fails_for_all_and_the_gate_is_free(gate: CommitGate) -> None:
    def lost(changes: Sequence[Commit], **how: object) -> Sequence[Committed | SwanLakeError]:
        raise CommitConflict("the catalog is gone")

    with ThreadPoolExecutor(2) as threads:
        with gate.turn("first", nothing):
            made = [threads.submit(gate.commit, change(), n, nothing, lost) for n in "ab"]
            eventually(partial(has_length, gate, 3))
        for one in made:
            with pytest.raises(CommitConflict, match="gone"):
                one.result(10)
    assert gate.status("sales") is None


# ---- commits while another process is at it ------------------------------------------------------


class Busy(Catalog):
    """A catalog whose lock somebody else has, until it is waited for in turn."""

    def commit_all(
        self, changes: Sequence[Commit], **how: object
    ) -> Sequence[Committed | SwanLakeError]:
        if not how["has_turn"]:
            assert how["lock_wait"] is not None
            return [CommitLockTimeout("somebody else has it") for _ in changes]
        return super().commit_all(changes)


def test_a_commit_that_waits_for_another_process_can_be_given_up(turns: FileTurns) -> None:
    mine, catalog = CommitGate(turns, timeout_seconds=10), Busy()
    unwanted = threading.Event()

    def check() -> None:
        if unwanted.is_set():
            raise QueryCancelled("no longer wanted")

    with ThreadPoolExecutor(2) as threads:
        with FileTurns(turns.path).turn(time.monotonic() + 10):
            first = threads.submit(mine.commit, change("a"), "a", check, catalog.commit_all)
            eventually(partial(is_at, mine, ["a"]))
            second = threads.submit(mine.commit, change("b"), "b", nothing, catalog.commit_all)
            eventually(partial(is_at, mine, ["a", "b"]))
            unwanted.set()
            with pytest.raises(QueryCancelled):
                first.result(10)
            eventually(partial(is_at, mine, ["b"]))
        assert second.result(10).snapshot_id == 1
    assert catalog.groups == [["b"]]
    assert mine.status("sales") is None


def test_a_commit_that_waits_for_another_process_has_a_deadline(turns: FileTurns) -> None:
    mine, catalog = CommitGate(turns, timeout_seconds=0.1), Busy()
    with FileTurns(turns.path).turn(time.monotonic() + 10):
        with pytest.raises(CommitLockTimeout, match="was not run"):
            mine.commit(change(), "mine", nothing, catalog.commit_all)
    assert mine.commit(change(), "mine", nothing, catalog.commit_all).snapshot_id == 1


def test_who_gives_up_behind_a_short_wait_is_not_committed(turns: FileTurns) -> None:
    """It was part of a group for which the lock could not be had."""
    mine, catalog = CommitGate(turns, timeout_seconds=10), Busy()
    trying, held, unwanted, release = (threading.Event() for _ in range(4))

    def commit_all(changes: Sequence[Commit], **how: object) -> Sequence[Committed | SwanLakeError]:
        if not how["has_turn"]:
            trying.set()
            assert unwanted.wait(10)
        return catalog.commit_all(changes, **how)

    def cancelled() -> None:
        if trying.is_set() and held.is_set():
            unwanted.set()
            raise QueryCancelled("no longer wanted")

    def elsewhere() -> None:
        with FileTurns(turns.path).turn(time.monotonic() + 10):
            held.set()
            assert release.wait(10)

    with ThreadPoolExecutor(3) as threads:
        with mine.turn("before", nothing):
            other = threads.submit(elsewhere)
            leader = threads.submit(mine.commit, change("a"), "a", nothing, commit_all)
            eventually(partial(is_at, mine, ["before", "a"]))
            follower = threads.submit(mine.commit, change("b"), "b", cancelled, commit_all)
            eventually(partial(is_at, mine, ["before", "a", "b"]))
        with pytest.raises(QueryCancelled):
            follower.result(10)
        assert names_at(mine) == ["a"]
        release.set()
        other.result(10)
        assert leader.result(10).snapshot_id == 1
    assert catalog.groups == [["a"]]

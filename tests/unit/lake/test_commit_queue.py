"""The commit queue: exclusive access in order, with deadlines, and grouped commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from swanlake.errors import CommitConflict, CommitLockTimeout, QueryCancelled, SwanLakeError
from swanlake.lake.commit.commit_queue import CommitQueue
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.commit.writer_lock import FileWriterLock
from swanlake.lake.model.operations import Commit, CreateSchema
from tests.waiting import eventually


def nothing() -> None:
    pass


@pytest.fixture
def writer_lock(tmp_path: Path) -> FileWriterLock:
    return FileWriterLock(tmp_path / "sales.turns")


@pytest.fixture
def queue(writer_lock: FileWriterLock) -> CommitQueue:
    return CommitQueue(writer_lock, timeout_seconds=10)


def names_in(queue: CommitQueue) -> list[str]:
    status = queue.status("sales")
    return [] if status is None else [one.name for one in (status.holder, *status.waiters)]


def has_names(queue: CommitQueue, names: list[str]) -> bool:
    return names_in(queue) == names


def has_length(queue: CommitQueue, length: int) -> bool:
    return len(names_in(queue)) == length


class Waiter(threading.Thread):
    """Waits for exclusive access, records its name, and holds the lock until released."""

    def __init__(self, queue: CommitQueue, name: str, order: list[str]) -> None:
        super().__init__(daemon=True)
        self._queue = queue
        self._label = name
        self._order = order
        self.holding = threading.Event()
        self.release = threading.Event()

    def run(self) -> None:
        with self._queue.exclusive(self._label, nothing):
            self._order.append(self._label)
            self.holding.set()
            self.release.wait(10)


def test_waiters_get_the_lock_in_order_of_arrival(queue: CommitQueue) -> None:
    order: list[str] = []
    names = [str(number) for number in range(5)]
    waiters = [Waiter(queue, name, order) for name in names]
    for number, waiter in enumerate(waiters):
        waiter.start()
        eventually(partial(has_names, queue, names[: number + 1]))
    for waiter in waiters:
        eventually(waiter.holding.is_set)
        waiter.release.set()
    for waiter in waiters:
        waiter.join()
    assert order == names
    assert queue.status("sales") is None


def test_waiter_times_out_and_blocks_no_other(writer_lock: FileWriterLock) -> None:
    queue = CommitQueue(writer_lock, timeout_seconds=0.1)
    with queue.exclusive("a", nothing):
        with pytest.raises(CommitLockTimeout, match="was not run") as caught:
            with queue.exclusive("b", nothing):
                pass
        assert caught.value.identifier == "COMMIT_LOCK_TIMEOUT"
    with queue.exclusive("c", nothing):
        pass


def test_waiting_for_another_process_times_out(
    writer_lock: FileWriterLock,
) -> None:
    """Two queues with one lock file are two servers."""
    queue = CommitQueue(writer_lock, timeout_seconds=0.1)
    with CommitQueue(FileWriterLock(writer_lock.path), timeout_seconds=10).exclusive(
        "theirs", nothing
    ):
        with pytest.raises(CommitLockTimeout, match="was not run"):
            with queue.exclusive("ours", nothing):
                pass
    with queue.exclusive("ours", nothing):
        assert names_in(queue) == ["ours"]


def test_cancelled_waiter_leaves_the_queue(queue: CommitQueue) -> None:
    def cancelled() -> None:
        raise QueryCancelled("no longer wanted")

    with queue.exclusive("a", nothing):
        with pytest.raises(QueryCancelled):
            with queue.exclusive("b", cancelled):
                pass
        with pytest.raises(QueryCancelled):
            queue.commit(change(), "c", cancelled, never)
        assert names_in(queue) == ["a"]


def test_error_in_the_block_releases_the_lock(queue: CommitQueue) -> None:
    with pytest.raises(RuntimeError), queue.exclusive("a", nothing):
        raise RuntimeError
    with queue.exclusive("b", nothing):
        pass


# ---- groups --------------------------------------------------------------------------------------


def change(name: str = "raw") -> Commit:
    return Commit((CreateSchema(name),))


def never(changes: Sequence[Commit], **how: object) -> Sequence[Committed | SwanLakeError]:
    raise AssertionError


class Catalog:
    """Records the groups of its commits and numbers them."""

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


def test_waiting_commits_are_grouped_in_order(queue: CommitQueue) -> None:
    catalog = Catalog()
    with ThreadPoolExecutor(6) as threads:
        with queue.exclusive("first", nothing):
            commits = []
            for number in range(6):
                name = f"s{number}"
                commits.append(
                    threads.submit(queue.commit, change(name), name, nothing, catalog.commit_all)
                )
                eventually(partial(has_length, queue, number + 2))
        assert [one.result(10).snapshot_id for one in commits] == [1, 2, 3, 4, 5, 6]
    assert catalog.groups == [["s0", "s1", "s2", "s3", "s4", "s5"]]
    assert queue.status("sales") is None


def test_group_does_not_overtake_an_exclusive_waiter(queue: CommitQueue) -> None:
    """An exclusive waiter keeps its position between two commits."""
    catalog = Catalog()
    order: list[str] = []
    waiter = Waiter(queue, "alone", order)
    with ThreadPoolExecutor(2) as threads:
        with queue.exclusive("first", nothing):
            before = threads.submit(queue.commit, change("a"), "a", nothing, catalog.commit_all)
            eventually(partial(has_names, queue, ["first", "a"]))
            waiter.start()
            eventually(partial(has_names, queue, ["first", "a", "alone"]))
            after = threads.submit(queue.commit, change("b"), "b", nothing, catalog.commit_all)
            eventually(partial(has_names, queue, ["first", "a", "alone", "b"]))
        before.result(10)
        eventually(waiter.holding.is_set)
        assert catalog.groups == [["a"]]
        waiter.release.set()
        after.result(10)
    assert catalog.groups == [["a"], ["b"]]


def test_each_commit_of_a_group_gets_its_own_outcome(queue: CommitQueue) -> None:
    def outcome(commit: Commit) -> SwanLakeError | None:
        return CommitConflict("too late") if _name(commit) == "b" else None

    catalog = Catalog(outcome)
    with ThreadPoolExecutor(3) as threads:
        with queue.exclusive("first", nothing):
            commits = {}
            for number, name in enumerate("abc"):
                commits[name] = threads.submit(
                    queue.commit, change(name), name, nothing, catalog.commit_all
                )
                eventually(partial(has_length, queue, number + 2))
        assert commits["a"].result(10).snapshot_id == 1
        with pytest.raises(CommitConflict, match="too late"):
            commits["b"].result(10)
        assert commits["c"].result(10).snapshot_id == 2


def test_failed_group_fails_every_commit_and_releases_the_lock(queue: CommitQueue) -> None:
    def lost(changes: Sequence[Commit], **how: object) -> Sequence[Committed | SwanLakeError]:
        raise CommitConflict("the catalog is gone")

    with ThreadPoolExecutor(2) as threads:
        with queue.exclusive("first", nothing):
            commits = [threads.submit(queue.commit, change(), n, nothing, lost) for n in "ab"]
            eventually(partial(has_length, queue, 3))
        for one in commits:
            with pytest.raises(CommitConflict, match="gone"):
                one.result(10)
    assert queue.status("sales") is None


# ---- commits while another process holds the lock ------------------------------------------------


class LockedCatalog(Catalog):
    """A catalog locked by another process until the writer lock is held."""

    def commit_all(
        self, changes: Sequence[Commit], **how: object
    ) -> Sequence[Committed | SwanLakeError]:
        if not how["holds_writer_lock"]:
            assert how["lock_wait"] is not None
            return [CommitLockTimeout("another process holds it") for _ in changes]
        return super().commit_all(changes)


def test_commit_waiting_for_another_process_can_be_cancelled(writer_lock: FileWriterLock) -> None:
    queue, catalog = CommitQueue(writer_lock, timeout_seconds=10), LockedCatalog()
    cancel = threading.Event()

    def check() -> None:
        if cancel.is_set():
            raise QueryCancelled("no longer wanted")

    with ThreadPoolExecutor(2) as threads:
        with FileWriterLock(writer_lock.path).hold(time.monotonic() + 10):
            first = threads.submit(queue.commit, change("a"), "a", check, catalog.commit_all)
            eventually(partial(has_names, queue, ["a"]))
            second = threads.submit(queue.commit, change("b"), "b", nothing, catalog.commit_all)
            eventually(partial(has_names, queue, ["a", "b"]))
            cancel.set()
            with pytest.raises(QueryCancelled):
                first.result(10)
            eventually(partial(has_names, queue, ["b"]))
        assert second.result(10).snapshot_id == 1
    assert catalog.groups == [["b"]]
    assert queue.status("sales") is None


def test_commit_waiting_for_another_process_times_out(writer_lock: FileWriterLock) -> None:
    queue, catalog = CommitQueue(writer_lock, timeout_seconds=0.1), LockedCatalog()
    with FileWriterLock(writer_lock.path).hold(time.monotonic() + 10):
        with pytest.raises(CommitLockTimeout, match="was not run"):
            queue.commit(change(), "ours", nothing, catalog.commit_all)
    assert queue.commit(change(), "ours", nothing, catalog.commit_all).snapshot_id == 1


def test_cancelled_member_of_a_retried_group_is_not_committed(writer_lock: FileWriterLock) -> None:
    """The first attempt of its group timed out waiting for the lock."""
    queue, catalog = CommitQueue(writer_lock, timeout_seconds=10), LockedCatalog()
    trying, held, cancel, release = (threading.Event() for _ in range(4))

    def commit_all(changes: Sequence[Commit], **how: object) -> Sequence[Committed | SwanLakeError]:
        if not how["holds_writer_lock"]:
            trying.set()
            assert cancel.wait(10)
        return catalog.commit_all(changes, **how)

    def cancelled() -> None:
        if trying.is_set() and held.is_set():
            cancel.set()
            raise QueryCancelled("no longer wanted")

    def elsewhere() -> None:
        with FileWriterLock(writer_lock.path).hold(time.monotonic() + 10):
            held.set()
            assert release.wait(10)

    with ThreadPoolExecutor(3) as threads:
        with queue.exclusive("before", nothing):
            other = threads.submit(elsewhere)
            leader = threads.submit(queue.commit, change("a"), "a", nothing, commit_all)
            eventually(partial(has_names, queue, ["before", "a"]))
            follower = threads.submit(queue.commit, change("b"), "b", cancelled, commit_all)
            eventually(partial(has_names, queue, ["before", "a", "b"]))
        with pytest.raises(QueryCancelled):
            follower.result(10)
        assert names_in(queue) == ["a"]
        release.set()
        other.result(10)
        assert leader.result(10).snapshot_id == 1
    assert catalog.groups == [["a"]]

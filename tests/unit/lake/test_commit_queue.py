"""The commit queue: exclusive access in order, with deadlines, and grouped commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from swanlake.errors import CommitConflict, CommitLockTimeout, QueryCancelled, SwanLakeError
from swanlake.lake.commit import commit_queue
from swanlake.lake.commit.commit_queue import CommitQueue
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.commit.writer_lock import FileWriterLock, WriterLock, WriterLockTimeout
from swanlake.lake.model.operations import Commit, CreateSchema
from tests.waiting import eventually


def nothing() -> None:
    pass


@pytest.fixture
def writer_lock(tmp_path: Path) -> FileWriterLock:
    return FileWriterLock(tmp_path / "sales.turns")


@pytest.fixture
def queue(writer_lock: FileWriterLock) -> CommitQueue:
    return CommitQueue(writer_lock, timeout_seconds=120)


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
            self.release.wait(120)


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
    with CommitQueue(FileWriterLock(writer_lock.path), timeout_seconds=120).exclusive(
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


class FakeWriterLock(WriterLock, AbstractContextManager[None]):
    """A lock that excludes no thread: it records its deadlines and whether it is held."""

    def __init__(self, *, is_free: bool = True) -> None:
        self.is_free = is_free
        self.deadlines: list[float] = []
        self.is_held = False

    def hold(
        self, deadline: float, check: Callable[[], None] = nothing
    ) -> AbstractContextManager[None]:
        self.deadlines.append(deadline)
        return self

    def __enter__(self) -> None:
        if not self.is_free:
            raise WriterLockTimeout
        self.is_held = True

    def __exit__(self, *exception: object) -> None:
        self.is_held = False


def test_writer_waits_for_its_position_before_it_takes_the_writer_lock() -> None:
    lock = FakeWriterLock()
    queue = CommitQueue(lock, timeout_seconds=0.1)
    with queue.exclusive("a", nothing):
        assert lock.is_held
        with pytest.raises(CommitLockTimeout), queue.exclusive("b", nothing):
            pass
        with pytest.raises(CommitLockTimeout):
            queue.commit(change(), "c", nothing, never)
        assert names_in(queue) == ["a"]
    assert not lock.is_held
    assert len(lock.deadlines) == 1


def test_deadline_of_a_writer_counts_from_its_arrival() -> None:
    """The wait for its position and the wait for the writer lock share one deadline."""
    lock, catalog = FakeWriterLock(), LockedCatalog()
    queue = CommitQueue(lock, timeout_seconds=10)

    def exclusive() -> None:
        with queue.exclusive("b", nothing):
            pass

    arrivals = []
    with ThreadPoolExecutor(2) as threads:
        with queue.exclusive("first", nothing):
            lock.deadlines.clear()
            for length, write in (
                (2, partial(queue.commit, change(), "a", nothing, catalog.commit_all)),
                (3, exclusive),
            ):
                before = time.monotonic()
                threads.submit(write)
                eventually(partial(has_length, queue, length))
                arrivals.append((before, time.monotonic()))
            while time.monotonic() <= arrivals[-1][1]:
                pass
    assert len(lock.deadlines) == 2
    for deadline, (before, after) in zip(lock.deadlines, arrivals, strict=True):
        assert before + 10 <= deadline <= after + 10


def test_status_says_how_long_each_writer_is_there(queue: CommitQueue) -> None:
    before = time.monotonic()
    with queue.exclusive("a", nothing):
        status = queue.status("sales")
        assert status is not None
        assert status.catalog == "sales"
        assert 0 <= status.holder.seconds <= time.monotonic() - before


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
            commits = submit_in_order(queue, threads, "abcdef", catalog.commit_all)
        assert [one.result(120).snapshot_id for one in commits] == [1, 2, 3, 4, 5, 6]
    assert catalog.groups == [list("abcdef")]
    assert queue.status("sales") is None


def submit_in_order(
    queue: CommitQueue, threads: ThreadPoolExecutor, names: str, commit_all: Any
) -> list[Future[Committed]]:
    """Commits that wait behind the one exclusive writer in the queue, in this order."""
    futures = []
    for number, name in enumerate(names):
        futures.append(threads.submit(queue.commit, change(name), name, nothing, commit_all))
        eventually(partial(has_length, queue, number + 2))
    return futures


def test_group_has_a_maximum_size(queue: CommitQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_queue, "_MAX_GROUP_SIZE", 3)
    catalog = Catalog()
    with ThreadPoolExecutor(5) as threads:
        with queue.exclusive("first", nothing):
            commits = submit_in_order(queue, threads, "abcde", catalog.commit_all)
        assert [one.result(120).snapshot_id for one in commits] == [1, 2, 3, 4, 5]
    assert catalog.groups == [["a", "b", "c"], ["d", "e"]]


def test_partly_timed_out_group_is_not_committed_again(queue: CommitQueue) -> None:
    def outcome(commit: Commit) -> SwanLakeError | None:
        return CommitLockTimeout("too late") if _name(commit) == "b" else None

    catalog = Catalog(outcome)
    with ThreadPoolExecutor(3) as threads:
        with queue.exclusive("first", nothing):
            first, second, third = submit_in_order(queue, threads, "abc", catalog.commit_all)
        assert first.result(120).snapshot_id == 1
        with pytest.raises(CommitLockTimeout, match="too late"):
            second.result(120)
        assert third.result(120).snapshot_id == 2
    assert catalog.groups == [["a", "b", "c"]]
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
        before.result(120)
        eventually(waiter.holding.is_set)
        assert catalog.groups == [["a"]]
        waiter.release.set()
        after.result(120)
    assert catalog.groups == [["a"], ["b"]]


def test_each_commit_of_a_group_gets_its_own_outcome(queue: CommitQueue) -> None:
    def outcome(commit: Commit) -> SwanLakeError | None:
        return CommitConflict("too late") if _name(commit) == "b" else None

    catalog = Catalog(outcome)
    with ThreadPoolExecutor(3) as threads:
        with queue.exclusive("first", nothing):
            first, second, third = submit_in_order(queue, threads, "abc", catalog.commit_all)
        assert first.result(120).snapshot_id == 1
        with pytest.raises(CommitConflict, match="too late"):
            second.result(120)
        assert third.result(120).snapshot_id == 2


def test_failed_group_fails_every_commit_and_releases_the_lock(queue: CommitQueue) -> None:
    def lost(changes: Sequence[Commit], **how: object) -> Sequence[Committed | SwanLakeError]:
        raise CommitConflict("the catalog is gone")

    with ThreadPoolExecutor(2) as threads:
        with queue.exclusive("first", nothing):
            commits = [threads.submit(queue.commit, change(), n, nothing, lost) for n in "ab"]
            eventually(partial(has_length, queue, 3))
        for one in commits:
            with pytest.raises(CommitConflict, match="gone"):
                one.result(120)
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
    queue, catalog = CommitQueue(writer_lock, timeout_seconds=120), LockedCatalog()
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
                first.result(120)
            eventually(partial(has_names, queue, ["b"]))
        assert second.result(120).snapshot_id == 1
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
    queue, catalog = CommitQueue(writer_lock, timeout_seconds=120), LockedCatalog()
    trying, held, cancel, release = (threading.Event() for _ in range(4))

    def commit_all(changes: Sequence[Commit], **how: object) -> Sequence[Committed | SwanLakeError]:
        if not how["holds_writer_lock"]:
            trying.set()
            assert cancel.wait(120)
        return catalog.commit_all(changes, **how)

    def cancelled() -> None:
        if trying.is_set() and held.is_set():
            cancel.set()
            raise QueryCancelled("no longer wanted")

    def elsewhere() -> None:
        with FileWriterLock(writer_lock.path).hold(time.monotonic() + 10):
            held.set()
            assert release.wait(120)

    with ThreadPoolExecutor(3) as threads:
        with queue.exclusive("before", nothing):
            other = threads.submit(elsewhere)
            leader = threads.submit(queue.commit, change("a"), "a", nothing, commit_all)
            eventually(partial(has_names, queue, ["before", "a"]))
            follower = threads.submit(queue.commit, change("b"), "b", cancelled, commit_all)
            eventually(partial(has_names, queue, ["before", "a", "b"]))
        with pytest.raises(QueryCancelled):
            follower.result(120)
        assert names_in(queue) == ["a"]
        release.set()
        other.result(120)
        assert leader.result(120).snapshot_id == 1
    assert catalog.groups == [["a"]]


def test_timeout_of_the_commit_lock_under_the_writer_lock_is_final() -> None:
    lock = FakeWriterLock()
    queue = CommitQueue(lock, timeout_seconds=120)
    attempts: list[object] = []

    def commit_all(changes: Sequence[Commit], **how: object) -> Sequence[Committed | SwanLakeError]:
        attempts.append((how["lock_wait"] is None, how["holds_writer_lock"], lock.is_held))
        return [CommitLockTimeout("still locked") for _ in changes]

    with pytest.raises(CommitLockTimeout, match="still locked"):
        queue.commit(change(), "ours", nothing, commit_all)
    assert attempts == [(False, False, False), (True, True, True)]
    assert queue.status("sales") is None


# ---- a caller that gives up while its commit is being made ---------------------------------------


class GivesUp:
    """The caller of commit "b", which is cancelled while its group is being committed.

    The group goes on only when the caller waits for the outcome.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, waits: int) -> None:
        self.is_cancelled = threading.Event()
        self.has_waited = threading.Event()
        self._waits_left = waits
        writer = commit_queue._Writer

        def new_writer(name: str, is_statement: bool, commit: Commit | None = None) -> object:
            ready = _Ready(self) if name == "b" else threading.Event()
            return writer(name, is_statement, commit, ready=ready)

        monkeypatch.setattr(commit_queue, "_Writer", new_writer)

    def check(self) -> None:
        if self.is_cancelled.is_set():
            raise QueryCancelled("no longer wanted")

    def cancel(self) -> None:
        """Returns when the cancelled caller waits for the outcome of its commit."""
        self.is_cancelled.set()
        assert self.has_waited.wait(120)

    def count_wait(self) -> bool:
        """True for the last wait, which ends when the caller is woken."""
        self._waits_left -= 1
        if self._waits_left <= 0:
            self.has_waited.set()
        return self._waits_left <= 0


class _Ready(threading.Event):
    def __init__(self, caller: GivesUp) -> None:
        super().__init__()
        self._caller = caller

    def wait(self, timeout: float | None = None) -> bool:
        if self._caller.is_cancelled.is_set() and not self.is_set():
            return super().wait(10 if self._caller.count_wait() else timeout)
        return super().wait(timeout)


def test_caller_that_gives_up_during_its_commit_learns_the_outcome(
    queue: CommitQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog, caller = Catalog(), GivesUp(monkeypatch, waits=3)

    def commit_all(changes: Sequence[Commit], **how: object) -> Sequence[Committed | SwanLakeError]:
        caller.cancel()
        return catalog.commit_all(changes, **how)

    with ThreadPoolExecutor(2) as threads:
        with queue.exclusive("first", nothing):
            leader = threads.submit(queue.commit, change("a"), "a", nothing, commit_all)
            eventually(partial(has_length, queue, 2))
            follower = threads.submit(queue.commit, change("b"), "b", caller.check, commit_all)
            eventually(partial(has_length, queue, 3))
        assert leader.result(120).snapshot_id == 1
        assert follower.result(120).snapshot_id == 2
    assert catalog.groups == [["a", "b"]]
    assert queue.status("sales") is None


def test_caller_that_gave_up_is_not_committed_when_its_leader_times_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The leader leaves, which wakes the caller as the first of the queue."""
    lock, catalog, caller = FakeWriterLock(), LockedCatalog(), GivesUp(monkeypatch, waits=1)
    queue = CommitQueue(lock, timeout_seconds=120)

    def commit_all(changes: Sequence[Commit], **how: object) -> Sequence[Committed | SwanLakeError]:
        caller.cancel()
        return catalog.commit_all(changes, **how)

    with ThreadPoolExecutor(2) as threads:
        with queue.exclusive("first", nothing):
            lock.is_free = False
            leader = threads.submit(queue.commit, change("a"), "a", nothing, commit_all)
            eventually(partial(has_length, queue, 2))
            follower = threads.submit(queue.commit, change("b"), "b", caller.check, commit_all)
            eventually(partial(has_length, queue, 3))
        with pytest.raises(CommitLockTimeout):
            leader.result(120)
        with pytest.raises(QueryCancelled):
            follower.result(120)
    assert catalog.groups == []
    assert queue.status("sales") is None

"""The queue for a catalog's commit lock among the writers of one process, in order of arrival.

Commits that wait behind one another are made as a group, under one lock. A statement that the stock
extension commits needs the catalog exclusively: the extension answers contention with
collisions and back-off, so letting it run alone is faster and fails no writer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from swanlake._internal.tracing import step
from swanlake._internal.waiting import POLL_SECONDS, never_cancelled, wait
from swanlake.errors import CommitLockTimeout, SwanLakeError
from swanlake.lake.commit.counters import COMMITTED, EXCLUSIVE, CommitCounters
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.commit.writer_lock import WriterLock, WriterLockTimeout
from swanlake.lake.model.operations import Commit

#: Commits hold the lock for milliseconds, and a fork for a second. A longer wait means an exclusive
#: writer; the first attempt then ends with an error, which PostgreSQL logs.
_SHORT_WAIT = 2.0
#: Caps the group size: late arrivals wait for the whole group.
_MAX_GROUP_SIZE = 32

Check = Callable[[], None]


class CommitAll(Protocol):
    """Commits one after the other; returns the outcome of each, in their order."""

    def __call__(
        self, changes: Sequence[Commit], *, lock_wait: float | None, holds_writer_lock: bool
    ) -> Sequence[Committed | SwanLakeError]: ...


@dataclass(frozen=True)
class WriterStatus:
    """A writer that holds, or waits for, a catalog's commit lock."""

    name: str
    #: Since its arrival, waiting included.
    seconds: float


@dataclass(frozen=True)
class CommitQueueStatus:
    """The holder of a catalog's commit lock, and the waiters in their order."""

    catalog: str
    holder: WriterStatus
    waiters: tuple[WriterStatus, ...]


@dataclass(eq=False)
class _Writer:
    name: str
    #: True if a caller waits for it; flushes and maintenance can wait.
    is_statement: bool
    #: None for an exclusive writer.
    commit: Commit | None = None
    arrived_at: float = field(default_factory=time.monotonic)
    #: Set when it is first in the queue, or its commit is done.
    ready: threading.Event = field(default_factory=threading.Event)
    #: Its commit is being made, so it can no longer leave the queue.
    is_committing: bool = False
    outcome: Committed | BaseException | None = None


class CommitQueue:
    """One exclusive writer, or one group of commits, at a time; waiters have a deadline."""

    def __init__(
        self,
        writer_lock: WriterLock,
        timeout_seconds: float,
        counters: CommitCounters | None = None,
    ) -> None:
        self._writer_lock = writer_lock
        self._timeout = timeout_seconds
        self._counters = counters or CommitCounters()
        self._lock = threading.Lock()
        self._writers: deque[_Writer] = deque()

    @contextmanager
    def exclusive(self, name: str, check: Check) -> Iterator[None]:
        """Excludes every other SwanLake writer from the catalog, for the block.

        ``check`` is called while waiting and raises when the caller gives up.
        """
        writer = self._join(_Writer(name, check is not never_cancelled))
        deadline = writer.arrived_at + self._timeout
        try:
            self._wait(writer, check)
            try:
                held = self._writer_lock.hold(deadline, check)
                held.__enter__()
            except WriterLockTimeout:
                raise self._timed_out() from None
            locked_at = time.monotonic()
            try:
                yield
            finally:
                held.__exit__(None, None, None)
                seconds = time.monotonic() - locked_at
                self._counters.count(EXCLUSIVE, locked_at - writer.arrived_at, seconds)
        finally:
            self._leave([writer])

    def commit(self, commit: Commit, name: str, check: Check, commit_all: CommitAll) -> Committed:
        """Commits when it is first in the queue, together with the commits behind it."""
        with step("commit"):
            return self._commit(commit, name, check, commit_all)

    def _commit(self, commit: Commit, name: str, check: Check, commit_all: CommitAll) -> Committed:
        writer = self._join(_Writer(name, check is not never_cancelled, commit))
        try:
            self._wait(writer, check)
        except BaseException:
            # A commit that is under way has its own deadline, or is put back into the queue.
            while not (has_left := self._try_leave(writer)) and not writer.ready.wait(POLL_SECONDS):
                pass
            if has_left or (writer.outcome is None and self._try_leave(writer)):
                raise
        if writer.outcome is None:
            self._commit_first(writer, check, commit_all)
        if isinstance(writer.outcome, BaseException):
            if isinstance(writer.outcome, SwanLakeError):
                self._counters.outcomes.increment(writer.outcome.identifier)
            raise writer.outcome
        assert writer.outcome is not None
        held = writer.outcome.lock_held_seconds
        self._counters.count(COMMITTED, time.monotonic() - writer.arrived_at - held, held)
        return writer.outcome

    @property
    def is_awaited(self) -> bool:
        """True if statements wait behind the writer that is first."""
        with self._lock:
            return any(writer.is_statement for writer in islice(self._writers, 1, None))

    def status(self, catalog: str) -> CommitQueueStatus | None:
        """The holder and the waiters; None if the queue is empty."""
        now = time.monotonic()
        with self._lock:
            writers = [WriterStatus(each.name, now - each.arrived_at) for each in self._writers]
        return CommitQueueStatus(catalog, writers[0], tuple(writers[1:])) if writers else None

    def _join(self, writer: _Writer) -> _Writer:
        with self._lock:
            self._writers.append(writer)
            if self._writers[0] is writer:
                writer.ready.set()
        return writer

    def _commit_first(self, writer: _Writer, check: Check, commit_all: CommitAll) -> None:
        """Commits the first group, as soon as no other process has the catalog."""
        if self._commit_group(commit_all, lock_wait=_SHORT_WAIT, holds_writer_lock=False):
            return
        # Another process has the catalog exclusively. The wait for the writer lock can be
        # cancelled; the wait for the commit lock cannot.
        try:
            with self._writer_lock.hold(writer.arrived_at + self._timeout, check):
                self._commit_group(commit_all, lock_wait=None, holds_writer_lock=True)
        except WriterLockTimeout:
            raise self._timed_out() from None
        finally:
            if writer.outcome is None:
                self._leave([writer])

    def _commit_group(
        self, commit_all: CommitAll, *, lock_wait: float | None, holds_writer_lock: bool
    ) -> bool:
        """Commits the first writer and those that follow it up to an exclusive one.

        False if the lock was not free in ``lock_wait`` seconds; the queue is then as before.
        """
        group: list[_Writer] = []
        commits: list[Commit] = []
        with self._lock:
            for writer in self._writers:
                if writer.commit is None or len(group) == _MAX_GROUP_SIZE:
                    break
                writer.is_committing = True
                group.append(writer)
                commits.append(writer.commit)
        try:
            outcomes = commit_all(commits, lock_wait=lock_wait, holds_writer_lock=holds_writer_lock)
        except BaseException as error:
            self._finish(group, [error] * len(group))
            raise
        if lock_wait is not None and all(isinstance(each, CommitLockTimeout) for each in outcomes):
            with self._lock:
                for writer in group:
                    writer.is_committing = False
            return False
        self._finish(group, outcomes)
        return True

    def _finish(
        self, group: Sequence[_Writer], outcomes: Sequence[Committed | BaseException]
    ) -> None:
        for writer, outcome in zip(group, outcomes, strict=True):
            writer.outcome = outcome
        self._leave(group)
        for writer in group:
            writer.ready.set()

    def _try_leave(self, writer: _Writer) -> bool:
        """Leaves the queue, unless the writer's commit is being made."""
        with self._lock:
            if not writer.is_committing:
                self._remove([writer])
            return not writer.is_committing

    def _leave(self, writers: Sequence[_Writer]) -> None:
        with self._lock:
            self._remove(writers)

    def _remove(self, writers: Sequence[_Writer]) -> None:
        for writer in writers:
            self._writers.remove(writer)
        if self._writers:
            self._writers[0].ready.set()

    def _wait(self, writer: _Writer, check: Check) -> None:
        if not wait(writer.ready.wait, check, writer.arrived_at + self._timeout):
            raise self._timed_out()

    def _timed_out(self) -> CommitLockTimeout:
        return CommitLockTimeout(
            f"Waited {self._timeout:g} s for other writers to commit and gave up; the statement "
            "was not run. Try again, or raise commit_lock_timeout_seconds."
        )

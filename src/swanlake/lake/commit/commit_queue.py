"""The way to the commit lock of a catalog, for all writers of one process, in order of arrival.

Some writers bring a commit of ours; those that wait behind one another are made as a group, under
one lock. Others need the catalog for themselves for a while: DuckLake's stock commit path answers
contention with collisions and back-off, and letting it run alone is faster and fails nobody.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from swanlake.errors import CommitLockTimeout, SwanLakeError
from swanlake.lake.commit import Committed
from swanlake.lake.operations import Commit
from swanlake.lake.turns import Turns, TurnTimeout

_CHECK_INTERVAL = 0.05
#: Others hold the lock for milliseconds, and a fork for a second, unless DuckLake's own code works
#: in their turn. It ends with an error, which PostgreSQL logs.
_SHORT_WAIT = 2.0
#: Who comes while a group is committed waits for all of it.
_LARGEST_GROUP = 32

Check = Callable[[], None]


class CommitAll(Protocol):
    """Makes commits one after the other; what became of each, in their order."""

    def __call__(
        self, changes: Sequence[Commit], *, lock_wait: float | None, has_turn: bool
    ) -> Sequence[Committed | SwanLakeError]: ...


@dataclass(frozen=True)
class WriterStatus:
    """Somebody at the gate of a catalog."""

    name: str
    #: Since it came, waiting included.
    seconds: float


@dataclass(frozen=True)
class GateStatus:
    """Who has the gate of a catalog, and who waits for it in which order."""

    catalog: str
    holder: WriterStatus
    waiters: tuple[WriterStatus, ...]


@dataclass(eq=False)
class _Writer:
    name: str
    #: None: the catalog is to be its own for a while.
    change: Commit | None = None
    came_at: float = field(default_factory=time.monotonic)
    #: It is the first in the line, or what it came for is done.
    called: threading.Event = field(default_factory=threading.Event)
    #: Its change is being committed, so it can no longer leave.
    taken: bool = False
    outcome: Committed | BaseException | None = None


class CommitGate:
    """One writer, or one group of commits, at a time; waiters have a deadline and can give up."""

    def __init__(self, turns: Turns, timeout_seconds: float) -> None:
        self._turns = turns
        self._timeout = timeout_seconds
        self._lock = threading.Lock()
        self._line: deque[_Writer] = deque()

    @contextmanager
    def turn(self, name: str, check: Check) -> Iterator[None]:
        """Keeps every other writer of the lake from the catalog, for the block.

        ``check`` is called while waiting and raises when the caller no longer wants the turn.
        """
        mine = self._join(_Writer(name))
        deadline = mine.came_at + self._timeout
        try:
            self._wait(mine, check)
            try:
                turn = self._turns.turn(deadline, check)
                turn.__enter__()
            except TurnTimeout:
                raise self._given_up() from None
            try:
                yield
            finally:
                turn.__exit__(None, None, None)
        finally:
            self._leave([mine])

    def commit(self, change: Commit, name: str, check: Check, commit_all: CommitAll) -> Committed:
        """Makes a commit when its turn comes, perhaps together with those behind it."""
        mine = self._join(_Writer(name, change))
        try:
            self._wait(mine, check)
        except BaseException:
            # If the commit is on its way it has a deadline of its own, or comes back.
            while not (left := self._left(mine)) and not mine.called.wait(_CHECK_INTERVAL):
                pass
            if left or (mine.outcome is None and self._left(mine)):
                raise
        if mine.outcome is None:
            self._commit_first(mine, check, commit_all)
        if isinstance(mine.outcome, BaseException):
            raise mine.outcome
        assert mine.outcome is not None
        return mine.outcome

    def status(self, catalog: str) -> GateStatus | None:
        """Who is at the gate; None if nobody is."""
        now = time.monotonic()
        with self._lock:
            writers = [WriterStatus(one.name, now - one.came_at) for one in self._line]
        return GateStatus(catalog, writers[0], tuple(writers[1:])) if writers else None

    def _join(self, writer: _Writer) -> _Writer:
        with self._lock:
            self._line.append(writer)
            if self._line[0] is writer:
                writer.called.set()
        return writer

    def _commit_first(self, mine: _Writer, check: Check, commit_all: CommitAll) -> None:
        """Commits what the first in the line brought, as soon as no other process is at it."""
        if self._commit_group(commit_all, lock_wait=_SHORT_WAIT, has_turn=False):
            return
        # Somebody may have the catalog for long; unlike the wait for the lock, this one can end.
        try:
            with self._turns.turn(mine.came_at + self._timeout, check):
                self._commit_group(commit_all, lock_wait=None, has_turn=True)
        except TurnTimeout:
            raise self._given_up() from None
        finally:
            if mine.outcome is None:
                self._leave([mine])

    def _commit_group(
        self, commit_all: CommitAll, *, lock_wait: float | None, has_turn: bool
    ) -> bool:
        """Commits the first in the line, and all that follow it without a break.

        False if the lock could not be had in so short a time, and all are where they were.
        """
        group: list[_Writer] = []
        changes: list[Commit] = []
        with self._lock:
            for writer in self._line:
                if writer.change is None or len(group) == _LARGEST_GROUP:
                    break
                writer.taken = True
                group.append(writer)
                changes.append(writer.change)
        try:
            outcomes = commit_all(changes, lock_wait=lock_wait, has_turn=has_turn)
        except BaseException as error:
            self._done(group, [error] * len(group))
            raise
        if lock_wait is not None and all(isinstance(one, CommitLockTimeout) for one in outcomes):
            with self._lock:
                for writer in group:
                    writer.taken = False
            return False
        self._done(group, outcomes)
        return True

    def _done(
        self, group: Sequence[_Writer], outcomes: Sequence[Committed | BaseException]
    ) -> None:
        for writer, outcome in zip(group, outcomes, strict=True):
            writer.outcome = outcome
        self._leave(group)
        for writer in group:
            writer.called.set()

    def _left(self, writer: _Writer) -> bool:
        """Leaves the line, unless what it came for is being done."""
        with self._lock:
            if not writer.taken:
                self._go([writer])
            return not writer.taken

    def _leave(self, writers: Sequence[_Writer]) -> None:
        with self._lock:
            self._go(writers)

    def _go(self, writers: Sequence[_Writer]) -> None:
        for writer in writers:
            self._line.remove(writer)
        if self._line:
            self._line[0].called.set()

    def _wait(self, mine: _Writer, check: Check) -> None:
        deadline = mine.came_at + self._timeout
        while not mine.called.wait(_CHECK_INTERVAL):
            check()
            if time.monotonic() > deadline:
                raise self._given_up()

    def _given_up(self) -> CommitLockTimeout:
        return CommitLockTimeout(
            f"Waited {self._timeout:g} s for other writers to commit and gave up; the statement "
            "was not run. Try again, or raise commit_lock_timeout_seconds."
        )

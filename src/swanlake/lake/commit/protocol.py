"""The commit protocol: lock, read the head, check for conflicts, allocate, write, commit.

The lock comes first and is the transaction's first act, so what is read after it cannot change
until the transaction ends. Ids are allocated under it, which makes the order of ids the order of
commits; everything else in DuckLake relies on that.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row, select

from swanlake.errors import (
    CatalogNotWritable,
    CommitConflict,
    CommitFailed,
    CommitLockTimeout,
    CommitStateUnknown,
    LakeError,
    SwanLakeError,
)
from swanlake.lake import conflicts, state
from swanlake.lake.draft import Objects, Plan, State
from swanlake.lake.intents import (
    created_names,
    dropped_names,
    drops,
    file_ids,
    inlined_rows,
    inlining_tables,
    makes_tables,
    needs_names,
    own_entry,
    touches,
    unconnected,
)
from swanlake.lake.layout import folded
from swanlake.lake.operations import Commit, CreateTable, DropSchema, Rewrite
from swanlake.lake.options import StoredOptions
from swanlake.lake.planning import plan
from swanlake.lake.store import (
    CatalogStore,
    LockedTransaction,
    Question,
    Trouble,
    Write,
    one_line,
)

log = logging.getLogger("swanlake.lake")

#: After these errors it is certain that the catalog does not know the files of the commit.
NOTHING_WRITTEN = (CatalogNotWritable, CommitConflict, CommitFailed)


@dataclass(frozen=True)
class Retries:
    """How long and how often a commit is tried; only transient troubles are tried again."""

    attempts: int = 8
    first_wait: float = 0.02
    longest_wait: float = 1.0
    timeout: float = 60.0
    #: How long it waits for the lock, if not as long as for everything.
    lock_wait: float | None = None
    #: Others were made to wait already; who else would wait for itself.
    has_turn: bool = False

    def wait_before(self, attempt: int) -> float:
        """The pause before an attempt, counted from 1: doubling, with jitter."""
        return min(self.longest_wait, self.first_wait * 2.0**attempt) * random.uniform(0.5, 1.0)


@dataclass(frozen=True)
class Committed:
    """What became of a commit."""

    snapshot_id: int
    #: False if another commit had done the work in the ledger: no file of this one is in the lake.
    applied: bool = True
    attempts: int = 1
    #: From the lock to the answer of the COMMIT.
    lock_held_seconds: float = 0.0
    waited_seconds: float = 0.0


class _LostDuringCommit(Exception):
    """The COMMIT was sent and its answer never came."""


class _HeldByOthers(Exception):
    """Under the lock, somebody who does not take it kept rows that are to be changed."""


def apply(
    store: CatalogStore,
    commit: Commit,
    retries: Retries | None = None,
    sleep: Callable[[float], None] = time.sleep,
    may_have_happened: bool = False,
) -> Committed:
    """Makes a commit part of the catalog, once, or raises a LakeError and leaves no trace.

    ``may_have_happened`` says that the same commit was begun before and its end is not known.
    """
    retries = retries or Retries()
    started = time.monotonic()
    deadline = started + retries.timeout
    in_doubt = may_have_happened
    for attempt in range(1, retries.attempts + 1):
        try:
            how = retries if attempt == 1 and not in_doubt else replace(retries, lock_wait=None)
            return _attempt(store, commit, how, deadline, attempt, in_doubt or attempt > 1)
        except _LostDuringCommit as lost:
            in_doubt, last = True, lost.__cause__ or lost
        except _HeldByOthers as held:
            last = held.__cause__ or held
            if not in_doubt:
                raise _held(store, commit) from held
        except store.errors as error:
            trouble = store.trouble(error)
            last = error
            if trouble is Trouble.MISSING_TABLE and not in_doubt:
                raise _not_a_catalog(store, error) from error
            if trouble in (Trouble.FATAL, Trouble.MISSING_TABLE):
                break
            if trouble is Trouble.LOCK_TIMEOUT:
                is_over = time.monotonic() >= deadline
                if not in_doubt and (is_over or how.lock_wait is not None):
                    raise _locked(store, time.monotonic() - started) from error
                if is_over:
                    break
        wait = retries.wait_before(attempt)
        if attempt == retries.attempts or time.monotonic() + wait > deadline:
            break
        log.info("commit to %s, attempt %d: %s", store.name, attempt, one_line(last))
        sleep(wait)
    raise _given_up(store, in_doubt, attempt, time.monotonic() - started, last) from last


def apply_all(
    store: CatalogStore,
    commits: Sequence[Commit],
    retries: Retries | None = None,
    sleep: Callable[[float], None] = time.sleep,
    may_have_happened: bool = False,
) -> list[Committed | SwanLakeError]:
    """Makes commits one after the other, each a snapshot of its own or an error of its own.

    They share one lock and one COMMIT if there are several. If that fails for a reason of the
    database's, each is tried for itself.
    """
    retries = retries or Retries()
    started = time.monotonic()
    deadline = started + retries.timeout
    if len(commits) > 1 and not may_have_happened:
        try:
            return _attempt_all(store, commits, retries, deadline)
        except _LostDuringCommit:
            may_have_happened = True
        except _HeldByOthers as held:
            log.info("%d commits to %s: %s", len(commits), store.name, one_line(held))
        except store.errors as error:
            if store.trouble(error) is Trouble.LOCK_TIMEOUT:
                return [_locked(store, time.monotonic() - started) for _ in commits]
            log.info("%d commits to %s: %s", len(commits), store.name, one_line(error))
    outcomes: list[Committed | SwanLakeError] = []
    for commit in commits:
        left = replace(retries, timeout=max(0.001, deadline - time.monotonic()))
        if len(commits) > 1:  # some may be done already, and nobody tries again for the others
            left = replace(left, lock_wait=None)
        try:
            outcomes.append(apply(store, commit, left, sleep, may_have_happened))
        except SwanLakeError as error:
            outcomes.append(error)
        except Exception as error:
            log.exception("a commit to %s failed in a way that it should not", store.name)
            outcomes.append(_unforeseen(store, error))
    return outcomes


def _unforeseen(store: CatalogStore, error: Exception) -> SwanLakeError:
    """What a commit comes to that cannot be planned; those beside it have no part in that."""
    return CommitStateUnknown(
        f"The commit to the catalog {store.name} failed in a way that it should not "
        f"({one_line(error)}). It is either there whole or not at all: look before you repeat it."
    )


def _attempt(
    store: CatalogStore,
    commit: Commit,
    retries: Retries,
    deadline: float,
    attempt: int,
    may_have_happened: bool,
) -> Committed:
    asked = time.monotonic()
    reading = _Reading(state.History(commit.base), [commit])
    with _explained(store) as progress:
        with _lock(store, retries, deadline, reading) as transaction:
            progress.has_lock = True
            planned = _plan(store, transaction, commit, reading, may_have_happened)
            if isinstance(planned, Committed):
                return replace(planned, attempts=attempt)
            store.reached("planned")
            progress.is_committing = True
            transaction.commit(planned.writes)
            return _committed(planned.snapshot_id, transaction, asked, attempt)


@dataclass
class _Progress:
    """How far an attempt has come."""

    has_lock: bool = False
    is_committing: bool = False


@contextmanager
def _explained(store: CatalogStore) -> Iterator[_Progress]:
    """Tells apart errors that mean one thing before the lock and another behind it."""
    progress = _Progress()
    try:
        yield progress
    except store.errors as error:
        trouble = store.trouble(error)
        if progress.is_committing and trouble is Trouble.LOST:
            raise _LostDuringCommit from error
        if progress.has_lock and trouble is Trouble.LOCK_TIMEOUT:
            raise _HeldByOthers(str(error)) from error
        raise


def _attempt_all(
    store: CatalogStore, commits: Sequence[Commit], retries: Retries, deadline: float
) -> list[Committed | SwanLakeError]:
    asked = time.monotonic()
    outcomes: list[Committed | SwanLakeError | Plan] = []
    bases = [commit.base for commit in commits if commit.base is not None]
    first, *others = unconnected(commits)
    reading = _Reading(state.History(min(bases, default=None)), first)
    with _explained(store) as progress:
        with _lock(store, retries, deadline, reading) as transaction:
            progress.has_lock = True
            writes: list[Write] = []
            for some in (first, *others):
                if some is not first:
                    reading = _Reading(reading.history, some)
                    transaction.write(writes, reading.questions(store))
                writes = []
                for commit in some:
                    try:
                        planned = _plan(store, transaction, commit, reading, False)
                    except store.errors:
                        raise
                    except SwanLakeError as error:
                        outcomes.append(error)
                        continue
                    except Exception as error:
                        log.exception("a commit to %s could not be planned", store.name)
                        outcomes.append(_unforeseen(store, error))
                        continue
                    outcomes.append(planned)
                    if isinstance(planned, Plan):
                        writes += planned.writes
            store.reached("planned")
            progress.is_committing = True
            transaction.commit(writes)
            return [
                _committed(one.snapshot_id, transaction, asked) if isinstance(one, Plan) else one
                for one in outcomes
            ]


def _lock(
    store: CatalogStore,
    retries: Retries,
    deadline: float,
    reading: _Reading,
) -> AbstractContextManager[LockedTransaction]:
    if retries.lock_wait is not None:
        deadline = min(deadline, time.monotonic() + retries.lock_wait)
    return store.locked(deadline, reading.questions(store), has_turn=retries.has_turn)


class _Reading:
    """One look at the catalog for several commits, each of which finds what those before it left.

    What they left is not in the database yet: all their statements are sent at once.
    """

    def __init__(self, history: state.History, commits: Sequence[Commit]) -> None:
        self.history = history
        self._commits = commits
        self._touched = sorted({id for commit in commits for id in _touched_tables(commit)})
        self._inlining = sorted({id for commit in commits for id in inlining_tables(commit)})
        self._head: state.Head | None = None
        self._tables: dict[int, state.LiveTable] = {}
        self._inlined_versions: dict[int, int] = {}
        self._objects: Objects | None = None

    def questions(self, store: CatalogStore) -> list[Question]:
        """What is certain to be asked."""
        return state.questions(
            store,
            self.history,
            self._touched,
            self._inlining,
            names=any(needs_names(commit.operations) for commit in self._commits),
            options=any(map(makes_tables, self._commits)),
        )

    def head(self, transaction: LockedTransaction, store: CatalogStore) -> state.Head:
        if self._head is None:
            self._head = state.read_head(transaction, store, self.history)
            self._tables = state.read_tables(transaction, store.tables, self._touched)
            self._inlined_versions = state.read_inlined_versions(
                transaction, store.tables, self._inlining
            )
        return self._head

    def objects(self, transaction: LockedTransaction, store: CatalogStore) -> Objects:
        if self._objects is None:
            self._objects = state.read_objects(transaction, store.tables)
        return self._objects

    def tables_of(self, commit: Commit) -> dict[int, state.LiveTable]:
        ids = _touched_tables(commit)
        return {id: self._tables[id] for id in ids if id in self._tables}

    def inlined_versions_of(self, commit: Commit) -> dict[int, int]:
        known = self._inlined_versions
        return {id: known[id] for id in inlining_tables(commit) if id in known}

    def left(self, plan: Plan, commit: Commit) -> None:
        """The next commit follows this one."""
        self._head = plan.head
        self._tables |= plan.tables
        self._inlined_versions |= plan.inlined_versions
        if needs_names(commit.operations):
            self._objects = plan.objects


def _plan(
    store: CatalogStore,
    transaction: LockedTransaction,
    commit: Commit,
    reading: _Reading,
    may_have_happened: bool,
) -> Plan | Committed:
    """What is to be written under the lock, or how it came into the catalog before."""
    if commit.ledger or may_have_happened:
        earlier = _look_up(store, transaction, commit)
        if earlier is not None:
            return earlier
    found = _read_state(store, commit, transaction, reading)
    earliest = store.earliest(found.head.snapshot_time)
    planned = plan(commit, found, store.tables, store.now, earliest)
    reading.left(planned, commit)
    return planned


def _committed(
    snapshot_id: int, transaction: LockedTransaction, asked: float, attempt: int = 1
) -> Committed:
    return Committed(
        snapshot_id,
        attempts=attempt,
        lock_held_seconds=time.monotonic() - transaction.locked_at,
        waited_seconds=transaction.locked_at - asked,
    )


def _look_up(
    store: CatalogStore, transaction: LockedTransaction, commit: Commit
) -> Committed | None:
    """How this very commit, or all the work it is for, came into the lake; None if it did not."""
    own, work = own_entry(commit), commit.ledger
    ledger = store.tables.swanlake_ledger
    rows = transaction.read(select(ledger).where(ledger.c.entry.in_([own, *work])))
    found = {row.entry: int(row.snapshot_id) for row in rows}
    if own in found:
        return Committed(found[own])
    done = [entry for entry in work if entry in found]
    if not done:
        return None
    if len(done) < len(work):
        raise LakeError(
            f"Part of this work is in the lake already: {done[0]} was committed in snapshot "
            f"{found[done[0]]}. Leave it out and commit the rest.",
            identifier="PARTLY_COMMITTED",
        )
    return Committed(max(found.values()), applied=False)


def _read_state(
    store: CatalogStore, commit: Commit, transaction: LockedTransaction, reading: _Reading
) -> State:
    """What the catalog holds now; raises CommitConflict if the commit does not fit onto it."""
    tables, base = store.tables, commit.base
    head = reading.head(transaction, store)
    theirs = [] if base is None else reading.history.after(base, store.name)
    mine = touches(commit)
    if base is not None:
        conflicts.check_tables(mine, theirs, base)
    schemas, objects, options = {}, {}, StoredOptions()
    if needs_names(commit.operations):
        if theirs:
            _check_names(store, commit, transaction, theirs)
        schemas = state.read_schemas(transaction, tables)
        objects = reading.objects(transaction, store)
    if makes_tables(commit):
        options = state.read_options(transaction, tables)
    macros = []
    if any(isinstance(operation, DropSchema) for operation in commit.operations):
        macros = state.read_macros(transaction, tables)
    if base is not None:
        _check_files(store, commit, transaction, mine, theirs, head.snapshot_id)
    data_files, delete_files = state.read_files(transaction, tables, sorted(file_ids(commit)))
    touched = reading.tables_of(commit)
    if commit.by_name and base is not None:
        named_at = {id: live.named_at for id, live in touched.items()}
        conflicts.check_renamed(mine, named_at, base)
    inlined_deletes: set[int] = set()
    for touch in mine:
        if touch.act in (conflicts.Act.MERGE, conflicts.Act.REWRITE):
            inlined_deletes |= state.read_inlined_deletes(transaction, tables, touch.table_id)
    return State(
        head,
        schemas,
        objects,
        macros,
        touched,
        data_files,
        delete_files,
        inlined_deletes,
        _rewritten_delete_files(store, commit, transaction),
        {
            rows.table_name: state.count_inlined_rows(transaction, tables, rows.table_name, base)
            for rows in inlined_rows(commit)
            if base is not None
        },
        reading.inlined_versions_of(commit),
        options,
    )


def _rewritten_delete_files(
    store: CatalogStore, commit: Commit, transaction: LockedTransaction
) -> list[Row[Any]]:
    if not any(isinstance(operation, Rewrite) for operation in commit.operations):
        return []
    return state.read_delete_files(transaction, store.tables, sorted(file_ids(commit)))


def _check_names(
    store: CatalogStore,
    commit: Commit,
    transaction: LockedTransaction,
    theirs: list[conflicts.Happened],
) -> None:
    """Operations that go by name: the name must still mean what it did at the base."""
    assert commit.base is not None
    conflicts.check_names(created_names(commit), theirs, commit.base)
    schemas = state.read_schemas(transaction, store.tables, commit.base)
    objects = state.read_objects(transaction, store.tables, commit.base)
    conflicts.check_tables(drops(commit, schemas, objects), theirs, commit.base)
    conflicts.check_table_drops(dropped_names(commit), theirs, commit.base)
    for operation in commit.operations:
        match operation:
            case DropSchema(name=name):
                check = conflicts.check_schema_drop
            case CreateTable(schema=name):
                check = conflicts.check_schema_use
            case _:
                continue
        if row := schemas.get(folded(name)):
            check(row.schema_id, row.schema_name, theirs, commit.base)


def _check_files(
    store: CatalogStore,
    commit: Commit,
    transaction: LockedTransaction,
    mine: list[conflicts.Touch],
    theirs: list[conflicts.Happened],
    head: int,
) -> None:
    assert commit.base is not None
    for touch in mine:
        if touch.act is not conflicts.Act.DELETE:
            continue
        if any(
            happened.change.id == touch.table_id and happened.change.type in conflicts.TOUCHES_FILES
            for happened in theirs
        ):
            touched = state.read_touched_files(
                transaction, store.tables, touch.table_id, commit.base
            )
            conflicts.check_files(touch, file_ids(commit), touched, commit.base, head)


def _touched_tables(commit: Commit) -> list[int]:
    return sorted({touch.table_id for touch in touches(commit)})


def _not_a_catalog(store: CatalogStore, error: Exception) -> LakeError:
    return CatalogNotWritable(
        f"The catalog {store.name} is not complete: {one_line(error)}. If another program made it, "
        f"`swanlake catalog adopt {store.name}` adds what SwanLake needs to write to it."
    )


def _locked(store: CatalogStore, seconds: float) -> CommitLockTimeout:
    return CommitLockTimeout(
        f"Waited {seconds:.1f} s for other writers to commit to the catalog {store.name} and gave "
        "up; nothing was written. Try again, or raise commit_lock_timeout_seconds."
    )


def _held(store: CatalogStore, commit: Commit) -> CommitConflict:
    tables = ", ".join(sorted({touch.table for touch in touches(commit)}))
    what = f"rows of {tables}" if tables else "metadata"
    return CommitConflict(
        f"Another program has changed {what} in the catalog {store.name} in a transaction that it "
        "has not ended, without taking the catalog's lock; nothing was written. Try again."
    )


def _given_up(
    store: CatalogStore, in_doubt: bool, attempts: int, seconds: float, last: BaseException
) -> LakeError:
    cause = one_line(last)
    tried = f"{attempts} attempt{'s' if attempts > 1 else ''} in {seconds:.1f} s"
    if in_doubt:
        return CommitStateUnknown(
            f"The connection to the catalog {store.name} was lost during COMMIT and it could not "
            f"be asked what became of it ({tried}; last: {cause}). The commit is either there "
            "whole or not at all: look before you repeat it."
        )
    return CommitFailed(
        f"The commit to the catalog {store.name} was given up after {tried}; nothing was written. "
        f"Last: {cause}."
    )

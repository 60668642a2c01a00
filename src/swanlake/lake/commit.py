"""The commit protocol: lock, read the head, check for conflicts, allocate, write, commit.

The lock comes first and is the transaction's first act, so what is read after it cannot change
until the transaction ends. Ids are allocated under it, which makes the order of ids the order of
commits; everything else in DuckLake relies on that.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row, select

from swanlake.errors import (
    CatalogNotWritable,
    CommitConflict,
    CommitFailed,
    CommitStateUnknown,
    LakeError,
    SwanLakeError,
)
from swanlake.lake import conflicts, state
from swanlake.lake.draft import State
from swanlake.lake.intents import (
    created_names,
    dropped_names,
    drops,
    file_ids,
    inlined_rows,
    inlining_tables,
    needs_names,
    own_entry,
    touches,
)
from swanlake.lake.layout import folded
from swanlake.lake.operations import Commit, CreateTable, DropSchema, Rewrite
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
            return _attempt(store, commit, deadline, attempt, in_doubt or attempt > 1)
        except _LostDuringCommit as lost:
            in_doubt, last = True, lost.__cause__ or lost
        except store.errors as error:
            trouble = store.trouble(error)
            last = error
            if trouble is Trouble.MISSING_TABLE and not in_doubt:
                raise _not_a_catalog(store, error) from error
            if trouble in (Trouble.FATAL, Trouble.MISSING_TABLE):
                break
            if trouble is Trouble.LOCK_TIMEOUT and time.monotonic() >= deadline:
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
    deadline = time.monotonic() + retries.timeout
    if len(commits) > 1 and not may_have_happened:
        try:
            return _attempt_all(store, commits, deadline)
        except _LostDuringCommit:
            may_have_happened = True
        except store.errors as error:
            log.info("%d commits to %s: %s", len(commits), store.name, one_line(error))
    outcomes: list[Committed | SwanLakeError] = []
    for commit in commits:
        left = replace(retries, timeout=max(0.001, deadline - time.monotonic()))
        try:
            outcomes.append(apply(store, commit, left, sleep, may_have_happened))
        except SwanLakeError as error:
            outcomes.append(error)
    return outcomes


def _attempt(
    store: CatalogStore, commit: Commit, deadline: float, attempt: int, may_have_happened: bool
) -> Committed:
    asked = time.monotonic()
    committing = False
    try:
        with store.locked(deadline, _questions(store, commit)) as transaction:
            planned = _plan(store, transaction, commit, may_have_happened)
            if isinstance(planned, Committed):
                return replace(planned, attempts=attempt)
            store.reached("planned")
            committing = True
            transaction.commit(planned.writes)
            return _committed(planned.snapshot_id, transaction, asked, attempt)
    except store.errors as error:
        if committing and store.trouble(error) is Trouble.LOST:
            raise _LostDuringCommit from error
        raise


def _attempt_all(
    store: CatalogStore, commits: Sequence[Commit], deadline: float
) -> list[Committed | SwanLakeError]:
    asked = time.monotonic()
    outcomes: list[Committed | SwanLakeError | _Planned] = []
    committing = False
    try:
        with store.locked(deadline, _questions(store, commits[0])) as transaction:
            writes: Sequence[Write] = ()
            for commit in commits:
                if outcomes:
                    transaction.write(writes, _questions(store, commit))
                writes = ()
                try:
                    planned = _plan(store, transaction, commit, may_have_happened=False)
                except SwanLakeError as error:
                    outcomes.append(error)
                    continue
                outcomes.append(planned)
                if isinstance(planned, _Planned):
                    writes = planned.writes
            store.reached("planned")
            committing = True
            transaction.commit(writes)
            return [
                _committed(one.snapshot_id, transaction, asked)
                if isinstance(one, _Planned)
                else one
                for one in outcomes
            ]
    except store.errors as error:
        if committing and store.trouble(error) is Trouble.LOST:
            raise _LostDuringCommit from error
        raise


@dataclass(frozen=True)
class _Planned:
    """What makes a commit, and the snapshot that it becomes."""

    snapshot_id: int
    writes: Sequence[Write]


def _plan(
    store: CatalogStore, transaction: LockedTransaction, commit: Commit, may_have_happened: bool
) -> _Planned | Committed:
    """What is to be written under the lock, or how it came into the catalog before."""
    if commit.ledger or may_have_happened:
        earlier = _look_up(store, transaction, commit)
        if earlier is not None:
            return earlier
    found = _read_state(store, commit, transaction)
    earliest = store.earliest(found.head.snapshot_time)
    writes = plan(commit, found, store.tables, store.now, earliest)
    return _Planned(found.head.next_snapshot_id, writes)


def _committed(
    snapshot_id: int, transaction: LockedTransaction, asked: float, attempt: int = 1
) -> Committed:
    return Committed(
        snapshot_id,
        attempts=attempt,
        lock_held_seconds=time.monotonic() - transaction.locked_at,
        waited_seconds=transaction.locked_at - asked,
    )


def _questions(store: CatalogStore, commit: Commit) -> list[Question]:
    return state.questions(store, commit.base, _touched_tables(commit), inlining_tables(commit))


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


def _read_state(store: CatalogStore, commit: Commit, transaction: LockedTransaction) -> State:
    """What the catalog holds now; raises CommitConflict if the commit does not fit onto it."""
    tables, base = store.tables, commit.base
    head, theirs = state.read_head(transaction, store, base)
    mine = touches(commit)
    if base is not None:
        conflicts.check_tables(mine, theirs, base)
    schemas, objects = {}, {}
    if needs_names(commit.operations):
        if theirs:
            _check_names(store, commit, transaction, theirs)
        schemas = state.read_schemas(transaction, tables)
        objects = state.read_objects(transaction, tables)
    macros = []
    if any(isinstance(operation, DropSchema) for operation in commit.operations):
        macros = state.read_macros(transaction, tables)
    if base is not None:
        _check_files(store, commit, transaction, mine, theirs, head.snapshot_id)
    data_files, delete_files = state.read_files(transaction, tables, sorted(file_ids(commit)))
    inlined_deletes: set[int] = set()
    for touch in mine:
        if touch.act in (conflicts.Act.MERGE, conflicts.Act.REWRITE):
            inlined_deletes |= state.read_inlined_deletes(transaction, tables, touch.table_id)
    return State(
        head,
        schemas,
        objects,
        macros,
        state.read_tables(transaction, tables, _touched_tables(commit)),
        data_files,
        delete_files,
        inlined_deletes,
        _rewritten_delete_files(store, commit, transaction),
        {
            rows.table_name: state.count_inlined_rows(transaction, tables, rows.table_name, base)
            for rows in inlined_rows(commit)
            if base is not None
        },
        state.read_inlined_versions(transaction, tables, inlining_tables(commit)),
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

"""The commit protocol: lock, read the head, check for conflicts, allocate, write, commit.

The transaction's first statement takes the lock, so what is read after it cannot change until the
transaction ends. Ids are allocated under the lock, so their order is the order of commits;
everything else in DuckLake relies on that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy import select

from swanlake._internal.backoff import backoff
from swanlake.errors import (
    CatalogNotWritable,
    CommitConflict,
    CommitFailed,
    CommitLockTimeout,
    CommitStateUnknown,
    LakeError,
    SwanLakeError,
)
from swanlake.lake.commit.draft import Plan
from swanlake.lake.commit.footprint import independent_groups, own_entry, table_intents
from swanlake.lake.commit.planning import plan
from swanlake.lake.commit.reading import CatalogReader, read_state
from swanlake.lake.commit.snapshot_history import SnapshotHistory
from swanlake.lake.metastore.store import (
    CatalogStore,
    ErrorKind,
    LockedTransaction,
    Write,
    one_line,
)
from swanlake.lake.model.operations import Commit

log = logging.getLogger("swanlake.lake")

#: After these errors the catalog certainly does not refer to the commit's files.
NOTHING_WRITTEN = (CatalogNotWritable, CommitConflict, CommitFailed)


@dataclass(frozen=True)
class Retries:
    """How long and how often a commit is tried; only transient errors are retried."""

    attempts: int = 8
    first_wait: float = 0.02
    longest_wait: float = 1.0
    timeout: float = 60.0
    #: The wait for the lock, if it is shorter than the timeout.
    lock_wait: float | None = None
    #: The caller already holds the writer lock; taking it again would deadlock.
    holds_writer_lock: bool = False

    def wait_before(self, attempt: int) -> float:
        """The pause before an attempt, counted from 1: doubling, with jitter."""
        return backoff(attempt + 1, first=self.first_wait, longest=self.longest_wait)


@dataclass(frozen=True)
class Committed:
    """The outcome of a commit."""

    snapshot_id: int
    #: False if the ledger's work was committed before: no file of this commit is in the lake.
    applied: bool = True
    attempts: int = 1
    #: From the lock to the answer of the COMMIT.
    lock_held_seconds: float = 0.0
    waited_seconds: float = 0.0


class _LostDuringCommit(Exception):
    """The COMMIT was sent, and the connection was lost before its answer."""


class _RowsLocked(Exception):
    """Under the commit lock, rows to change were locked by a program that does not take it."""


def apply(
    store: CatalogStore,
    commit: Commit,
    retries: Retries | None = None,
    sleep: Callable[[float], None] = time.sleep,
    may_have_happened: bool = False,
) -> Committed:
    """Commits once, or raises a LakeError.

    ``may_have_happened``: an earlier attempt at the same commit may have succeeded.
    """
    retries = retries or Retries()
    started = time.monotonic()
    deadline = started + retries.timeout
    in_doubt = may_have_happened
    for attempt in range(1, retries.attempts + 1):
        try:
            # Only the first attempt returns early; a repeated one must find the outcome.
            used = retries if attempt == 1 and not in_doubt else replace(retries, lock_wait=None)
            (outcome,) = _attempt(store, [commit], used, deadline, in_doubt or attempt > 1)
            if isinstance(outcome, SwanLakeError):
                raise outcome
            return replace(outcome, attempts=attempt)
        except _LostDuringCommit as lost:
            in_doubt, last = True, lost.__cause__ or lost
        except _RowsLocked as held:
            last = held.__cause__ or held
            if not in_doubt:
                raise _rows_locked(store, commit) from held
        except store.errors as error:
            kind = store.classify(error)
            last = error
            if kind is ErrorKind.MISSING_TABLE and not in_doubt:
                raise _not_a_catalog(store, error) from error
            if kind in (ErrorKind.FATAL, ErrorKind.MISSING_TABLE):
                break
            if kind is ErrorKind.LOCK_TIMEOUT:
                is_over = time.monotonic() >= deadline
                if not in_doubt and (is_over or used.lock_wait is not None):
                    raise _lock_timeout(store, time.monotonic() - started) from error
                if is_over:
                    break
        wait = retries.wait_before(attempt)
        if attempt == retries.attempts or time.monotonic() + wait > deadline:
            break
        log.info("commit to %s, attempt %d: %s", store.name, attempt, one_line(last))
        sleep(wait)
    raise _give_up(store, in_doubt, attempt, time.monotonic() - started, last) from last


def apply_all(
    store: CatalogStore,
    commits: Sequence[Commit],
    retries: Retries | None = None,
    sleep: Callable[[float], None] = time.sleep,
    may_have_happened: bool = False,
) -> list[Committed | SwanLakeError]:
    """Commits one after the other; each gets its own snapshot or its own error.

    Several commits share one lock and one COMMIT. If the database fails that, each is tried alone.
    """
    retries = retries or Retries()
    started = time.monotonic()
    deadline = started + retries.timeout
    if len(commits) > 1 and not may_have_happened:
        try:
            return _attempt(store, commits, retries, deadline)
        except _LostDuringCommit:
            may_have_happened = True
        except _RowsLocked as held:
            log.info("%d commits to %s: %s", len(commits), store.name, one_line(held))
        except store.errors as error:
            if store.classify(error) is ErrorKind.LOCK_TIMEOUT:
                return [_lock_timeout(store, time.monotonic() - started) for _ in commits]
            log.info("%d commits to %s: %s", len(commits), store.name, one_line(error))
    outcomes: list[Committed | SwanLakeError] = []
    for commit in commits:
        left = replace(retries, timeout=max(0.001, deadline - time.monotonic()))
        if len(commits) > 1:  # some may be done already, so the group is not retried as a whole
            left = replace(left, lock_wait=None)
        try:
            outcomes.append(apply(store, commit, left, sleep, may_have_happened))
        except SwanLakeError as error:
            outcomes.append(error)
        except Exception as error:
            log.exception("a commit to %s failed unexpectedly", store.name)
            outcomes.append(_unexpected(store, error))
    return outcomes


def _unexpected(store: CatalogStore, error: Exception) -> SwanLakeError:
    """The outcome of a commit that failed by a defect; the others of its group go on."""
    return CommitStateUnknown(
        f"The commit to the catalog {store.name} failed unexpectedly ({one_line(error)}). It is "
        "either there whole or not at all: look before you repeat it."
    )


def _attempt(
    store: CatalogStore,
    commits: Sequence[Commit],
    retries: Retries,
    deadline: float,
    may_have_happened: bool = False,
) -> list[Committed | SwanLakeError]:
    """Makes commits under one lock, in one transaction; returns the outcome of each."""
    started = time.monotonic()
    if retries.lock_wait is not None:
        deadline = min(deadline, started + retries.lock_wait)
    bases = [commit.base for commit in commits if commit.base is not None]
    groups = independent_groups(commits)
    reader = CatalogReader(SnapshotHistory(min(bases, default=None)), groups[0])
    queries = reader.initial_queries(store)
    has_lock = is_committing = False
    try:
        with store.locked(
            deadline, queries, holds_writer_lock=retries.holds_writer_lock
        ) as transaction:
            has_lock = True
            outcomes, writes = _plan_all(transaction, groups, reader, may_have_happened)
            if any(isinstance(each, Plan) for each in outcomes):
                store.reached("planned")
                is_committing = True
                transaction.commit(writes)
            held = time.monotonic() - transaction.locked_at
    except store.errors as error:
        # They mean one thing before the lock and another under it.
        kind = store.classify(error)
        if is_committing and kind is ErrorKind.LOST:
            raise _LostDuringCommit from error
        if has_lock and kind is ErrorKind.LOCK_TIMEOUT:
            raise _RowsLocked(str(error)) from error
        raise
    waited = transaction.locked_at - started
    return [
        Committed(each.snapshot_id, lock_held_seconds=held, waited_seconds=waited)
        if isinstance(each, Plan)
        else each
        for each in outcomes
    ]


def _plan_all(
    transaction: LockedTransaction,
    groups: Sequence[Sequence[Commit]],
    reader: CatalogReader,
    may_have_happened: bool,
) -> tuple[list[Plan | Committed | SwanLakeError], list[Write]]:
    """Plans commits in their order, and writes all but the last group's; returns its writes."""
    store = transaction.store
    outcomes: list[Plan | Committed | SwanLakeError] = []
    writes: list[Write] = []
    for number, group in enumerate(groups):
        if number > 0:
            reader = CatalogReader(reader.history, group)
            transaction.write(writes, reader.initial_queries(store))
            writes = []
        for commit in group:
            try:
                planned = _plan(transaction, commit, reader, may_have_happened)
            except store.errors:
                raise
            except SwanLakeError as error:
                outcomes.append(error)
                continue
            except Exception as error:
                log.exception("a commit to %s could not be planned", store.name)
                outcomes.append(_unexpected(store, error))
                continue
            outcomes.append(planned)
            if isinstance(planned, Plan):
                writes += planned.writes
    return outcomes, writes


def _plan(
    transaction: LockedTransaction, commit: Commit, reader: CatalogReader, may_have_happened: bool
) -> Plan | Committed:
    """The plan of a commit, or its outcome if it was committed before."""
    if (commit.ledger or may_have_happened) and (earlier := _find_earlier(transaction, commit)):
        return earlier
    store = transaction.store
    found = read_state(transaction, commit, reader)
    earliest = store.earliest(found.head.snapshot_time)
    planned = plan(commit, found, store.tables, store.now, earliest)
    reader.advance(planned, commit)
    return planned


def _find_earlier(transaction: LockedTransaction, commit: Commit) -> Committed | None:
    """The outcome if this commit, or all the work in its ledger, was committed before."""
    own, work = own_entry(commit), commit.ledger
    ledger = transaction.tables.swanlake_ledger
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


def _not_a_catalog(store: CatalogStore, error: Exception) -> LakeError:
    return CatalogNotWritable(
        f"The catalog {store.name} is not complete: {one_line(error)}. If another program made it, "
        f"`swanlake catalog adopt {store.name}` adds what SwanLake needs to write to it."
    )


def _lock_timeout(store: CatalogStore, seconds: float) -> CommitLockTimeout:
    return CommitLockTimeout(
        f"Waited {seconds:.1f} s for other writers to commit to the catalog {store.name} and gave "
        "up; nothing was written. Try again, or raise commit_lock_timeout_seconds."
    )


def _rows_locked(store: CatalogStore, commit: Commit) -> CommitConflict:
    tables = ", ".join(sorted({intent.table for intent in table_intents(commit)}))
    what = f"rows of {tables}" if tables else "metadata"
    return CommitConflict(
        f"Another program has changed {what} in the catalog {store.name} in a transaction that it "
        "has not ended, without taking the catalog's lock; nothing was written. Try again."
    )


def _give_up(
    store: CatalogStore, in_doubt: bool, attempts: int, seconds: float, last: BaseException
) -> LakeError:
    cause = one_line(last)
    tried = f"{attempts} attempt{'s' if attempts > 1 else ''} in {seconds:.1f} s"
    if in_doubt:
        return CommitStateUnknown(
            f"The connection to the catalog {store.name} was lost during COMMIT and its outcome "
            f"could not be read ({tried}; last: {cause}). The commit is either there whole or not "
            "at all: look before you repeat it."
        )
    return CommitFailed(
        f"The commit to the catalog {store.name} was given up after {tried}; nothing was written. "
        f"Last: {cause}."
    )

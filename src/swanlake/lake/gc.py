"""The collector: deletes files that no catalog can see, and only those.

A file may be seen through a fork long after its own catalog has let go of it, so the question is
always put to all catalogs. New files are never seen by anybody until they are committed; age is
what tells them from those that never will be.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum

from sqlalchemy import Connection, delete, select, union_all

from swanlake.errors import Code, LakeError
from swanlake.lake import files
from swanlake.lake.intents import COMMIT_ENTRY
from swanlake.lake.metabase import CatalogInfo, Metabase
from swanlake.lake.reading import directories, property_of
from swanlake.lake.store import CatalogStore
from swanlake.lake.tables import CatalogTables

#: How long a file may wait for its commit before it counts as left behind.
DEFAULT_AGE = timedelta(days=2)
_LOCK_SECONDS = 60.0


class Reason(Enum):
    """Why a file can go."""

    SCHEDULED = "no snapshot needs it"
    DEFERRED = "no fork can see it any more"
    DROPPED = "its catalog was dropped"
    ORPHANED = "it was never committed"


#: What clean-ups take, and what a search for orphans does.
LET_GO = frozenset({Reason.SCHEDULED, Reason.DEFERRED, Reason.DROPPED})
NEVER_KNOWN = frozenset({Reason.ORPHANED})


@dataclass(frozen=True)
class Garbage:
    """A file to be deleted, and why."""

    path: str
    reason: Reason
    #: The catalog in whose data path, or on whose list, it was found.
    catalog: str
    #: In bytes, where it is known.
    size: int = 0


def collect(
    metabase: Metabase,
    *,
    age: timedelta = DEFAULT_AGE,
    dry_run: bool,
    reasons: Collection[Reason] = frozenset(Reason),
) -> list[Garbage]:
    """Finds what can be deleted in all catalogs and, unless it is a dry run, deletes it."""
    # Forks are made under the same lock: none can begin to see a file that is being judged.
    with metabase.registry(write=True) as registry:
        living, gone = metabase.infos(registry), metabase.infos(registry, dropped=True)
        found = _Catalogs(metabase, living, gone, datetime.now(UTC) - age).garbage()
        found = [garbage for garbage in found if garbage.reason in reasons]
        if not dry_run:
            for garbage in found:
                files.delete(garbage.path)
            paths = [garbage.path for garbage in found]
            for info in living:
                _forget(metabase.store(info), paths, datetime.now(UTC) - max(age, DEFAULT_AGE))
    return found


class _Catalogs:
    def __init__(
        self,
        metabase: Metabase,
        living: list[CatalogInfo],
        gone: list[CatalogInfo],
        before: datetime,
    ) -> None:
        self._living = [(info, metabase.store(info)) for info in living]
        self._gone = gone
        self._before = before
        self._metabase = metabase

    def garbage(self) -> list[Garbage]:
        """Each file once, with the first reason found."""
        needed: set[str] = set()
        listed: list[Garbage] = []
        for info, store in self._living:
            # One catalog that cannot be asked is enough to delete nothing: it may need any file.
            what = f"metadata of the catalog {info.name}"
            with self._metabase.reachable(what), store.connect() as connection:
                needed |= set(referenced(connection, store.tables))
                listed += _listed(connection, store.tables, info.name, self._before)
        found = {garbage.path: garbage for garbage in listed if garbage.path not in needed}
        waiting = {garbage.path for garbage in self._all_listed()}
        for garbage in (*self._left_behind(), *self._orphans()):
            if garbage.path not in needed and garbage.path not in waiting:
                found.setdefault(garbage.path, garbage)
        return list(found.values())

    def _all_listed(self) -> Iterator[Garbage]:
        """What is on a list already, however young: its time will come by that list."""
        for info, store in self._living:
            with store.connect() as connection:
                yield from _listed(connection, store.tables, info.name, None)

    def _left_behind(self) -> Iterator[Garbage]:
        taken = {info.data_path for info, _ in self._living}
        for info in self._gone:
            if info.data_path in taken:
                continue
            for path, _ in self._files_of(info):
                yield Garbage(path, Reason.DROPPED, info.name)

    def _orphans(self) -> Iterator[Garbage]:
        for info, _ in self._living:
            for path, modified in self._files_of(info):
                if path.endswith(".parquet") and modified < self._before:
                    yield Garbage(path, Reason.ORPHANED, info.name)

    def _files_of(self, info: CatalogInfo) -> Iterator[tuple[str, datetime]]:
        """What is in a catalog's directory, if it has one to itself: one that was adopted may not.

        Files that others keep there would look like its own.
        """
        if info.data_path == self._metabase.data_path(info.place):
            yield from files.files_under(info.data_path)


def referenced(connection: Connection, tables: CatalogTables) -> Iterator[str]:
    """The whole path of every file that some snapshot of a catalog can see."""
    prefixes = directories(connection, tables)
    data, deletes = tables.data_file, tables.delete_file
    rows = connection.execute(
        union_all(
            select(data.c.table_id, data.c.path, data.c.path_is_relative),
            select(deletes.c.table_id, deletes.c.path, deletes.c.path_is_relative),
        )
    )
    for row in rows:
        if row.path_is_relative and row.table_id not in prefixes:
            raise LakeError(
                f"The file {row.path} belongs to table {row.table_id}, which the catalog does not "
                "know: its metadata is damaged.",
                identifier="CATALOG_UNREADABLE",
                code=Code.INTERNAL,
            )
        yield prefixes[row.table_id] + row.path if row.path_is_relative else row.path


def _listed(
    connection: Connection, tables: CatalogTables, catalog: str, before: datetime | None
) -> Iterator[Garbage]:
    data_path = property_of(connection, tables, "data_path") or ""
    scheduled = tables.files_scheduled_for_deletion
    for row in connection.execute(select(scheduled)):
        if before is None or row.schedule_start < before:
            path = data_path + row.path if row.path_is_relative else row.path
            yield Garbage(path, Reason.SCHEDULED, catalog)
    deferred = tables.swanlake_deferred_file
    for row in connection.execute(select(deferred)):
        if before is None or row.since < before:
            yield Garbage(row.path, Reason.DEFERRED, catalog)


def _forget(store: CatalogStore, paths: Iterable[str], before: datetime) -> None:
    """Takes files that are deleted off the lists of a catalog, and old commits off its ledger.

    A commit asks for its own id within seconds, or when someone repeats it by hand, so it is kept
    for days whatever the age of the files; what it was for is another matter, and stays.
    """
    gone = set(paths)
    tables = store.tables
    # Under the lock: SQLite refuses to write what was read before somebody else's commit.
    with store.locked(time.monotonic() + _LOCK_SECONDS) as transaction:
        connection = transaction.connection
        data_path = property_of(connection, tables, "data_path") or ""
        scheduled, deferred = tables.files_scheduled_for_deletion, tables.swanlake_deferred_file
        ids = [
            row.data_file_id
            for row in connection.execute(select(scheduled))
            if (data_path + row.path if row.path_is_relative else row.path) in gone
        ]
        listed = set(connection.execute(select(deferred.c.path)).scalars()) & gone
        ledger = tables.swanlake_ledger
        old = (ledger.c.committed_at < before) & ledger.c.entry.startswith(COMMIT_ENTRY)
        connection.execute(delete(ledger).where(old))
        if ids:
            connection.execute(delete(scheduled).where(scheduled.c.data_file_id.in_(ids)))
        if listed:
            connection.execute(delete(deferred).where(deferred.c.path.in_(listed)))
        connection.commit()

"""Deletes files that no catalog can see, and only those.

A file may be seen through a fork long after its own catalog has let go of it, so the question is
always put to all catalogs. New files are never seen by anybody until they are committed; age is
what tells them from those that never will be.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from sqlalchemy import Connection, delete, select, union_all

from swanlake.errors import CatalogUnreachable
from swanlake.lake import clock, files
from swanlake.lake.files import Entry
from swanlake.lake.intents import COMMIT_ENTRY
from swanlake.lake.metabase import CatalogInfo, Metabase
from swanlake.lake.reading import directories, property_of, whole_path
from swanlake.lake.store import CatalogStore
from swanlake.lake.tables import CatalogTables

#: How long a file may wait for its commit before it counts as left behind.
DEFAULT_AGE = timedelta(days=2)
_LOCK_SECONDS = 60.0
#: So many files are deleted before the lists are told; a run that is cut short repeats no more.
_AT_ONCE = 1000
_THREADS = 8
#: Where a write puts its files until they are whole.
_WORKING_FOLDER = re.compile(r"(?:.*/)?\.swanlake-[0-9a-f]{32}")


class Reason(Enum):
    """Why a file can go."""

    SCHEDULED = "no snapshot needs it"
    DEFERRED = "no fork can see it any more"
    DROPPED = "its catalog was dropped"
    ORPHANED = "it was never committed"


#: What some catalog once knew; a clean-up deletes it. The rest nobody ever knew.
UNNEEDED = frozenset({Reason.SCHEDULED, Reason.DEFERRED, Reason.DROPPED})
ORPHANS = frozenset({Reason.ORPHANED})


@dataclass(frozen=True)
class Garbage:
    """A file to be deleted, and why; or a folder that a write left behind, with all that is in it.

    The path of a folder ends with a slash.
    """

    path: str
    reason: Reason
    #: The catalog in whose data path, or on whose list, it was found.
    catalog: str
    #: In bytes; 0 if it is not there any more.
    size: int = 0
    #: Why it could not be deleted, if it could not: it stays where it is, and on its list.
    problem: str | None = None


def find(metabase: Metabase, reasons: Iterable[Reason], age: timedelta) -> list[Garbage]:
    """What can be deleted in all catalogs for one of the reasons: each file once, in a fixed order.

    Forks are made under the same lock, so none begins to see a file while it is being judged. What
    no catalog needs then, none will ever need again.
    """
    with metabase.registry(write=True) as registry:
        living, gone = metabase.infos(registry), metabase.infos(registry, dropped=True)
        old = clock.before(clock.no_later(registry), age)
        catalogs = _Catalogs(metabase, living, gone, old)
        found = catalogs.garbage(frozenset(reasons))
    unknown = [garbage.path for garbage in found if garbage.size == 0]
    sizes = files.sizes(path for path in unknown if not path.endswith("/"))
    return [replace(each, size=sizes.get(each.path, each.size)) for each in found]


def remove(found: Sequence[Garbage], forget: Callable[[list[str]], None]) -> list[Garbage]:
    """Deletes files and has the lists forget them; those that could not be deleted say why."""
    done: list[Garbage] = []
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="swanlake-delete") as pool:
        for start in range(0, len(found), _AT_ONCE):
            some = list(pool.map(_removed, found[start : start + _AT_ONCE]))
            forget([garbage.path for garbage in some if garbage.problem is None])
            done += some
    return done


def _removed(garbage: Garbage) -> Garbage:
    try:
        files.delete(garbage.path)
    except CatalogUnreachable as failed:
        return replace(garbage, problem=failed.message)
    return garbage


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

    def garbage(self, reasons: frozenset[Reason]) -> list[Garbage]:
        """Each file once, with the first reason found."""
        # Before the catalogs are asked what they need: what is committed meanwhile is needed.
        orphans = list(self._orphans()) if Reason.ORPHANED in reasons else []
        needed: set[str] = set()
        listed: list[tuple[Garbage, datetime]] = []
        for info, store in self._living:
            # One catalog that cannot be asked is enough to delete nothing: it may need any file.
            what = f"metadata of the catalog {info.name}"
            with self._metabase.reachable(what), store.connect() as connection:
                needed |= set(referenced(connection, store.tables))
                listed += _listed(connection, store.tables, info.name)
        old = [garbage for garbage, since in listed if since < self._before]
        # What is on a list already, however young, has its time come by that list.
        waiting = {garbage.path for garbage, _ in listed}
        left_behind = self._left_behind() if Reason.DROPPED in reasons else ()
        unlisted = [each for each in (*left_behind, *orphans) if each.path not in waiting]
        found: dict[str, Garbage] = {}
        for garbage in (*old, *unlisted):
            if garbage.reason in reasons and garbage.path not in needed:
                found.setdefault(garbage.path, garbage)
        return list(found.values())

    def _left_behind(self) -> Iterator[Garbage]:
        taken = {info.data_path for info, _ in self._living}
        for info in self._gone:
            if info.data_path in taken:
                continue
            for entry in self._entries_of(info):
                if not entry.is_folder:
                    yield Garbage(entry.path, Reason.DROPPED, info.name, entry.size)

    def _orphans(self) -> Iterator[Garbage]:
        for info, _ in self._living:
            entries = self._entries_of(info)
            folders = _working_folders(entries)
            for folder, inside in folders.items():
                # A write that goes on for long has old files in it, and new ones.
                if all(entry.modified < self._before for entry in inside):
                    size = sum(entry.size for entry in inside)
                    yield Garbage(folder, Reason.ORPHANED, info.name, size)
            working = {entry.path for inside in folders.values() for entry in inside}
            for entry in entries:
                is_file = entry.path.endswith(".parquet") and not entry.is_folder
                if is_file and entry.path not in working and entry.modified < self._before:
                    yield Garbage(entry.path, Reason.ORPHANED, info.name, entry.size)

    def _entries_of(self, info: CatalogInfo) -> list[Entry]:
        """What is in a catalog's directory, if it has one to itself: one that was adopted may not.

        Files that others keep there would look like its own.
        """
        if info.data_path != self._metabase.data_path(info.place):
            return []
        return sorted(files.entries_under(info.data_path), key=lambda entry: entry.path)


def _working_folders(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The folders in which writes were, or are, with themselves and all that is in them."""
    folders: dict[str, list[Entry]] = {}
    for entry in entries:
        place = _WORKING_FOLDER.match(entry.path)
        if place and (entry.is_folder or place.end() < len(entry.path)):
            folders.setdefault(f"{place.group()}/", []).append(entry)
    return folders


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
        yield whole_path(row, prefixes)


def _listed(
    connection: Connection, tables: CatalogTables, catalog: str
) -> Iterator[tuple[Garbage, datetime]]:
    """What a catalog has let go of, and when."""
    data_path = property_of(connection, tables, "data_path") or ""
    scheduled, deferred = tables.files_scheduled_for_deletion, tables.swanlake_deferred_file
    for row in connection.execute(select(scheduled).order_by(scheduled.c.data_file_id)):
        path = data_path + row.path if row.path_is_relative else row.path
        yield Garbage(path, Reason.SCHEDULED, catalog), row.schedule_start
    for row in connection.execute(select(deferred).order_by(deferred.c.path)):
        yield Garbage(row.path, Reason.DEFERRED, catalog), row.since


# ---- afterwards ----------------------------------------------------------------------------------


def forget(metabase: Metabase, paths: Iterable[str]) -> None:
    """Takes files that are deleted off the lists of all catalogs."""
    gone = set(paths)
    if not gone:
        return
    with metabase.registry(write=True) as registry:
        for info in metabase.infos(registry):
            store = metabase.store(info)
            with store.connect() as connection:
                listed = _listed(connection, store.tables, info.name)
                concerned = any(garbage.path in gone for garbage, _ in listed)
            if concerned:
                _take_off_lists(store, gone)


def _take_off_lists(store: CatalogStore, gone: set[str]) -> None:
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
        if ids:
            connection.execute(delete(scheduled).where(scheduled.c.data_file_id.in_(ids)))
        if listed:
            connection.execute(delete(deferred).where(deferred.c.path.in_(listed)))
        connection.commit()


def forget_commits(metabase: Metabase, age: timedelta) -> None:
    """Takes old commits off the ledgers of all catalogs.

    A commit asks for its own id within seconds, or when someone repeats it by hand, so it is kept
    for days whatever the age of the files; what it was for is another matter, and stays.
    """
    with metabase.registry(write=True) as registry:
        before = clock.before(clock.no_later(registry), max(age, DEFAULT_AGE))
        for info in metabase.infos(registry):
            store = metabase.store(info)
            ledger = store.tables.swanlake_ledger
            old = (ledger.c.committed_at < before) & ledger.c.entry.startswith(COMMIT_ENTRY)
            with store.connect() as connection:
                if connection.execute(select(ledger.c.entry).where(old).limit(1)).first() is None:
                    continue
            with store.locked(time.monotonic() + _LOCK_SECONDS) as transaction:
                transaction.connection.execute(delete(ledger).where(old))
                transaction.connection.commit()

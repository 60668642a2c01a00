"""Finds and deletes files that no catalog can see.

A fork may see a file long after its own catalog stopped using it, so all catalogs are always
checked. New files belong to no catalog until they are committed; only their age distinguishes them
from orphans.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum

from sqlalchemy import Connection, delete, select, union_all

from swanlake.lake.commit.footprint import COMMIT_ENTRY
from swanlake.lake.files import storage
from swanlake.lake.files.storage import Entry
from swanlake.lake.lifecycle import clock
from swanlake.lake.metastore.base import CatalogInfo, Metastore
from swanlake.lake.metastore.store import CatalogStore
from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.read.metadata import absolute_path, read_catalog_option, table_directories

#: How long a file may wait for its commit before it counts as an orphan.
DEFAULT_AGE = timedelta(days=2)
_LOCK_SECONDS = 60.0
#: Files deleted before the lists are updated; an interrupted run repeats at most this many.
_BATCH_SIZE = 1000
#: Where a write puts its files until they are complete.
_WORKING_FOLDER = re.compile(r"(?:.*/)?\.swanlake-[0-9a-f]{32}")


class DeletionReason(Enum):
    """Why a file can be deleted."""

    SCHEDULED = "no snapshot needs it"
    DEFERRED = "no fork can see it any more"
    DROPPED = "its catalog was dropped"
    ORPHANED = "it was never committed"
    UNFINISHED = "its upload never ended"


#: A catalog once knew these files; orphans were never committed.
UNNEEDED = frozenset({DeletionReason.SCHEDULED, DeletionReason.DEFERRED, DeletionReason.DROPPED})
ORPHANS = frozenset({DeletionReason.ORPHANED, DeletionReason.UNFINISHED})


@dataclass(frozen=True)
class DeletableFile:
    """A file that can be deleted, or a folder that a failed write left, with its content.

    The path of a folder ends with a slash. In an object store that is an empty object, and the path
    of an unfinished upload ends with its id.
    """

    path: str
    reason: DeletionReason
    #: The catalog whose data path or list has it.
    catalog: str
    #: In bytes; 0 if it no longer exists.
    size: int = 0
    #: Why it could not be deleted; it then stays on its list.
    problem: str | None = None


def find_deletable_files(
    metabase: Metastore,
    reasons: Iterable[DeletionReason],
    age: timedelta,
    entries: Mapping[str, Sequence[Entry]],
) -> list[DeletableFile]:
    """What can be deleted in all catalogs for one of the reasons: each file once, in a fixed order.

    ``entries`` was listed before, without a lock: a file that is committed meanwhile is then
    needed. Forks are created under the same lock, so no catalog starts to need a file meanwhile. A
    file that no catalog needs now will never be needed again.
    """
    with metabase.registry(write=True) as registry:
        living, gone = metabase.catalogs(registry), metabase.catalogs(registry, dropped=True)
        old = clock.time_before(clock.earlier_now(registry), age)
        catalogs = _Catalogs(metabase, living, gone, old, entries)
        return catalogs.deletable_files(frozenset(reasons))


def with_sizes(files: Sequence[DeletableFile]) -> list[DeletableFile]:
    """The files with the sizes that were not listed."""
    unknown = [file.path for file in files if file.reason in UNNEEDED and file.size == 0]
    sizes = storage.file_sizes(path for path in unknown if not path.endswith("/"))
    return [replace(file, size=sizes.get(file.path, file.size)) for file in files]


def delete_files(
    files: Sequence[DeletableFile],
    forget: Callable[[list[str]], None],
    refusal: Callable[[str], str | None],
) -> list[DeletableFile]:
    """Deletes files and takes them off the lists; failures and refusals are in ``problem``."""
    done: list[DeletableFile] = []
    for start in range(0, len(files), _BATCH_SIZE):
        batch = files[start : start + _BATCH_SIZE]
        refused = {file.path: refusal(file.path) for file in batch}
        problems = {path: reason for path, reason in refused.items() if reason is not None}
        problems |= storage.delete_all([file.path for file in batch if file.path not in problems])
        forget([file.path for file in batch if file.path not in problems])
        done += [replace(file, problem=problems.get(file.path)) for file in batch]
    return done


@dataclass(frozen=True)
class _Catalogs:
    metabase: Metastore
    living: list[CatalogInfo]
    gone: list[CatalogInfo]
    before: datetime
    #: What was found in their data paths.
    entries: Mapping[str, Sequence[Entry]]

    def deletable_files(self, reasons: frozenset[DeletionReason]) -> list[DeletableFile]:
        """Each file once, with the first reason found."""
        orphans = list(self._orphans()) if ORPHANS & reasons else []
        needed: set[str] = set()
        listed: list[tuple[DeletableFile, datetime]] = []
        for info in self.living:
            store = self.metabase.store(info)
            # If one catalog cannot be read nothing is deleted: it may need any file.
            what = f"metadata of the catalog {info.name}"
            with self.metabase.translate_errors(what), store.connect() as connection:
                needed |= set(referenced_files(connection, store.tables))
                listed += _listed(connection, store.tables, info.name)
        old = [file for file, since in listed if since < self.before]
        # A listed file, however young, is deleted by its list's age.
        waiting = {file.path for file, _ in listed}
        left_behind = self._left_behind() if DeletionReason.DROPPED in reasons else ()
        unlisted = [file for file in (*left_behind, *orphans) if file.path not in waiting]
        found: dict[str, DeletableFile] = {}
        for file in (*old, *unlisted):
            if file.reason in reasons and file.path not in needed:
                found.setdefault(file.path, file)
        return list(found.values())

    def _left_behind(self) -> Iterator[DeletableFile]:
        taken = {info.data_path for info in self.living}
        for info in self.gone:
            entries = [] if info.data_path in taken else self._entries_of(info)
            for entry in entries:
                if not entry.is_folder or _is_empty_object(entry):
                    yield DeletableFile(entry.path, DeletionReason.DROPPED, info.name, entry.size)

    def _orphans(self) -> Iterator[DeletableFile]:
        for info in self.living:
            entries = self._entries_of(info)
            folders = _working_folders(entries)
            for folder, inside in folders.items():
                # A long write has old files in it, and new ones.
                if all(entry.modified < self.before for entry in inside):
                    size = sum(entry.size for entry in inside)
                    yield DeletableFile(folder, DeletionReason.ORPHANED, info.name, size)
            working = {entry.path for inside in folders.values() for entry in inside}
            for entry in entries:
                is_file = entry.path.endswith(".parquet") and not entry.is_folder
                if entry.path in working or entry.modified >= self.before:
                    continue
                if storage.is_upload(entry.path):
                    yield DeletableFile(entry.path, DeletionReason.UNFINISHED, info.name)
                elif is_file or _is_empty_object(entry):
                    yield DeletableFile(entry.path, DeletionReason.ORPHANED, info.name, entry.size)

    def _entries_of(self, info: CatalogInfo) -> list[Entry]:
        """The entries of a catalog's data path, if it has one of its own."""
        return sorted(self.entries.get(info.data_path, ()), key=lambda entry: entry.path)


def _is_empty_object(entry: Entry) -> bool:
    """True for a folder in an object store, which is an object of its own."""
    return entry.is_folder and entry.path.endswith("/")


def _working_folders(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The working folders of writes, past and present, with their entries."""
    folders: dict[str, list[Entry]] = {}
    for entry in entries:
        match = _WORKING_FOLDER.match(entry.path)
        if match and (entry.is_folder or match.end() < len(entry.path)):
            folders.setdefault(f"{match.group()}/", []).append(entry)
    return folders


def referenced_files(connection: Connection, tables: CatalogTables) -> Iterator[str]:
    """The absolute path of every file that a snapshot of a catalog can see."""
    prefixes = table_directories(connection, tables)
    data, deletes = tables.data_file, tables.delete_file
    rows = connection.execute(
        union_all(
            select(data.c.table_id, data.c.path, data.c.path_is_relative),
            select(deletes.c.table_id, deletes.c.path, deletes.c.path_is_relative),
        )
    )
    for row in rows:
        yield absolute_path(row, prefixes)


def _listed(
    connection: Connection, tables: CatalogTables, catalog: str
) -> Iterator[tuple[DeletableFile, datetime]]:
    """The files that a catalog listed for deletion, and since when."""
    data_path = read_catalog_option(connection, tables, "data_path") or ""
    scheduled, deferred = tables.files_scheduled_for_deletion, tables.swanlake_deferred_file
    for row in connection.execute(select(scheduled).order_by(scheduled.c.data_file_id)):
        path = data_path + row.path if row.path_is_relative else row.path
        yield DeletableFile(path, DeletionReason.SCHEDULED, catalog), row.schedule_start
    for row in connection.execute(select(deferred).order_by(deferred.c.path)):
        yield DeletableFile(row.path, DeletionReason.DEFERRED, catalog), row.since


def forget_files(metabase: Metastore, paths: Iterable[str]) -> None:
    """Takes deleted files off the lists of all catalogs."""
    gone = set(paths)
    if not gone:
        return
    with metabase.registry(write=True) as registry:
        for info in metabase.catalogs(registry):
            store = metabase.store(info)
            with store.connect() as connection:
                listed = _listed(connection, store.tables, info.name)
                concerned = any(file.path in gone for file, _ in listed)
            if concerned:
                _take_off_lists(store, gone)


def _take_off_lists(store: CatalogStore, gone: set[str]) -> None:
    tables = store.tables
    # Under the lock: SQLite fails a write after a read that another commit outdated.
    with store.locked(time.monotonic() + _LOCK_SECONDS) as transaction:
        connection = transaction.connection
        data_path = read_catalog_option(connection, tables, "data_path") or ""
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


def forget_commits(metabase: Metastore, age: timedelta) -> None:
    """Removes old commit ids from the ledgers of all catalogs.

    A retry looks up its commit id within seconds, or days if it is repeated by hand, so ids are
    kept for at least that long. Entries for work stay.
    """
    with metabase.registry(write=True) as registry:
        before = clock.time_before(clock.earlier_now(registry), max(age, DEFAULT_AGE))
        for info in metabase.catalogs(registry):
            store = metabase.store(info)
            ledger = store.tables.swanlake_ledger
            old = (ledger.c.committed_at < before) & ledger.c.entry.startswith(COMMIT_ENTRY)
            with store.connect() as connection:
                if connection.execute(select(ledger.c.entry).where(old).limit(1)).first() is None:
                    continue
            with store.locked(time.monotonic() + _LOCK_SECONDS) as transaction:
                transaction.connection.execute(delete(ledger).where(old))
                transaction.connection.commit()

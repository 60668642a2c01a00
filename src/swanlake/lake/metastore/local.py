"""The lake as one process works on it: everything that reads or writes the metadata.

What few calls need is imported when they come: a process that only keeps SQLite catalogs then
starts in a third of the time, without DuckDB, Arrow and the PostgreSQL driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy import Connection

from swanlake.errors import (
    AlreadyExists,
    CatalogUnreachable,
    CommitStateUnknown,
    NotFound,
    SwanLakeError,
)
from swanlake.lake import bootstrap, commit, kept_rows, reading
from swanlake.lake.commit import Committed, Retries
from swanlake.lake.ids import uuid7
from swanlake.lake.layout import Table
from swanlake.lake.metabase import CatalogInfo, Metabase, checked_name
from swanlake.lake.operations import Commit, CreateTable
from swanlake.lake.reading import Snapshot
from swanlake.lake.sqlite import SqliteMetabase
from swanlake.lake.store import CatalogStore

if TYPE_CHECKING:
    from swanlake.lake.expiry import ExpireReport
    from swanlake.lake.gc import Garbage, Reason
    from swanlake.lake.history import MaintenanceEntry
    from swanlake.lake.live_files import InlinedRow, LiveFile, TableFiles
    from swanlake.lake.survey import CatalogSurvey


def open_metabase(place: str | Path, data_location: str) -> Metabase:
    """PostgreSQL for a URL, SQLite for a directory."""
    if isinstance(place, Path):
        return SqliteMetabase(place, data_location)
    from swanlake.lake.postgres import PostgresMetabase

    return PostgresMetabase(place, data_location)


class LocalLake:
    """Catalogs by name and by value; what it takes and gives can be sent between processes."""

    def __init__(self, metabase: Metabase) -> None:
        self._metabase = metabase
        #: Places whose fence was seen; that it still holds shows in the head at every commit.
        self._writable: set[str] = set()
        #: Where rows of tables were found that are in the metadata, by catalog and table.
        self._kept_places: dict[UUID, dict[int, list[str]]] = {}

    def close(self) -> None:
        """Closes every connection."""
        self._metabase.close()

    # ---- catalogs ------------------------------------------------------------------------------

    def catalogs(self) -> list[CatalogInfo]:
        """Every catalog, by name."""
        with self._metabase.reachable(), self._metabase.registry() as registry:
            return self._metabase.infos(registry)

    def find(self, name: str) -> CatalogInfo | None:
        """The catalog of that name; None if there is none."""
        with self._metabase.reachable(), self._metabase.registry() as registry:
            return self._metabase.find(registry, name)

    def named(self, name: str) -> CatalogInfo:
        """The catalog of that name; raises NotFound."""
        with self._metabase.reachable(), self._metabase.registry() as registry:
            return self._metabase.named(registry, name)

    def create(self, name: str) -> CatalogInfo:
        """Makes a new, empty catalog; raises AlreadyExists."""
        name = checked_name(name)
        with self._changing() as registry:
            info = self._metabase.new_info(registry, name)
            with _new_directory(info.data_path):
                self._metabase.create(registry, info)
                self._metabase.register(registry, info)
        return info

    def fork(self, parent: str, name: str, at: int | None) -> CatalogInfo:
        """Makes a catalog from another one, as it is or as it was at a snapshot."""
        name = checked_name(name)
        with self._changing() as registry:
            source = self._metabase.named(registry, parent)
            info = self._metabase.new_info(registry, name, source)
            with _new_directory(info.data_path):
                snapshot = self._metabase.fork(registry, source, info, at)
                self._metabase.register(registry, info, snapshot)
        return replace(info, parent_snapshot=snapshot)

    def drop(self, name: str) -> CatalogInfo:
        """Removes a catalog; its files are left to the collector."""
        with self._changing() as registry:
            info = self._metabase.named(registry, name)
            self._metabase.forget(registry, info)
            self._metabase.remove(registry, info)
        self._kept_places.pop(info.id, None)
        return info

    def adopt(self, name: str) -> CatalogInfo:
        """Registers and fences a catalog that another program made in its place."""
        name = checked_name(name)
        with self._changing() as registry:
            known = self._metabase.find(registry, name)
            for other in self._metabase.infos(registry):
                if other.place == name and other.name != name:
                    raise NotFound(
                        f"There is no catalog {name}: what is there is the catalog {other.name}.",
                        identifier="CATALOG_NOT_FOUND",
                    )
            info = known or self._unregistered(name)
            self._metabase.adopt(registry, info)
            if known is None:
                self._metabase.register(registry, info)
        return info

    def ensure(self, name: str) -> CatalogInfo:
        """The catalog of that name, made if it is not there.

        One that another program made is used as it is: it can be read, and adopted to be written.
        """
        info = self.find(name)
        if info is not None:
            return info
        try:
            return self.create(name)
        except AlreadyExists:
            return self.find(name) or self._unregistered(name)

    def garbage(self, reasons: frozenset[Reason], age: timedelta) -> list[Garbage]:
        """The files that can be deleted for one of the reasons, in a fixed order."""
        from swanlake.lake import gc

        with self._metabase.reachable():
            return gc.find(self._metabase, reasons, age)

    def forget(self, paths: list[str]) -> None:
        """Takes files that are deleted off the lists of all catalogs."""
        from swanlake.lake import gc

        with self._metabase.reachable():
            gc.forget(self._metabase, paths)

    def forget_commits(self, age: timedelta) -> None:
        """Takes old commits off the ledgers of all catalogs."""
        from swanlake.lake import gc

        with self._metabase.reachable():
            gc.forget_commits(self._metabase, age)

    def record(self, entry: MaintenanceEntry) -> None:
        """Writes an entry of the history of maintenance, over what was there of it."""
        from swanlake.lake import history

        with self._metabase.reachable(), self._metabase.registry() as registry:
            history.record(registry, self._metabase.maintenance, entry)

    def history(self, catalog: str | None, job: str | None, limit: int) -> list[MaintenanceEntry]:
        """The newest entries of the history of maintenance, newest first."""
        from swanlake.lake import history

        with self._metabase.reachable(), self._metabase.registry() as registry:
            return history.entries(registry, self._metabase.maintenance, catalog, job, limit)

    # ---- one catalog ---------------------------------------------------------------------------

    def newest_snapshot(self, info: CatalogInfo) -> int:
        """The id of a catalog's head."""
        with self._reading(info) as (store, connection):
            return reading.newest_snapshot(connection, store.tables)

    def snapshots(self, info: CatalogInfo) -> list[Snapshot]:
        """Every snapshot of a catalog that is kept, oldest first."""
        with self._reading(info) as (store, connection):
            return reading.snapshots(connection, store.tables)

    def table(self, info: CatalogInfo, schema: str, name: str, at: int | None) -> Table:
        """A table, all that is needed to write files for it; raises NotFound."""
        with self._reading(info) as (store, connection):
            return reading.read_table(connection, store.tables, schema, name, at)

    def table_by_id(self, info: CatalogInfo, table_id: int) -> Table:
        """A table by what never changes of it; raises NotFound."""
        with self._reading(info) as (store, connection):
            return reading.read_table_by_id(connection, store.tables, table_id)

    def new_table(self, info: CatalogInfo, operation: CreateTable) -> Table:
        """The table that an operation will make, to write its files; raises NotFound."""
        with self._reading(info) as (store, connection):
            return reading.read_new_table(connection, store.tables, operation)

    def files(self, info: CatalogInfo, table_id: int) -> TableFiles:
        """A table and all it consists of; raises NotFound."""
        from swanlake.lake import live_files

        with self._reading(info, repeatable=True) as (store, connection):
            return live_files.read_files(connection, store.tables, table_id)

    def files_at(
        self, info: CatalogInfo, table: Table, paths: Sequence[str]
    ) -> dict[str, LiveFile]:
        """Of a table's files those at these paths, each with its deletes of now."""
        from swanlake.lake import live_files

        with self._reading(info, repeatable=True) as (store, connection):
            return live_files.read_files_at(connection, store.tables, table, paths)

    def kept_rows(
        self, info: CatalogInfo, tables: Sequence[Table]
    ) -> list[kept_rows.KeptRows] | kept_rows.NotKept:
        """All rows of tables that are nothing but rows in the metadata, as of one moment."""
        with self._metabase.reachable(f"metadata of the catalog {info.name}"):
            known = self._kept_places.setdefault(info.id, {})
            return kept_rows.read_kept_rows(self._metabase.store(info), tables, known)

    def survey(
        self, info: CatalogInfo, target_file_size: int, small_file_ratio: float
    ) -> CatalogSurvey:
        """How a catalog is doing, in numbers."""
        from swanlake.lake import survey

        with self._reading(info, repeatable=True) as (store, connection):
            return survey.survey(connection, store.tables, target_file_size, small_file_ratio)

    def inlined_rows(self, info: CatalogInfo, name: str, at: int) -> list[InlinedRow]:
        """The rows that a table of the metadata keeps, up to a snapshot."""
        from swanlake.lake import live_files

        with self._reading(info) as (store, connection):
            return live_files.read_inlined_rows(connection, store.tables, name, at)

    def ledger(self, info: CatalogInfo, entries: list[str]) -> dict[str, int]:
        """Those of the entries that are in the ledger, with the snapshots they came with."""
        with self._reading(info) as (store, connection):
            return reading.ledger(connection, store.tables, entries)

    def ledger_under(self, info: CatalogInfo, prefix: str) -> list[str]:
        """The entries of the ledger that begin with a text."""
        with self._reading(info) as (store, connection):
            return reading.ledger_under(connection, store.tables, prefix)

    def check(self, info: CatalogInfo) -> list[str]:
        """What is wrong with a catalog, one sentence each."""
        with self._reading(info) as (store, connection):
            return bootstrap.check(connection, store)

    def missing_files(self, info: CatalogInfo) -> list[str]:
        """The files that snapshots of a catalog can see and that are not there."""
        from swanlake.lake import files

        missing = files.missing(self._referenced(info))
        # What was let go of and deleted while we looked is not missed.
        return sorted(set(missing) & self._referenced(info)) if missing else []

    def commit(
        self,
        info: CatalogInfo,
        changes: Sequence[Commit],
        retries: Retries,
        may_have_happened: bool = False,
    ) -> Sequence[Committed | SwanLakeError]:
        """Makes each of the commits visible at once, one after the other, or says why not."""
        store = self._metabase.store(info)
        if info.place not in self._writable:
            try:
                with self._reading(info) as (_, connection):
                    bootstrap.check_writable(connection, store)
            except SwanLakeError as refused:
                if not may_have_happened:
                    raise
                # What is true of the catalog now says nothing of the first attempt.
                raise CommitStateUnknown(
                    f"A commit to the catalog {info.name} was begun and its end is not known, and "
                    f"now the catalog cannot be asked: {refused.message} Look before you repeat it."
                ) from refused
            self._writable.add(info.place)
        return commit.apply_all(store, changes, retries, may_have_happened=may_have_happened)

    def expire(
        self,
        info: CatalogInfo,
        older_than: timedelta | datetime | None,
        keep_last: int | None,
        dry_run: bool,
    ) -> ExpireReport:
        """Removes old snapshots of a catalog, and what only they could see, or says what would go.

        Files that forks can see are kept from clean-ups by the fence, so it must be there.
        """
        from swanlake.lake import expiry

        with self._reading(info) as (store, connection):
            bootstrap.check_writable(connection, store)
        with self._metabase.reachable(f"metadata of the catalog {info.name}"):
            return expiry.expire(store, older_than, keep_last, dry_run=dry_run)

    # ---- inside --------------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        with self._metabase.reachable(), self._metabase.registry(write=True) as registry:
            yield registry

    @contextmanager
    def _reading(
        self, info: CatalogInfo, *, repeatable: bool = False
    ) -> Iterator[tuple[CatalogStore, Connection]]:
        store = self._metabase.store(info)
        what = f"metadata of the catalog {info.name}"
        with self._metabase.reachable(what), store.connect() as connection:
            if repeatable and connection.dialect.name == "postgresql":  # SQLite's reads always are
                connection.execution_options(isolation_level="REPEATABLE READ")
            yield store, connection

    def _referenced(self, info: CatalogInfo) -> set[str]:
        from swanlake.lake import gc

        with self._reading(info) as (store, connection):
            bootstrap.check_version(connection, store)
            return set(gc.referenced(connection, store.tables))

    def _unregistered(self, name: str) -> CatalogInfo:
        """What the registry would say of a catalog it does not know yet."""
        if not self._metabase.exists(name):
            raise NotFound(f"There is no catalog {name}.", identifier="CATALOG_NOT_FOUND")
        id = uuid7()
        info = CatalogInfo(
            id,
            name,
            name,
            self._metabase.data_path(name),
            family=id,
            created_at=datetime.now(UTC),
        )
        with self._reading(info) as (store, connection):
            bootstrap.check_version(connection, store)
            found = reading.property_of(connection, store.tables, "data_path")
        return replace(info, data_path=found or info.data_path)


@contextmanager
def _new_directory(data_path: str) -> Iterator[None]:
    """The place for a new catalog's files; it goes again if the catalog cannot be made."""
    if "://" in data_path:
        yield
        return
    directory = Path(data_path)
    try:
        directory.mkdir(parents=True)  # whoever makes it first has it
    except OSError as refused:
        raise CatalogUnreachable(
            f"The directory {directory} for the catalog's files cannot be made: {refused.strerror}."
        ) from refused
    try:
        yield
    except BaseException:
        with suppress(OSError):  # it holds files, which are not ours to judge
            directory.rmdir()
        raise

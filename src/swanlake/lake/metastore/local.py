"""Reads and writes the metadata of all catalogs, in this process.

Modules that need Arrow, DuckDB or the PostgreSQL driver are imported when they are first used: the
SQLite worker then starts in a third of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar
from uuid import UUID

from sqlalchemy import Connection, insert, select

from swanlake.errors import (
    AlreadyExists,
    CatalogUnreachable,
    CommitStateUnknown,
    NotFound,
    SwanLakeError,
)
from swanlake.lake.commit import protocol
from swanlake.lake.commit.protocol import Committed, Retries
from swanlake.lake.metastore import bootstrap, credentials
from swanlake.lake.metastore.base import CatalogInfo, Metastore, checked_name
from swanlake.lake.metastore.sqlite import SqliteMetastore
from swanlake.lake.metastore.store import CatalogStore
from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.credentials import Credential, CredentialKind, StoredCredentials
from swanlake.lake.model.ids import uuid7
from swanlake.lake.model.operations import Commit
from swanlake.lake.model.table_state import HeadRead
from swanlake.lake.read import metadata, table_states

if TYPE_CHECKING:
    from swanlake.lake.files.storage import Entry
    from swanlake.lake.lifecycle.expiry import ExpireReport
    from swanlake.lake.lifecycle.file_cleanup import DeletableFile, DeletionReason
    from swanlake.lake.lifecycle.history import MaintenanceEntry
    from swanlake.lake.lifecycle.store_claims import StoreClaims

P = ParamSpec("P")
T = TypeVar("T")

#: The location in the row with the id of the lake.
_LAKE = ""


def open_metastore(location: str | Path, data_location: str) -> Metastore:
    """PostgreSQL for a URL, SQLite for a directory."""
    if isinstance(location, Path):
        return SqliteMetastore(location, data_location)
    from swanlake.lake.metastore.postgres import PostgresMetastore

    return PostgresMetastore(location, data_location)


class MetadataService:
    """All operations on metadata; arguments and results can be pickled for the SQLite worker."""

    def __init__(self, metastore: Metastore) -> None:
        self._metastore = metastore
        #: Storage names with a fence; every commit checks at the head that it still holds.
        self._writable: set[str] = set()

    def close(self) -> None:
        """Closes every connection."""
        self._metastore.close()

    # ---- catalogs ------------------------------------------------------------------------------

    def catalogs(self) -> list[CatalogInfo]:
        """Every catalog, by name."""
        with self._metastore.translate_errors(), self._metastore.registry() as registry:
            return self._metastore.catalogs(registry)

    def find(self, name: str) -> CatalogInfo | None:
        """The catalog with that name; None if there is none."""
        with self._metastore.translate_errors(), self._metastore.registry() as registry:
            return self._metastore.find(registry, name)

    def get(self, name: str) -> CatalogInfo:
        """The catalog with that name; raises NotFound."""
        with self._metastore.translate_errors(), self._metastore.registry() as registry:
            return self._metastore.get(registry, name)

    def create(self, name: str) -> CatalogInfo:
        """Creates an empty catalog; raises AlreadyExists."""
        name = checked_name(name)
        with self._changing() as registry:
            info = self._metastore.allocate(registry, name)
            with _new_directory(info.data_path):
                self._metastore.create(registry, info)
                self._metastore.register(registry, info)
        return info

    def fork(self, parent: str, name: str, at: int | None) -> CatalogInfo:
        """Creates a catalog from another one, or from a snapshot of it."""
        name = checked_name(name)
        with self._changing() as registry:
            source = self._metastore.get(registry, parent)
            info = self._metastore.allocate(registry, name, source)
            with _new_directory(info.data_path):
                snapshot = self._metastore.fork(registry, source, info, at)
                self._metastore.register(registry, info, snapshot)
        return replace(info, parent_snapshot=snapshot)

    def drop(self, name: str) -> CatalogInfo:
        """Removes a catalog; its files are left to a clean-up."""
        with self._changing() as registry:
            info = self._metastore.get(registry, name)
            self._metastore.mark_dropped(registry, info)
            self._metastore.remove(registry, info)
        return info

    def adopt(self, name: str) -> CatalogInfo:
        """Registers a catalog that another program created, and installs the fence."""
        name = checked_name(name)
        with self._changing() as registry:
            known = self._metastore.find(registry, name)
            for other in self._metastore.catalogs(registry):
                if other.storage_name == name and other.name != name:
                    raise NotFound(
                        f"There is no catalog {name}: its storage belongs to the catalog "
                        f"{other.name}.",
                        identifier="CATALOG_NOT_FOUND",
                    )
            info = known or self._unregistered(name)
            self._metastore.adopt(registry, info)
            if known is None:
                self._metastore.register(registry, info)
        return info

    def ensure(self, name: str) -> CatalogInfo:
        """The catalog with that name, created if it does not exist.

        One that another program created is used as it is: readable, and writable once adopted.
        """
        info = self.find(name)
        if info is not None:
            return info
        try:
            return self.create(name)
        except AlreadyExists:
            return self.find(name) or self._unregistered(name)

    def data_paths(self) -> list[str]:
        """The data paths of all catalogs, dropped ones too, that no other program uses."""
        with self._metastore.translate_errors(), self._metastore.registry() as registry:
            return self._metastore.data_paths(registry)

    def deletable_files(
        self,
        reasons: frozenset[DeletionReason],
        age: timedelta,
        entries: Mapping[str, Sequence[Entry]],
    ) -> list[DeletableFile]:
        """The files that can be deleted for one of the reasons, in a fixed order.

        ``entries`` has what was found in each of the ``data_paths``, before this call.
        """
        from swanlake.lake.lifecycle import file_cleanup

        with self._metastore.translate_errors():
            return file_cleanup.find_deletable_files(self._metastore, reasons, age, entries)

    def store_claims(self) -> StoreClaims:
        """The id of the lake, created if it has none, and the locations with its marker."""
        from swanlake.lake.lifecycle.store_claims import StoreClaims

        table = self._metastore.stores
        with self._metastore.translate_errors(), self._metastore.registry() as registry:
            rows = {row.location: row.lake for row in registry.execute(select(table))}
        if _LAKE not in rows:
            self.record_store(_LAKE)
            return self.store_claims()
        return StoreClaims(UUID(rows.pop(_LAKE)), frozenset(rows))

    def record_store(self, location: str) -> None:
        """Takes note that the lake has written its marker to a location."""
        table = self._metastore.stores
        with self._changing() as registry:
            lakes = {row.location: row.lake for row in registry.execute(select(table))}
            if location not in lakes:
                lake = lakes.get(_LAKE) or str(uuid7())
                values = {"location": location, "lake": lake, "marked_at": datetime.now(UTC)}
                registry.execute(insert(table).values(values))

    def forget_files(self, paths: list[str]) -> None:
        """Takes deleted files off the lists of all catalogs."""
        from swanlake.lake.lifecycle import file_cleanup

        with self._metastore.translate_errors():
            file_cleanup.forget_files(self._metastore, paths)

    def forget_commits(self, age: timedelta) -> None:
        """Removes old commit ids from the ledgers of all catalogs."""
        from swanlake.lake.lifecycle import file_cleanup

        with self._metastore.translate_errors():
            file_cleanup.forget_commits(self._metastore, age)

    def record(self, entry: MaintenanceEntry) -> None:
        """Writes or replaces an entry of the maintenance history."""
        from swanlake.lake.lifecycle import history

        with self._metastore.translate_errors(), self._metastore.registry() as registry:
            history.record(registry, self._metastore.maintenance, entry)

    def history(self, catalog: str | None, job: str | None, limit: int) -> list[MaintenanceEntry]:
        """The newest entries of the maintenance history, newest first."""
        from swanlake.lake.lifecycle import history

        with self._metastore.translate_errors(), self._metastore.registry() as registry:
            return history.read_entries(registry, self._metastore.maintenance, catalog, job, limit)

    def credentials(self) -> StoredCredentials:
        """The credentials of all callers, and the key that signs login tokens."""
        with self._metastore.translate_errors(), self._metastore.registry() as registry:
            stored = credentials.read_all(registry, self._metastore.credentials)
        if stored is not None:
            return stored
        with self._changing() as registry:
            return credentials.create_signing_key(registry, self._metastore.credentials)

    def add_credential(self, credential: Credential) -> None:
        """Stores a credential; raises AlreadyExists if its name is taken."""
        with self._changing() as registry:
            credentials.add(registry, self._metastore.credentials, credential)

    def replace_credential(self, old: Credential, new: Credential) -> None:
        """Changes role and grants of a caller; raises CommitConflict if it is not ``old`` now."""
        with self._changing() as registry:
            credentials.replace(registry, self._metastore.credentials, old, new)

    def remove_credential(self, kind: CredentialKind, name: str) -> None:
        """Removes a credential; raises NotFound."""
        with self._changing() as registry:
            credentials.remove(registry, self._metastore.credentials, kind, name)

    def read(
        self,
        info: CatalogInfo,
        query: Callable[Concatenate[Connection, CatalogTables, P], T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T:
        """The answer of a function of ``swanlake.lake.read`` on a catalog."""
        with self._reading(info) as (store, connection):
            return query(connection, store.tables, *arguments, **named)

    def read_repeatably(
        self,
        info: CatalogInfo,
        query: Callable[Concatenate[Connection, CatalogTables, P], T],
        *arguments: P.args,
        **named: P.kwargs,
    ) -> T:
        """As ``read``, for a function with several queries that must see the same state."""
        with self._reading(info, repeatable=True) as (store, connection):
            return query(connection, store.tables, *arguments, **named)

    def read_head(self, info: CatalogInfo, since: int, sources: Sequence[str]) -> HeadRead:
        """The head of a catalog, and the changes after a snapshot, in one round trip."""
        with self._metastore.translate_errors(f"metadata of the catalog {info.name}"):
            return table_states.read_head(self._metastore.store(info), since, sources)

    def check(self, info: CatalogInfo) -> list[str]:
        """What is wrong with a catalog, one sentence each."""
        with self._reading(info) as (store, connection):
            return bootstrap.check(connection, store)

    def referenced(self, info: CatalogInfo) -> set[str]:
        """The absolute paths of the files that a snapshot of a catalog can see."""
        from swanlake.lake.lifecycle import file_cleanup

        with self._reading(info) as (store, connection):
            bootstrap.check_version(connection, store)
            return set(file_cleanup.referenced_files(connection, store.tables))

    def commit(
        self,
        info: CatalogInfo,
        changes: Sequence[Commit],
        retries: Retries,
        may_have_happened: bool = False,
    ) -> Sequence[Committed | SwanLakeError]:
        """Commits one after the other; returns the outcome of each."""
        store = self._metastore.store(info)
        if info.storage_name not in self._writable:
            try:
                with self._reading(info) as (_, connection):
                    bootstrap.check_writable(connection, store)
            except SwanLakeError as refused:
                if not may_have_happened:
                    raise
                # The catalog's state now says nothing about the first attempt.
                raise CommitStateUnknown(
                    f"The outcome of a commit to the catalog {info.name} is unknown, and now the "
                    f"catalog cannot be read: {refused.message} Look before you repeat it."
                ) from refused
            self._writable.add(info.storage_name)
        return protocol.apply_all(store, changes, retries, may_have_happened=may_have_happened)

    def expire(
        self,
        info: CatalogInfo,
        older_than: timedelta | datetime | None,
        keep_last: int | None,
        dry_run: bool,
    ) -> ExpireReport:
        """Removes old snapshots and what only they could see, or reports what it would remove.

        The fence must be installed: it keeps files that forks can see from clean-ups.
        """
        from swanlake.lake.lifecycle import expiry

        with self._reading(info) as (store, connection):
            bootstrap.check_writable(connection, store)
        with self._metastore.translate_errors(f"metadata of the catalog {info.name}"):
            return expiry.expire(store, older_than, keep_last, dry_run=dry_run)

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        with self._metastore.translate_errors(), self._metastore.registry(write=True) as registry:
            yield registry

    @contextmanager
    def _reading(
        self, info: CatalogInfo, *, repeatable: bool = False
    ) -> Iterator[tuple[CatalogStore, Connection]]:
        store = self._metastore.store(info)
        what = f"metadata of the catalog {info.name}"
        with self._metastore.translate_errors(what), store.connect() as connection:
            # SQLite's transactions always are.
            if repeatable and connection.dialect.name == "postgresql":
                connection.execution_options(isolation_level="REPEATABLE READ")
            yield store, connection

    def _unregistered(self, name: str) -> CatalogInfo:
        """The registry entry of a catalog that is not registered yet."""
        if not self._metastore.exists(name):
            raise NotFound(f"There is no catalog {name}.", identifier="CATALOG_NOT_FOUND")
        id = uuid7()
        data_path = self._metastore.data_path(name)
        info = CatalogInfo(id, name, name, data_path, family=id, created_at=datetime.now(UTC))
        with self._reading(info) as (store, connection):
            bootstrap.check_version(connection, store)
            stored = metadata.read_catalog_option(connection, store.tables, "data_path")
        return replace(info, data_path=stored or data_path)


@contextmanager
def _new_directory(data_path: str) -> Iterator[None]:
    """Creates the directory of a new catalog; removes it if the block fails."""
    if "://" in data_path:
        yield
        return
    directory = Path(data_path)
    try:
        directory.mkdir(parents=True)  # fails if another creation was faster
    except OSError as refused:
        raise CatalogUnreachable(
            f"The directory {directory} for the catalog's files cannot be created: "
            f"{refused.strerror}."
        ) from refused
    try:
        yield
    except BaseException:
        with suppress(OSError):  # not empty: the files may be needed
            directory.rmdir()
        raise

"""The lake: its catalogs, their files and their history.

with Lake.open(home / "catalogs", home / "data") as lake:
    sales = lake.create_catalog("sales")
    sales.create_table("main", "orders", [ColumnSpec("id", "BIGINT", nullable=False)])
    sales.append(connection, "SELECT range AS id FROM range(10)", "main", "orders")
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Self, cast
from uuid import UUID

from swanlake.config import Settings
from swanlake.lake.catalog import Catalog
from swanlake.lake.commit.commit_queue import CommitQueue, CommitQueueStatus
from swanlake.lake.commit.counters import CommitCounters
from swanlake.lake.commit.postgres_writer_lock import (
    LockConnections,
    PostgresWriterLock,
    lock_connections,
)
from swanlake.lake.commit.protocol import Retries
from swanlake.lake.commit.writer_lock import FileWriterLock, WriterLock, writer_lock_path
from swanlake.lake.files import storage
from swanlake.lake.files.storage_options import StorageOptions, check_location
from swanlake.lake.lifecycle import file_cleanup
from swanlake.lake.lifecycle.file_cleanup import (
    DEFAULT_AGE,
    ORPHANS,
    UNNEEDED,
    DeletableFile,
    DeletionReason,
)
from swanlake.lake.lifecycle.history import MaintenanceEntry
from swanlake.lake.lifecycle.leases import FileLeases, Leases, PostgresLeases
from swanlake.lake.lifecycle.store_claims import Proofs, prove
from swanlake.lake.metastore.base import CatalogInfo
from swanlake.lake.metastore.local import MetadataService, open_metastore
from swanlake.lake.metastore.location import LakeLocation
from swanlake.lake.metastore.sqlite_worker import SqliteWorkerClient
from swanlake.lake.model.credentials import Credential, CredentialKind, StoredCredentials

log = logging.getLogger("swanlake.lake")

#: The current catalog of a new session.
DEFAULT_CATALOG = "swanlake"


class Lake:
    """All catalogs that share a metastore and a data location."""

    def __init__(
        self,
        metadata: MetadataService,
        metastore_location: str | Path,
        data_location: str,
        retries: Retries | None = None,
    ) -> None:
        self._metadata = metadata
        self._data_location = data_location.rstrip("/")
        self._is_marked = False
        self._metastore_location = metastore_location
        self._retries = retries or Retries()
        self._lock = threading.Lock()
        self._open_catalogs: dict[UUID, Catalog] = {}
        #: By storage name: another catalog may get the name of a dropped one.
        self._commit_queues: dict[str, CommitQueue] = {}
        self.commit_counters = CommitCounters()
        self._lock_connections: LockConnections | None = None

    @classmethod
    def open(
        cls, metastore: str | Path, data_location: str | Path, retries: Retries | None = None
    ) -> Self:
        """A lake in PostgreSQL (a URL) or in SQLite files (a directory)."""
        location = str(data_location)
        if "://" not in location:
            location = str(Path(location).absolute())
        if isinstance(metastore, Path):
            directory = metastore.absolute()
            worker = cast("MetadataService", SqliteWorkerClient(directory, location))
            return cls(worker, directory, location, retries)
        service = MetadataService(open_metastore(metastore, location))
        return cls(service, metastore, location, retries)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The lake that a server with these settings works on.

        From now on, this process reaches object stores as they say.
        """
        check_location(settings.data_location, "data_path")
        storage.configure(StorageOptions.from_settings(settings))
        home = settings.home.absolute()
        return cls.open(
            settings.metabase_url or home / "catalogs",
            settings.data_location,
            Retries(timeout=settings.commit_lock_timeout_seconds),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection of the lake."""
        self._metadata.close()
        if self._lock_connections is not None:
            self._lock_connections.close()

    # ---- writers -------------------------------------------------------------------------------

    @contextmanager
    def exclusive_writer(
        self, catalogs: Iterable[LakeLocation], writer: str, check: Callable[[], None]
    ) -> Iterator[Callable[[], bool]]:
        """Excludes all other SwanLake writers of all servers from catalogs, for the block.

        For statements that DuckDB commits itself; all other commits lock when they commit.
        ``check`` is called while waiting and raises when the caller gives up. The block gets a
        function that is true while statements of this process wait for the catalogs.
        """
        queues: list[CommitQueue] = []
        with ExitStack() as stack:
            # Always in the same order, so that two callers cannot deadlock.
            for storage_name in sorted(location.storage_name for location in catalogs):
                queues.append(self._commit_queue(storage_name))
                stack.enter_context(queues[-1].exclusive(writer, check))
            yield lambda: any(queue.is_awaited for queue in queues)

    def writers(self) -> list[CommitQueueStatus]:
        """The writers of this process that hold, or wait for, a catalog."""
        with self._lock:
            queues = list(self._commit_queues.items())
        names = {one.info.storage_name: one.name for one in list(self._open_catalogs.values())}
        statuses = [queue.status(names.get(storage, storage)) for storage, queue in queues]
        return [status for status in statuses if status is not None]

    def _commit_queue(self, storage_name: str) -> CommitQueue:
        with self._lock:
            if storage_name not in self._commit_queues:
                self._commit_queues[storage_name] = CommitQueue(
                    self._writer_lock(storage_name), self._retries.timeout, self.commit_counters
                )
            return self._commit_queues[storage_name]

    def _writer_lock(self, storage_name: str) -> WriterLock:
        if isinstance(self._metastore_location, Path):
            path = self._metastore_location / f"{storage_name}.sqlite"
            return FileWriterLock(writer_lock_path(path))
        if self._lock_connections is None:
            self._lock_connections = lock_connections(self._metastore_location)
        return PostgresWriterLock(self._lock_connections, f"lake_{storage_name}")

    # ---- catalogs ------------------------------------------------------------------------------

    def catalogs(self) -> list[CatalogInfo]:
        """Every catalog, by name."""
        return self._metadata.catalogs()

    def find(self, name: str) -> CatalogInfo | None:
        """The catalog with that name; None if there is none."""
        return self._metadata.find(name)

    def find_open(self, id: UUID) -> Catalog | None:
        """A catalog that was opened before, without a query; None if it was not."""
        return self._open_catalogs.get(id)

    def catalog(self, name: str) -> Catalog:
        """A catalog to read and write; raises NotFound."""
        return self._open(self._metadata.get(name))

    def create_catalog(self, name: str) -> Catalog:
        """Creates an empty catalog; raises AlreadyExists."""
        return self._open_new(self._metadata.create(name))

    def fork_catalog(self, parent: str, name: str, at: int | None = None) -> Catalog:
        """Creates a catalog from another one, or a snapshot of it, without copying files."""
        return self._open_new(self._metadata.fork(parent, name, at))

    def drop_catalog(self, name: str) -> CatalogInfo:
        """Removes a catalog; a clean-up deletes its files once no fork can see them."""
        return self._metadata.drop(name)

    def adopt_catalog(self, name: str) -> Catalog:
        """Registers a catalog that another program created, and installs the fence."""
        return self._open(self._metadata.adopt(name))

    def ensure_catalog(self, name: str) -> Catalog:
        """The catalog with that name, created if it does not exist."""
        return self._open_new(self._metadata.ensure(name))

    def prove_store(self) -> str | None:
        """None if the data path is that of this lake, else why nothing in it is deleted.

        A data path that the lake has not used yet gets its marker.
        """
        problem = prove(self._metadata, self._data_location)
        self._is_marked = problem is None
        return problem

    def cleanup(
        self, *, age: timedelta = DEFAULT_AGE, dry_run: bool = False
    ) -> list[DeletableFile]:
        """Deletes the files that no snapshot of any catalog needs, or lists them."""
        return self._clean(UNNEEDED, age, dry_run)

    def delete_orphans(
        self, *, age: timedelta = DEFAULT_AGE, dry_run: bool = False
    ) -> list[DeletableFile]:
        """Deletes files under the data paths that no catalog ever knew, or lists them.

        New files wait there for their commit: an age shorter than the longest write loses rows.
        """
        return self._clean(ORPHANS, age, dry_run)

    def collect(
        self, *, age: timedelta = DEFAULT_AGE, dry_run: bool = False
    ) -> list[DeletableFile]:
        """Deletes unneeded files and orphans in one pass, or lists them."""
        return self._clean(UNNEEDED | ORPHANS, age, dry_run)

    def _clean(
        self, reasons: frozenset[DeletionReason], age: timedelta, dry_run: bool
    ) -> list[DeletableFile]:
        # In this process: listing and deleting must neither hold a lock nor keep the SQLite worker
        # busy.
        listed = reasons & (ORPHANS | {DeletionReason.DROPPED})
        entries = {
            path: [*storage.entries_under(path), *storage.unfinished_uploads(path)]
            for path in (self._metadata.data_paths() if listed else ())
        }
        found = self._metadata.deletable_files(reasons, age, entries)
        if dry_run:
            return file_cleanup.with_sizes(found)
        proofs = Proofs(self._metadata, self._data_location)
        deleted = file_cleanup.delete_files(
            file_cleanup.with_sizes(found), self._metadata.forget_files, proofs.problem
        )
        if reasons >= UNNEEDED:
            self._metadata.forget_commits(age)
        return deleted

    def record(self, entry: MaintenanceEntry) -> None:
        """Writes an entry of the maintenance history, when a job begins and when it ends."""
        self._metadata.record(entry)

    def history(
        self, catalog: str | None = None, job: str | None = None, limit: int = 100
    ) -> list[MaintenanceEntry]:
        """Maintenance jobs, newest first; running and interrupted ones have no end."""
        name = None if catalog is None else catalog.lower()
        return self._metadata.history(name, job, limit)

    def credentials(self) -> StoredCredentials:
        """The credentials of all callers, and the key that signs login tokens."""
        return self._metadata.credentials()

    def add_credential(self, credential: Credential) -> None:
        """Stores a credential for all servers of the lake; raises AlreadyExists."""
        self._metadata.add_credential(credential)

    def replace_credential(self, old: Credential, new: Credential) -> None:
        """Changes role and grants of a caller; raises CommitConflict if it is not ``old`` now."""
        self._metadata.replace_credential(old, new)

    def remove_credential(self, kind: CredentialKind, name: str) -> None:
        """Removes a credential; raises NotFound."""
        self._metadata.remove_credential(kind, name)

    def leases(self) -> Leases:
        """Names that one process at a time can hold; the caller closes them."""
        if isinstance(self._metastore_location, Path):
            return FileLeases(self._metastore_location / "claims")
        return PostgresLeases(self._metastore_location)

    def location(self, info: CatalogInfo) -> LakeLocation:
        """How an engine attaches a catalog."""
        if isinstance(self._metastore_location, Path):
            return LakeLocation(
                info.name, sqlite_path=self._metastore_location / f"{info.storage_name}.sqlite"
            )
        return LakeLocation(
            info.name,
            metabase_url=self._metastore_location,
            metadata_schema=f"lake_{info.storage_name}",
        )

    def _open_new(self, info: CatalogInfo) -> Catalog:
        """Opens a catalog that may be the first one; the data path then gets its marker."""
        if not self._is_marked and (problem := self.prove_store()) is not None:
            log.warning("%s", problem)
        return self._open(info)

    def _open(self, info: CatalogInfo) -> Catalog:
        catalog = Catalog(
            info, self._metadata, self._retries, self._commit_queue(info.storage_name)
        )
        self._open_catalogs[info.id] = catalog
        return catalog

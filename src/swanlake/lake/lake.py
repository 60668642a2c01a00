"""The lake: its catalogs, and one way to write to each.

with Lake.open(home / "catalogs", home / "data") as lake:
    sales = lake.create_catalog("sales")
    sales.create_table("main", "orders", [ColumnSpec("id", "BIGINT", nullable=False)])
    sales.append(connection, "SELECT range AS id FROM range(10)", "main", "orders")
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, cast
from uuid import UUID

import duckdb

from swanlake.config import Settings
from swanlake.errors import InvalidRequest
from swanlake.lake import datafile, gc, postgres
from swanlake.lake.claims import Claims, FileClaims, PostgresClaims
from swanlake.lake.commit import NOTHING_WRITTEN, Committed, Retries
from swanlake.lake.expiry import ExpireReport
from swanlake.lake.gate import CommitGate, GateStatus
from swanlake.lake.gc import DEFAULT_AGE, ORPHANS, UNNEEDED, Garbage, Reason
from swanlake.lake.history import MaintenanceEntry
from swanlake.lake.keeper import RemoteLake
from swanlake.lake.kept_rows import KeptRows, NotKept
from swanlake.lake.layout import Column, PartitionKey, SortKey, Table, folded
from swanlake.lake.live_files import InlinedRow, LiveFile, TableFiles
from swanlake.lake.local import LocalLake, open_metabase
from swanlake.lake.location import LakeLocation
from swanlake.lake.metabase import CatalogInfo
from swanlake.lake.operations import (
    Commit,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    Insert,
    Operation,
)
from swanlake.lake.postgres_turns import PostgresTurns, TurnConnections
from swanlake.lake.reading import Snapshot
from swanlake.lake.survey import CatalogSurvey
from swanlake.lake.turns import FileTurns, Turns, turns_beside
from swanlake.lake.types import ColumnSpec, number_columns

#: The catalog in which sessions begin.
DEFAULT_CATALOG = "swanlake"


class Lake:
    """All catalogs that share a metabase and a data location."""

    def __init__(
        self,
        keeper: LocalLake,
        place: str | Path,
        retries: Retries | None = None,
    ) -> None:
        self._keeper = keeper
        self._place = place
        self._retries = retries or Retries()
        self._lock = threading.Lock()
        self._opened: dict[UUID, Catalog] = {}
        #: By the place of a catalog, whose name another one may get.
        self._gates: dict[str, CommitGate] = {}
        self._turn_connections: TurnConnections | None = None

    @classmethod
    def open(
        cls,
        metabase: str | Path,
        data_location: str | Path,
        retries: Retries | None = None,
    ) -> Self:
        """A lake in PostgreSQL (a URL) or in SQLite files (a directory)."""
        location = str(data_location)
        if "://" not in location:
            location = str(Path(location).absolute())
        if isinstance(metabase, Path):
            directory = metabase.absolute()
            keeper = cast("LocalLake", RemoteLake(directory, location))
            return cls(keeper, directory, retries)
        return cls(LocalLake(open_metabase(metabase, location)), metabase, retries)

    @classmethod
    def from_settings(cls, settings: Settings) -> Self:
        """The lake that a server with these settings works on."""
        home = settings.home.absolute()
        return cls.open(
            settings.metabase_url or home / "catalogs",
            settings.data_location,
            Retries(timeout=settings.commit_lock_timeout_seconds),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection of the lake."""
        self._keeper.close()
        if self._turn_connections is not None:
            self._turn_connections.close()

    # ---- writers -------------------------------------------------------------------------------

    @contextmanager
    def turn(
        self, catalogs: Iterable[LakeLocation], writer: str, check: Callable[[], None]
    ) -> Iterator[None]:
        """Keeps all other writers of all servers from some catalogs, for the block.

        For statements that DuckDB commits by itself; everything else takes turns when it commits.
        ``check`` is called while waiting and raises when the turn is no longer wanted.
        """
        with ExitStack() as stack:
            # In one order for everybody, so that no two wait for each other.
            for place in sorted(location.place for location in catalogs):
                stack.enter_context(self._gate(place).turn(writer, check))
            yield

    def writers(self) -> list[GateStatus]:
        """Who writes to which catalog now, or waits to, in this process."""
        with self._lock:
            gates = list(self._gates.items())
        found = [gate.status(place) for place, gate in gates]
        return [status for status in found if status is not None]

    def _gate(self, place: str) -> CommitGate:
        with self._lock:
            if place not in self._gates:
                self._gates[place] = CommitGate(self._turns(place), self._retries.timeout)
            return self._gates[place]

    def _turns(self, place: str) -> Turns:
        if isinstance(self._place, Path):
            return FileTurns(turns_beside(self._place / f"{place}.sqlite"))
        if self._turn_connections is None:
            self._turn_connections = TurnConnections(partial(postgres.connect, self._place))
        return PostgresTurns(self._turn_connections, f"lake_{place}")

    # ---- catalogs ------------------------------------------------------------------------------

    def catalogs(self) -> list[CatalogInfo]:
        """Every catalog, by name."""
        return self._keeper.catalogs()

    def find(self, name: str) -> CatalogInfo | None:
        """The catalog of that name; None if there is none."""
        return self._keeper.find(name)

    def opened(self, id: UUID) -> Catalog | None:
        """A catalog that was looked up by its name before, without looking again."""
        return self._opened.get(id)

    def catalog(self, name: str) -> Catalog:
        """A catalog to read and write; raises NotFound."""
        return self._open(self._keeper.named(name))

    def create_catalog(self, name: str) -> Catalog:
        """Makes a new, empty catalog; raises AlreadyExists."""
        return self._open(self._keeper.create(name))

    def fork_catalog(self, parent: str, name: str, at: int | None = None) -> Catalog:
        """Makes a catalog that begins as another one is, or was at a snapshot, copying no file."""
        return self._open(self._keeper.fork(parent, name, at))

    def drop_catalog(self, name: str) -> CatalogInfo:
        """Removes a catalog. Its files go with the next collection, if no fork can see them."""
        return self._keeper.drop(name)

    def adopt_catalog(self, name: str) -> Catalog:
        """Registers and fences a catalog that another program made in its place."""
        return self._open(self._keeper.adopt(name))

    def ensure_catalog(self, name: str) -> Catalog:
        """The catalog of that name, made if it is not there."""
        return self._open(self._keeper.ensure(name))

    def cleanup(self, *, age: timedelta = DEFAULT_AGE, dry_run: bool = False) -> list[Garbage]:
        """Deletes the files that no snapshot of any catalog needs any more, or lists them."""
        found = self._clean(UNNEEDED, age, dry_run)
        if not dry_run:
            self._keeper.forget_commits(age)
        return found

    def orphans(self, *, age: timedelta = DEFAULT_AGE, dry_run: bool = False) -> list[Garbage]:
        """Deletes files under the data paths that no catalog ever knew, or lists them.

        Files wait there for their commit: an age below that of the longest write loses its rows.
        """
        return self._clean(ORPHANS, age, dry_run)

    def collect(self, *, age: timedelta = DEFAULT_AGE, dry_run: bool = False) -> list[Garbage]:
        """Cleans up and deletes orphans in one go, or lists what would go."""
        found = self._clean(UNNEEDED | ORPHANS, age, dry_run)
        if not dry_run:
            self._keeper.forget_commits(age)
        return found

    def _clean(self, reasons: frozenset[Reason], age: timedelta, dry_run: bool) -> list[Garbage]:
        found = self._keeper.garbage(reasons, age)
        # Not by the keeper: nobody else needs it for as long as the deleting takes.
        return found if dry_run else gc.remove(found, self._keeper.forget)

    def record(self, entry: MaintenanceEntry) -> None:
        """Writes an entry of the history of maintenance: when a job begins, and when it ends."""
        self._keeper.record(entry)

    def history(
        self, catalog: str | None = None, job: str | None = None, limit: int = 100
    ) -> list[MaintenanceEntry]:
        """What maintenance was done, newest first; without an end if it goes on, or was cut off."""
        name = None if catalog is None else catalog.lower()
        return self._keeper.history(name, job, limit)

    def claims(self) -> Claims:
        """Names that only one process at a time can hold; the caller closes it."""
        if isinstance(self._place, Path):
            return FileClaims(self._place / "claims")
        return PostgresClaims(self._place)

    def location(self, info: CatalogInfo) -> LakeLocation:
        """How an engine attaches a catalog."""
        if isinstance(self._place, Path):
            return LakeLocation(info.name, sqlite_path=self._place / f"{info.place}.sqlite")
        return LakeLocation(
            info.name, metabase_url=self._place, metadata_schema=f"lake_{info.place}"
        )

    def _open(self, info: CatalogInfo) -> Catalog:
        catalog = Catalog(info, self._keeper, self._retries, self._gate(info.place))
        self._opened[info.id] = catalog
        return catalog


@dataclass(frozen=True)
class Catalog:
    """One catalog of the lake: what it holds, and how it is changed."""

    info: CatalogInfo
    keeper: LocalLake
    retries: Retries
    gate: CommitGate

    @property
    def name(self) -> str:
        return self.info.name

    def snapshot_id(self) -> int:
        """The newest snapshot."""
        return self.keeper.newest_snapshot(self.info)

    def snapshots(self) -> list[Snapshot]:
        """Every snapshot that is kept, oldest first."""
        return self.keeper.snapshots(self.info)

    def table(self, schema: str, name: str, at: int | None = None) -> Table:
        """A table, all that is needed to write files for it; raises NotFound."""
        return self.keeper.table(self.info, schema, name, at)

    def table_by_id(self, table_id: int) -> Table:
        """A table by what never changes of it; raises NotFound."""
        return self.keeper.table_by_id(self.info, table_id)

    def new_table(self, operation: CreateTable) -> Table:
        """The table that an operation will make, to write its files; raises NotFound."""
        return self.keeper.new_table(self.info, operation)

    def files(self, table_id: int) -> TableFiles:
        """A table and all it consists of, read at once; raises NotFound."""
        return self.keeper.files(self.info, table_id)

    def files_at(self, table: Table, paths: Iterable[str]) -> dict[str, LiveFile]:
        """Of a table's files those at these paths, each with its deletes of now."""
        return self.keeper.files_at(self.info, table, sorted(paths))

    def kept_rows(self, tables: Sequence[Table]) -> list[KeptRows] | NotKept:
        """All rows of tables that are nothing but rows in the metadata, as of one moment."""
        return self.keeper.kept_rows(self.info, tables)

    def survey(self, target_file_size: int, small_file_ratio: float = 1.0) -> CatalogSurvey:
        """How the catalog is doing, in numbers; below that part of the size files are small."""
        return self.keeper.survey(self.info, target_file_size, small_file_ratio)

    def inlined_rows(self, name: str, at: int) -> list[InlinedRow]:
        """The rows that a table of the metadata keeps, up to a snapshot."""
        return self.keeper.inlined_rows(self.info, name, at)

    def ledger(self, entries: Sequence[str]) -> dict[str, int]:
        """Those of the entries that are in the ledger, with the snapshots they came with."""
        return self.keeper.ledger(self.info, list(entries))

    def ledger_under(self, prefix: str) -> list[str]:
        """The entries of the ledger that begin with a text."""
        return self.keeper.ledger_under(self.info, prefix)

    def check(self) -> list[str]:
        """What is wrong with the catalog, one sentence each."""
        return self.keeper.check(self.info)

    def missing_files(self) -> list[str]:
        """The files that snapshots of the catalog can see and that are not there."""
        return self.keeper.missing_files(self.info)

    def commit(
        self, change: Commit, writer: str = "", check: Callable[[], None] = lambda: None
    ) -> Committed:
        """Makes all of a commit visible at once; raises a LakeError and leaves no trace.

        ``check`` is called while others go first and raises when the commit is no longer wanted.
        """
        return self.gate.commit(
            change,
            writer,
            check,
            lambda changes, **how: self.keeper.commit(
                self.info, changes, replace(self.retries, **how)
            ),
        )

    def expire(
        self,
        *,
        older_than: timedelta | datetime | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
    ) -> ExpireReport:
        """Removes old snapshots and what only they could see, or says what would go.

        With both an age and a number, a snapshot goes only if it is older *and* not among the last
        so many; the newest never goes. Files are left to the next clean-up. A commit that is based
        on a snapshot that went is refused, so keep them for longer than the longest transaction.
        """
        return self.keeper.expire(self.info, older_than, keep_last, dry_run)

    def change(self, *operations: Operation) -> Committed:
        """A commit of operations that are not based on anything that was read."""
        return self.commit(Commit(operations))

    def create_schema(self, name: str) -> Committed:
        """Makes an empty schema; raises AlreadyExists."""
        return self.change(CreateSchema(checked_object_name("schema", name)))

    def drop_schema(self, name: str, *, cascade: bool = False) -> Committed:
        """Ends a schema; it must be empty, unless everything in it is to go too."""
        if folded(name) == "main":
            raise InvalidRequest("The schema main is always there and cannot be dropped.")
        return self.change(DropSchema(name, cascade))

    def create_table(
        self,
        schema: str,
        name: str,
        columns: Sequence[ColumnSpec],
        *,
        partition_by: Sequence[str | tuple[str, str]] = (),
        sort_by: Sequence[SortKey] = (),
    ) -> Committed:
        """Makes an empty table.

        ``partition_by`` takes column names, or pairs of a name and a transform: ``("at", "day")``.
        """
        return self.change(
            new_table(schema, name, columns, partition_by=partition_by, sort_by=sort_by)
        )

    def drop_table(self, schema: str, name: str) -> Committed:
        """Ends a table; its files stay until the snapshots that see it expire."""
        return self.change(DropTable(schema, name))

    def append(
        self,
        connection: duckdb.DuckDBPyConnection,
        query: str,
        schema: str,
        name: str,
        *,
        ledger: tuple[str, ...] = (),
    ) -> Committed:
        """Writes what a query gives as files of a table and commits them.

        The rows must not depend on the lake: they are added to whatever the table holds by then.
        """
        table = self.table(schema, name)
        files = datafile.write_files(connection, query, table)
        inserted = Insert(table, tuple(files), blind=True)
        try:
            done = self.commit(Commit((inserted,), base=table.snapshot_id, ledger=ledger))
        except NOTHING_WRITTEN:
            datafile.remove_files(table, files)
            raise
        if not done.applied:
            datafile.remove_files(table, files)
        return done


def new_table(
    schema: str,
    name: str,
    columns: Sequence[ColumnSpec],
    *,
    partition_by: Sequence[str | tuple[str, str]] = (),
    sort_by: Sequence[SortKey] = (),
) -> CreateTable:
    """The operation that makes a table, for a commit that does more than that."""
    numbered = number_columns(columns)
    return CreateTable(
        schema,
        checked_object_name("table", name),
        numbered,
        tuple(_partition_key(numbered, key) for key in partition_by),
        tuple(sort_by),
    )


def checked_object_name(kind: str, name: str) -> str:
    """The name of a schema or table; raises InvalidRequest for one that no database can keep."""
    if not name or "\0" in name:
        raise InvalidRequest(f"{name!r} cannot be the name of a {kind}.")
    return name


def _partition_key(columns: Sequence[Column], key: str | tuple[str, str]) -> PartitionKey:
    name, transform = (key, "identity") if isinstance(key, str) else key
    for column in columns:
        if folded(column.name) == folded(name):
            return PartitionKey(column.id, transform)
    raise InvalidRequest(f"The table cannot be partitioned by {name}: it has no such column.")

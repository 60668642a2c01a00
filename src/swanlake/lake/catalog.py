"""One catalog of the lake.

sales = lake.catalog("sales")
sales.create_table("main", "orders", [ColumnSpec("id", "BIGINT", nullable=False)])
sales.append(connection, "SELECT range AS id FROM range(10)", "main", "orders")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import duckdb

from swanlake._internal.waiting import never_cancelled
from swanlake.errors import CommitConflict, InvalidRequest, NotFound
from swanlake.lake.commit.changes import ChangeType, parse_changes
from swanlake.lake.commit.commit_queue import CommitQueue
from swanlake.lake.commit.protocol import NOTHING_WRITTEN, Committed, Retries
from swanlake.lake.files import datafile, storage
from swanlake.lake.lifecycle.expiry import ExpireReport
from swanlake.lake.metastore.base import CatalogInfo
from swanlake.lake.metastore.local import MetadataService
from swanlake.lake.model.layout import Column, PartitionKey, SortKey, Table, folded
from swanlake.lake.model.operations import (
    Commit,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    Insert,
    Operation,
)
from swanlake.lake.model.table_files import InlinedRow, TableFiles
from swanlake.lake.model.table_state import Bounds, HeadRead
from swanlake.lake.model.types import ColumnSpec, number_columns
from swanlake.lake.read import browse, live_files, metadata, survey, table_states
from swanlake.lake.read.browse import Contents, SnapshotSummary, TableProfile
from swanlake.lake.read.metadata import Snapshot
from swanlake.lake.read.survey import CatalogSurvey
from swanlake.lake.read.table_states import StateRequest, StatesRead


@dataclass(frozen=True)
class Catalog:
    """One catalog of the lake: reads, and the one way to write."""

    info: CatalogInfo
    metadata: MetadataService
    retries: Retries
    commit_queue: CommitQueue

    @property
    def name(self) -> str:
        return self.info.name

    def newest_snapshot(self) -> int:
        """The newest snapshot."""
        return self.metadata.read(self.info, metadata.newest_snapshot)

    def snapshots(self) -> list[Snapshot]:
        """Every snapshot that is kept, oldest first."""
        return self.metadata.read(self.info, metadata.snapshots)

    def table(self, schema: str, name: str, at: int | None = None) -> Table:
        """A table, all that is needed to write files for it; raises NotFound."""
        return self.metadata.read(self.info, metadata.read_table, schema, name, at)

    def table_by_id(self, table_id: int) -> Table:
        """A table by its id, which never changes; raises NotFound."""
        return self.metadata.read(self.info, metadata.read_table_by_id, table_id)

    def new_table(self, operation: CreateTable) -> Table:
        """The table that an operation will create, so that its files can be written first."""
        return self.metadata.read(self.info, metadata.read_new_table, operation)

    def files(self, table_id: int) -> TableFiles:
        """A table and all its files, read in one transaction; raises NotFound."""
        return self.metadata.read_repeatably(self.info, live_files.read_files, table_id)

    def read_head(self, since: int, sources: Sequence[str] = ()) -> HeadRead:
        """The head, and the changes after a snapshot, in one round trip; -1 asks for none."""
        return self.metadata.read_head(self.info, since, sources)

    def read_states(self, requests: Sequence[StateRequest], since: int) -> StatesRead:
        """Where the rows of tables are at the head, read in one transaction."""
        return self.metadata.read_repeatably(
            self.info, table_states.read_states, list(requests), since
        )

    def read_bounds(self, table_id: int, column_id: int, since: int) -> dict[int, Bounds]:
        """The bounds of a column in the files with larger ids than ``since``, by file."""
        return self.metadata.read(self.info, table_states.read_bounds, table_id, column_id, since)

    def has_macros(self) -> bool:
        """True if the catalog has macros, which hide functions of the same name."""
        return self.metadata.read(self.info, metadata.has_macros)

    def requires_message(self) -> bool:
        """True if the catalog refuses commits without a message."""
        return self.metadata.read(self.info, metadata.requires_message)

    def columns_with_initial_values(self, table_id: int) -> set[int]:
        """The ids of a table's columns that are not NULL in rows older than the column."""
        return self.metadata.read(self.info, metadata.columns_with_initial_values, table_id)

    def survey(self, target_file_size: int, small_file_ratio: float = 1.0) -> CatalogSurvey:
        """Numbers per table; a file below that fraction of the target size counts as small."""
        return self.metadata.read_repeatably(
            self.info, survey.survey, target_file_size, small_file_ratio
        )

    def contents(self) -> Contents:
        """The schemas and views."""
        return self.metadata.read_repeatably(self.info, browse.read_contents)

    def profile(self, schema: str, name: str) -> TableProfile:
        """A table and how large its files are; raises NotFound."""
        return self.metadata.read_repeatably(self.info, browse.read_profile, schema, name)

    def latest_snapshots(self, limit: int) -> list[SnapshotSummary]:
        """The newest snapshots with their changes in words, newest first."""
        return self.metadata.read_repeatably(self.info, browse.read_latest_snapshots, limit)

    def inlined_rows(self, name: str, at: int) -> list[InlinedRow]:
        """The rows of an inlined table up to a snapshot."""
        return self.metadata.read(self.info, live_files.read_inlined_rows, name, at)

    def find_in_ledger(self, entries: Sequence[str]) -> dict[str, int]:
        """The entries that are in the ledger, with the snapshots that added them."""
        return self.metadata.read(self.info, metadata.find_in_ledger, list(entries))

    def list_ledger(self, prefix: str) -> list[str]:
        """The ledger entries with a prefix."""
        return self.metadata.read(self.info, metadata.list_ledger, prefix)

    def check(self) -> list[str]:
        """What is wrong with the catalog, one sentence each; empty if nothing is."""
        return self.metadata.check(self.info)

    def missing_files(self) -> list[str]:
        """The files that a snapshot can see and that do not exist."""
        # Not in the SQLite worker: a store that does not answer must not keep it busy.
        missing = storage.find_missing(self.metadata.referenced(self.info))
        # Files that were released and deleted meanwhile are not missing.
        return sorted(set(missing) & self.metadata.referenced(self.info)) if missing else []

    def commit(
        self, change: Commit, writer: str = "", check: Callable[[], None] = never_cancelled
    ) -> Committed:
        """Commits atomically; raises a LakeError if nothing was changed.

        ``check`` is called while waiting and raises when the caller gives up.
        """
        return self.commit_queue.commit(
            change,
            writer,
            check,
            lambda changes, **how: self.metadata.commit(
                self.info, changes, replace(self.retries, **how)
            ),
        )

    def check_deletes(self, base: int, deletes_from: Callable[[Table], bool]) -> None:
        """Raises CommitConflict for a conflict of deletes that the stock extension overlooks.

        It compares the deletes that it inlines only with each other, and those in delete files
        likewise (ducklake #1215): of two transactions that delete from one data file, one in each
        way, both would commit, and rows would come back. ``deletes_from`` says whether the
        transaction, which is based on the snapshot ``base``, deletes from a table.
        """
        changes = self.metadata.read(self.info, metadata.changes_since, base)
        for change in {change for text in changes for change in parse_changes(text)}:
            is_delete = change.type in (ChangeType.DELETED, ChangeType.INLINED_DELETE)
            if not is_delete or change.id is None:
                continue
            try:
                table = self.table_by_id(change.id)
            except NotFound:
                continue  # the extension knows that it was dropped
            is_inlined = change.type is ChangeType.INLINED_DELETE
            if (is_inlined or table.options.inlined_rows) and deletes_from(table):
                raise CommitConflict(
                    f"Cannot commit: rows were deleted from the table {table.full_name} after "
                    f"snapshot {base} on which the transaction is based. Repeat the transaction."
                )

    def expire(
        self,
        *,
        older_than: timedelta | datetime | None = None,
        keep_last: int | None = None,
        dry_run: bool = False,
    ) -> ExpireReport:
        """Removes old snapshots and what only they could see, or reports what it would remove.

        With both an age and a number, a snapshot expires only if it is older *and* not among the
        last ``keep_last``; the newest never expires. Files are left to the next clean-up. A commit
        based on an expired snapshot fails, so keep snapshots longer than the longest transaction.
        """
        return self.metadata.expire(self.info, older_than, keep_last, dry_run)

    def change(self, *operations: Operation) -> Committed:
        """Commits operations that do not depend on anything that was read."""
        return self.commit(Commit(operations))

    def create_schema(self, name: str) -> Committed:
        """Creates an empty schema; raises AlreadyExists."""
        return self.change(CreateSchema(checked_object_name("schema", name)))

    def drop_schema(self, name: str, *, cascade: bool = False) -> Committed:
        """Drops a schema; without ``cascade`` it must be empty."""
        if folded(name) == "main":
            raise InvalidRequest("The schema main cannot be dropped.")
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
        """Creates an empty table.

        ``partition_by`` takes column names, or pairs of a name and a transform: ``("at", "day")``.
        """
        return self.change(
            new_table(schema, name, columns, partition_by=partition_by, sort_by=sort_by)
        )

    def drop_table(self, schema: str, name: str) -> Committed:
        """Drops a table; its files stay until the snapshots that see it expire."""
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
        """Writes the rows of a query to files of a table and commits them.

        The rows must not depend on the lake: they are appended to whatever the table then holds.
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
    """The operation that creates a table, for a commit with more operations."""
    numbered = number_columns(columns)
    return CreateTable(
        schema,
        checked_object_name("table", name),
        numbered,
        tuple(_partition_key(numbered, key) for key in partition_by),
        tuple(sort_by),
    )


def checked_object_name(kind: str, name: str) -> str:
    """The name of a schema or table; raises InvalidRequest if no database can store it."""
    if not name or "\0" in name:
        raise InvalidRequest(f"{name!r} cannot be the name of a {kind}.")
    return name


def _partition_key(columns: Sequence[Column], key: str | tuple[str, str]) -> PartitionKey:
    name, transform = (key, "identity") if isinstance(key, str) else key
    for column in columns:
        if folded(column.name) == folded(name):
            return PartitionKey(column.id, transform)
    raise InvalidRequest(f"The table cannot be partitioned by {name}: it has no such column.")

"""A commit under construction: the ids it allocates, and the rows it will write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import ColumnElement, DateTime, Executable, Row, bindparam, insert, update
from sqlalchemy import Table as SqlTable

from swanlake.errors import CommitConflict, NotFound
from swanlake.lake.commit.changes import Change, ChangeType, format_changes
from swanlake.lake.commit.footprint import ledger_entries
from swanlake.lake.commit.state import Head, LiveTable
from swanlake.lake.metastore.store import Write
from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.layout import Table, folded
from swanlake.lake.model.operations import Commit, CreateTable
from swanlake.lake.model.options import StoredOptions

_ORDER = {kind: position for position, kind in enumerate(ChangeType)}


#: (schema id, name in lower case) to (``table`` or ``view``, id)
Objects = dict[tuple[int, str], tuple[str, int]]


@dataclass(frozen=True)
class State:
    """The part of the catalog, at the head, that the commit concerns."""

    head: Head
    schemas: dict[str, Row[Any]] = field(default_factory=dict)
    objects: Objects = field(default_factory=dict)
    #: Macros of all schemas as (schema id, macro id, ``scalar`` or ``table``).
    macros: list[tuple[int, int, str]] = field(default_factory=list)
    tables: dict[int, LiveTable] = field(default_factory=dict)
    #: Live data files that the commit merges or rewrites, by id.
    data_files: dict[int, Row[Any]] = field(default_factory=dict)
    #: Live delete files of those data files: data file id to delete file id.
    delete_files: dict[int, int] = field(default_factory=dict)
    #: Data files of compacted tables that have inlined deletes.
    inlined_deletes: set[int] = field(default_factory=set)
    #: All delete files of the data files that are rewritten, ended ones included.
    all_delete_files: list[Row[Any]] = field(default_factory=list)
    #: By name, the rows at the base of the inlined tables that the commit flushes.
    inlined_rows: dict[str, int] = field(default_factory=dict)
    #: By table id, the schema version of the inlined table with the current columns.
    inlined_versions: dict[int, int] = field(default_factory=dict)
    #: For new tables only.
    options: StoredOptions = field(default_factory=StoredOptions)


@dataclass(frozen=True)
class Plan:
    """The statements of a commit, and the state that the next one sees."""

    writes: list[Write]
    head: Head
    tables: dict[int, LiveTable]
    inlined_versions: dict[int, int]
    #: Those that the commit read.
    objects: Objects

    @property
    def snapshot_id(self) -> int:
        """The snapshot of the commit."""
        return self.head.snapshot_id


class Draft:
    """Collects everything a commit will write."""

    def __init__(
        self, state: State, tables: CatalogTables, now: ColumnElement[datetime], earliest: datetime
    ) -> None:
        self.state = state
        self.head = state.head
        self.tables = tables
        self.snapshot_id = state.head.next_snapshot_id
        self.schema_version = state.head.schema_version
        #: New rows by table, in the order in which tables were first written to.
        self.rows: dict[SqlTable, list[dict[str, Any]]] = {}
        self.schemas = dict(state.schemas)
        #: Ids of the commit's own schemas, by name in lower case.
        self.new_schemas: dict[str, int] = {}
        self.new_tables: dict[CreateTable, int] = {}
        #: Tables and views, those of this commit included.
        self.objects = dict(state.objects)
        self.live_tables = dict(state.tables)
        #: Tables that had no statistics before this commit.
        self.first_stats: set[int] = set()
        #: As in the state, with the inlined tables that this commit creates.
        self.inlined_versions = dict(state.inlined_versions)
        self._now = now
        self._earliest = earliest
        self._next_catalog_id = state.head.next_catalog_id
        self._next_file_id = state.head.next_file_id
        self._changes: list[Change] = []
        self._writes: list[Write] = []

    def finish(self, commit: Commit) -> Plan:
        """All writes, with the snapshot and its changes around them."""
        changes = sorted(set(self._changes), key=lambda c: (_ORDER[c.type], c.id or 0, c.name))
        schema_changed = self.schema_version != self.head.schema_version
        if changes and not schema_changed and self._next_file_id == self.head.next_file_id:
            # Clients cache table statistics by next_file_id: changed data must change it.
            self._next_file_id += 1
        snapshot = {
            "snapshot_id": self.snapshot_id,
            "schema_version": self.schema_version,
            "next_catalog_id": self._next_catalog_id,
            "next_file_id": self._next_file_id,
        }
        changed = {
            "snapshot_id": self.snapshot_id,
            # The stock extension joins these by commas and fails on an empty one.
            "changes_made": format_changes(changes) or None,
            "author": commit.author,
            "commit_message": commit.message,
            "commit_extra_info": commit.extra_info,
        }
        ledger = [
            {"entry": entry, "snapshot_id": self.snapshot_id} for entry in ledger_entries(commit)
        ]
        writes = [
            self._write(self.tables.snapshot, [snapshot]),
            *self._writes,
            *(self._write(table, rows) for table, rows in self.rows.items()),
            self._write(self.tables.snapshot_changes, [changed]),
            self._write(self.tables.swanlake_ledger, ledger),
        ]
        head = Head(
            next_snapshot_id=self.snapshot_id + 1, snapshot_time=self.head.snapshot_time, **snapshot
        )
        return Plan(writes, head, self.live_tables, self.inlined_versions, self.objects)

    def _write(self, table: SqlTable, rows: list[dict[str, Any]]) -> Write:
        """An insert; the database computes the time of the commit."""
        statement = _insertion(table, self._now)
        if _has_time(table):
            rows = [row | {"earliest": self._earliest} for row in rows]
        return Write(statement, rows)

    def add_change(self, kind: ChangeType, id: int | None = None, *name: str) -> None:
        """Adds an entry to the snapshot's changes."""
        self._changes.append(Change(kind, id, name))

    def add_write(
        self, statement: Executable, rows: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Adds a statement that changes or removes rows; these run before inserts."""
        self._writes.append(Write(statement, rows))

    def add_row(self, table: SqlTable, **row: Any) -> None:
        """Adds a new row of a table."""
        self.rows.setdefault(table, []).append(row)

    def end_rows(self, table: SqlTable, which: ColumnElement[bool]) -> None:
        """Ends the live rows of a versioned table that meet a condition."""
        ended = update(table).where(which, table.c.end_snapshot.is_(None))
        self.add_write(ended.values(end_snapshot=self.snapshot_id))

    def change_schema(self) -> None:
        """Raises the schema version, by which clients cache the catalog, once per commit."""
        self.schema_version = self.head.schema_version + 1

    def new_catalog_id(self) -> int:
        """The id of a new schema, table, partitioning or sort order."""
        allocated, self._next_catalog_id = self._next_catalog_id, self._next_catalog_id + 1
        return allocated

    def new_file_id(self) -> int:
        """The id of a new data file or delete file."""
        allocated, self._next_file_id = self._next_file_id, self._next_file_id + 1
        return allocated

    def schema_id(self, name: str) -> int:
        """The id of a schema by name, new ones included; raises NotFound."""
        key = folded(name)
        if key in self.new_schemas:
            return self.new_schemas[key]
        if key in self.schemas:
            return int(self.schemas[key].schema_id)
        raise NotFound(f"There is no schema {name}.", identifier="SCHEMA_NOT_FOUND")

    def schema_name(self, name: str) -> str:
        """The schema's own spelling of its name."""
        row = self.schemas.get(folded(name))
        return name if row is None else str(row.schema_name)

    def live_table(self, table: Table) -> LiveTable:
        """A table as it is now; raises CommitConflict if it is gone."""
        live = self.live_tables.get(table.id)
        if live is None:
            raise CommitConflict(
                f"The table {table.full_name} (id {table.id}), as it was at snapshot "
                f"{table.snapshot_id}, no longer exists at snapshot "
                f"{self.head.snapshot_id}. Look it up again and repeat the commit."
            )
        return live

    def live_file(self, table: Table, data_file_id: int) -> Row[Any]:
        """A data file as it is now; raises CommitConflict if it is gone."""
        row = self.state.data_files.get(data_file_id)
        if row is None or row.table_id != table.id:
            raise CommitConflict(
                f"Data file {data_file_id} of the table {table.full_name} is no longer there at "
                f"snapshot {self.head.snapshot_id}. Read the table again and repeat it."
            )
        return row


# Statements are built once per table: building takes longer than executing.


@lru_cache(maxsize=8192)
def _insertion(table: SqlTable, now: ColumnElement[datetime]) -> Executable:
    if not _has_time(table):
        return insert(table)
    return insert(table).values(
        {c.name: now if isinstance(c.type, DateTime) else bindparam(c.name) for c in table.c}
    )


@lru_cache(maxsize=1024)
def update_by(table: SqlTable, *keys: str) -> Executable:
    """An UPDATE of all columns but the keys, whose parameters are prefixed with ``of_``."""
    which = [table.c[key] == bindparam(f"of_{key}") for key in keys]
    new: dict[str, Any] = {
        column.name: bindparam(column.name) for column in table.c if column.name not in keys
    }
    return update(table).where(*which).values(new)


def _has_time(table: SqlTable) -> bool:
    return any(isinstance(column.type, DateTime) for column in table.c)

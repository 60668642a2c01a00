"""Reads what commits need under the lock, and checks them against what others committed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Row

from swanlake.lake.commit import conflicts, state
from swanlake.lake.commit.draft import Objects, Plan, State
from swanlake.lake.commit.footprint import (
    created_names,
    drop_intents,
    dropped_names,
    file_ids,
    inlining_tables,
    needs_names,
    table_intents,
)
from swanlake.lake.commit.queries import (
    inlining_query,
    objects_query,
    options_query,
    schemas_query,
    tables_query,
)
from swanlake.lake.commit.snapshot_history import SnapshotHistory
from swanlake.lake.metastore.store import CatalogStore, LockedTransaction, Query
from swanlake.lake.model.layout import folded
from swanlake.lake.model.operations import Commit, CreateTable, DropSchema, FlushInlined, Rewrite
from swanlake.lake.model.options import StoredOptions


class CatalogReader:
    """Reads the catalog once for several commits; each sees the effects of those before it.

    Those effects are not in the database yet: all statements are sent at the end.
    """

    def __init__(self, history: SnapshotHistory, commits: Sequence[Commit]) -> None:
        self.history = history
        self._commits = commits
        self._table_ids = sorted({id for commit in commits for id in _table_ids(commit)})
        self._inlining = sorted({id for commit in commits for id in inlining_tables(commit)})
        self._head: state.Head | None = None
        self._tables: dict[int, state.LiveTable] = {}
        self._inlined_versions: dict[int, int] = {}
        self._objects: Objects | None = None

    def initial_queries(self, store: CatalogStore) -> list[Query]:
        """The queries that are certain to run, for prefetching."""
        queries = [self.history.query(store)]
        if self._table_ids:
            queries.append(tables_query(store.tables, self._table_ids))
        if self._inlining:
            queries.append(inlining_query(store.tables, self._inlining))
        if any(needs_names(commit.operations) for commit in self._commits):
            queries += [schemas_query(store.tables, None), objects_query(store.tables, None)]
        if any(commit.of_type(CreateTable) for commit in self._commits):
            queries.append(options_query(store.tables))
        return queries

    def head(self, transaction: LockedTransaction) -> state.Head:
        if self._head is None:
            self._head = state.read_head(transaction, self.history)
            self._tables = state.read_tables(transaction, self._table_ids)
            self._inlined_versions = state.read_inlined_versions(transaction, self._inlining)
        return self._head

    def objects(self, transaction: LockedTransaction) -> Objects:
        if self._objects is None:
            self._objects = state.read_objects(transaction)
        return self._objects

    def live_tables(self, commit: Commit) -> dict[int, state.LiveTable]:
        ids = _table_ids(commit)
        return {id: self._tables[id] for id in ids if id in self._tables}

    def inlined_versions(self, commit: Commit) -> dict[int, int]:
        known = self._inlined_versions
        return {id: known[id] for id in inlining_tables(commit) if id in known}

    def advance(self, plan: Plan, commit: Commit) -> None:
        """Makes the next commit see this one's effects."""
        self._head = plan.head
        self._tables |= plan.tables
        self._inlined_versions |= plan.inlined_versions
        if needs_names(commit.operations):
            self._objects = plan.objects


def read_state(transaction: LockedTransaction, commit: Commit, reader: CatalogReader) -> State:
    """The state at the head; raises CommitConflict if the commit does not fit it."""
    base = commit.base
    head = reader.head(transaction)
    committed = [] if base is None else reader.history.after(base, transaction.store.name)
    intents = table_intents(commit)
    if base is not None:
        conflicts.check_tables(intents, committed, base)
    schemas, objects, options = {}, {}, StoredOptions()
    if needs_names(commit.operations):
        if committed:
            _check_names(transaction, commit, committed)
        schemas = state.read_schemas(transaction)
        objects = reader.objects(transaction)
    if commit.of_type(CreateTable):
        options = state.read_options(transaction)
    macros = []
    if commit.of_type(DropSchema):
        macros = state.read_macros(transaction)
    data_files, delete_files = state.read_files(transaction, sorted(file_ids(commit)))
    live_tables = reader.live_tables(commit)
    if commit.by_name and base is not None:
        named_at = {id: live.named_at for id, live in live_tables.items()}
        conflicts.check_renamed(intents, named_at, base)
    inlined_deletes: set[int] = set()
    for intent in intents:
        if intent.action in (conflicts.Action.MERGE, conflicts.Action.REWRITE):
            inlined_deletes |= state.read_inlined_deletes(transaction, intent.table_id)
    all_delete_files: list[Row[Any]] = []
    if commit.of_type(Rewrite):
        all_delete_files = state.read_delete_files(transaction, sorted(file_ids(commit)))
    return State(
        head,
        schemas,
        objects,
        macros,
        live_tables,
        data_files,
        delete_files,
        inlined_deletes,
        all_delete_files,
        {
            rows.table_name: state.count_inlined_rows(transaction, rows.table_name, base)
            for operation in commit.of_type(FlushInlined)
            for rows in operation.inlined
            if base is not None
        },
        reader.inlined_versions(commit),
        options,
    )


def _check_names(
    transaction: LockedTransaction, commit: Commit, committed: list[conflicts.CommittedChange]
) -> None:
    """Checks that names still mean what they meant at the base."""
    assert commit.base is not None
    conflicts.check_names(created_names(commit), committed, commit.base)
    schemas = state.read_schemas(transaction, commit.base)
    objects = state.read_objects(transaction, commit.base)
    conflicts.check_tables(drop_intents(commit, schemas, objects), committed, commit.base)
    conflicts.check_table_drops(dropped_names(commit), committed, commit.base)
    for operation in commit.operations:
        match operation:
            case DropSchema(name=name):
                check = conflicts.check_schema_drop
            case CreateTable(schema=name):
                check = conflicts.check_schema_use
            case _:
                continue
        if row := schemas.get(folded(name)):
            check(row.schema_id, row.schema_name, committed, commit.base)


def _table_ids(commit: Commit) -> list[int]:
    return sorted({intent.table_id for intent in table_intents(commit)})

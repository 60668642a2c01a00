"""From a Commit and the state of the catalog to the rows that are written: no I/O.

The rows, their order and their encoding are those of the stock extension, so that it can read,
alter and compact what we wrote.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Executable,
    Row,
    bindparam,
    delete,
    insert,
    update,
)
from sqlalchemy import Table as SqlTable

from swanlake.errors import AlreadyExists, CommitConflict, InvalidRequest, NotFound
from swanlake.lake.changes import Change, ChangeType, format_changes
from swanlake.lake.conflicts import Act, Touch
from swanlake.lake.layout import Column, DefaultKind, Table, folded
from swanlake.lake.operations import (
    Commit,
    CreateSchema,
    CreateTable,
    Delete,
    DropSchema,
    DropTable,
    Insert,
    Merge,
    SetProperty,
)
from swanlake.lake.state import Head, LiveTable
from swanlake.lake.stats import TableColumnStats, merge
from swanlake.lake.store import Write
from swanlake.lake.tables import CatalogTables

#: A name that may be a directory as it is; any other is replaced by the object's UUID.
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
#: How ledger entries begin that are a commit's own id.
COMMIT_ENTRY = "commit:"
_ORDER = {kind: position for position, kind in enumerate(ChangeType)}
#: What ends together with a table, besides the row of the table itself.
_PARTS_OF_A_TABLE = (
    "partition_info",
    "column",
    "column_tag",
    "data_file",
    "delete_file",
    "sort_info",
)


@dataclass(frozen=True)
class State:
    """What the catalog holds at the head, as far as the commit touches it."""

    head: Head
    schemas: dict[str, Row[Any]] = field(default_factory=dict)
    #: (schema id, name in lower case) to (``table`` or ``view``, id)
    objects: dict[tuple[int, str], tuple[str, int]] = field(default_factory=dict)
    #: Macros of all schemas as (schema id, macro id, ``scalar`` or ``table``).
    macros: list[tuple[int, int, str]] = field(default_factory=list)
    tables: dict[int, LiveTable] = field(default_factory=dict)
    #: Live data files that the commit deletes from, drops or merges, by id.
    data_files: dict[int, Row[Any]] = field(default_factory=dict)
    #: Live delete files of those data files: data file id to delete file id.
    delete_files: dict[int, int] = field(default_factory=dict)
    #: Data files of merged tables with deletes that are kept in the metadata itself.
    inlined_deletes: set[int] = field(default_factory=set)


def touches(commit: Commit) -> list[Touch]:
    """What a commit does to tables that were there before it."""
    found = []
    for operation in commit.operations:
        match operation:
            case Insert(table=Table() as table):
                act = Act.APPEND if operation.blind else Act.INSERT
            case Delete(table=table):
                act = Act.DELETE
            case Merge(table=table):
                act = Act.MERGE
            case _:
                continue
        found.append(Touch(act, table.id, table.full_name))
    return found


def drops(
    commit: Commit,
    schemas: dict[str, Row[Any]],
    objects: dict[tuple[int, str], tuple[str, int]],
) -> list[Touch]:
    """The tables that a commit drops, out of the schemas, tables and views of its base."""
    found = []
    wanted: str | None
    for operation in commit.operations:
        match operation:
            case DropTable(schema=schema):
                wanted = folded(operation.name)
            case DropSchema(name=schema, cascade=True):
                wanted = None
            case _:
                continue
        row = schemas.get(folded(schema))
        for (schema_id, name), (kind, table_id) in objects.items():
            if row is None or schema_id != row.schema_id or kind != "table":
                continue
            if wanted is None or name == wanted:
                found.append(Touch(Act.DROP, table_id, f"{row.schema_name}.{name}"))
    return found


def dropped_names(commit: Commit) -> list[tuple[str, ...]]:
    """The names of the tables that a commit drops one by one."""
    return [
        (operation.schema, operation.name)
        for operation in commit.operations
        if isinstance(operation, DropTable)
    ]


def created_names(commit: Commit) -> list[tuple[str, ...]]:
    """The names a commit gives to new schemas and tables."""
    names: list[tuple[str, ...]] = []
    for operation in commit.operations:
        match operation:
            case CreateSchema(name=name):
                names.append((name,))
            case CreateTable(schema=schema, name=name):
                names.append((schema, name))
    return names


def plan(
    commit: Commit,
    state: State,
    tables: CatalogTables,
    now: ColumnElement[datetime],
    earliest: datetime,
) -> list[Write]:
    """The statements of a commit, in the order in which the stock extension sends them.

    ``now`` is the time of the commit for a statement that is given ``earliest``.
    """
    planner = _Planner(state, tables, now, earliest)
    for operation in commit.operations:
        planner.add(operation)
    return planner.finish(commit)


class _Planner:
    def __init__(
        self,
        state: State,
        tables: CatalogTables,
        now: ColumnElement[datetime],
        earliest: datetime,
    ) -> None:
        self._state = state
        self._t = tables
        self._snapshot = state.head.next_snapshot_id
        self._now = now
        self._earliest = earliest
        self._next_catalog_id = state.head.next_catalog_id
        self._next_file_id = state.head.next_file_id
        self._schema_version = state.head.schema_version
        self._changes: list[Change] = []
        self._rows: dict[SqlTable, list[dict[str, Any]]] = {}
        self._ends: list[Write] = []
        self._schemas = dict(state.schemas)
        #: Schema ids of schemas made here, by name in lower case.
        self._new_schemas: dict[str, int] = {}
        self._new_tables: dict[CreateTable, int] = {}
        self._taken = dict(state.objects)
        #: Tables that had no statistics before this commit.
        self._first_stats: set[int] = set()

    def add(self, operation: Any) -> None:
        handlers: dict[type, Callable[[Any], None]] = {
            CreateSchema: self._create_schema,
            DropSchema: self._drop_schema,
            CreateTable: self._create_table,
            DropTable: self._drop_table,
            Insert: self._insert,
            Delete: self._delete,
            Merge: self._merge,
            SetProperty: self._set_property,
        }
        handlers[type(operation)](operation)

    def finish(self, commit: Commit) -> list[Write]:
        """All writes, around them the snapshot and what it changed."""
        changes = sorted(set(self._changes), key=lambda c: (_ORDER[c.type], c.id or 0, c.name))
        schema_changed = self._schema_version != self._state.head.schema_version
        if changes and not schema_changed and self._next_file_id == self._state.head.next_file_id:
            # Clients keep table statistics by next_file_id: data that changed must change it.
            self._next_file_id += 1
        snapshot = {
            "snapshot_id": self._snapshot,
            "schema_version": self._schema_version,
            "next_catalog_id": self._next_catalog_id,
            "next_file_id": self._next_file_id,
        }
        changed = {
            "snapshot_id": self._snapshot,
            # The stock extension joins these by commas and fails on an empty one.
            "changes_made": format_changes(changes) or None,
            "author": commit.author,
            "commit_message": commit.message,
            "commit_extra_info": commit.extra_info,
        }
        ledger = [
            {"entry": entry, "snapshot_id": self._snapshot} for entry in ledger_entries(commit)
        ]
        return [
            self._write(self._t.snapshot, [snapshot]),
            *self._ends,
            *(self._write(table, rows) for table, rows in self._rows.items()),
            self._write(self._t.snapshot_changes, [changed]),
            self._write(self._t.swanlake_ledger, ledger),
        ]

    def _write(self, table: SqlTable, rows: list[dict[str, Any]]) -> Write:
        """New rows of a table, without the time of the commit: the database works that out."""
        statement = _insertion(table, self._now)
        if _has_time(table):
            rows = [row | {"earliest": self._earliest} for row in rows]
        return Write(statement, rows)

    # ---- schemas and tables --------------------------------------------------------------------

    def _create_schema(self, operation: CreateSchema) -> None:
        key = folded(operation.name)
        if key in self._schemas or key in self._new_schemas:
            raise AlreadyExists(f"The schema {operation.name} exists already.")
        schema_id = self._new_schemas[key] = self._new_catalog_id()
        self._add(
            self._t.schema,
            schema_id=schema_id,
            schema_uuid=str(operation.uuid),
            begin_snapshot=self._snapshot,
            end_snapshot=None,
            schema_name=operation.name,
            path=directory_name(operation.name, operation.uuid),
            path_is_relative=True,
        )
        self._change_schema()
        self._changes.append(Change(ChangeType.CREATED_SCHEMA, name=(operation.name,)))

    def _drop_schema(self, operation: DropSchema) -> None:
        row = self._schemas.pop(folded(operation.name), None)
        if row is None:
            raise NotFound(f"There is no schema {operation.name}.", identifier="SCHEMA_NOT_FOUND")
        inside = [
            (kind, id) for (schema, _), (kind, id) in self._taken.items() if schema == row.schema_id
        ]
        macros = [(kind, id) for schema, id, kind in self._state.macros if schema == row.schema_id]
        if (inside or macros) and not operation.cascade:
            raise InvalidRequest(
                f"The schema {operation.name} still holds {len(inside) + len(macros)} tables, "
                "views and macros; drop them first, or drop the schema with everything in it "
                "(cascade).",
                identifier="SCHEMA_NOT_EMPTY",
            )
        for kind, id in inside:
            if kind == "table":
                self._end_table(id)
            else:
                self._end(self._t.view, self._t.view.c.view_id == id)
                self._changes.append(Change(ChangeType.DROPPED_VIEW, id))
        for kind, id in macros:
            self._changes.append(Change(ChangeType(f"dropped_{kind}_macro"), id))
        self._taken = {key: value for key, value in self._taken.items() if key[0] != row.schema_id}
        self._end(self._t.macro, self._t.macro.c.schema_id == row.schema_id)
        self._end(self._t.schema, self._t.schema.c.schema_id == row.schema_id)
        self._change_schema()
        self._changes.append(Change(ChangeType.DROPPED_SCHEMA, row.schema_id))

    def _create_table(self, operation: CreateTable) -> None:
        schema_id = self._schema_id(operation.schema)
        key = (schema_id, folded(operation.name))
        if key in self._taken:
            raise AlreadyExists(
                f"There is a {self._taken[key][0]} {operation.schema}.{operation.name} already."
            )
        table_id = self._new_tables[operation] = self._new_catalog_id()
        self._taken[key] = ("table", table_id)
        self._add(
            self._t.table,
            table_id=table_id,
            table_uuid=str(operation.uuid),
            begin_snapshot=self._snapshot,
            end_snapshot=None,
            schema_id=schema_id,
            table_name=operation.name,
            path=directory_name(operation.name, operation.uuid),
            path_is_relative=True,
        )
        for column in operation.columns:
            self._add_column(table_id, column, parent=None)
        self._add_partitioning(table_id, operation)
        self._add_sorting(table_id, operation)
        self._change_schema()
        self._add(
            self._t.schema_versions,
            begin_snapshot=self._snapshot,
            schema_version=self._schema_version,
            table_id=table_id,
        )
        name = (self._schema_name(operation.schema), operation.name)
        self._changes.append(Change(ChangeType.CREATED_TABLE, name=name))

    def _add_column(self, table_id: int, column: Column, parent: int | None) -> None:
        default = column.default
        literal = default is not None and default.kind is DefaultKind.LITERAL
        self._add(
            self._t.column,
            column_id=column.id,
            begin_snapshot=self._snapshot,
            end_snapshot=None,
            table_id=table_id,
            column_order=column.id,
            column_name=column.name,
            column_type=column.type,
            initial_default=default.text if default is not None and literal else None,
            # The stock extension writes a default that is not there as this word.
            default_value="NULL" if default is None else default.text,
            nulls_allowed=column.nullable,
            parent_column=parent,
            default_value_type=_default_type(column),
            default_value_dialect="duckdb",
        )
        for child in column.children:
            self._add_column(table_id, child, parent=column.id)

    def _add_partitioning(self, table_id: int, operation: CreateTable) -> None:
        if not operation.partition_keys:
            return
        partition_id = self._new_catalog_id()
        self._add(
            self._t.partition_info,
            partition_id=partition_id,
            table_id=table_id,
            begin_snapshot=self._snapshot,
            end_snapshot=None,
        )
        for index, key in enumerate(operation.partition_keys):
            self._add(
                self._t.partition_column,
                partition_id=partition_id,
                table_id=table_id,
                partition_key_index=index,
                column_id=key.column_id,
                transform=key.transform,
            )

    def _add_sorting(self, table_id: int, operation: CreateTable) -> None:
        if not operation.sort_keys:
            return
        sort_id = self._new_catalog_id()
        self._add(
            self._t.sort_info,
            sort_id=sort_id,
            table_id=table_id,
            begin_snapshot=self._snapshot,
            end_snapshot=None,
        )
        for index, key in enumerate(operation.sort_keys):
            self._add(
                self._t.sort_expression,
                sort_id=sort_id,
                table_id=table_id,
                sort_key_index=index,
                expression=key.expression,
                dialect="duckdb",
                sort_direction="DESC" if key.descending else "ASC",
                null_order="NULLS_FIRST" if key.nulls_first else "NULLS_LAST",
            )

    def _drop_table(self, operation: DropTable) -> None:
        key = (self._schema_id(operation.schema), folded(operation.name))
        kind, table_id = self._taken.pop(key, ("", 0))
        if kind != "table":
            raise NotFound(
                f"There is no table {operation.schema}.{operation.name}.",
                identifier="TABLE_NOT_FOUND",
            )
        self._end_table(table_id)
        self._change_schema()

    def _end_table(self, table_id: int) -> None:
        self._end(self._t.table, self._t.table.c.table_id == table_id)
        for name in _PARTS_OF_A_TABLE:
            part: SqlTable = getattr(self._t, name)
            self._end(part, part.c.table_id == table_id)
        self._end(self._t.tag, self._t.tag.c.object_id == table_id)
        self._changes.append(Change(ChangeType.DROPPED_TABLE, table_id))

    # ---- data ----------------------------------------------------------------------------------

    def _insert(self, operation: Insert) -> None:
        if not operation.files:
            return
        live, columns = self._target(operation)
        row_id = live.next_row_id
        stats = dict(live.columns)
        for file in operation.files:
            file_id = self._new_file_id()
            self._add(
                self._t.data_file,
                data_file_id=file_id,
                table_id=live.id,
                begin_snapshot=self._snapshot,
                end_snapshot=None,
                file_order=None,
                path=file.path,
                path_is_relative=True,
                file_format="parquet",
                record_count=file.record_count,
                file_size_bytes=file.file_size_bytes,
                footer_size=file.footer_size,
                row_id_start=row_id,
                partition_id=self._partition_id(operation, live.id),
                encryption_key=None,
                mapping_id=None,
                partial_max=None,
            )
            row_id += file.record_count
            self._add_file_details(live.id, file_id, file)
            for column in file.column_stats:
                # A column that was added later has no row: older rows may lie outside its bounds.
                if column.column_id in stats or not live.has_stats:
                    known = stats.get(column.column_id)
                    stats[column.column_id] = merge(columns[column.column_id], known, column)
        self._write_stats(
            LiveTable(
                live.id,
                live.path,
                live.path_is_relative,
                live.has_stats,
                live.record_count + sum(file.record_count for file in operation.files),
                row_id,
                live.file_size_bytes + sum(file.file_size_bytes for file in operation.files),
                stats,
            )
        )
        self._changes.append(Change(ChangeType.INSERTED, live.id))

    def _target(self, operation: Insert) -> tuple[LiveTable, dict[int, str]]:
        """The table as it is now, and the types of its columns."""
        table = operation.table
        if isinstance(table, CreateTable):
            leaves = [leaf for column in table.columns for leaf in column.leaves()]
            table_id = self._new_tables[table]
            live = self._state.tables.get(table_id) or LiveTable(table_id, "", True)
        else:
            leaves = list(table.leaves())
            live = self._live(table)
        return live, {leaf.id: leaf.type for leaf in leaves}

    def _partition_id(self, operation: Insert, table_id: int) -> int | None:
        if isinstance(operation.table, Table):
            return operation.table.partition_id
        made = self._rows.get(self._t.partition_info, [])
        return next((row["partition_id"] for row in made if row["table_id"] == table_id), None)

    def _add_file_details(self, table_id: int, file_id: int, file: Any) -> None:
        for column in file.column_stats:
            self._add(
                self._t.file_column_stats,
                data_file_id=file_id,
                table_id=table_id,
                column_id=column.column_id,
                column_size_bytes=column.size_bytes,
                value_count=column.value_count,
                null_count=column.null_count,
                min_value=column.min,
                max_value=column.max,
                contains_nan=column.contains_nan,
                extra_stats=column.extra,
            )
        for index, value in enumerate(file.partition_values):
            self._add(
                self._t.file_partition_value,
                data_file_id=file_id,
                table_id=table_id,
                partition_key_index=index,
                partition_value=value,
            )

    def _write_stats(self, live: LiveTable) -> None:
        self._state.tables[live.id] = LiveTable(
            live.id,
            live.path,
            live.path_is_relative,
            True,
            live.record_count,
            live.next_row_id,
            live.file_size_bytes,
            live.columns,
        )
        totals = {
            "record_count": live.record_count,
            "next_row_id": live.next_row_id,
            "file_size_bytes": live.file_size_bytes,
        }
        if not live.has_stats or live.id in self._first_stats:
            self._first_stats.add(live.id)
            for table in (self._t.table_stats, self._t.table_column_stats):
                if table in self._rows:  # from an earlier insert of the same commit
                    self._rows[table] = [r for r in self._rows[table] if r["table_id"] != live.id]
            self._add(self._t.table_stats, table_id=live.id, **totals)
            for column in live.columns.values():
                self._add(self._t.table_column_stats, table_id=live.id, **_column_stats(column))
            return
        self._ends.append(
            Write(_update(self._t.table_stats, "table_id"), [{"of_table_id": live.id, **totals}])
        )
        merged = [
            {"of_table_id": live.id, "of_column_id": column.column_id, **_column_stats(column)}
            for column in live.columns.values()
        ]
        if merged:
            statement = _update(self._t.table_column_stats, "table_id", "column_id")
            self._ends.append(Write(statement, merged))

    def _delete(self, operation: Delete) -> None:
        if not operation.files and not operation.dropped:
            return
        table = self._live(operation.table)
        for deleted in operation.files:
            self._live_file(operation.table, deleted.data_file_id)
            current = self._state.delete_files.get(deleted.data_file_id)
            if current != deleted.replaces:
                raise CommitConflict(
                    f"Cannot delete from the table {operation.table.full_name}: data file "
                    f"{deleted.data_file_id} has another delete file ({current}) than the one that "
                    f"was read ({deleted.replaces}). Read the table again and repeat it."
                )
            if current is not None:
                self._end(self._t.delete_file, self._t.delete_file.c.delete_file_id == current)
            self._add(
                self._t.delete_file,
                delete_file_id=self._new_file_id(),
                table_id=table.id,
                begin_snapshot=self._snapshot,
                end_snapshot=None,
                data_file_id=deleted.data_file_id,
                path=deleted.file.path,
                path_is_relative=True,
                format="parquet",
                delete_count=deleted.file.delete_count,
                file_size_bytes=deleted.file.file_size_bytes,
                footer_size=deleted.file.footer_size,
                encryption_key=None,
                partial_max=None,
            )
        for file_id in operation.dropped:
            self._live_file(operation.table, file_id)
            self._end(self._t.data_file, self._t.data_file.c.data_file_id == file_id)
            self._end(self._t.delete_file, self._t.delete_file.c.data_file_id == file_id)
        self._changes.append(Change(ChangeType.DELETED, table.id))

    def _merge(self, operation: Merge) -> None:
        table = self._live(operation.table)
        for file_id in operation.sources:
            source = self._live_file(operation.table, file_id)
            if file_id in self._state.delete_files or file_id in self._state.inlined_deletes:
                raise CommitConflict(
                    f"Cannot merge files of the table {operation.table.full_name}: rows were "
                    f"deleted from data file {file_id}. Read the table again and repeat it."
                )
            whole = not source.path_is_relative
            self._add(
                self._t.files_scheduled_for_deletion,
                data_file_id=file_id,
                path=source.path if whole else table.path + source.path,
                path_is_relative=not whole and table.path_is_relative,
            )
        for name in (
            "data_file",
            "file_column_stats",
            "file_variant_stats",
            "file_partition_value",
        ):
            part: SqlTable = getattr(self._t, name)
            self._ends.append(Write(delete(part).where(part.c.data_file_id.in_(operation.sources))))
        file_id = self._new_file_id()
        self._add(
            self._t.data_file,
            data_file_id=file_id,
            table_id=table.id,
            begin_snapshot=operation.begin_snapshot,
            end_snapshot=None,
            file_order=None,
            path=operation.file.path,
            path_is_relative=True,
            file_format="parquet",
            record_count=operation.file.record_count,
            file_size_bytes=operation.file.file_size_bytes,
            footer_size=operation.file.footer_size,
            row_id_start=operation.row_id_start,
            partition_id=operation.table.partition_id,
            encryption_key=None,
            mapping_id=None,
            partial_max=operation.partial_max,
        )
        self._add_file_details(table.id, file_id, operation.file)
        self._changes.append(Change(ChangeType.MERGE_ADJACENT, table.id))

    def _set_property(self, operation: SetProperty) -> None:
        scope, scope_id = None, None
        if operation.table_id is not None:
            scope, scope_id = "table", operation.table_id
        elif operation.schema_id is not None:
            scope, scope_id = "schema", operation.schema_id
        metadata = self._t.metadata
        self._ends.append(
            Write(
                delete(metadata).where(
                    metadata.c.key == operation.key,
                    metadata.c.scope.is_not_distinct_from(scope),
                    metadata.c.scope_id.is_not_distinct_from(scope_id),
                )
            )
        )
        self._add(
            metadata, key=operation.key, value=operation.value, scope=scope, scope_id=scope_id
        )

    # ---- small pieces --------------------------------------------------------------------------

    def _add(self, table: SqlTable, **row: Any) -> None:
        self._rows.setdefault(table, []).append(row)

    def _end(self, table: SqlTable, which: ColumnElement[bool]) -> None:
        ended = update(table).where(which, table.c.end_snapshot.is_(None))
        self._ends.append(Write(ended.values(end_snapshot=self._snapshot)))

    def _change_schema(self) -> None:
        """Clients keep the catalog by its schema version; one commit moves it once."""
        self._schema_version = self._state.head.schema_version + 1

    def _new_catalog_id(self) -> int:
        allocated, self._next_catalog_id = self._next_catalog_id, self._next_catalog_id + 1
        return allocated

    def _new_file_id(self) -> int:
        allocated, self._next_file_id = self._next_file_id, self._next_file_id + 1
        return allocated

    def _schema_id(self, name: str) -> int:
        key = folded(name)
        if key in self._new_schemas:
            return self._new_schemas[key]
        if key in self._schemas:
            return int(self._schemas[key].schema_id)
        raise NotFound(f"There is no schema {name}.", identifier="SCHEMA_NOT_FOUND")

    def _schema_name(self, name: str) -> str:
        """The schema's own spelling of its name."""
        row = self._schemas.get(folded(name))
        return name if row is None else str(row.schema_name)

    def _live(self, table: Table) -> LiveTable:
        live = self._state.tables.get(table.id)
        if live is None:
            raise CommitConflict(
                f"The table {table.full_name} (id {table.id}), as it was at snapshot "
                f"{table.snapshot_id}, is no longer there at snapshot "
                f"{self._state.head.snapshot_id}. Look it up again and repeat the commit."
            )
        return live

    def _live_file(self, table: Table, data_file_id: int) -> Row[Any]:
        row = self._state.data_files.get(data_file_id)
        if row is None or row.table_id != table.id:
            raise CommitConflict(
                f"Data file {data_file_id} of the table {table.full_name} is no longer there at "
                f"snapshot {self._state.head.snapshot_id}. Read the table again and repeat it."
            )
        return row


# Statements are built once for a table: that takes longer than to execute them.


@lru_cache(maxsize=8192)
def _insertion(table: SqlTable, now: ColumnElement[datetime]) -> Executable:
    if not _has_time(table):
        return insert(table)
    return insert(table).values(
        {c.name: now if isinstance(c.type, DateTime) else bindparam(c.name) for c in table.c}
    )


@lru_cache(maxsize=1024)
def _update(table: SqlTable, *keys: str) -> Executable:
    """Sets all columns but the keys; those are given as ``of_`` and their name."""
    which = [table.c[key] == bindparam(f"of_{key}") for key in keys]
    new: dict[str, Any] = {
        column.name: bindparam(column.name) for column in table.c if column.name not in keys
    }
    return update(table).where(*which).values(new)


def _has_time(table: SqlTable) -> bool:
    return any(isinstance(column.type, DateTime) for column in table.c)


def ledger_entries(commit: Commit) -> Sequence[str]:
    """What a commit leaves in the ledger: its own id, and the work it was for."""
    return (own_entry(commit), *commit.ledger)


def own_entry(commit: Commit) -> str:
    """The entry by which a commit finds out whether it happened."""
    return f"{COMMIT_ENTRY}{commit.id}"


def directory_name(name: str, uuid: Any) -> str:
    """The directory of a schema or table, as the stock extension chooses it."""
    return f"{name}/" if _PLAIN.fullmatch(name) else f"{uuid}/"


def file_ids(commit: Commit) -> set[int]:
    """The data files that must be live for a commit."""
    ids: set[int] = set()
    for operation in commit.operations:
        match operation:
            case Delete(files=files, dropped=dropped):
                ids |= {file.data_file_id for file in files} | set(dropped)
            case Merge(sources=sources):
                ids |= set(sources)
    return ids


def needs_names(operations: Iterable[Any]) -> bool:
    """True if schemas and tables are created or dropped."""
    return any(
        isinstance(operation, CreateSchema | DropSchema | CreateTable | DropTable)
        for operation in operations
    )


def _default_type(column: Column) -> str:
    if column.children:
        return ""
    return DefaultKind.LITERAL.value if column.default is None else column.default.kind.value


def _column_stats(stats: TableColumnStats) -> dict[str, Any]:
    return {
        "column_id": stats.column_id,
        "contains_null": stats.contains_null,
        "contains_nan": stats.contains_nan,
        "min_value": stats.min,
        "max_value": stats.max,
        "extra_stats": stats.extra,
    }

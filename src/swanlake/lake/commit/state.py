"""What a commit must know of the catalog, read under the lock in as few queries as possible."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    ColumnElement,
    Executable,
    Row,
    any_,
    bindparam,
    func,
    literal_column,
    select,
    true,
    union_all,
)
from sqlalchemy import Table as SqlTable
from sqlalchemy import inspect as inspect_database
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from swanlake.errors import CatalogNotWritable, CommitConflict
from swanlake.lake.changes import parse_changes
from swanlake.lake.conflicts import Happened
from swanlake.lake.inlined_tables import deletes_table, inlined_table
from swanlake.lake.layout import folded
from swanlake.lake.options import StoredOptions, options_statement, stored_options
from swanlake.lake.stats import TableColumnStats
from swanlake.lake.store import CatalogStore, LockedTransaction, Question
from swanlake.lake.tables import FORMAT_VERSION, CatalogTables


@dataclass(frozen=True)
class Head:
    """The newest snapshot, and the id that was allocated for the one after it."""

    next_snapshot_id: int
    snapshot_id: int
    snapshot_time: datetime
    schema_version: int
    next_catalog_id: int
    next_file_id: int


@dataclass(frozen=True)
class LiveTable:
    """A table as it is now: where it is, and what is known of its rows."""

    id: int
    #: From the data path to the table's files, or whole if an ancestor's path is.
    path: str
    path_is_relative: bool
    has_stats: bool = False
    record_count: int = 0
    next_row_id: int = 0
    file_size_bytes: int = 0
    columns: dict[int, TableColumnStats] = field(default_factory=dict)
    #: Since when it has its name: whoever gives it another one writes nothing else of it.
    named_at: int = 0


class History:
    """The snapshots that were seen under one lock, and what each of them changed.

    Commits that are made together are each checked against what happened since they began, and that
    is mostly the same: it is read once, and then only what was added.
    """

    def __init__(self, base: int | None) -> None:
        self._base = base
        self._ids: list[int] = []
        #: What each snapshot changed, as it is written, until a commit asks for it: what cannot be
        #: read is in nobody's way who need not know it.
        self._changes: list[str | list[Happened]] = []

    def question(self, store: CatalogStore) -> Question:
        """Asks for the newest snapshot, and for all that it has not seen."""
        return _about_head(store, self._ids[-1] if self._ids else self._base)

    def add(self, rows: Sequence[Row[Any]]) -> None:
        """Takes the answer to its question."""
        for row in rows:
            if self._ids and row.snapshot_id <= self._ids[-1]:
                continue
            self._ids.append(row.snapshot_id)
            self._changes.append(row.changes_made or "")

    def after(self, base: int, catalog: str) -> list[Happened]:
        """What was committed after a snapshot; raises CommitConflict if that is not known."""
        _check_history(catalog, self._ids, base)
        places = range(bisect_right(self._ids, base), len(self._ids))
        return [happened for place in places for happened in self._at(place)]

    def _at(self, place: int) -> list[Happened]:
        changes = self._changes[place]
        if isinstance(changes, str):
            changes = [Happened(self._ids[place], change) for change in parse_changes(changes)]
            self._changes[place] = changes
        return changes


def questions(
    store: CatalogStore,
    history: History,
    table_ids: Sequence[int],
    inlining: Sequence[int] = (),
    *,
    names: bool = False,
    options: bool = False,
) -> list[Question]:
    """What a commit will ask in any case."""
    asked = [history.question(store)]
    if table_ids:
        asked.append(_about_tables(store.tables, table_ids))
    if inlining:
        asked.append(_about_inlining(store.tables, inlining))
    if names:
        asked += [_about_schemas(store.tables, None), _about_objects(store.tables, None)]
    if options:
        asked.append(_about_options(store.tables))
    return asked


def _about_head(store: CatalogStore, base: int | None) -> Question:
    statement = _head_statement(store.tables, store.next_snapshot_id, based=base is not None)
    return Question(statement, {} if base is None else {"base": base})


def _about_tables(tables: CatalogTables, ids: Sequence[int]) -> Question:
    return Question(_tables_statement(tables), {"ids": list(ids)})


def _about_inlining(tables: CatalogTables, ids: Sequence[int]) -> Question:
    return Question(_inlining_statement(tables), {"ids": list(ids)})


def _about_schemas(tables: CatalogTables, at: int | None) -> Question:
    return Question(_schemas_statement(tables, now=at is None), {} if at is None else {"at": at})


def _about_objects(tables: CatalogTables, at: int | None) -> Question:
    return Question(_objects_statement(tables, now=at is None), {} if at is None else {"at": at})


def _about_options(tables: CatalogTables) -> Question:
    return Question(options_statement(tables), {})


@lru_cache(maxsize=512)
def _head_statement(
    tables: CatalogTables, next_snapshot_id: ColumnElement[int], *, based: bool
) -> Executable:
    snapshot, changes, head = tables.snapshot, tables.snapshot_changes, tables.head
    newest = select(func.max(snapshot.c.snapshot_id)).scalar_subquery()
    metadata = tables.metadata
    version = (
        select(func.max(metadata.c.value))
        .where(metadata.c.key == "version", metadata.c.scope.is_(None))
        .scalar_subquery()
    )
    wanted = snapshot.c.snapshot_id == newest
    if based:
        # The newest in any case: a base may be newer than a catalog restored from a backup.
        wanted |= snapshot.c.snapshot_id >= bindparam("base")
    return (
        select(
            snapshot,
            changes.c.changes_made,
            head.c.snapshot_id.label("fenced"),
            version.label("version"),
            next_snapshot_id.label("next_snapshot_id"),
        )
        .join(changes, changes.c.snapshot_id == snapshot.c.snapshot_id, isouter=True)
        .join(head, true(), isouter=True)
        .where(wanted)
        .order_by(snapshot.c.snapshot_id)
    )


def read_head(transaction: LockedTransaction, store: CatalogStore, history: History) -> Head:
    """The head; the history then knows everything that was committed up to it."""
    rows = transaction.ask(history.question(store))
    if not rows:
        raise CatalogNotWritable(
            f"The catalog {store.name} has no snapshot at all: its metadata is damaged."
        )
    last = rows[-1]
    _check_fence(store.name, last)
    history.add(rows)
    return Head(
        last.next_snapshot_id,
        last.snapshot_id,
        last.snapshot_time,
        last.schema_version,
        last.next_catalog_id,
        last.next_file_id,
    )


def _check_fence(catalog: str, newest: Row[Any]) -> None:
    if newest.version != FORMAT_VERSION:
        raise CatalogNotWritable(
            f"The catalog {catalog} has the format {newest.version!r}; this version of SwanLake "
            f"writes {FORMAT_VERSION!r} and leaves others alone."
        )
    if newest.fenced == newest.snapshot_id:
        return
    if newest.fenced is None:
        reason = "its fence has no head"
    else:
        reason = (
            f"its fence stands at snapshot {newest.fenced} and the newest one is "
            f"{newest.snapshot_id}, so something wrote around the fence"
        )
    raise CatalogNotWritable(
        f"The catalog {catalog} refuses writes: {reason}. Look at it with `swanlake catalog check "
        f"{catalog}`; `swanlake catalog adopt {catalog}` puts the fence up again."
    )


def _check_history(catalog: str, ids: Sequence[int], base: int) -> None:
    """Snapshot ids have no gaps, so a missing one was expired: what it changed is unknown."""
    newest = ids[-1]
    if base > newest:
        raise CommitConflict(
            f"The commit is based on snapshot {base}, but the newest one of the catalog {catalog} "
            f"is {newest}; it may have been restored from a backup. Read again and repeat it."
        )
    known = ids[bisect_left(ids, base) :]
    if len(known) <= newest - base:
        missing = next(id for id in range(base, newest) if id not in set(known))
        raise CommitConflict(
            f"The commit is based on snapshot {base} of the catalog {catalog}, and snapshot "
            f"{missing} has been expired since, so it cannot be checked for conflicts up to "
            f"snapshot {newest}. Read again and repeat it; keep snapshots for longer than the "
            "longest transaction."
        )


class Among(ColumnElement[bool]):
    """True if the value of a column is in a list; the statement is the same for all lists."""

    inherit_cache = False
    type = Boolean()

    def __init__(self, member: ColumnElement[int], name: str) -> None:
        self.member = member
        self.name = name


@compiles(Among)
def _in_list(element: Among, compiler: SQLCompiler, **options: Any) -> str:
    listed = element.member.in_(bindparam(element.name, expanding=True))
    return compiler.process(listed, **options)


@compiles(Among, "postgresql")
def _in_array(element: Among, compiler: SQLCompiler, **options: Any) -> str:
    listed = element.member == any_(bindparam(element.name, type_=ARRAY(BigInteger())))
    return compiler.process(listed, **options)


@lru_cache(maxsize=256)
def _tables_statement(tables: CatalogTables) -> Executable:
    table, schema = tables.table, tables.schema
    stats, columns = tables.table_stats, tables.table_column_stats
    return (
        select(
            table.c.table_id,
            table.c.path,
            table.c.path_is_relative,
            table.c.begin_snapshot,
            schema.c.path.label("schema_path"),
            schema.c.path_is_relative.label("schema_is_relative"),
            stats.c.record_count,
            stats.c.next_row_id,
            stats.c.file_size_bytes,
            *(columns.c[name] for name in _COLUMN_STATS),
        )
        .join(schema, schema.c.schema_id == table.c.schema_id)
        .join(stats, stats.c.table_id == table.c.table_id, isouter=True)
        .join(columns, columns.c.table_id == table.c.table_id, isouter=True)
        .where(Among(table.c.table_id, "ids"))
        .where(table.c.end_snapshot.is_(None))
    )


def read_tables(
    transaction: LockedTransaction, tables: CatalogTables, ids: Sequence[int]
) -> dict[int, LiveTable]:
    """The tables with these ids that are live, with their statistics."""
    if not ids:
        return {}
    rows = transaction.ask(_about_tables(tables, ids))
    found: dict[int, LiveTable] = {}
    for row in rows:
        live = found.get(row.table_id)
        if live is None:
            relative = row.path_is_relative
            live = found[row.table_id] = LiveTable(
                id=row.table_id,
                path=(row.schema_path if relative else "") + row.path,
                path_is_relative=relative and row.schema_is_relative,
                named_at=row.begin_snapshot,
                has_stats=row.record_count is not None,
                record_count=row.record_count or 0,
                next_row_id=row.next_row_id or 0,
                file_size_bytes=row.file_size_bytes or 0,
            )
        if row.column_id is not None:
            live.columns[row.column_id] = TableColumnStats(
                row.column_id,
                row.contains_null,
                row.contains_nan,
                row.min_value,
                row.max_value,
                row.extra_stats,
            )
    return found


_COLUMN_STATS = (
    "column_id",
    "contains_null",
    "contains_nan",
    "min_value",
    "max_value",
    "extra_stats",
)


@lru_cache(maxsize=256)
def _inlining_statement(tables: CatalogTables) -> Executable:
    known, versions = tables.inlined_data_tables, tables.schema_versions
    altered = (
        select(func.max(versions.c.schema_version))
        .where(versions.c.table_id == known.c.table_id)
        .scalar_subquery()
    )
    newest = func.max(known.c.schema_version)
    return (
        select(known.c.table_id, newest.label("version"))
        .where(Among(known.c.table_id, "ids"))
        .group_by(known.c.table_id)
        .having(newest >= func.coalesce(altered, 0))
    )


def read_inlined_versions(
    transaction: LockedTransaction, tables: CatalogTables, ids: Sequence[int]
) -> dict[int, int]:
    """Of these tables those of whose columns, as they are now, the metadata can take rows.

    The version is that of the newest table of rows. The stock extension makes none when it alters a
    table without inlining, and rows of the new columns do not fit into the old one.
    """
    if not ids:
        return {}
    rows = transaction.ask(_about_inlining(tables, ids))
    return {row.table_id: row.version for row in rows}


def read_schemas(
    transaction: LockedTransaction, tables: CatalogTables, at: int | None = None
) -> dict[str, Row[Any]]:
    """The live schemas, or those of a snapshot, by name in lower case."""
    rows = transaction.ask(_about_schemas(tables, at))
    return {folded(row.schema_name): row for row in rows}


@lru_cache(maxsize=512)
def _schemas_statement(tables: CatalogTables, *, now: bool) -> Executable:
    return select(tables.schema).where(_seen(tables.schema, now=now))


def read_objects(
    transaction: LockedTransaction, tables: CatalogTables, at: int | None = None
) -> dict[tuple[int, str], tuple[str, int]]:
    """The tables and views as they are, or were: (schema id, name in lower case) to (kind, id)."""
    rows = transaction.ask(_about_objects(tables, at))
    return {(row.schema_id, folded(row.name)): (row.kind, row.id) for row in rows}


@lru_cache(maxsize=512)
def _objects_statement(tables: CatalogTables, *, now: bool) -> Executable:
    table, view = tables.table, tables.view
    return union_all(
        select(table.c.schema_id, table.c.table_name.label("name"), table.c.table_id.label("id"))
        .add_columns(literal_column("'table'").label("kind"))
        .where(_seen(table, now=now)),
        select(view.c.schema_id, view.c.view_name, view.c.view_id)
        .add_columns(literal_column("'view'"))
        .where(_seen(view, now=now)),
    )


def read_options(transaction: LockedTransaction, tables: CatalogTables) -> StoredOptions:
    """All options of the catalog."""
    return stored_options(transaction.ask(_about_options(tables)))


def read_macros(
    transaction: LockedTransaction, tables: CatalogTables
) -> list[tuple[int, int, str]]:
    """The live macros: schema id, macro id, and ``scalar`` or ``table``."""
    macro, body = tables.macro, tables.macro_impl
    rows = transaction.read(
        select(macro.c.schema_id, macro.c.macro_id, body.c.type)
        .join(body, body.c.macro_id == macro.c.macro_id)
        .where(_seen(macro, now=True))
        .distinct()
    )
    return [(row.schema_id, row.macro_id, row.type) for row in rows]


def _seen(table: SqlTable, *, now: bool) -> ColumnElement[bool]:
    """Rows that are live, or that were at a snapshot."""
    if now:
        return table.c.end_snapshot.is_(None)
    at = bindparam("at", type_=BigInteger())
    return (table.c.begin_snapshot <= at) & (
        table.c.end_snapshot.is_(None) | (table.c.end_snapshot > at)
    )


def read_touched_files(
    transaction: LockedTransaction, tables: CatalogTables, table_id: int, base: int
) -> set[int]:
    """The data files of a table from which anybody deleted rows, or which ended, since the base."""
    data, deletes = tables.data_file, tables.delete_file
    rows = transaction.read(
        union_all(
            select(data.c.data_file_id).where(
                data.c.table_id == table_id, data.c.end_snapshot > base
            ),
            # A delete file that was replaced keeps its begin; only its partial_max moves.
            select(deletes.c.data_file_id).where(
                deletes.c.table_id == table_id,
                (deletes.c.begin_snapshot > base)
                | (deletes.c.partial_max > base)
                | (deletes.c.end_snapshot > base),
            ),
        )
    )
    return {row.data_file_id for row in rows} | read_inlined_deletes(
        transaction, tables, table_id, base
    )


def read_inlined_deletes(
    transaction: LockedTransaction, tables: CatalogTables, table_id: int, base: int = -1
) -> set[int]:
    """The data files from which rows were deleted since the base by deletes that are inlined."""
    inlined = deletes_table(tables, table_id)
    if not inspect_database(transaction.connection).has_table(inlined.name, inlined.schema):
        return set()
    rows = transaction.read(
        select(inlined.c.file_id).distinct().where(inlined.c.begin_snapshot > base)
    )
    return {row.file_id for row in rows}


def read_files(
    transaction: LockedTransaction, tables: CatalogTables, ids: Sequence[int]
) -> tuple[dict[int, Row[Any]], dict[int, int]]:
    """Of these data files the live ones, and their live delete files (data file id to its id)."""
    if not ids:
        return {}, {}
    data, deletes = tables.data_file, tables.delete_file
    rows = transaction.read(
        select(data, deletes.c.delete_file_id)
        .join(
            deletes,
            (deletes.c.data_file_id == data.c.data_file_id) & deletes.c.end_snapshot.is_(None),
            isouter=True,
        )
        .where(data.c.data_file_id.in_(ids), data.c.end_snapshot.is_(None))
    )
    return (
        {row.data_file_id: row for row in rows},
        {row.data_file_id: row.delete_file_id for row in rows if row.delete_file_id is not None},
    )


def read_delete_files(
    transaction: LockedTransaction, tables: CatalogTables, ids: Sequence[int]
) -> list[Row[Any]]:
    """All delete files of these data files, those that have ended included."""
    deletes = tables.delete_file
    return list(transaction.read(select(deletes).where(deletes.c.data_file_id.in_(ids))))


def count_inlined_rows(
    transaction: LockedTransaction, tables: CatalogTables, name: str, base: int
) -> int:
    """How many rows a table of the metadata holds that were there at the base; 0 if it is gone."""
    if not inspect_database(transaction.connection).has_table(name, schema=tables.schema_name):
        return 0
    inlined = inlined_table(tables, name)
    counted = select(func.count()).select_from(inlined).where(inlined.c.begin_snapshot <= base)
    return int(transaction.read(counted)[0][0])

"""Removes old snapshots, and the metadata that only they could see.

The removed rows are those that the stock extension's ``ducklake_expire_snapshots`` removes. Files
are not deleted: they are listed for a clean-up, which waits until no fork can see them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    MetaData,
    Row,
    column,
    delete,
    func,
    insert,
    inspect,
    or_,
    select,
    tuple_,
)
from sqlalchemy import Table as SqlTable
from sqlalchemy import table as lightweight_table
from sqlalchemy.schema import DropTable

from swanlake.lake.files.inlined_tables import deletes_name
from swanlake.lake.lifecycle import clock
from swanlake.lake.lifecycle.retention import RetainedSnapshots, check_rule, select_expired
from swanlake.lake.metastore.store import CatalogStore
from swanlake.lake.metastore.tables import batches
from swanlake.lake.read import metadata
from swanlake.lake.read.metadata import Snapshot

_LOCK_SECONDS = 60.0
#: The wait for readers of a table that is to be dropped; all commits wait meanwhile.
_READER_WAIT_SECONDS = 5
_MAX_PARAMETERS = 10_000

_SNAPSHOT_TABLES = ("snapshot", "snapshot_changes")
#: Tables whose rows belong to a data file.
_DATA_FILE_TABLES = ("data_file", "file_column_stats", "file_variant_stats", "file_partition_value")
#: Tables whose rows belong to a table, and go when no snapshot can see the table.
_TABLE_TABLES = (
    "table",
    "table_stats",
    "table_column_stats",
    "partition_info",
    "partition_column",
    "column",
    "column_tag",
    "sort_info",
    "sort_expression",
    "schema_versions",
    "inlined_data_tables",
    "column_mapping",
)
#: Tables whose rows go when no snapshot can see them.
_VERSIONED_TABLES = ("schema", "view", "tag", "macro")


@dataclass(frozen=True)
class FreedFile:
    """A file that no remaining snapshot needs."""

    id: int
    path: str
    size: int


@dataclass(frozen=True)
class ExpireReport:
    """What an expiry removed, or would remove."""

    catalog: str
    dry_run: bool
    #: The expired ones, oldest first.
    snapshots: tuple[Snapshot, ...] = ()
    #: How many remain.
    kept: int = 0
    #: The data files, then the files of deleted rows, each by id.
    files: tuple[FreedFile, ...] = ()
    #: Dropped tables that no snapshot can see: ``schema.name``.
    tables: tuple[str, ...] = ()
    #: The removed rows by metadata table, named without the prefix.
    rows: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The size of the files, as the catalog knows it."""
        return sum(file.size for file in self.files)


def expire(
    store: CatalogStore,
    older_than: timedelta | datetime | None,
    keep_last: int | None,
    *,
    dry_run: bool,
) -> ExpireReport:
    """Removes old snapshots and the rows that only they could see, in one transaction."""
    check_rule(older_than, keep_last)

    def plan(connection: Connection) -> _Expiry:
        known = metadata.snapshots(connection, store.tables)
        now = clock.earlier_now(connection)
        return _Expiry(store, connection, known, select_expired(known, now, older_than, keep_last))

    if dry_run:
        with store.connect() as connection:
            return plan(connection).report(dry_run=True)
    with store.locked(time.monotonic() + _LOCK_SECONDS) as transaction:
        expiry = plan(transaction.connection)
        if not expiry.gone:
            return expiry.report(dry_run=True)
        store.reached("planned")
        store.set_lock_timeout(transaction.connection, _READER_WAIT_SECONDS)
        report = expiry.report(dry_run=False)
        store.reached("written")
        transaction.connection.commit()
        store.reached("committed")
        return report


@dataclass(frozen=True)
class _Removal:
    """Rows to remove from a table: those that meet one of the conditions."""

    #: The table, or kind of table, in the report.
    name: str
    table: SqlTable
    conditions: Sequence[ColumnElement[bool]]


class _Expiry:
    """One expiry on one connection: reads everything first, then removes."""

    def __init__(
        self,
        store: CatalogStore,
        connection: Connection,
        known: Sequence[Snapshot],
        gone: Sequence[Snapshot],
    ) -> None:
        self._store = store
        self._tables = store.tables
        self._connection = connection
        self.gone = gone
        self._retained = RetainedSnapshots(
            {snapshot.id for snapshot in known} - {snapshot.id for snapshot in gone}
        )

    def report(self, *, dry_run: bool) -> ExpireReport:
        """Removes what expires, unless this is a dry run, and reports it."""
        if not self.gone:
            return ExpireReport(self._store.name, dry_run, kept=len(self._retained))
        dead = self._dead_tables()
        data = self._dead_data_files(dead)
        deletes = self._dead_delete_files(dead, {file.id for file in data})
        removals = self._removals(dead, data, deletes)
        inlined = self._dead_inlined(dead, {file.id for file in data})
        unneeded = self._inlined_tables(dead)
        if dry_run:
            rows = self._apply(self._count, [*removals, *inlined])
        else:
            rows = self._apply(self._delete, removals) | self._apply(self._reclaim, inlined)
            self._schedule([*data, *deletes])
            self._drop(unneeded)
        return ExpireReport(
            self._store.name,
            dry_run,
            tuple(self.gone),
            len(self._retained),
            (*data, *deletes),
            tuple(sorted(dead.values())),
            rows,
        )

    def _dead_tables(self) -> dict[int, str]:
        """The tables that no remaining snapshot sees, with their last names."""
        table, schema = self._tables.table, self._tables.schema
        rows = self._rows(
            select(
                table.c.table_id,
                table.c.begin_snapshot,
                table.c.end_snapshot,
                table.c.table_name,
                schema.c.schema_name,
            )
            .join(schema, schema.c.schema_id == table.c.schema_id, isouter=True)
            .order_by(table.c.begin_snapshot)
        )
        names = {row.table_id: f"{row.schema_name}.{row.table_name}" for row in rows}
        needed = {row.table_id for row in rows if not self._is_dead(row)}
        return {id: name for id, name in names.items() if id not in needed}

    def _dead_data_files(self, dead: dict[int, str]) -> list[FreedFile]:
        data, table = self._tables.data_file, self._tables.table
        ended = select(table.c.table_id).where(table.c.end_snapshot.is_not(None))
        rows = self._rows(
            select(data)
            .where(or_(data.c.end_snapshot.is_not(None), data.c.table_id.in_(ended)))
            .order_by(data.c.data_file_id)
        )
        gone = [row for row in rows if row.table_id in dead or self._is_dead(row)]
        return self._located("data_file_id", gone)

    def _dead_delete_files(self, dead: dict[int, str], files: set[int]) -> list[FreedFile]:
        deletes, data, table = self._tables.delete_file, self._tables.data_file, self._tables.table
        ended = select(table.c.table_id).where(table.c.end_snapshot.is_not(None))
        # When a whole data file is deleted, only the file itself is marked as ended.
        rows = self._rows(
            select(deletes)
            .join(data, data.c.data_file_id == deletes.c.data_file_id, isouter=True)
            .where(
                or_(
                    deletes.c.end_snapshot.is_not(None),
                    data.c.end_snapshot.is_not(None),
                    deletes.c.table_id.in_(ended),
                )
            )
            .order_by(deletes.c.delete_file_id)
        )
        gone = [
            row
            for row in rows
            if row.table_id in dead or row.data_file_id in files or self._is_dead(row)
        ]
        return self._located("delete_file_id", gone)

    def _located(self, id: str, rows: Sequence[Row[Any]]) -> list[FreedFile]:
        prefixes = metadata.table_directories(self._connection, self._tables) if rows else {}
        return [
            FreedFile(
                getattr(row, id), metadata.absolute_path(row, prefixes), row.file_size_bytes or 0
            )
            for row in rows
        ]

    def _removals(
        self, dead: dict[int, str], data: Sequence[FreedFile], deletes: Sequence[FreedFile]
    ) -> list[_Removal]:
        tables = self._tables
        snapshots = [snapshot.id for snapshot in self.gone]
        files = [file.id for file in data]
        return [
            *(_by(getattr(tables, name), "snapshot_id", snapshots) for name in _SNAPSHOT_TABLES),
            *(_by(getattr(tables, name), "data_file_id", files) for name in _DATA_FILE_TABLES),
            _by(tables.delete_file, "delete_file_id", [file.id for file in deletes]),
            *(_by(getattr(tables, name), "table_id", list(dead)) for name in _TABLE_TABLES),
            *(self._dead_versions(getattr(tables, name)) for name in _VERSIONED_TABLES),
            *self._dead_macros(),
            self._dead_mappings(dead),
        ]

    def _dead_versions(self, table: SqlTable) -> _Removal:
        life = (table.c.begin_snapshot, table.c.end_snapshot)
        rows = self._rows(select(*life).where(table.c.end_snapshot.is_not(None)).distinct())
        lives = [(row.begin_snapshot, row.end_snapshot) for row in rows if self._is_dead(row)]
        return _Removal(
            _short(table),
            table,
            [tuple_(*life).in_(batch) for batch in batches(lives, _MAX_PARAMETERS)],
        )

    def _dead_macros(self) -> list[_Removal]:
        macro = self._tables.macro
        rows = self._rows(select(macro.c.macro_id, macro.c.begin_snapshot, macro.c.end_snapshot))
        living = {row.macro_id for row in rows if not self._is_dead(row)}
        return [
            self._without(table, "macro_id", living)
            for table in (self._tables.macro_impl, self._tables.macro_parameters)
        ]

    def _dead_mappings(self, dead: dict[int, str]) -> _Removal:
        mapping = self._tables.column_mapping
        rows = self._rows(select(mapping.c.mapping_id, mapping.c.table_id))
        living = {row.mapping_id for row in rows if row.table_id not in dead}
        return self._without(self._tables.name_mapping, "mapping_id", living)

    def _without(self, table: SqlTable, name: str, living: set[int]) -> _Removal:
        """Rows whose owner is not among the living ones."""
        rows = self._rows(select(table.c[name]).distinct())
        return _by(table, name, sorted({row[0] for row in rows} - living))

    def _inlined_tables(self, dead: dict[int, str]) -> list[str]:
        """The inlined tables, of rows and of deletes, of dropped tables."""
        inlined = self._tables.inlined_data_tables
        rows = self._rows(select(inlined.c.table_id, inlined.c.table_name))
        names = [row.table_name for row in rows if row.table_id in dead]
        return [*names, *(deletes_name(id) for id in dead)]

    def _dead_inlined(self, dead: dict[int, str], files: set[int]) -> list[_Removal]:
        """Inlined rows and deletes that no snapshot sees; the stock extension never removes them.

        Rows that ended *at* the oldest snapshot stay: its change feed shows them.
        """
        schema = self._tables.schema_name
        present = set(inspect(self._connection).get_table_names(schema=schema))
        found = []
        inlined, data = self._tables.inlined_data_tables, self._tables.data_file
        for row in self._rows(select(inlined.c.table_id, inlined.c.table_name)):
            if row.table_id not in dead and row.table_name in present:
                table = _inlined(row.table_name, "end_snapshot", schema)
                ended = table.c.end_snapshot < self._retained.oldest
                found.append(_Removal("inlined_data", table, [ended]))
        for row in self._rows(select(self._tables.table.c.table_id).distinct()):
            if row.table_id not in dead and deletes_name(row.table_id) in present:
                table = _inlined(deletes_name(row.table_id), "file_id", schema)
                known = self._rows(
                    select(data.c.data_file_id).where(data.c.table_id == row.table_id)
                )
                living = {each.data_file_id for each in known} - files
                gone = self._without(table, "file_id", living)
                found.append(_Removal("inlined_delete", table, gone.conditions))
        return found

    def _is_dead(self, row: Row[Any]) -> bool:
        return not self._retained.can_see(row.begin_snapshot, row.end_snapshot)

    def _rows(self, statement: Any) -> Sequence[Row[Any]]:
        return self._connection.execute(statement).all()

    def _apply(
        self, act: Callable[[SqlTable, ColumnElement[bool]], int], removals: Sequence[_Removal]
    ) -> dict[str, int]:
        """The number of rows by table, without zeros."""
        rows: dict[str, int] = defaultdict(int)
        for removal in removals:
            for condition in removal.conditions:
                rows[removal.name] += act(removal.table, condition)
        return {name: number for name, number in rows.items() if number}

    def _count(self, table: SqlTable, condition: ColumnElement[bool]) -> int:
        rows = select(func.count()).select_from(table).where(condition)
        return int(self._connection.execute(rows).scalar_one())

    def _delete(self, table: SqlTable, condition: ColumnElement[bool]) -> int:
        return self._connection.execute(delete(table).where(condition)).rowcount

    def _reclaim(self, table: SqlTable, condition: ColumnElement[bool]) -> int:
        # A flush has these rows locked and needs the commit lock that is held here.
        return self._connection.execute(self._store.delete_unlocked(table, condition)).rowcount

    def _schedule(self, files: Sequence[FreedFile]) -> None:
        if not files:
            return
        data_path = metadata.read_catalog_option(self._connection, self._tables, "data_path") or ""
        now = clock.later_now(self._connection)
        rows = [
            {
                "data_file_id": file.id,
                "path": file.path.removeprefix(data_path),
                "path_is_relative": file.path.startswith(data_path),
                "schedule_start": now,
            }
            for file in files
        ]
        self._connection.execute(insert(self._tables.files_scheduled_for_deletion), rows)

    def _drop(self, names: Iterable[str]) -> None:
        for name in names:
            table = SqlTable(name, MetaData(), schema=self._tables.schema_name)
            self._connection.execute(DropTable(table, if_exists=True))


def _by(table: SqlTable, name: str, keys: Sequence[int]) -> _Removal:
    """The rows whose column has one of the keys."""
    conditions = [table.c[name].in_(batch) for batch in batches(keys, _MAX_PARAMETERS)]
    return _Removal(_short(table), table, conditions)


def _short(table: SqlTable) -> str:
    return table.name.removeprefix("ducklake_")


def _inlined(name: str, column_name: str, schema: str | None) -> Any:
    return lightweight_table(name, column(column_name), schema=schema)

"""Snapshots that nobody will travel to any more, and what only they could see.

The rows that go are those that the stock extension's ``ducklake_expire_snapshots`` removes. Files
are not deleted here: they go on the list of the catalog, or wait for its forks, until a clean-up.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
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

from swanlake.errors import InvalidRequest
from swanlake.lake import clock, reading
from swanlake.lake.reading import Snapshot
from swanlake.lake.store import CatalogStore
from swanlake.lake.tables import CatalogTables

_LOCK_SECONDS = 60.0
#: Whoever reads a table that is to be dropped is waited for this long; all commits wait meanwhile.
_READERS_SECONDS = 5
#: Databases limit how many parameters a statement takes.
_AT_ONCE = 10_000

_OF_SNAPSHOTS = ("snapshot", "snapshot_changes")
#: Tables whose rows belong to a data file.
_OF_DATA_FILES = ("data_file", "file_column_stats", "file_variant_stats", "file_partition_value")
#: Tables whose rows belong to a table, and go when no snapshot can see it under any name.
_OF_TABLES = (
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
#: Tables whose rows go one by one, when no snapshot can see them.
_BY_THEMSELVES = ("schema", "view", "tag", "macro")


def expired(
    snapshots: Iterable[Snapshot],
    now: datetime,
    older_than: timedelta | datetime | None,
    keep_last: int | None,
) -> list[Snapshot]:
    """The snapshots that may go, oldest first; the newest one never does.

    With both an age and a number, one goes only if it is older *and* not among the last so many.
    With neither, none does.
    """
    if older_than is None and keep_last is None:
        return []
    ordered = sorted(snapshots, key=lambda snapshot: snapshot.id)
    candidates = ordered[: -max(1, keep_last or 1)]
    if older_than is None:
        return candidates
    before = older_than if isinstance(older_than, datetime) else clock.before(now, older_than)
    return [snapshot for snapshot in candidates if snapshot.time < before]


def check_rule(older_than: timedelta | datetime | None, keep_last: int | None) -> None:
    """Raises InvalidRequest for a rule that says nothing, or something impossible."""
    if older_than is None and keep_last is None:
        raise InvalidRequest("Say which snapshots may go: by age, by how many to keep, or both.")
    if keep_last is not None and keep_last < 1:
        raise InvalidRequest(
            f"Cannot keep the last {keep_last} snapshots: the newest one always stays."
        )
    if isinstance(older_than, datetime) and older_than.tzinfo is None:
        raise InvalidRequest(f"The time {older_than} has no time zone.")


class FileKind(Enum):
    """What is in a file of the lake."""

    DATA = "data"
    DELETES = "deletes"


@dataclass(frozen=True)
class FreedFile:
    """A file that no kept snapshot needs."""

    id: int
    kind: FileKind
    path: str
    size: int


@dataclass(frozen=True)
class ExpireReport:
    """What an expiry did, or would do."""

    catalog: str
    dry_run: bool
    #: Those that go, oldest first.
    snapshots: tuple[Snapshot, ...] = ()
    #: How many stay.
    kept: int = 0
    #: The data files, then the files of deleted rows, each by id.
    files: tuple[FreedFile, ...] = ()
    #: The dropped tables that no snapshot can see any more: ``schema.name``.
    tables: tuple[str, ...] = ()
    #: How many rows go from each table of the metadata, by its name without the prefix.
    rows: dict[str, int] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """The size of the files, as the catalog knows it."""
        return sum(file.size for file in self.files)


class Kept:
    """The snapshots that stay, asked whether one of them can see a row."""

    def __init__(self, ids: Iterable[int]) -> None:
        self._ids = sorted(ids)

    def need(self, begin: int, end: int | None) -> bool:
        """True if a row that lives from ``begin`` until ``end`` is seen by one of them."""
        if end is None:
            return True
        first = bisect_left(self._ids, begin)
        return first < len(self._ids) and self._ids[first] < end

    @property
    def oldest(self) -> int:
        return self._ids[0]

    def __len__(self) -> int:
        return len(self._ids)


def expire(
    store: CatalogStore,
    older_than: timedelta | datetime | None,
    keep_last: int | None,
    *,
    dry_run: bool,
) -> ExpireReport:
    """Removes old snapshots and the rows that only they could see, in one transaction."""
    check_rule(older_than, keep_last)

    def begin(connection: Connection) -> _Expiry:
        known = reading.snapshots(connection, store.tables)
        now = clock.no_later(connection)
        return _Expiry(store, connection, known, expired(known, now, older_than, keep_last))

    if dry_run:
        with store.connect() as connection:
            return begin(connection).report(dry_run=True)
    with store.locked(time.monotonic() + _LOCK_SECONDS) as transaction:
        expiry = begin(transaction.connection)
        if not expiry.gone:
            return expiry.report(dry_run=True)
        store.reached("planned")
        store.wait_at_most(transaction.connection, _READERS_SECONDS)
        report = expiry.report(dry_run=False)
        store.reached("written")
        transaction.connection.commit()
        store.reached("committed")
        return report


@dataclass(frozen=True)
class _Removal:
    """Rows that go from a table: all that fulfil one of the conditions."""

    #: The table, or the kind of table, as reports call it.
    name: str
    table: SqlTable
    conditions: Sequence[ColumnElement[bool]]


class _Expiry:
    """One expiry, as seen through one connection: first all is read, then all is removed."""

    def __init__(
        self,
        store: CatalogStore,
        connection: Connection,
        known: Sequence[Snapshot],
        gone: Sequence[Snapshot],
    ) -> None:
        self._store = store
        self._tables: CatalogTables = store.tables
        self._connection = connection
        self.gone = gone
        self._kept = Kept({snapshot.id for snapshot in known} - {snapshot.id for snapshot in gone})

    def report(self, *, dry_run: bool) -> ExpireReport:
        """What goes; it has gone then, unless this is a dry run."""
        if not self.gone:
            return ExpireReport(self._store.name, dry_run, kept=len(self._kept))
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
            len(self._kept),
            (*data, *deletes),
            tuple(sorted(dead.values())),
            rows,
        )

    # ---- what goes -----------------------------------------------------------------------------

    def _dead_tables(self) -> dict[int, str]:
        """The tables that no kept snapshot sees under any of their names, with the last of them."""
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
        needed = {
            row.table_id for row in rows if self._kept.need(row.begin_snapshot, row.end_snapshot)
        }
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
        return self._located(FileKind.DATA, "data_file_id", gone)

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
        return self._located(FileKind.DELETES, "delete_file_id", gone)

    def _located(self, kind: FileKind, id: str, rows: Sequence[Row[Any]]) -> list[FreedFile]:
        prefixes = reading.directories(self._connection, self._tables) if rows else {}
        return [
            FreedFile(
                getattr(row, id), kind, reading.whole_path(row, prefixes), row.file_size_bytes or 0
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
            *(_by(getattr(tables, name), "snapshot_id", snapshots) for name in _OF_SNAPSHOTS),
            *(_by(getattr(tables, name), "data_file_id", files) for name in _OF_DATA_FILES),
            _by(tables.delete_file, "delete_file_id", [file.id for file in deletes]),
            *(_by(getattr(tables, name), "table_id", list(dead)) for name in _OF_TABLES),
            *(self._dead_versions(getattr(tables, name)) for name in _BY_THEMSELVES),
            *self._dead_macros(),
            self._dead_mappings(dead),
        ]

    def _dead_versions(self, table: SqlTable) -> _Removal:
        life = (table.c.begin_snapshot, table.c.end_snapshot)
        rows = self._rows(select(*life).where(table.c.end_snapshot.is_not(None)).distinct())
        lives = [(row.begin_snapshot, row.end_snapshot) for row in rows if self._is_dead(row)]
        return _Removal(_short(table), table, [tuple_(*life).in_(some) for some in _batches(lives)])

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
        """Rows that belong to something that is not there."""
        rows = self._rows(select(table.c[name]).distinct())
        return _by(table, name, sorted({row[0] for row in rows} - living))

    # ---- rows that are kept in the metadata itself ---------------------------------------------

    def _inlined_tables(self, dead: dict[int, str]) -> list[str]:
        """The tables of rows, and of deletes, that dropped tables leave behind."""
        inlined = self._tables.inlined_data_tables
        rows = self._rows(select(inlined.c.table_id, inlined.c.table_name))
        names = [row.table_name for row in rows if row.table_id in dead]
        return [*names, *(_deletes_of(id) for id in dead)]

    def _dead_inlined(self, dead: dict[int, str], files: set[int]) -> list[_Removal]:
        """Inlined rows and deletes that no reader can find any more; the stock extension keeps all.

        Rows that ended *at* the oldest snapshot are still in its feed of changes, and so stay.
        """
        schema = self._tables.schema_name
        present = set(inspect(self._connection).get_table_names(schema=schema))
        found = []
        inlined, data = self._tables.inlined_data_tables, self._tables.data_file
        for row in self._rows(select(inlined.c.table_id, inlined.c.table_name)):
            if row.table_id not in dead and row.table_name in present:
                table = _inlined(row.table_name, "end_snapshot", schema)
                ended = table.c.end_snapshot < self._kept.oldest
                found.append(_Removal("inlined_data", table, [ended]))
        for row in self._rows(select(self._tables.table.c.table_id).distinct()):
            if row.table_id not in dead and _deletes_of(row.table_id) in present:
                table = _inlined(_deletes_of(row.table_id), "file_id", schema)
                known = self._rows(
                    select(data.c.data_file_id).where(data.c.table_id == row.table_id)
                )
                living = {each.data_file_id for each in known} - files
                gone = self._without(table, "file_id", living)
                found.append(_Removal("inlined_delete", table, gone.conditions))
        return found

    # ---- reading and removing ------------------------------------------------------------------

    def _is_dead(self, row: Row[Any]) -> bool:
        return not self._kept.need(row.begin_snapshot, row.end_snapshot)

    def _rows(self, statement: Any) -> Sequence[Row[Any]]:
        return self._connection.execute(statement).all()

    def _apply(
        self, act: Callable[[SqlTable, ColumnElement[bool]], int], removals: Sequence[_Removal]
    ) -> dict[str, int]:
        """How many rows each table loses, those that lose none left out."""
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
        # Whoever flushes these rows has them locked, and needs the lock that we hold.
        return self._connection.execute(self._store.delete_unlocked(table, condition)).rowcount

    def _schedule(self, files: Sequence[FreedFile]) -> None:
        if not files:
            return
        data_path = reading.property_of(self._connection, self._tables, "data_path") or ""
        now = clock.no_earlier(self._connection)
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
    """The rows in whose column is one of the keys."""
    return _Removal(_short(table), table, [table.c[name].in_(some) for some in _batches(keys)])


def _batches(keys: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(keys), _AT_ONCE):
        yield keys[start : start + _AT_ONCE]


def _short(table: SqlTable) -> str:
    return table.name.removeprefix("ducklake_")


def _deletes_of(table_id: int) -> str:
    return f"ducklake_inlined_delete_{table_id}"


def _inlined(name: str, of_interest: str, schema: str | None) -> Any:
    return lightweight_table(name, column(of_interest), schema=schema)

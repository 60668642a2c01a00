"""Numbers about a catalog and its tables, cheap enough to read every few minutes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Connection, func, literal, literal_column, select
from sqlalchemy import case as when
from sqlalchemy import inspect as inspect_database
from sqlalchemy import table as lightweight_table

from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.layout import TableOptions
from swanlake.lake.model.options import read_options
from swanlake.lake.read import metadata

_INLINED_DELETES = "ducklake_inlined_delete_"


@dataclass(frozen=True)
class TableSurvey:
    """The size of a table, in files and rows."""

    id: int
    schema: str
    name: str
    files: int = 0
    small_files: int = 0
    #: In files, deleted ones included.
    rows: int = 0
    #: Of the rows in files.
    deleted_rows: int = 0
    #: Deleted ones included.
    inlined_rows: int = 0
    #: Of the files.
    bytes: int = 0
    options: TableOptions = field(default_factory=TableOptions)

    @property
    def full_name(self) -> str:
        """``schema.table``"""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class CatalogSurvey:
    """Tables, snapshots, and files that wait for deletion."""

    tables: tuple[TableSurvey, ...] = ()
    snapshots: int = 1
    oldest_snapshot: datetime | None = None
    #: Files listed for deletion, or that only a fork may need, and the oldest of them.
    unneeded_files: int = 0
    unneeded_since: datetime | None = None


def survey(
    connection: Connection, tables: CatalogTables, target_file_size: int, small_file_ratio: float
) -> CatalogSurvey:
    """The numbers of a catalog; a file below that fraction of the target size is small.

    A table's own option overrides the target size.
    """
    snapshot = tables.snapshot
    oldest = connection.execute(
        select(snapshot.c.snapshot_time).order_by(snapshot.c.snapshot_id).limit(1)
    ).scalar()
    count = connection.execute(select(func.count()).select_from(snapshot)).scalar_one()
    unneeded, since = _unneeded(connection, tables)
    found = _tables(connection, tables, target_file_size, small_file_ratio)
    return CatalogSurvey(found, int(count), oldest, unneeded, since)


def _tables(
    connection: Connection, tables: CatalogTables, target_file_size: int, small_file_ratio: float
) -> tuple[TableSurvey, ...]:
    newest = metadata.newest_snapshot(connection, tables)
    live = connection.execute(metadata.live_tables(tables, newest)).all()
    stored = read_options(connection, tables)
    options = {row.table_id: stored.table_options(row.schema_id, row.table_id) for row in live}
    data, deletes = tables.data_file, tables.delete_file
    small = int(small_file_ratio * target_file_size)
    own = {
        table_id: int(small_file_ratio * each.target_file_size)
        for table_id, each in options.items()
        if each.target_file_size
    }
    small_bytes = when(own, value=data.c.table_id, else_=small) if own else literal(small)
    files = {
        row.table_id: row
        for row in connection.execute(
            select(
                data.c.table_id,
                func.count().label("files"),
                func.sum(when((data.c.file_size_bytes < small_bytes, 1), else_=0)).label("small"),
                func.sum(data.c.record_count).label("rows"),
                func.sum(data.c.file_size_bytes).label("bytes"),
            )
            .where(data.c.end_snapshot.is_(None))
            .group_by(data.c.table_id)
        )
    }
    in_files = connection.execute(
        select(deletes.c.table_id, func.sum(deletes.c.delete_count))
        .where(deletes.c.end_snapshot.is_(None))
        .group_by(deletes.c.table_id)
    ).all()
    deleted = _inlined_deletes(connection, tables)
    deleted.update({table_id: int(rows) for table_id, rows in in_files})
    inlined = _inlined_rows(connection, tables)
    found = []
    for row in live:
        totals = files.get(row.table_id)
        found.append(
            TableSurvey(
                row.table_id,
                row.schema_name,
                row.table_name,
                int(totals.files) if totals else 0,
                int(totals.small) if totals else 0,
                int(totals.rows or 0) if totals else 0,
                deleted[row.table_id],
                inlined[row.table_id],
                int(totals.bytes or 0) if totals else 0,
                options[row.table_id],
            )
        )
    return tuple(sorted(found, key=lambda table: table.full_name))


def _inlined_rows(connection: Connection, tables: CatalogTables) -> Counter[int]:
    known = tables.inlined_data_tables
    found: Counter[int] = Counter()
    for row in connection.execute(select(known.c.table_id, known.c.table_name)).all():
        found[row.table_id] += _count(connection, tables, row.table_name)
    return found


def _inlined_deletes(connection: Connection, tables: CatalogTables) -> Counter[int]:
    found: Counter[int] = Counter()
    for name in inspect_database(connection).get_table_names(schema=tables.schema_name):
        table_id = name.removeprefix(_INLINED_DELETES)
        if table_id != name and table_id.isdecimal():
            found[int(table_id)] = _count(connection, tables, name)
    return found


def _count(connection: Connection, tables: CatalogTables, name: str) -> int:
    counted = lightweight_table(name, schema=tables.schema_name)
    query = select(func.count(literal_column("*"))).select_from(counted)
    return int(connection.execute(query).scalar_one())


def _unneeded(connection: Connection, tables: CatalogTables) -> tuple[int, datetime | None]:
    scheduled, deferred = tables.files_scheduled_for_deletion, tables.swanlake_deferred_file
    rows = [
        connection.execute(
            select(func.count().label("files"), func.min(since).label("since")).select_from(listed)
        ).one()
        for listed, since in ((scheduled, scheduled.c.schedule_start), (deferred, deferred.c.since))
    ]
    times = [row.since for row in rows if row.since is not None]
    return sum(row.files for row in rows), min(times, default=None)

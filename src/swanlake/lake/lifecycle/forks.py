"""Forks: a new catalog over the files of another, without copying a file.

The parent's metadata is copied with its history, and file paths become absolute. The fork then
writes under its own data path; neither catalog sees the other's later commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    MetaData,
    Row,
    bindparam,
    case,
    insert,
    null,
    or_,
    select,
    true,
    union,
    update,
)
from sqlalchemy import Table as SqlTable
from sqlalchemy import inspect as inspect_database
from sqlalchemy.sql.expression import false

from swanlake.errors import NotFound
from swanlake.lake.files.inlined_tables import deletes_name
from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.read.metadata import table_directories

#: Tables whose rows belong to a row of another table: the column, and that table.
_DETAILS = {
    "file_column_stats": ("data_file_id", "data_file"),
    "file_variant_stats": ("data_file_id", "data_file"),
    "file_partition_value": ("data_file_id", "data_file"),
    "table_stats": ("table_id", "table"),
    "partition_column": ("partition_id", "partition_info"),
    "sort_expression": ("sort_id", "sort_info"),
    "column_mapping": ("table_id", "table"),
    "macro_impl": ("macro_id", "macro"),
    "macro_parameters": ("macro_id", "macro"),
}


@dataclass(frozen=True)
class ForkCopy:
    """Copies the metadata of a catalog into a fork, on one connection."""

    connection: Connection
    source: CatalogTables
    target: CatalogTables
    #: The last snapshot that parent and fork share.
    at: int
    data_path: str

    def run(self) -> list[str]:
        """Fills the fork's tables; returns the paths of the files it shares with its parent."""
        head = self._head()
        self._copy_snapshots(head)
        for versioned in self.source.stock:
            if "end_snapshot" in versioned.c:
                name = versioned.name.removeprefix("ducklake_")
                self._copy(name, lambda table: table.c.begin_snapshot <= self.at)
        for name, (column, owner) in _DETAILS.items():
            owners = getattr(self.target, owner)
            self._copy(name, lambda t, c=column, o=owners: t.c[c].in_(select(o.c[c])))
        if self.at == head.snapshot_id:
            # Newer statistics do not fit older rows: rewrites narrow them, wider types widen them.
            owned = select(self.target.table.c.table_id)
            self._copy("table_column_stats", lambda table: table.c.table_id.in_(owned))
        self._copy("name_mapping", lambda table: true())
        self._copy("schema_versions", lambda table: table.c.begin_snapshot <= self.at)
        # The fork has the rows of this work already, so it must not be repeated there.
        self._copy("swanlake_ledger", lambda table: table.c.snapshot_id <= self.at)
        self._copy_metadata()
        self._copy_inlined()
        self._make_paths_absolute()
        shared = self._shared_paths()
        mark_shared(self.connection, self.target, shared)
        for row in self._partial_files():
            # Most forks need no DuckDB: only these files must be read.
            from swanlake.lake.lifecycle.partial import PartialFileFilter

            PartialFileFilter(self.connection, self.target, self.at, self.data_path).apply(row)
        return shared

    def _head(self) -> Row[Any]:
        snapshot = self.source.snapshot
        newest = self.connection.execute(
            select(snapshot).order_by(snapshot.c.snapshot_id.desc()).limit(1)
        ).one()
        known = select(snapshot.c.snapshot_id).where(snapshot.c.snapshot_id == self.at)
        if self.connection.execute(known).first() is None:
            raise NotFound(
                f"There is no snapshot {self.at} to fork at; the newest one is "
                f"{newest.snapshot_id}, and older ones may have been expired.",
                identifier="SNAPSHOT_NOT_FOUND",
            )
        return newest

    def _copy_snapshots(self, newest: Row[Any]) -> None:
        self._copy("snapshot", lambda table: table.c.snapshot_id <= self.at)
        self._copy("snapshot_changes", lambda table: table.c.snapshot_id <= self.at)
        # Files merged after that snapshot belong to it too, and their ids are newer than it knew.
        snapshot = self.target.snapshot
        self.connection.execute(
            update(snapshot)
            .where(snapshot.c.snapshot_id == self.at)
            .values(next_catalog_id=newest.next_catalog_id, next_file_id=newest.next_file_id)
        )

    def _copy_metadata(self) -> None:
        self._copy("metadata", lambda table: true())
        metadata = self.target.metadata
        self.connection.execute(
            update(metadata)
            .where(metadata.c.key == "data_path", metadata.c.scope.is_(None))
            .values(value=self.data_path)
        )

    def _copy(self, name: str, which: Any) -> None:
        self._copy_table(getattr(self.source, name), getattr(self.target, name), which)

    def _copy_table(self, source: SqlTable, target: SqlTable, which: Any) -> None:
        columns: dict[str, ColumnElement[Any]] = dict(source.c.items())
        if (end := columns.get("end_snapshot")) is not None:
            # Rows that ended after the fork are live in it.
            columns["end_snapshot"] = case((end <= self.at, end), else_=null())
        rows = select(*columns.values()).where(which(source))
        self.connection.execute(insert(target).from_select(list(columns), rows))

    # ---- inlined data --------------------------------------------------------------------------

    def _copy_inlined(self) -> None:
        """Copies inlined rows and inlined deletes."""
        registered = self.source.inlined_data_tables
        snapshot, tables = self.target.snapshot, self.target.table
        version = select(snapshot.c.schema_version).where(snapshot.c.snapshot_id == self.at)
        # A later version's table may have other columns than the one that the fork will create.
        wanted = (registered.c.schema_version <= version.scalar_subquery()) & (
            registered.c.table_id.in_(select(tables.c.table_id))
        )
        self._copy("inlined_data_tables", lambda _: wanted)
        rows = self.connection.execute(select(registered.c.table_name).where(wanted))
        for name in rows.scalars().all():
            self._copy_inlined_table(name)
        present = inspect_database(self.connection).get_table_names(schema=self.source.schema_name)
        copied = self.connection.execute(select(tables.c.table_id).distinct())
        for name in map(deletes_name, copied.scalars().all()):
            if name in present:
                self._copy_inlined_table(name)

    def _copy_inlined_table(self, name: str) -> None:
        schema = self.source.schema_name
        source = SqlTable(name, MetaData(), schema=schema, autoload_with=self.connection)
        target = source.to_metadata(MetaData(), schema=self.target.schema_name)  # type: ignore[arg-type]
        target.create(self.connection)
        self._copy_table(source, target, lambda table: table.c.begin_snapshot <= self.at)

    # ---- files ---------------------------------------------------------------------------------

    def _make_paths_absolute(self) -> None:
        prefixes = [
            {"of_table": table_id, "directory": directory}
            for table_id, directory in table_directories(self.connection, self.source).items()
        ]
        if not prefixes:
            return
        for files in (self.target.data_file, self.target.delete_file):
            self.connection.execute(
                update(files)
                .where(
                    files.c.table_id == bindparam("of_table"), files.c.path_is_relative == true()
                )
                .values(
                    path=bindparam("directory", type_=files.c.path.type) + files.c.path,
                    path_is_relative=false(),
                ),
                prefixes,
            )

    def _partial_files(self) -> Sequence[Any]:
        """Data files with rows, or delete files, from after the fork.

        Their rows carry snapshot ids that the fork will assign again.
        """
        data, deletes = self.target.data_file, self.target.delete_file
        snapshot = self.source.snapshot
        # Files with newer ids were written later. partial_max does not always say so: the stock
        # extension leaves it out for the inlined deletes that it flushes.
        next_file_id = self.connection.execute(
            select(snapshot.c.next_file_id).where(snapshot.c.snapshot_id == self.at)
        ).scalar_one()
        return self.connection.execute(
            select(
                data.c.data_file_id,
                data.c.table_id,
                data.c.path,
                data.c.partial_max,
                deletes.c.delete_file_id,
                deletes.c.path.label("delete_path"),
                deletes.c.begin_snapshot.label("delete_begin"),
            )
            .join(
                deletes,
                (deletes.c.data_file_id == data.c.data_file_id) & deletes.c.end_snapshot.is_(None),
                isouter=True,
            )
            .where(
                data.c.end_snapshot.is_(None),
                or_(
                    data.c.partial_max > self.at,
                    deletes.c.partial_max > self.at,
                    deletes.c.delete_file_id >= next_file_id,
                ),
            )
        ).all()

    def _shared_paths(self) -> list[str]:
        paths = union(select(self.target.data_file.c.path), select(self.target.delete_file.c.path))
        return list(self.connection.execute(paths).scalars().all())


def mark_shared(connection: Connection, tables: CatalogTables, paths: list[str]) -> None:
    """Records in a catalog which of its files another one can see."""
    files = tables.swanlake_shared_file
    known = set(connection.execute(select(files.c.path)).scalars().all())
    new = [{"path": path} for path in paths if path not in known]
    if new:
        connection.execute(insert(files), new)

"""Files of a fork that hold rows from after the fork.

A merged file holds rows of several snapshots, and so may a delete file. A fork at one of them gets
its own delete file, which hides what came later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import duckdb
from sqlalchemy import Connection, Row, delete, insert, select, update

from swanlake.lake.files.datafile import SNAPSHOT_ID, write_delete_file
from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.layout import DeleteFile, Table


@dataclass(frozen=True)
class PartialFileFilter:
    """Hides rows inserted after the fork, and restores rows deleted after it."""

    connection: Connection
    tables: CatalogTables
    at: int
    data_path: str

    def apply(self, row: Row[Any]) -> None:
        """Replaces the delete file of a data file."""
        with duckdb.connect(":memory:") as reader:
            deleted = _deleted_rows(reader, row, self.at)
            deletes = self.tables.delete_file
            if row.delete_file_id is not None:
                replaced = deletes.c.delete_file_id == row.delete_file_id
                self.connection.execute(delete(deletes).where(replaced))
            if not deleted:
                return
            owner = Table(row.table_id, "", "", self.data_path, columns=())
            written = write_delete_file(reader, owner, row.path, deleted.keys(), deleted.values())
        self._register(row, written, min(deleted.values()), max(deleted.values()))

    def _register(self, row: Row[Any], written: DeleteFile, first: int, last: int) -> None:
        self.connection.execute(
            insert(self.tables.delete_file).values(
                delete_file_id=self._new_file_id(),
                table_id=row.table_id,
                begin_snapshot=first,
                data_file_id=row.data_file_id,
                path=self.data_path + written.path,
                path_is_relative=False,
                format="parquet",
                delete_count=written.delete_count,
                file_size_bytes=written.file_size_bytes,
                footer_size=written.footer_size,
                partial_max=last if last > first else None,
            )
        )

    def _new_file_id(self) -> int:
        snapshot = self.tables.snapshot
        newest = snapshot.c.snapshot_id == self.at
        allocated = select(snapshot.c.next_file_id).where(newest)
        file_id: int = self.connection.execute(allocated).scalar_one()
        self.connection.execute(update(snapshot).where(newest).values(next_file_id=file_id + 1))
        return file_id


def _deleted_rows(reader: duckdb.DuckDBPyConnection, row: Row[Any], at: int) -> dict[int, int]:
    """The rows that the fork must not see: positions in the file, and since which snapshot."""
    deleted: dict[int, int] = {}
    if row.delete_file_id is not None:
        columns = reader.execute("SELECT name FROM parquet_schema(?)", [row.delete_path]).fetchall()
        known = (SNAPSHOT_ID,) in columns
        snapshot = SNAPSHOT_ID if known else str(row.delete_begin)
        query = f"SELECT pos, {snapshot} AS s FROM read_parquet(?) WHERE s <= ?"
        deleted.update(reader.execute(query, [row.delete_path, at]).fetchall())
    if row.partial_max is not None and row.partial_max > at:
        query = (
            "SELECT file_row_number FROM read_parquet(?, file_row_number = true) "
            f"WHERE {SNAPSHOT_ID} > ?"
        )
        for (position,) in reader.execute(query, [row.path, at]).fetchall():
            deleted.setdefault(position, at)
    return dict(sorted(deleted.items()))

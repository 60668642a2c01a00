"""A lake with stock DuckDB attached to its catalogs, and helpers that write through either."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import psycopg

from swanlake.lake.catalog import Catalog
from swanlake.lake.files.datafile import write_files
from swanlake.lake.lake import Lake
from swanlake.lake.model.layout import DataFile, Table
from swanlake.lake.model.operations import Commit, Insert, Merge
from swanlake.lake.model.types import ColumnSpec
from tests.stock_duckdb import stock_duckdb

ROWS = [ColumnSpec("id", "BIGINT"), ColumnSpec("v", "VARCHAR")]
SOON = timedelta(days=-1)  # a file written just now counts as old

_CHILD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
for statement in sys.argv[2:]:
    connection.execute(statement)
"""


class Engines:
    """Instances of stock DuckDB, reused by the following tests."""

    def __init__(self) -> None:
        self._open: dict[int, duckdb.DuckDBPyConnection] = {}

    def get(self, number: int) -> duckdb.DuckDBPyConnection:
        if number not in self._open:
            self._open[number] = connection = stock_duckdb()
            connection.execute("SET ducklake_default_data_inlining_row_limit = 0")
        return self._open[number]

    def detach_all(self) -> None:
        for connection in self._open.values():
            with suppress(duckdb.TransactionException):
                connection.execute("ROLLBACK")
            query = "SELECT database_name FROM duckdb_databases() WHERE type = 'ducklake'"
            for (name,) in connection.execute(query).fetchall():
                connection.execute(f"DETACH {name}")

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()


class LakeHarness:
    """One lake, and stock DuckDB with its catalogs attached."""

    def __init__(self, metabase: str | Path, home: Path, engines: Engines) -> None:
        self.metabase = metabase
        self.home = home
        self.data = home / "data"
        self.lake = Lake.open(metabase, self.data)
        self._engines = engines
        self.duck = engines.get(0)
        self.inline(0)

    def close(self) -> None:
        self._engines.detach_all()
        self.lake.close()

    def clear(self) -> None:
        """Drops every catalog and deletes every file."""
        self._engines.detach_all()
        for info in self.lake.catalogs():
            self.lake.drop_catalog(info.name)
        for directory in self.data.glob("*/"):  # not the marker of the lake
            shutil.rmtree(directory)

    @property
    def on_postgres(self) -> bool:
        return isinstance(self.metabase, str)

    # ---- stock DuckDB --------------------------------------------------------------------------

    def inline(self, rows: int) -> None:
        """Makes stock DuckDB inline inserts of up to this many rows."""
        self.duck.execute(f"SET ducklake_default_data_inlining_row_limit = {rows}")

    def attach(self, *catalogs: Catalog) -> None:
        for catalog in catalogs:
            attach(self.duck, self.lake, catalog)

    def detach(self, catalog: Catalog) -> None:
        self.duck.execute(f"DETACH {catalog.name}")

    def engine(self, number: int) -> duckdb.DuckDBPyConnection:
        """Stock DuckDB in another instance, for transactions that overlap."""
        assert number > 0
        return self._engines.get(number)

    @contextmanager
    def another_engine(self, *catalogs: Catalog) -> Iterator[duckdb.DuckDBPyConnection]:
        """Stock DuckDB in another instance, with catalogs attached for the block."""
        connection = self.engine(3)
        for catalog in catalogs:
            attach(connection, self.lake, catalog)
        yield connection
        for catalog in catalogs:
            connection.execute(f"DETACH {catalog.name}")

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        return self.duck.execute(text).fetchall()

    def ids(self, table: str, at: int | None = None) -> list[int]:
        """The ids in a table, sorted; a count without reading any file agrees."""
        version = "" if at is None else f" AT (VERSION => {at})"
        rows = sorted(row[0] for row in self.sql(f"SELECT id FROM {table}{version}"))
        assert self.sql(f"SELECT count(*) FROM {table}{version}") == [(len(rows),)]
        return rows

    def metadata(self, catalog: Catalog, name: str) -> str:
        """The SQL name of a metadata table of the catalog."""
        schema = f"lake_{catalog.info.storage_name}" if self.on_postgres else "main"
        return f"__ducklake_metadata_{catalog.name}.{schema}.{name}"

    def maintain(self, catalog: Catalog, *steps: str) -> None:
        """Runs maintenance steps of stock DuckDB."""
        calls = {
            "merge": "ducklake_merge_adjacent_files('{}')",
            "rewrite": "ducklake_rewrite_data_files('{}', delete_threshold => 0)",
            "flush": "ducklake_flush_inlined_data('{}')",
            "expire": "ducklake_expire_snapshots('{}', older_than => now())",
            "cleanup": "ducklake_cleanup_old_files('{}', cleanup_all => true)",
            "orphans": "ducklake_delete_orphaned_files('{}', cleanup_all => true)",
        }
        for step in steps:
            self.sql("CALL " + calls[step].format(catalog.name))

    # ---- ours ----------------------------------------------------------------------------------

    def table(self, catalog: Catalog, name: str = "t", ids: Iterable[range] = ()) -> Table:
        """A new table in ``main`` with one file per range of ids, all of one snapshot."""
        catalog.create_table("main", name, ROWS)
        files = [file for part in ids for file in self.write(catalog.table("main", name), part)]
        table = catalog.table("main", name)
        if files:
            catalog.commit(Commit((Insert(table, tuple(files)),), base=table.snapshot_id))
        return catalog.table("main", name)

    def write(self, table: Table, ids: range) -> list[DataFile]:
        query = f"SELECT range, 'v' || range FROM range({ids.start}, {ids.stop})"
        return write_files(self.duck, query, table)

    def insert(self, table: Table, ids: range, *, blind: bool = False) -> Insert:
        return Insert(table, tuple(self.write(table, ids)), blind=blind)

    def append(self, catalog: Catalog, ids: range, name: str = "t") -> None:
        query = f"SELECT range, 'v' || range FROM range({ids.start}, {ids.stop})"
        catalog.append(self.duck, query, "main", name)

    def files(self, catalog: Catalog, table: Table) -> list[int]:
        """The live data files, oldest first."""
        rows = self.sql(
            f"SELECT data_file_id FROM {self.metadata(catalog, 'ducklake_data_file')} "
            f"WHERE table_id = {table.id} AND end_snapshot IS NULL ORDER BY data_file_id"
        )
        return [row[0] for row in rows]

    def path(self, catalog: Catalog, table: Table, file_id: int) -> str:
        ((path, relative),) = self.sql(
            f"SELECT path, path_is_relative FROM {self.metadata(catalog, 'ducklake_data_file')} "
            f"WHERE data_file_id = {file_id}"
        )
        return table.directory + path if relative else str(path)

    def merge(self, catalog: Catalog, table: Table, sources: list[int]) -> Merge:
        """Merges files of one snapshot."""
        paths = [self.path(catalog, table, file_id) for file_id in sources]
        query = f"SELECT id, v FROM read_parquet({paths}) ORDER BY id"
        (file,) = write_files(self.duck, query, table)
        ((begin, row_id),) = self.sql(
            "SELECT min(begin_snapshot), min(row_id_start) "
            f"FROM {self.metadata(catalog, 'ducklake_data_file')} "
            f"WHERE data_file_id IN ({', '.join(map(str, sources))})"
        )
        return Merge(table, tuple(sources), file, begin, row_id)

    # ---- metadata and files --------------------------------------------------------------------

    def tamper(self, catalog: Catalog, *statements: str) -> None:
        """Changes the metadata directly; SQLite files in another process."""
        if isinstance(self.metabase, Path):
            self.run_sqlite(self.metabase / f"{catalog.info.storage_name}.sqlite", *statements)
            return
        with psycopg.connect(self.metabase, autocommit=True) as connection:
            connection.execute(f'SET search_path = "lake_{catalog.info.storage_name}"')
            for statement in statements:
                connection.execute(statement)

    def run_sqlite(self, path: Path, *statements: str) -> None:
        """Runs statements in a process in which DuckDB has nothing attached."""
        subprocess.run([sys.executable, "-c", _CHILD, path, *statements], check=True)

    def parquet(self) -> set[str]:
        """Every Parquet file of the lake."""
        return {str(path) for path in self.data.rglob("*.parquet")}


def attach(connection: duckdb.DuckDBPyConnection, lake: Lake, catalog: Catalog) -> None:
    """As ``LakeLocation.attach``, with inlining left to the engine's setting."""
    statement = lake.location(catalog.info).statement
    connection.execute(statement.replace(", DATA_INLINING_ROW_LIMIT 0", ""))

"""Two catalogs in one metabase: one written by SwanLake, one by the stock extension."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from operator import itemgetter
from pathlib import Path
from typing import Any

import duckdb

from swanlake.lake.catalog import Catalog
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.lake import Lake
from swanlake.lake.model.operations import Commit, Operation
from swanlake.sql.quoting import identifier, literal
from tests.stock_duckdb import stock_duckdb

#: A row of a metadata table by column, and the rows of all metadata tables.
Row = dict[str, Any]
Tables = dict[str, list[Row]]

#: Every table of a DuckLake 1.0 catalog.
TABLES = tuple(
    """
    column column_mapping column_tag data_file delete_file file_column_stats file_partition_value
    file_variant_stats files_scheduled_for_deletion inlined_data_tables macro macro_impl
    macro_parameters metadata name_mapping partition_column partition_info schema schema_versions
    snapshot snapshot_changes sort_expression sort_info table table_column_stats table_stats tag
    view
    """.split()
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[47][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class Difference:
    """A deliberate difference between our metadata and the stock extension's."""

    reason: str
    #: Changes the stock extension's tables to what ours must hold.
    expect: Callable[[Tables], None]


class AttachedCatalog:
    """A catalog attached in stock DuckDB: its tables and its metadata tables.

    The metadata is read through DuckDB too: a second SQLite library in this process would break the
    locks of the first.
    """

    def __init__(self, connection: duckdb.DuckDBPyConnection, name: str, schema: str) -> None:
        self.connection = connection
        self.name = name
        self._metadata = f"__ducklake_metadata_{name}.{schema}"

    def __call__(self, sql: str) -> list[tuple[Any, ...]]:
        """Runs statements in which ``lake`` means the catalog and ``meta`` its metadata tables."""
        sql = re.sub(r"\bmeta\.", f"{self._metadata}.ducklake_", sql)
        return self.connection.execute(re.sub(r"\blake\b", self.name, sql)).fetchall()

    def tables(self) -> Tables:
        """All rows of all metadata tables, with random values replaced."""
        return {name: self._rows(name) for name in TABLES}

    def shape(self) -> dict[str, list[tuple[Any, ...]]]:
        """Column names and types of all metadata tables."""
        return {
            name: self(f"SELECT column_name, column_type FROM (DESCRIBE FROM meta.{name})")
            for name in TABLES
        }

    def _rows(self, table: str) -> list[Row]:
        result = self.connection.execute(f"FROM {self._metadata}.ducklake_{table}")
        columns = [column[0] for column in result.description or ()]
        return [
            {
                name: self._normalized(f"{table}.{name}", value)
                for name, value in zip(columns, row, strict=True)
            }
            for row in result.fetchall()
        ]

    def _normalized(self, column: str, value: Any) -> Any:
        """A value with placeholders for what differs between any two catalogs."""
        if value is None:
            return None
        if column.endswith(("snapshot_time", "schedule_start")):
            return "<time>"
        if column in ("delete_file.file_size_bytes", "delete_file.footer_size"):
            return "<size>"  # contains the random name of the data file, compressed
        if column.endswith("_uuid"):
            assert _UUID.fullmatch(str(value)), value
            return "<uuid>"
        if column.endswith("extra_stats") and value.startswith("["):
            # The stock extension writes the fields of a VARIANT in any order.
            return sorted(json.loads(value), key=itemgetter("field_name"))
        if isinstance(value, str):
            return _UUID.sub("<uuid>", value).replace(f"/{self.name}/", "/<lake>/")
        return value


class CatalogPair:
    """A catalog written by SwanLake and one by the stock extension, both initially empty."""

    def __init__(
        self, lake: Lake, catalog: Catalog, ours: AttachedCatalog, stock: AttachedCatalog
    ) -> None:
        self.lake = lake
        self.catalog = catalog
        #: Our catalog, attached in stock DuckDB.
        self.ours = ours
        #: The catalog of the stock extension.
        self.stock = stock

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        return self.ours.connection

    def run_on_both(self, *statements: str) -> None:
        """Runs the same statements on both catalogs, through the stock extension."""
        for sql in statements:
            self.ours(sql)
            self.stock(sql)

    def append(self, query: str, table: str, schema: str = "main") -> Committed:
        """Inserts rows with our writer."""
        return self.catalog.append(self.connection, query, schema, table)

    def commit(self, *operations: Operation, base: int | None = None) -> Committed:
        """Commits operations with our writer."""
        return self.catalog.commit(Commit(operations, base=base))

    def compare(self, *differences: Difference) -> None:
        """Checks that the metadata of both catalogs is equal but for the given differences."""
        expected = self.stock.tables()
        for difference in differences:
            difference.expect(expected)
        actual = self.ours.tables()
        assert not (lines := list(_differences(actual, expected))), "\n".join(lines)
        self.check()

    def check(self) -> None:
        """Checks that our catalog is sound and its files have the recorded sizes."""
        assert self.catalog.check() == []
        directories = (
            "(SELECT value FROM meta.metadata WHERE key = 'data_path') || s.path || t.path"
        )
        for table in ("data_file", "delete_file"):
            for path, size, footer in self.ours(
                f"SELECT DISTINCT if(f.path_is_relative, {directories}, '') || f.path, "
                f"f.file_size_bytes, f.footer_size FROM meta.{table} f "
                "JOIN meta.table t USING (table_id) JOIN meta.schema s USING (schema_id)"
            ):
                content = Path(path).read_bytes()
                assert len(content) == size
                assert int.from_bytes(content[-8:-4], "little") == footer


class PairFactory:
    """Creates pairs in a metabase, all attached to one DuckDB."""

    def __init__(self, metabase: str | Path, home: Path) -> None:
        self.lake = Lake.open(metabase, home / "data")
        if isinstance(metabase, Path):
            metabase.mkdir()  # the stock extension does not create it
        self._metabase = metabase
        self._home = home
        self._numbers = count(1)
        self.connection = stock_duckdb()

    @property
    def is_sqlite(self) -> bool:
        return isinstance(self._metabase, Path)

    def create(self) -> CatalogPair:
        """Creates a pair with names, and so paths, of the same length."""
        ours, stock = self.new_name("swan"), self.new_name("duck")
        catalog = self.lake.create_catalog(ours)
        self.lake.location(catalog.info).attach(self.connection)
        self.attach(stock)
        for name in (ours, stock):  # the default of our writer
            self.connection.execute(f"CALL {identifier(name)}.set_option('parquet_version', '2')")
        return CatalogPair(self.lake, catalog, self.attached(ours), self.attached(stock))

    def new_name(self, kind: str) -> str:
        """A new catalog name."""
        return f"{kind}_{next(self._numbers):04}"

    def attach(self, name: str, inlined_rows: int = 0) -> AttachedCatalog:
        """Attaches a catalog with the stock extension, which creates it if it does not exist."""
        options = [
            f"DATA_PATH {literal(str(self._home / 'data' / name))}",
            f"DATA_INLINING_ROW_LIMIT {inlined_rows}",
        ]
        if isinstance(self._metabase, Path):
            source = f"sqlite:{self._metabase / name}.sqlite"
        else:
            source = f"postgres:{self._metabase}"
            options.append(f"METADATA_SCHEMA {literal('lake_' + name)}")
        self.connection.execute(
            f"ATTACH {literal('ducklake:' + source)} AS {identifier(name)} ({', '.join(options)})"
        )
        return self.attached(name)

    def attached(self, name: str) -> AttachedCatalog:
        """An attached catalog by name."""
        return AttachedCatalog(self.connection, name, "main" if self.is_sqlite else f"lake_{name}")

    def detach_all(self) -> None:
        """Detaches every catalog."""
        for (name,) in self.connection.execute(
            "SELECT database_name FROM duckdb_databases() WHERE type = 'ducklake'"
        ).fetchall():
            self.connection.execute(f"DETACH {identifier(name)}")

    def close(self) -> None:
        self.connection.close()
        self.lake.close()


def _differences(ours: Tables, stock: Tables) -> Iterator[str]:
    """One line for every metadata row that only one catalog has."""
    for name in TABLES:
        unmatched = [*stock[name]]
        for row in ours[name]:
            if row in unmatched:
                unmatched.remove(row)
            else:
                yield f"ducklake_{name}, only ours:  {row}"
        yield from (f"ducklake_{name}, only stock: {row}" for row in unmatched)

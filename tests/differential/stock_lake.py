"""A lake of the stock DuckLake extension, to compare our Parquet writer with."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from swanlake.lake.files.datafile import write_files
from swanlake.lake.model.layout import (
    Column,
    ColumnStats,
    DataFile,
    PartitionKey,
    SortKey,
    Table,
    TableOptions,
)
from swanlake.lake.model.stats import TableColumnStats
from tests.stock_duckdb import stock_duckdb

_NAME = re.compile(
    r"ducklake-[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\.parquet"
)


class StockLake:
    """A catalog in SQLite that only the stock extension writes, without inlined rows."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.connection = stock_duckdb()
        self.connection.execute(
            f"ATTACH 'ducklake:sqlite:{home / 'stock.db'}' AS lake "
            f"(DATA_PATH '{home / 'stock'}', DATA_INLINING_ROW_LIMIT 0)"
        )
        # The default of our writer for most types.
        self.connection.execute("CALL lake.set_option('parquet_version', '2')")

    def close(self) -> None:
        self.connection.close()

    def execute(self, sql: str) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql).fetchall()

    def rows(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Queries the metadata tables."""
        catalog = sqlite3.connect(self.home / "stock.db")
        try:
            return catalog.execute(sql, parameters).fetchall()
        finally:
            catalog.close()

    def write(self, sql: str, *parameters: object) -> None:
        """Changes the metadata tables."""
        catalog = sqlite3.connect(self.home / "stock.db")
        try:
            catalog.execute(sql, parameters)
            catalog.commit()
        finally:
            catalog.close()

    def table(self, name: str) -> Table:
        """The table as the catalog describes it, with a separate directory for our files."""
        ((table_id,),) = self.rows(
            "SELECT table_id FROM ducklake_table WHERE table_name = ? AND end_snapshot IS NULL",
            name,
        )
        keys = self.rows(
            "SELECT partition_id, column_id, transform FROM ducklake_partition_info "
            "JOIN ducklake_partition_column USING (partition_id, table_id) "
            "WHERE table_id = ? AND end_snapshot IS NULL ORDER BY partition_key_index",
            table_id,
        )
        order = self.rows(
            "SELECT expression, sort_direction, null_order FROM ducklake_sort_info "
            "JOIN ducklake_sort_expression USING (sort_id, table_id) "
            "WHERE table_id = ? AND end_snapshot IS NULL ORDER BY sort_key_index",
            table_id,
        )
        return Table(
            table_id,
            "main",
            name,
            f"{self.home}/ours/{name}/",
            self._columns(table_id),
            partition_id=keys[0][0] if keys else None,
            partition_keys=tuple(PartitionKey(column, how) for _, column, how in keys),
            sort_keys=tuple(
                SortKey(expression, direction == "DESC", nulls == "NULLS_FIRST")
                for expression, direction, nulls in order
            ),
            options=TableOptions(version="V2"),
        )

    def stock_file_path(self, name: str, number: int = 0) -> Path:
        """The path of a data file of the table, by its number in order of writing."""
        paths = self.rows(
            "SELECT path FROM ducklake_data_file WHERE table_id = ? ORDER BY data_file_id",
            self.table(name).id,
        )
        return self.home / "stock" / "main" / name / str(paths[number][0])

    def files(self, name: str, after: int = -1) -> list[DataFile]:
        """The table's files after an id, as our writer describes them, without random names."""
        rows = self.rows(
            "SELECT data_file_id, path, record_count, file_size_bytes, footer_size "
            "FROM ducklake_data_file WHERE table_id = ? AND data_file_id > ? ORDER BY data_file_id",
            self.table(name).id,
            after,
        )
        return [
            without_name(
                DataFile(
                    path, records, size, footer, self._file_stats(id_), self._partition_values(id_)
                )
            )
            for id_, path, records, size, footer in rows
        ]

    def table_stats(self, name: str) -> dict[int, TableColumnStats]:
        """The table's column statistics by column id."""
        rows = self.rows(
            "SELECT column_id, contains_null, contains_nan, min_value, max_value, extra_stats "
            "FROM ducklake_table_column_stats WHERE table_id = ?",
            self.table(name).id,
        )
        return {
            row[0]: TableColumnStats(row[0], _bool(row[1]), _bool(row[2]), *row[3:]) for row in rows
        }

    def _columns(self, table_id: int, parent: int | None = None) -> tuple[Column, ...]:
        rows = self.rows(
            "SELECT column_id, column_name, column_type, nulls_allowed FROM ducklake_column "
            "WHERE table_id = ? AND parent_column IS ? AND end_snapshot IS NULL "
            "ORDER BY column_order",
            table_id,
            parent,
        )
        return tuple(
            Column(id_, name, type_, bool(nullable), None, self._columns(table_id, id_))
            for id_, name, type_, nullable in rows
        )

    def _file_stats(self, file_id: int) -> tuple[ColumnStats, ...]:
        rows = self.rows(
            "SELECT column_id, column_size_bytes, value_count, null_count, min_value, max_value, "
            "contains_nan, extra_stats FROM ducklake_file_column_stats WHERE data_file_id = ? "
            "ORDER BY column_id",
            file_id,
        )
        return tuple(
            ColumnStats(id_, size, values, nulls, low, high, _bool(nan), extra)
            for id_, size, values, nulls, low, high, nan, extra in rows
        )

    def _partition_values(self, file_id: int) -> tuple[str | None, ...]:
        rows = self.rows(
            "SELECT partition_value FROM ducklake_file_partition_value WHERE data_file_id = ? "
            "ORDER BY partition_key_index",
            file_id,
        )
        return tuple(value for (value,) in rows)


def write_both(lake: StockLake, name: str, query: str) -> tuple[list[DataFile], list[DataFile]]:
    """Inserts the rows of a query with our writer and with the stock extension.

    Returns the new files of both without random names; checks that ours match their description.
    """
    ((newest,),) = lake.rows("SELECT coalesce(max(data_file_id), -1) FROM ducklake_data_file")
    lake.execute(f"INSERT INTO lake.{name} {query}")
    table = lake.table(name)
    ours = write_files(lake.connection, query, table)
    for file in ours:
        assert _NAME.fullmatch(file.path.split("/")[-1]), file.path
        path = Path(table.directory, file.path)
        assert path.stat().st_size == file.file_size_bytes
        assert pq.ParquetFile(path).metadata.num_rows == file.record_count
    return _by_path(map(without_name, ours)), _by_path(lake.files(name, newest))


def without_name(file: DataFile) -> DataFile:
    """The file with ``*`` for its random name."""
    return replace(file, path="/".join([*file.path.split("/")[:-1], "*"]))


def field_ids(path: Path) -> dict[str, int]:
    """The field id of every column of a Parquet file, nested ones by their dotted path."""
    ids: dict[str, int] = {}

    def walk(field: Any, prefix: str) -> None:
        name = f"{prefix}{field.name}"
        ids[name] = int((field.metadata or {}).get(b"PARQUET:field_id", -1))
        for number in range(field.type.num_fields):
            walk(field.type.field(number), f"{name}.")

    for field in pq.ParquetFile(path).schema_arrow:
        walk(field, "")
    return ids


def _by_path(files: Iterable[DataFile]) -> list[DataFile]:
    return sorted(files, key=lambda file: file.path)


def _bool(value: int | None) -> bool | None:
    return None if value is None else bool(value)

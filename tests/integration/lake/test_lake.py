"""Catalogs through SwanLake's API and the stock extension."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from swanlake.errors import AlreadyExists, InvalidRequest, NotFound
from swanlake.lake.lake import Lake
from swanlake.lake.model.types import ColumnSpec
from tests.stock_duckdb import stock_duckdb

ORDERS = [ColumnSpec("id", "BIGINT", nullable=False), ColumnSpec("note", "VARCHAR")]


def test_new_catalog_is_valid_and_readable_by_stock_duckdb(
    lake: Lake, duck: duckdb.DuckDBPyConnection
) -> None:
    sales = lake.create_catalog("sales")
    sales.create_schema("raw")
    sales.create_table("raw", "orders", ORDERS)
    done = sales.append(duck, "SELECT range, 'n' || range FROM range(10)", "raw", "orders")
    assert (done.snapshot_id, done.applied, done.attempts) == (3, True, 1)
    assert sales.check() == []
    lake.location(sales.info).attach(duck)
    assert duck.sql("SELECT count(*), max(id) FROM sales.raw.orders").fetchall() == [(10, 9)]


def test_taken_or_missing_name_is_reported_in_one_line(lake: Lake) -> None:
    sales = lake.create_catalog("sales")
    with pytest.raises(AlreadyExists, match="The catalog sales exists already"):
        lake.create_catalog("Sales")
    with pytest.raises(NotFound, match="There is no catalog salse"):
        lake.fork_catalog("salse", "copy")
    with pytest.raises(InvalidRequest, match="cannot be the name of a catalog"):
        lake.create_catalog("a b")
    sales.create_schema("raw")
    with pytest.raises(AlreadyExists, match="The schema RAW exists already"):
        sales.create_schema("RAW")
    with pytest.raises(NotFound, match="There is no schema cooked"):
        sales.create_table("cooked", "t", ORDERS)
    assert [info.name for info in lake.catalogs()] == ["sales"]
    assert sales.newest_snapshot() == 1


def test_error_for_an_unregistered_catalog_says_how_to_register_it(
    lake: Lake, metabase: str | Path, tmp_path: Path
) -> None:
    if isinstance(metabase, str):
        source, options = f"postgres:{metabase}", ", METADATA_SCHEMA 'lake_foreign'"
    else:
        lake.catalogs()
        source, options = f"sqlite:{metabase / 'foreign.sqlite'}", ""
    with stock_duckdb() as other:
        place = tmp_path / "data" / "foreign"
        other.execute(f"ATTACH 'ducklake:{source}' AS f (DATA_PATH '{place}/'{options})")
    with pytest.raises(NotFound, match="swanlake catalog adopt foreign"):
        lake.catalog("foreign")
    lake.adopt_catalog("foreign").create_schema("raw")
    assert lake.catalog("foreign").check() == []

"""Scans of inlined rows with cached table locations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from swanlake.lake.catalog import Catalog
from swanlake.lake.files.inlining import inline_rows
from swanlake.lake.lake import Lake
from swanlake.lake.metastore.base import Metastore
from swanlake.lake.metastore.local import open_metastore
from swanlake.lake.model.layout import Table
from swanlake.lake.model.operations import Commit
from swanlake.lake.model.types import ColumnSpec
from swanlake.lake.read.inlined_scan import MAX_ROWS, InlinedScan, ScanRefusal, scan_inlined

Known = dict[int, list[str]]


@pytest.fixture
def sales(lake: Lake) -> Catalog:
    return lake.create_catalog("sales")


@pytest.fixture
def direct(metabase: str | Path, tmp_path: Path) -> Iterator[Metastore]:
    """The metastore in this process, without the SQLite worker."""
    opened = open_metastore(metabase, str(tmp_path / "data"))
    yield opened
    opened.close()


def table_with(catalog: Catalog, name: str, *ids: int) -> Table:
    catalog.create_table("main", name, [ColumnSpec("id", "BIGINT")])
    for id in ids:
        insert = inline_rows(catalog.table("main", name), pa.table({"id": [id]}), blind=True)
        assert insert is not None
        catalog.commit(Commit((insert,)))
    return catalog.table("main", name)


def read(direct: Metastore, catalog: Catalog, known: Known, *tables: Table) -> list[list[int]]:
    scans = scan_inlined(direct.store(catalog.info), tables, known)
    assert not isinstance(scans, ScanRefusal), scans
    return [_ids(scan) for scan in scans]


def _ids(scan: InlinedScan) -> list[int]:
    return [int(str(value)) for value in scan.values[0]]


def test_location_of_inlined_rows_is_cached(sales: Catalog, direct: Metastore) -> None:
    full, empty = table_with(sales, "full", 1, 2), table_with(sales, "empty")
    known: Known = {}
    assert read(direct, sales, known, full, empty) == [[1, 2], []]
    assert [len(known[table.id]) for table in (full, empty)] == [1, 0]
    before = dict(known)
    assert read(direct, sales, known, empty, full) == [[], [1, 2]]
    assert known == before


def test_new_location_is_found(sales: Catalog, direct: Metastore) -> None:
    table = table_with(sales, "t", 7)
    known: Known = {table.id: []}
    assert read(direct, sales, known, table) == [[7]]
    assert len(known[table.id]) == 1


def test_cached_location_of_another_table_is_not_used(sales: Catalog, direct: Metastore) -> None:
    table, other = table_with(sales, "t", 7), table_with(sales, "u", 8)
    known: Known = {}
    read(direct, sales, known, table, other)
    mixed: Known = {table.id: known[other.id], other.id: known[table.id]}
    assert read(direct, sales, mixed, table, other) == [[7], [8]]
    assert mixed == known


def test_missing_cached_location_is_looked_up_again(sales: Catalog, direct: Metastore) -> None:
    table = table_with(sales, "t", 7)
    known: Known = {table.id: ["ducklake_inlined_data_999_1"]}
    assert read(direct, sales, known, table) == [[7]]


def test_dropped_table_is_reported_as_changed(sales: Catalog, direct: Metastore) -> None:
    table = table_with(sales, "t", 7)
    known: Known = {}
    read(direct, sales, known, table)
    sales.drop_table("main", "t")
    assert scan_inlined(direct.store(sales.info), [table], known) is ScanRefusal.CHANGED


def insert(catalog: Catalog, table: Table, count: int) -> None:
    rows = inline_rows(table, pa.table({"id": range(count)}), blind=True)
    assert rows is not None
    catalog.commit(Commit((rows,)))


def test_table_of_more_than_1000_rows_is_left_to_the_extension(
    sales: Catalog, direct: Metastore
) -> None:
    table = table_with(sales, "t")
    insert(sales, table, 1000)
    known: Known = {}
    assert read(direct, sales, known, table) == [list(range(1000))]
    insert(sales, table, 1)
    for locations in (known, {}):
        assert scan_inlined(direct.store(sales.info), [table], locations) is ScanRefusal.NOT_INLINED
    assert MAX_ROWS == 1000

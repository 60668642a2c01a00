"""Rows in the metadata, looked for where they were the last time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from swanlake.lake.inlining import inlined
from swanlake.lake.kept_rows import KeptRows, NotKept, read_kept_rows
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.layout import Table
from swanlake.lake.local import open_metabase
from swanlake.lake.metabase import Metabase
from swanlake.lake.operations import Commit
from swanlake.lake.types import ColumnSpec

Known = dict[int, list[str]]


@pytest.fixture
def sales(lake: Lake) -> Catalog:
    return lake.create_catalog("sales")


@pytest.fixture
def direct(metabase: str | Path, tmp_path: Path) -> Iterator[Metabase]:
    """The metadata itself: what a keeper asks, asked here."""
    opened = open_metabase(metabase, str(tmp_path / "data"))
    yield opened
    opened.close()


def table_with(catalog: Catalog, name: str, *ids: int) -> Table:
    catalog.create_table("main", name, [ColumnSpec("id", "BIGINT")])
    for id in ids:
        kept = inlined(catalog.table("main", name), pa.table({"id": [id]}), blind=True)
        assert kept is not None
        catalog.commit(Commit((kept,)))
    return catalog.table("main", name)


def read(direct: Metabase, catalog: Catalog, known: Known, *tables: Table) -> list[list[int]]:
    found = read_kept_rows(direct.store(catalog.info), tables, known)
    assert not isinstance(found, NotKept), found
    return [_ids(one) for one in found]


def _ids(kept: KeptRows) -> list[int]:
    return [int(str(value)) for value in kept.values[0]]


def test_where_they_were_is_known_then(sales: Catalog, direct: Metabase) -> None:
    full, empty = table_with(sales, "full", 1, 2), table_with(sales, "empty")
    known: Known = {}
    assert read(direct, sales, known, full, empty) == [[1, 2], []]
    assert [len(known[table.id]) for table in (full, empty)] == [1, 0]
    before = dict(known)
    assert read(direct, sales, known, empty, full) == [[], [1, 2]]
    assert known == before


def test_a_place_that_came_since_is_found(sales: Catalog, direct: Metabase) -> None:
    table = table_with(sales, "t", 7)
    known: Known = {table.id: []}
    assert read(direct, sales, known, table) == [[7]]
    assert len(known[table.id]) == 1


def test_a_place_that_is_another_table_s_is_not_taken_for_its_own(
    sales: Catalog, direct: Metabase
) -> None:
    table, other = table_with(sales, "t", 7), table_with(sales, "u", 8)
    known: Known = {}
    read(direct, sales, known, table, other)
    mixed: Known = {table.id: known[other.id], other.id: known[table.id]}
    assert read(direct, sales, mixed, table, other) == [[7], [8]]
    assert mixed == known


def test_a_place_that_is_gone_is_looked_for_again(sales: Catalog, direct: Metabase) -> None:
    table = table_with(sales, "t", 7)
    known: Known = {table.id: ["ducklake_inlined_data_999_1"]}
    assert read(direct, sales, known, table) == [[7]]


def test_a_table_that_is_gone_is_a_change(sales: Catalog, direct: Metabase) -> None:
    table = table_with(sales, "t", 7)
    known: Known = {}
    read(direct, sales, known, table)
    sales.drop_table("main", "t")
    assert read_kept_rows(direct.store(sales.info), [table], known) is NotKept.CHANGED

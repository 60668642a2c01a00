"""Work in the ledger is committed once, and never in part."""

from __future__ import annotations

import duckdb
import pytest

from swanlake.errors import LakeError
from swanlake.lake.lake import Lake
from swanlake.lake.model.types import ColumnSpec


def test_work_is_committed_whole_or_refused(lake: Lake, duck: duckdb.DuckDBPyConnection) -> None:
    sales = lake.create_catalog("sales")
    sales.create_table("main", "t", [ColumnSpec("i", "BIGINT")])

    def append(value: int, *work: str) -> bool:
        return sales.append(duck, f"SELECT {value}", "main", "t", ledger=work).applied

    assert append(1, "a")
    assert append(2, "b", "c")
    # Of new and old work together, the new part would be lost if the commit counted as done.
    for work in (("a", "d"), ("d", "b"), ("b", "c", "d")):
        with pytest.raises(LakeError, match="Part of this work is in the lake already") as refused:
            append(3, *work)
        assert refused.value.identifier == "PARTLY_COMMITTED"
    for done in (("a",), ("b", "c"), ("c",), ("a", "b", "c")):
        assert not append(4, *done)
    assert append(5, "d")
    lake.location(sales.info).attach(duck)
    assert duck.execute("SELECT i FROM sales.main.t ORDER BY i").fetchall() == [(1,), (2,), (5,)]
    assert sales.missing_files() == []
    assert len(sales.files(sales.table("main", "t").id).files) == 3

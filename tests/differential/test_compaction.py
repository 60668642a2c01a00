"""Compaction leaves in the catalog what the stock extension leaves, but for what we do better."""

from __future__ import annotations

from swanlake.pipeline.compact import compact
from swanlake.pipeline.compact_plan import CompactOptions
from tests.differential.test_operations import NUMBERS_SQL, SEEN_BY_INLINED_DELETES, numbers
from tests.differential.twins import Difference, Tables, TwinMaker, Twins
from tests.integration.lake.compacting import PlainRunner

INSERTS = [f"INSERT INTO lake.t {numbers(n, n + 10)}" for n in (0, 10, 20)]


def run(twins: Twins) -> None:
    table = twins.catalog.table("main", "t")
    options = CompactOptions(deleted_ratio=0.0)
    compact(twins.catalog, table.id, PlainRunner(), options)


def test_a_merge(twins: Twins) -> None:
    twins.both(NUMBERS_SQL, *INSERTS)
    run(twins)
    twins.stock("CALL ducklake_merge_adjacent_files('lake')")
    twins.compare(SEEN_BY_INLINED_DELETES)
    for version in range(1, twins.catalog.snapshot_id() + 1):
        rows = f"SELECT *, rowid, snapshot_id FROM lake.t AT (VERSION => {version}) ORDER BY ALL"
        assert twins.ours(rows) == twins.stock(rows)


def test_a_merge_that_sorts(twins: Twins) -> None:
    """Rows keep their ids, written with them. The stock extension numbers them by their places."""
    twins.both(NUMBERS_SQL, *INSERTS, "ALTER TABLE lake.t SET SORTED BY (t DESC)")
    rows = "SELECT *, rowid FROM lake.t ORDER BY ALL"
    before = twins.ours(rows)
    run(twins)
    twins.stock("CALL ducklake_merge_adjacent_files('lake')")
    assert twins.ours(rows) == before
    assert twins.stock(rows) != before


def test_a_rewrite(twins: Twins) -> None:
    twins.both(NUMBERS_SQL, INSERTS[0], INSERTS[1], "DELETE FROM lake.t WHERE i IN (3, 4, 19)")
    before = {
        v: twins.ours(f"SELECT *, rowid FROM lake.t AT (VERSION => {v}) ORDER BY ALL")
        for v in range(1, twins.catalog.snapshot_id() + 1)
    }
    run(twins)
    twins.stock("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    ours, stock = twins.ours.tables(), twins.stock.tables()
    newest = {row["snapshot_id"]: row["changes_made"] for row in ours["snapshot_changes"]}
    assert newest[max(newest)] == "inline_flush:1,rewrite_delete:1"
    (totals,), (stock_totals,) = ours["table_stats"], stock["table_stats"]
    for name in ("record_count", "next_row_id"):
        assert totals[name] == stock_totals[name]
    # The stock extension narrows these, and then reads rows of the past wrong that lie outside.
    assert [row["max_value"] for row in ours["table_column_stats"]] == ["19", "n9"]
    assert [row["max_value"] for row in stock["table_column_stats"]] == ["18", "n9"]
    for version, rows in before.items():
        query = f"SELECT *, rowid FROM lake.t AT (VERSION => {version}) ORDER BY ALL"
        assert twins.ours(query) == rows
    head = twins.catalog.snapshot_id()
    changes = f"FROM ducklake_table_changes('lake', 'main', 't', {head}, {head})"
    assert twins.ours(changes.replace("'lake'", f"'{twins.ours.name}'")) == []
    assert twins.stock(changes.replace("'lake'", f"'{twins.stock.name}'")) != []


def test_inlined_rows(twin_maker: TwinMaker, twins: Twins) -> None:
    for side in (twins.ours, twins.stock):
        twins.connection.execute(f"DETACH {side.name}")
        twin_maker.attach(side.name, inlined_rows=10)
    twins.both(NUMBERS_SQL, f"INSERT INTO lake.t {numbers(0, 3)}")
    twins.both(f"INSERT INTO lake.t {numbers(3, 5)}")
    run(twins)
    twins.stock("CALL ducklake_flush_inlined_data('lake')")
    twins.compare(KEPT_ROW_IDS)


def _no_row_id_start(tables: Tables) -> None:
    (row,) = tables["data_file"]
    assert row["row_id_start"] == 0
    row["row_id_start"] = None


KEPT_ROW_IDS = Difference(
    "A file whose rows carry their ids has no first one. The stock extension notes the lowest, and "
    "when it merges such a file with its neighbours takes the others for those that follow.",
    _no_row_id_start,
)

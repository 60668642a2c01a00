"""Compaction leaves the same metadata as the stock extension's, but for deliberate differences."""

from __future__ import annotations

from swanlake.maintenance.compaction.plan import CompactOptions
from swanlake.maintenance.compaction.run import compact
from tests.differential.catalog_pair import CatalogPair, Difference, PairFactory, Tables
from tests.differential.test_operations import NUMBERS_SQL, SEEN_BY_INLINED_DELETES, numbers
from tests.integration.lake.compaction_harness import PlainRunner

INSERTS = [f"INSERT INTO lake.t {numbers(n, n + 10)}" for n in (0, 10, 20)]


def run_compaction(pair: CatalogPair) -> None:
    table = pair.catalog.table("main", "t")
    options = CompactOptions(deleted_ratio=0.0)
    compact(pair.catalog, table.id, PlainRunner(), options)


def test_merge_writes_the_same_metadata(pair: CatalogPair) -> None:
    pair.run_on_both(NUMBERS_SQL, *INSERTS)
    run_compaction(pair)
    pair.stock("CALL ducklake_merge_adjacent_files('lake')")
    pair.compare(SEEN_BY_INLINED_DELETES)
    for version in range(1, pair.catalog.newest_snapshot() + 1):
        rows = f"SELECT *, rowid, snapshot_id FROM lake.t AT (VERSION => {version}) ORDER BY ALL"
        assert pair.ours(rows) == pair.stock(rows)


def test_merge_of_variants_writes_the_same_metadata(pair: CatalogPair) -> None:
    pair.run_on_both("CREATE TABLE lake.t (v VARIANT)")
    for value in ("{'a': 1, 'b': 'x'}", "{'a': 2, 'b': 'y'}"):
        pair.run_on_both(f"INSERT INTO lake.t SELECT {value}::VARIANT")
    run_compaction(pair)
    pair.stock("CALL ducklake_merge_adjacent_files('lake')")
    pair.compare(SEEN_BY_INLINED_DELETES)


def test_merge_of_a_sorted_table_keeps_row_ids(pair: CatalogPair) -> None:
    """Our files store the row ids. The stock extension renumbers the rows by their position."""
    pair.run_on_both(NUMBERS_SQL, *INSERTS, "ALTER TABLE lake.t SET SORTED BY (t DESC)")
    rows = "SELECT *, rowid FROM lake.t ORDER BY ALL"
    before = pair.ours(rows)
    run_compaction(pair)
    pair.stock("CALL ducklake_merge_adjacent_files('lake')")
    assert pair.ours(rows) == before
    assert pair.stock(rows) != before


def test_rewrite_keeps_totals_bounds_and_history(pair: CatalogPair) -> None:
    pair.run_on_both(
        NUMBERS_SQL, INSERTS[0], INSERTS[1], "DELETE FROM lake.t WHERE i IN (3, 4, 19)"
    )
    before = {
        v: pair.ours(f"SELECT *, rowid FROM lake.t AT (VERSION => {v}) ORDER BY ALL")
        for v in range(1, pair.catalog.newest_snapshot() + 1)
    }
    run_compaction(pair)
    pair.stock("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    ours, stock = pair.ours.tables(), pair.stock.tables()
    newest = {row["snapshot_id"]: row["changes_made"] for row in ours["snapshot_changes"]}
    assert newest[max(newest)] == "inline_flush:1,rewrite_delete:1"
    (totals,), (stock_totals,) = ours["table_stats"], stock["table_stats"]
    for name in ("record_count", "next_row_id"):
        assert totals[name] == stock_totals[name]
    # The stock extension narrows these bounds, and then misses rows of older snapshots.
    assert [row["max_value"] for row in ours["table_column_stats"]] == ["19", "n9"]
    assert [row["max_value"] for row in stock["table_column_stats"]] == ["18", "n9"]
    for version, rows in before.items():
        query = f"SELECT *, rowid FROM lake.t AT (VERSION => {version}) ORDER BY ALL"
        assert pair.ours(query) == rows
    head = pair.catalog.newest_snapshot()
    changes = f"FROM ducklake_table_changes('lake', 'main', 't', {head}, {head})"
    assert pair.ours(changes.replace("'lake'", f"'{pair.ours.name}'")) == []
    assert pair.stock(changes.replace("'lake'", f"'{pair.stock.name}'")) != []


def test_flush_of_inlined_rows_writes_the_same_metadata(
    pair_factory: PairFactory, pair: CatalogPair
) -> None:
    for side in (pair.ours, pair.stock):
        pair.connection.execute(f"DETACH {side.name}")
        pair_factory.attach(side.name, inlined_rows=10)
    pair.run_on_both(NUMBERS_SQL, f"INSERT INTO lake.t {numbers(0, 3)}")
    pair.run_on_both(f"INSERT INTO lake.t {numbers(3, 5)}")
    run_compaction(pair)
    pair.stock("CALL ducklake_flush_inlined_data('lake')")
    pair.compare(STORED_ROW_IDS)


def _no_row_id_start(tables: Tables) -> None:
    (row,) = tables["data_file"]
    assert row["row_id_start"] == 0
    row["row_id_start"] = None


STORED_ROW_IDS = Difference(
    "A file with stored row ids has no row_id_start. The stock extension records the lowest id "
    "and, when it merges the file with others, assumes that the rest follow it.",
    _no_row_id_start,
)

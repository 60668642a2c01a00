"""Expiry leaves the same metadata as stock DuckDB, and every retained snapshot unchanged."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

from swanlake.errors import CatalogNotWritable, CatalogUnreachable, CommitConflict, InvalidRequest
from swanlake.lake.catalog import Catalog
from swanlake.lake.lake import Lake
from swanlake.lake.lifecycle.expiry import ExpireReport
from swanlake.lake.model.operations import Commit
from tests.integration.lake.fixtures import ROWS, SOON, LakeHarness

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: A delete file holds a path, which differs between catalogs.
_DIFFERENT = {"snapshot_time", "schedule_start", "file_size_bytes", "footer_size"}

Dump = dict[str, list[tuple[Any, ...]]]

#: Creates and removes every kind of object. Up to three rows are inlined.
_LIFE = """
CREATE TABLE {c}.t (id BIGINT, v VARCHAR);
INSERT INTO {c}.t SELECT range, 'v' || range FROM range(20);
INSERT INTO {c}.t SELECT range, 'v' || range FROM range(20, 40);
DELETE FROM {c}.t WHERE id BETWEEN 3 AND 9;
DELETE FROM {c}.t WHERE id BETWEEN 10 AND 15;
UPDATE {c}.t SET v = 'u' WHERE id BETWEEN 22 AND 30;
DELETE FROM {c}.t WHERE id = 35;
COMMENT ON TABLE {c}.t IS 'first';
COMMENT ON TABLE {c}.t IS 'second';
COMMENT ON COLUMN {c}.t.v IS 'a value';
CREATE TABLE {c}.small (id BIGINT, v VARCHAR);
INSERT INTO {c}.small VALUES (1, 'a'), (2, 'b'), (3, 'c');
DELETE FROM {c}.small WHERE id = 1;
UPDATE {c}.small SET v = 'B' WHERE id = 2;
ALTER TABLE {c}.small ADD COLUMN w INTEGER DEFAULT 7;
INSERT INTO {c}.small VALUES (4, 'd', 1);
DELETE FROM {c}.small WHERE id = 4;
ALTER TABLE {c}.small RENAME COLUMN v TO name;
ALTER TABLE {c}.small RENAME TO little;
CREATE SCHEMA {c}.s;
CREATE TABLE {c}.s.gone (id BIGINT, k VARCHAR);
ALTER TABLE {c}.s.gone SET PARTITIONED BY (k);
ALTER TABLE {c}.s.gone SET SORTED BY (id);
INSERT INTO {c}.s.gone SELECT range, 'k' FROM range(30);
DELETE FROM {c}.s.gone WHERE id > 20;
INSERT INTO {c}.s.gone VALUES (100, 'x');
DELETE FROM {c}.s.gone WHERE id = 2;
COMMENT ON COLUMN {c}.s.gone.k IS 'soon gone';
ALTER TABLE {c}.s.gone RENAME TO going;
CREATE TABLE {c}.s.mapped (id BIGINT, k VARCHAR);
CALL ducklake_add_data_files('{c}', 'mapped', '{file}', schema => 's');
DROP TABLE {c}.s.mapped;
CREATE VIEW {c}.s.seen AS SELECT id FROM {c}.main.t;
CREATE OR REPLACE VIEW {c}.s.seen AS SELECT v FROM {c}.main.t;
CREATE MACRO {c}.s.twice(x) AS 2 * x;
CREATE MACRO {c}.main.rows_of(n := 3) AS TABLE SELECT range AS r FROM range(n);
DROP VIEW {c}.s.seen;
DROP MACRO {c}.s.twice;
DROP TABLE {c}.s.going;
DROP SCHEMA {c}.s;
DROP MACRO TABLE {c}.main.rows_of;
CREATE TABLE {c}.whole (id BIGINT, v VARCHAR);
INSERT INTO {c}.whole SELECT range, 'w' FROM range(10);
DELETE FROM {c}.whole WHERE id BETWEEN 2 AND 6;
DELETE FROM {c}.whole;
INSERT INTO {c}.whole SELECT range, 'w' FROM range(10);
CALL ducklake_rewrite_data_files('{c}', 't', delete_threshold => 0);
INSERT INTO {c}.t SELECT range, 'v' || range FROM range(40, 45);
INSERT INTO {c}.t SELECT range, 'v' || range FROM range(45, 50);
CALL ducklake_merge_adjacent_files('{c}', 't');
CREATE TABLE {c}.flushed (id BIGINT, v VARCHAR);
INSERT INTO {c}.flushed VALUES (1, 'a'), (2, 'b');
DELETE FROM {c}.flushed WHERE id = 1;
CALL ducklake_flush_inlined_data('{c}', table_name => 'flushed');
INSERT INTO {c}.little VALUES (5, 'e', 2);
DELETE FROM {c}.whole WHERE id = 1;
UPDATE {c}.little SET w = 3 WHERE id = 5;
INSERT INTO {c}.t SELECT range, 'v' || range FROM range(50, 60);
""".strip()


def scripted_catalog(harness: LakeHarness, name: str) -> Catalog:
    """A catalog with the full script applied by stock DuckDB."""
    catalog = harness.lake.create_catalog(name)
    harness.attach(catalog)
    file = harness.home / f"added_to_{name}.parquet"
    harness.sql(f"COPY (SELECT 500 AS id, 'added' AS k) TO '{file}'")
    harness.inline(3)
    for statement in _LIFE.format(c=name, file=file).split(";\n"):
        harness.sql(statement)
    harness.inline(0)
    return catalog


def dump(harness: LakeHarness, catalog: Catalog) -> Dump:
    """All metadata, without values that differ between catalogs of the same history."""
    harness.detach(catalog)
    harness.attach(catalog)
    if harness.on_postgres:
        asked = (
            "postgres_query",
            (
                "SELECT table_name AS name FROM information_schema.tables "
                f"WHERE table_schema = ''lake_{catalog.info.storage_name}''"
            ),
        )
    else:
        asked = "sqlite_query", "SELECT name FROM sqlite_master WHERE type = ''table''"
    function, query = asked
    names = harness.sql(
        f"FROM {function}('__ducklake_metadata_{catalog.name}', '{query}') ORDER BY 1"
    )
    assert len(names) >= 30
    return {name: _rows(harness, catalog, name) for (name,) in names}


def _rows(harness: LakeHarness, catalog: Catalog, name: str) -> list[tuple[Any, ...]]:
    result = harness.duck.execute(f"FROM {harness.metadata(catalog, name)}")
    columns = [column[0] for column in result.description or ()]
    wanted = [index for index, column in enumerate(columns) if column not in _DIFFERENT]
    rows = [tuple(_same(catalog, row[index]) for index in wanted) for row in result.fetchall()]
    return sorted(rows, key=repr)


def _same(catalog: Catalog, value: Any) -> Any:
    text = str(value).replace(f"/{catalog.info.storage_name}/", "/<catalog>/")
    text = text.replace(f"added_to_{catalog.name}", "added")
    return _UUID.sub("<uuid>", text)


def without_dead_rows(catalog: Catalog, dumped: Dump) -> Dump:
    """The dump without rows that stock DuckDB never reclaims."""
    oldest = min(snapshot.id for snapshot in catalog.snapshots())
    files = {row[0] for row in dumped["ducklake_data_file"]}
    for name, rows in dumped.items():
        if name.startswith("ducklake_inlined_data_") and name != "ducklake_inlined_data_tables":
            dumped[name] = [row for row in rows if row[2] == "None" or int(row[2]) >= oldest]
        elif name.startswith("ducklake_inlined_delete_"):
            dumped[name] = [row for row in rows if row[0] in files]
    return dumped


def contents(harness: LakeHarness, catalog: Catalog, last: int) -> dict[tuple[str, int], Any]:
    """Every table at the last snapshots, as stock DuckDB reads it."""
    seen: dict[tuple[str, int], Any] = {}
    retained = [snapshot.id for snapshot in catalog.snapshots()][-last:]
    for at in retained:
        for (table,) in harness.sql(f"SELECT table_name FROM {_tables(harness, catalog, at)}"):
            where = f"{catalog.name}.{table}"
            rows = harness.sql(f"FROM {where} AT (VERSION => {at}) ORDER BY ALL")
            counted = harness.sql(f"SELECT count(*) FROM {where} AT (VERSION => {at})")
            assert counted == [(len(rows),)]
            seen[table, at] = rows
    return seen


def changes(harness: LakeHarness, catalog: Catalog, last: int) -> dict[tuple[str, int], Any]:
    """The change feed from each of the last snapshots on."""
    retained = [snapshot.id for snapshot in catalog.snapshots()][-last:]
    newest = max(retained)
    return {
        (f"changes of {table}", at): harness.sql(
            f"FROM ducklake_table_changes('{catalog.name}', 'main', '{table}', {at}, {newest}) "
            "ORDER BY ALL"
        )
        for table in ("t", "little", "whole", "flushed")
        for at in retained
    }


def _tables(harness: LakeHarness, catalog: Catalog, at: int) -> str:
    table, schema = (harness.metadata(catalog, f"ducklake_{kind}") for kind in ("table", "schema"))
    return (
        f"(SELECT schema_name || '.' || table_name AS table_name FROM {table} t JOIN {schema} s "
        f"USING (schema_id) WHERE t.begin_snapshot <= {at} "
        f"AND (t.end_snapshot IS NULL OR t.end_snapshot > {at}))"
    )


# ---- the same as stock DuckDB ------------------------------------------------------------------


def test_expiry_leaves_the_same_metadata_as_stock_duckdb(harness: LakeHarness) -> None:
    ours, stock = scripted_catalog(harness, "ours"), scripted_catalog(harness, "stock")
    left = dump(harness, ours)
    assert left == dump(harness, stock)
    for keep_last in (40, 25, 15, 8, 2, 1):
        gone = [snapshot.id for snapshot in stock.snapshots()][:-keep_last]
        assert gone
        harness.sql(f"CALL ducklake_expire_snapshots('stock', versions => {gone})")
        before = len(left["ducklake_files_scheduled_for_deletion"])
        planned = ours.expire(keep_last=keep_last, dry_run=True)
        done = ours.expire(keep_last=keep_last)
        assert [snapshot.id for snapshot in done.snapshots] == gone
        assert without_dry_run(planned) == without_dry_run(done)
        left = dump(harness, ours)
        assert left == without_dead_rows(stock, dump(harness, stock))
        scheduled = left["ducklake_files_scheduled_for_deletion"]
        assert len(scheduled) - before == len(done.files)
        assert ours.check() == []
    assert ours.expire(keep_last=1).snapshots == ()


def without_dry_run(report: ExpireReport) -> tuple[Any, ...]:
    return (report.snapshots, report.kept, report.files, report.tables, report.rows)


def on(kind: str) -> pytest.MarkDecorator:
    """Runs a test on one kind of metabase; on the other, it is a slow test.

    The test above runs every statement of expiry on both.
    """
    return pytest.mark.parametrize(
        "shared_harness",
        [
            pytest.param(each, marks=[] if each == kind else pytest.mark.slow)
            for each in ("sqlite", "postgres")
        ],
        indirect=True,
    )


@on("sqlite")
def test_retained_snapshots_between_expired_ones_stay_readable(harness: LakeHarness) -> None:
    """Times and ids may disagree, so an age can leave gaps."""
    ours, stock = scripted_catalog(harness, "ours"), scripted_catalog(harness, "stock")
    newest = stock.newest_snapshot()
    retained = [4, 13, 24, newest - 9, newest]
    young = ", ".join(map(str, retained))
    for catalog in (ours, stock):
        harness.detach(catalog)
        harness.tamper(
            catalog,
            "UPDATE ducklake_snapshot SET snapshot_time = '2020-01-01 00:00:00+00' "
            f"WHERE snapshot_id NOT IN ({young})",
        )
        harness.attach(catalog)
    before = {
        at: harness.sql(f"FROM ours.t AT (VERSION => {at}) ORDER BY ALL")
        for at in retained
        if at > 2
    }
    harness.sql("CALL ducklake_expire_snapshots('stock', older_than => '2021-01-01'::TIMESTAMPTZ)")
    ours.expire(older_than=datetime(2021, 1, 1, tzinfo=UTC))
    assert [snapshot.id for snapshot in ours.snapshots()] == retained
    assert dump(harness, ours) == without_dead_rows(stock, dump(harness, stock))
    harness.lake.collect(age=SOON)
    for at, rows in before.items():
        assert harness.sql(f"FROM ours.t AT (VERSION => {at}) ORDER BY ALL") == rows
    assert ours.missing_files() == []


@on("postgres")
def test_retained_snapshots_and_changes_are_unchanged(harness: LakeHarness) -> None:
    catalog = scripted_catalog(harness, "scripted")
    before = contents(harness, catalog, last=5) | changes(harness, catalog, last=5)
    for keep_last in (5, 2, 1):
        catalog.expire(keep_last=keep_last)
        harness.lake.collect(age=SOON)
        harness.detach(catalog)
        harness.attach(catalog)
        retained = {snapshot.id for snapshot in catalog.snapshots()}
        assert len(retained) == keep_last
        after = contents(harness, catalog, last=5) | changes(harness, catalog, last=5)
        assert after == {key: rows for key, rows in before.items() if key[1] in retained}
        assert catalog.missing_files() == []
    harness.maintain(catalog, "flush", "rewrite", "merge")
    harness.sql("UPDATE scripted.t SET v = 'later' WHERE id > 50")
    assert (
        contents(harness, catalog, last=9)["main.t", max(retained)]
        == before["main.t", max(retained)]
    )


def test_dead_metadata_rows_are_counted_and_reclaimed(harness: LakeHarness) -> None:
    catalog = scripted_catalog(harness, "scripted")
    report = catalog.expire(keep_last=1)
    assert report.rows["inlined_data"] >= 3
    assert report.tables == ("s.going", "s.mapped")
    assert {"snapshot", "table", "schema", "view", "tag", "macro", "column"} <= set(report.rows)
    assert report.rows["snapshot"] == len(report.snapshots)
    assert report.bytes == sum(file.size for file in report.files) > 0
    for name, rows in dump(harness, catalog).items():
        if name.startswith("ducklake_inlined_data_") and name != "ducklake_inlined_data_tables":
            assert all(row[2] == "None" for row in rows)


def test_deletes_from_removed_files_are_reclaimed(harness: LakeHarness) -> None:
    catalog = harness.lake.create_catalog("sales")
    harness.table(catalog, ids=[range(20)])
    harness.attach(catalog)
    harness.inline(3)
    harness.sql("DELETE FROM sales.t WHERE id = 4")
    harness.maintain(catalog, "rewrite")
    harness.sql("DELETE FROM sales.t WHERE id = 7")
    assert catalog.expire(keep_last=1, dry_run=True).rows["inlined_delete"] == 1
    assert catalog.expire(keep_last=1).rows["inlined_delete"] == 1
    assert harness.ids("sales.t") == [id for id in range(20) if id not in (4, 7)]
    harness.maintain(catalog, "flush")
    assert harness.ids("sales.t") == [id for id in range(20) if id not in (4, 7)]


# ---- concurrency -------------------------------------------------------------------------------


def test_commit_with_an_expired_base_is_refused(harness: LakeHarness) -> None:
    sales = harness.lake.create_catalog("sales")
    table = harness.table(sales, ids=[range(5)])
    harness.attach(sales)
    insert = harness.insert(table, range(5, 10))
    harness.append(sales, range(20, 25))
    harness.append(sales, range(25, 30))
    sales.expire(keep_last=1)
    with pytest.raises(CommitConflict, match=r"snapshot 2 has been expired since") as refused:
        sales.commit(Commit((insert,), base=table.snapshot_id))
    assert "Read again and repeat it" in refused.value.message
    table = sales.table("main", "t")
    sales.commit(Commit((insert,), base=table.snapshot_id))
    assert len(harness.ids("sales.t")) == 20


def test_commit_is_refused_if_a_snapshot_after_its_base_was_expired(harness: LakeHarness) -> None:
    sales = harness.lake.create_catalog("sales")
    table = harness.table(sales, ids=[range(5)])
    harness.append(sales, range(20, 25))
    harness.append(sales, range(25, 30))
    harness.tamper(
        sales,
        f"UPDATE ducklake_snapshot SET snapshot_time = '2020-01-01 00:00:00+00' "
        f"WHERE snapshot_id = {table.snapshot_id + 1}",
    )
    insert = harness.insert(table, range(5, 10))
    assert len(sales.expire(older_than=timedelta(days=1)).snapshots) == 1
    with pytest.raises(CommitConflict, match=f"snapshot {table.snapshot_id + 1} has been expired"):
        sales.commit(Commit((insert,), base=table.snapshot_id))


def test_commit_based_on_the_oldest_retained_snapshot_succeeds(harness: LakeHarness) -> None:
    sales = harness.lake.create_catalog("sales")
    harness.table(sales, ids=[range(5)])
    harness.append(sales, range(20, 25))
    table = sales.table("main", "t")
    harness.append(sales, range(25, 30))
    insert = harness.insert(table, range(5, 10), blind=True)
    sales.expire(keep_last=2)
    assert sales.commit(Commit((insert,), base=table.snapshot_id)).applied


def test_expiry_changes_nothing_while_a_dropped_table_is_read(
    postgres_harness: LakeHarness,
) -> None:
    harness = postgres_harness
    harness.clear()
    catalog = scripted_catalog(harness, "scripted")
    before = dump(harness, catalog)
    at = next(s.id for s in catalog.snapshots() if "inlined_insert" in s.changes and s.id > 22)
    with harness.another_engine(catalog) as reader:
        reader.execute("BEGIN")
        reader.execute(f"FROM scripted.s.gone AT (VERSION => {at})").fetchall()
        with pytest.raises(CatalogUnreachable, match="nothing was changed"):
            catalog.expire(keep_last=1)
        reader.execute("ROLLBACK")
    assert dump(harness, catalog) == before
    assert len(catalog.expire(keep_last=1).tables) == 2
    harness.clear()


def test_rows_being_flushed_are_not_reclaimed(postgres_harness: LakeHarness) -> None:
    harness = postgres_harness
    harness.clear()
    sales = harness.lake.create_catalog("sales")
    harness.attach(sales)
    harness.inline(5)
    harness.sql("CREATE TABLE sales.t (id BIGINT, v VARCHAR)")
    harness.sql("INSERT INTO sales.t VALUES (1, 'a'), (2, 'b')")
    harness.sql("DELETE FROM sales.t WHERE id = 1")
    harness.sql("CREATE TABLE sales.u (id BIGINT, v VARCHAR)")
    with harness.another_engine(sales) as flusher:
        flusher.execute("BEGIN")
        flusher.execute("CALL ducklake_flush_inlined_data('sales')")
        sales.expire(keep_last=1)
        flusher.execute("COMMIT")
    assert harness.ids("sales.t") == [2]
    harness.clear()


def test_expiry_needs_the_fence(harness: LakeHarness) -> None:
    sales = harness.lake.create_catalog("sales")
    harness.table(sales, ids=[range(5)])
    on = " ON ducklake_files_scheduled_for_deletion" if harness.on_postgres else ""
    harness.tamper(sales, f"DROP TRIGGER swanlake_defer{on}")
    with Lake.open(harness.metabase, harness.data) as lake, pytest.raises(CatalogNotWritable):
        lake.catalog("sales").expire(keep_last=1)
    harness.lake.adopt_catalog("sales")
    assert len(sales.expire(keep_last=1).snapshots) == 2


def test_expiry_needs_a_rule(harness: LakeHarness) -> None:
    sales = harness.lake.create_catalog("sales")
    with pytest.raises(InvalidRequest, match="Say which snapshots expire"):
        sales.expire()


# ---- forks -------------------------------------------------------------------------------------


@on("sqlite")
def test_fork_and_parent_survive_each_others_expiry(harness: LakeHarness) -> None:
    parent = scripted_catalog(harness, "parent")
    middle = parent.newest_snapshot() - 6
    forks = [
        harness.lake.fork_catalog("parent", "whole_fork"),
        harness.lake.fork_catalog("parent", "older_fork", middle),
    ]
    harness.attach(*forks)
    family = [parent, *forks]
    for number, catalog in enumerate(family):
        name = catalog.name
        harness.sql(f"DELETE FROM {name}.t WHERE id BETWEEN {40 + number} AND 52")
        harness.append(catalog, range(100 * number + 1000, 100 * number + 1010))
    expected = {catalog.name: contents(harness, catalog, last=3) for catalog in family}
    for keep_last, order in ((3, family), (1, family[::-1])):
        for catalog in order:
            catalog.expire(keep_last=keep_last)
            harness.lake.collect(age=SOON)
            for other in family:
                seen = contents(harness, other, last=3)
                assert seen == {
                    (table, at): rows
                    for (table, at), rows in expected[other.name].items()
                    if at in {at for _, at in seen}
                }
                assert other.missing_files() == []
            assert len(catalog.snapshots()) == keep_last
    with pytest.raises(duckdb.Error, match="No snapshot found"):
        harness.sql(f"FROM parent.t AT (VERSION => {middle})")


def test_fork_at_an_expired_snapshot_is_refused(harness: LakeHarness) -> None:
    sales = harness.lake.create_catalog("sales")
    harness.table(sales, ids=[range(5)])
    fork = harness.lake.fork_catalog("sales", "fork", 1)
    sales.expire(keep_last=1)
    with pytest.raises(Exception, match="There is no snapshot 1 to fork at"):
        harness.lake.fork_catalog("sales", "late", 1)
    assert fork.info.parent_snapshot == 1
    assert fork.table("main", "t").snapshot_id == 1
    fork.create_table("main", "u", ROWS)

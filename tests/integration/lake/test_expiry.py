"""Expiry leaves what stock DuckDB's leaves, and every kept snapshot as it was."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import pytest

from swanlake.errors import CatalogNotWritable, CatalogUnreachable, CommitConflict, InvalidRequest
from swanlake.lake.expiry import ExpireReport
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.operations import Commit
from tests.integration.lake.world import ROWS, SOON, World

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: A file of deleted rows holds a path, and no two catalogs have the same.
_DIFFERENT = {"snapshot_time", "schedule_start", "file_size_bytes", "footer_size"}

Dump = dict[str, list[tuple[Any, ...]]]

#: Everything that a catalog can hold, and lose. Up to three rows stay in the metadata.
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


def live(world: World, name: str) -> Catalog:
    """A catalog in which everything has happened, by stock DuckDB alone."""
    catalog = world.lake.create_catalog(name)
    world.attach(catalog)
    file = world.home / f"added_to_{name}.parquet"
    world.sql(f"COPY (SELECT 500 AS id, 'added' AS k) TO '{file}'")
    world.inline(3)
    for statement in _LIFE.format(c=name, file=file).split(";\n"):
        world.sql(statement)
    world.inline(0)
    return catalog


def dump(world: World, catalog: Catalog) -> Dump:
    """All metadata, without what differs between two catalogs that lived the same life."""
    world.detach(catalog)
    world.attach(catalog)
    if world.on_postgres:
        asked = (
            "postgres_query",
            (
                "SELECT table_name AS name FROM information_schema.tables "
                f"WHERE table_schema = ''lake_{catalog.info.place}''"
            ),
        )
    else:
        asked = "sqlite_query", "SELECT name FROM sqlite_master WHERE type = ''table''"
    function, query = asked
    names = world.sql(
        f"FROM {function}('__ducklake_metadata_{catalog.name}', '{query}') ORDER BY 1"
    )
    assert len(names) >= 30
    return {name: _rows(world, catalog, name) for (name,) in names}


def _rows(world: World, catalog: Catalog, name: str) -> list[tuple[Any, ...]]:
    found = world.duck.execute(f"FROM {world.metadata(catalog, name)}")
    columns = [column[0] for column in found.description or ()]
    wanted = [index for index, column in enumerate(columns) if column not in _DIFFERENT]
    rows = [tuple(_same(catalog, row[index]) for index in wanted) for row in found.fetchall()]
    return sorted(rows, key=repr)


def _same(catalog: Catalog, value: Any) -> Any:
    text = str(value).replace(f"/{catalog.info.place}/", "/<catalog>/")
    text = text.replace(f"added_to_{catalog.name}", "added")
    return _UUID.sub("<uuid>", text)


def without_dead_rows(catalog: Catalog, found: Dump) -> Dump:
    """What stock DuckDB leaves behind for ever, left out."""
    oldest = min(snapshot.id for snapshot in catalog.snapshots())
    files = {row[0] for row in found["ducklake_data_file"]}
    for name, rows in found.items():
        if name.startswith("ducklake_inlined_data_") and name != "ducklake_inlined_data_tables":
            found[name] = [row for row in rows if row[2] == "None" or int(row[2]) >= oldest]
        elif name.startswith("ducklake_inlined_delete_"):
            found[name] = [row for row in rows if row[0] in files]
    return found


def contents(world: World, catalog: Catalog, last: int) -> dict[tuple[str, int], Any]:
    """Every table at the last snapshots, as stock DuckDB reads it."""
    seen: dict[tuple[str, int], Any] = {}
    kept = [snapshot.id for snapshot in catalog.snapshots()][-last:]
    for at in kept:
        for (table,) in world.sql(f"SELECT table_name FROM {_tables(world, catalog, at)}"):
            where = f"{catalog.name}.{table}"
            rows = world.sql(f"FROM {where} AT (VERSION => {at}) ORDER BY ALL")
            counted = world.sql(f"SELECT count(*) FROM {where} AT (VERSION => {at})")
            assert counted == [(len(rows),)]
            seen[table, at] = rows
    return seen


def changes(world: World, catalog: Catalog, last: int) -> dict[tuple[str, int], Any]:
    """What was inserted, updated and deleted from each of the last snapshots on."""
    kept = [snapshot.id for snapshot in catalog.snapshots()][-last:]
    return {
        (f"changes of {table}", at): world.sql(
            f"FROM ducklake_table_changes('{catalog.name}', 'main', '{table}', {at}, {max(kept)}) "
            "ORDER BY ALL"
        )
        for table in ("t", "little", "whole", "flushed")
        for at in kept
    }


def _tables(world: World, catalog: Catalog, at: int) -> str:
    table, schema = (world.metadata(catalog, f"ducklake_{kind}") for kind in ("table", "schema"))
    return (
        f"(SELECT schema_name || '.' || table_name AS table_name FROM {table} t JOIN {schema} s "
        f"USING (schema_id) WHERE t.begin_snapshot <= {at} "
        f"AND (t.end_snapshot IS NULL OR t.end_snapshot > {at}))"
    )


# ---- the same as stock DuckDB ------------------------------------------------------------------


def test_all_metadata_is_as_stock_duckdb_leaves_it(world: World) -> None:
    ours, stock = live(world, "ours"), live(world, "stock")
    assert dump(world, ours) == dump(world, stock)
    for keep_last in (40, 25, 15, 8, 2, 1):
        gone = [snapshot.id for snapshot in stock.snapshots()][:-keep_last]
        assert gone
        world.sql(f"CALL ducklake_expire_snapshots('stock', versions => {gone})")
        before = len(dump(world, ours)["ducklake_files_scheduled_for_deletion"])
        planned = ours.expire(keep_last=keep_last, dry_run=True)
        done = ours.expire(keep_last=keep_last)
        assert [snapshot.id for snapshot in done.snapshots] == gone
        assert without_dry_run(planned) == without_dry_run(done)
        left = dump(world, ours)
        assert left == without_dead_rows(stock, dump(world, stock))
        scheduled = left["ducklake_files_scheduled_for_deletion"]
        assert len(scheduled) - before == len(done.files)
        assert ours.check() == []
    assert ours.expire(keep_last=1).snapshots == ()


def without_dry_run(report: ExpireReport) -> tuple[Any, ...]:
    return (report.snapshots, report.kept, report.files, report.tables, report.rows)


def test_snapshots_that_are_kept_between_others_keep_what_they_see(world: World) -> None:
    """Times and ids may disagree, so an age can leave gaps."""
    ours, stock = live(world, "ours"), live(world, "stock")
    newest = stock.snapshot_id()
    kept = [4, 13, 24, newest - 9, newest]
    young = ", ".join(map(str, kept))
    for catalog in (ours, stock):
        world.detach(catalog)
        world.tamper(
            catalog,
            "UPDATE ducklake_snapshot SET snapshot_time = '2020-01-01 00:00:00+00' "
            f"WHERE snapshot_id NOT IN ({young})",
        )
        world.attach(catalog)
    before = {
        at: world.sql(f"FROM ours.t AT (VERSION => {at}) ORDER BY ALL") for at in kept if at > 2
    }
    world.sql("CALL ducklake_expire_snapshots('stock', older_than => '2021-01-01'::TIMESTAMPTZ)")
    ours.expire(older_than=datetime(2021, 1, 1, tzinfo=UTC))
    assert [snapshot.id for snapshot in ours.snapshots()] == kept
    assert dump(world, ours) == without_dead_rows(stock, dump(world, stock))
    world.lake.collect(age=SOON)
    for at, rows in before.items():
        assert world.sql(f"FROM ours.t AT (VERSION => {at}) ORDER BY ALL") == rows
    assert ours.missing_files() == []


def test_every_kept_snapshot_and_change_is_as_it_was(world: World) -> None:
    catalog = live(world, "lived")
    before = contents(world, catalog, last=7) | changes(world, catalog, last=7)
    for keep_last in (7, 3, 1):
        catalog.expire(keep_last=keep_last)
        world.lake.collect(age=SOON)
        world.detach(catalog)
        world.attach(catalog)
        kept = {snapshot.id for snapshot in catalog.snapshots()}
        assert len(kept) == keep_last
        after = contents(world, catalog, last=7) | changes(world, catalog, last=7)
        assert after == {key: rows for key, rows in before.items() if key[1] in kept}
        assert catalog.missing_files() == []
    world.maintain(catalog, "flush", "rewrite", "merge")
    world.sql("UPDATE lived.t SET v = 'later' WHERE id > 50")
    assert contents(world, catalog, last=9)["main.t", max(kept)] == before["main.t", max(kept)]


def test_dead_rows_in_the_metadata_are_counted_and_reclaimed(world: World) -> None:
    catalog = live(world, "lived")
    report = catalog.expire(keep_last=1)
    assert report.rows["inlined_data"] >= 3
    assert report.tables == ("s.going", "s.mapped")
    assert {"snapshot", "table", "schema", "view", "tag", "macro", "column"} <= set(report.rows)
    assert report.rows["snapshot"] == len(report.snapshots)
    assert report.bytes == sum(file.size for file in report.files) > 0
    for name, rows in dump(world, catalog).items():
        if name.startswith("ducklake_inlined_data_") and name != "ducklake_inlined_data_tables":
            assert all(row[2] == "None" for row in rows)


def test_deletes_from_files_that_are_gone_are_reclaimed(world: World) -> None:
    catalog = world.lake.create_catalog("sales")
    world.table(catalog, ids=[range(20)])
    world.attach(catalog)
    world.inline(3)
    world.sql("DELETE FROM sales.t WHERE id = 4")
    world.maintain(catalog, "rewrite")
    world.sql("DELETE FROM sales.t WHERE id = 7")
    assert catalog.expire(keep_last=1, dry_run=True).rows["inlined_delete"] == 1
    assert catalog.expire(keep_last=1).rows["inlined_delete"] == 1
    assert world.ids("sales.t") == [id for id in range(20) if id not in (4, 7)]
    world.maintain(catalog, "flush")
    assert world.ids("sales.t") == [id for id in range(20) if id not in (4, 7)]


# ---- beside others -----------------------------------------------------------------------------


def test_a_commit_whose_base_was_expired_is_refused(world: World) -> None:
    sales = world.lake.create_catalog("sales")
    table = world.table(sales, ids=[range(5)])
    world.attach(sales)
    insert = world.insert(table, range(5, 10))
    world.append(sales, range(20, 25))
    world.append(sales, range(25, 30))
    sales.expire(keep_last=1)
    with pytest.raises(CommitConflict, match=r"snapshot 2 has been expired since") as refused:
        sales.commit(Commit((insert,), base=table.snapshot_id))
    assert "Read again and repeat it" in refused.value.message
    table = sales.table("main", "t")
    sales.commit(Commit((insert,), base=table.snapshot_id))
    assert len(world.ids("sales.t")) == 20


def test_a_commit_is_refused_if_only_a_snapshot_after_its_base_was_expired(world: World) -> None:
    sales = world.lake.create_catalog("sales")
    table = world.table(sales, ids=[range(5)])
    world.append(sales, range(20, 25))
    world.append(sales, range(25, 30))
    world.tamper(
        sales,
        f"UPDATE ducklake_snapshot SET snapshot_time = '2020-01-01 00:00:00+00' "
        f"WHERE snapshot_id = {table.snapshot_id + 1}",
    )
    insert = world.insert(table, range(5, 10))
    assert len(sales.expire(older_than=timedelta(days=1)).snapshots) == 1
    with pytest.raises(CommitConflict, match=f"snapshot {table.snapshot_id + 1} has been expired"):
        sales.commit(Commit((insert,), base=table.snapshot_id))


def test_a_commit_based_on_the_oldest_kept_snapshot_goes_through(world: World) -> None:
    sales = world.lake.create_catalog("sales")
    world.table(sales, ids=[range(5)])
    world.append(sales, range(20, 25))
    table = sales.table("main", "t")
    world.append(sales, range(25, 30))
    insert = world.insert(table, range(5, 10), blind=True)
    sales.expire(keep_last=2)
    assert sales.commit(Commit((insert,), base=table.snapshot_id)).applied


def test_a_reader_that_holds_what_is_dropped_keeps_everything_for_now(
    postgres_world: World,
) -> None:
    world = postgres_world
    world.clear()
    catalog = live(world, "lived")
    before = dump(world, catalog)
    at = next(s.id for s in catalog.snapshots() if "inlined_insert" in s.changes and s.id > 22)
    with world.another_engine(catalog) as reader:
        reader.execute("BEGIN")
        reader.execute(f"FROM lived.s.gone AT (VERSION => {at})").fetchall()
        with pytest.raises(CatalogUnreachable, match="nothing was changed"):
            catalog.expire(keep_last=1)
        reader.execute("ROLLBACK")
    assert dump(world, catalog) == before
    assert len(catalog.expire(keep_last=1).tables) == 2
    world.clear()


def test_rows_that_are_being_flushed_are_left_alone(postgres_world: World) -> None:
    world = postgres_world
    world.clear()
    sales = world.lake.create_catalog("sales")
    world.attach(sales)
    world.inline(5)
    world.sql("CREATE TABLE sales.t (id BIGINT, v VARCHAR)")
    world.sql("INSERT INTO sales.t VALUES (1, 'a'), (2, 'b')")
    world.sql("DELETE FROM sales.t WHERE id = 1")
    world.sql("CREATE TABLE sales.u (id BIGINT, v VARCHAR)")
    with world.another_engine(sales) as flusher:
        flusher.execute("BEGIN")
        flusher.execute("CALL ducklake_flush_inlined_data('sales')")
        sales.expire(keep_last=1)
        flusher.execute("COMMIT")
    assert world.ids("sales.t") == [2]
    world.clear()


def test_expiry_needs_the_fence_that_keeps_shared_files(world: World) -> None:
    sales = world.lake.create_catalog("sales")
    world.table(sales, ids=[range(5)])
    on = " ON ducklake_files_scheduled_for_deletion" if world.on_postgres else ""
    world.tamper(sales, f"DROP TRIGGER swanlake_defer{on}")
    with Lake.open(world.metabase, world.data) as lake, pytest.raises(CatalogNotWritable):
        lake.catalog("sales").expire(keep_last=1)
    world.lake.adopt_catalog("sales")
    assert len(sales.expire(keep_last=1).snapshots) == 2


def test_a_rule_is_needed(world: World) -> None:
    sales = world.lake.create_catalog("sales")
    with pytest.raises(InvalidRequest, match="Say which snapshots may go"):
        sales.expire()


# ---- forks -------------------------------------------------------------------------------------


def test_a_fork_and_its_parent_outlive_each_others_expiry(world: World) -> None:
    parent = live(world, "parent")
    middle = parent.snapshot_id() - 6
    forks = [
        world.lake.fork_catalog("parent", "whole_fork"),
        world.lake.fork_catalog("parent", "older_fork", middle),
    ]
    world.attach(*forks)
    family = [parent, *forks]
    for number, catalog in enumerate(family):
        name = catalog.name
        world.sql(f"DELETE FROM {name}.t WHERE id BETWEEN {40 + number} AND 52")
        world.append(catalog, range(100 * number + 1000, 100 * number + 1010))
    expected = {catalog.name: contents(world, catalog, last=3) for catalog in family}
    for keep_last, order in ((3, family), (1, family[::-1])):
        for catalog in order:
            catalog.expire(keep_last=keep_last)
            world.lake.collect(age=SOON)
            for other in family:
                seen = contents(world, other, last=3)
                assert seen == {
                    (table, at): rows
                    for (table, at), rows in expected[other.name].items()
                    if at in {at for _, at in seen}
                }
                assert other.missing_files() == []
            assert len(catalog.snapshots()) == keep_last
    with pytest.raises(duckdb.Error, match="No snapshot found"):
        world.sql(f"FROM parent.t AT (VERSION => {middle})")


def test_a_fork_cannot_begin_at_a_snapshot_that_is_gone(world: World) -> None:
    sales = world.lake.create_catalog("sales")
    world.table(sales, ids=[range(5)])
    fork = world.lake.fork_catalog("sales", "fork", 1)
    sales.expire(keep_last=1)
    with pytest.raises(Exception, match="There is no snapshot 1 to fork at"):
        world.lake.fork_catalog("sales", "late", 1)
    assert fork.info.parent_snapshot == 1
    assert fork.table("main", "t").snapshot_id == 1
    fork.create_table("main", "u", ROWS)

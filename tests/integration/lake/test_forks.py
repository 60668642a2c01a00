"""Forks: what they begin with, that neither side sees the other, and that no file is lost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import duckdb
import pytest

from swanlake.errors import AlreadyExists, InvalidRequest, NotFound
from swanlake.lake.lake import Catalog
from swanlake.lake.operations import Commit, Insert
from tests.integration.lake.world import SOON, World

NUMBERS = count(1)


def fork(world: World, parent: Catalog, name: str, at: int | None = None) -> Catalog:
    forked = world.lake.fork_catalog(parent.name, name, at)
    world.attach(forked)
    assert forked.check() == []
    assert forked.missing_files() == []
    return forked


@pytest.fixture
def parent(shared_world: World) -> Catalog:
    """A catalog with a table ``t`` of the ids 0 to 9 in one file and 10 to 19 in another."""
    catalog = shared_world.lake.create_catalog(f"p{next(NUMBERS)}")
    shared_world.table(catalog)
    shared_world.append(catalog, range(10))
    shared_world.append(catalog, range(10, 20))
    shared_world.attach(catalog)
    return catalog


def fork_name() -> str:
    return f"f{next(NUMBERS)}"


# ---- what a fork begins with -------------------------------------------------------------------


def test_a_fork_begins_as_its_parent_is_with_all_its_past_and_copies_no_file(
    shared_world: World, parent: Catalog
) -> None:
    world = shared_world
    world.sql(f"DELETE FROM {parent.name}.t WHERE id = 3")
    before = world.parquet()
    child = fork(world, parent, fork_name())
    assert world.parquet() == before
    assert child.info.parent == parent.info.id
    assert child.info.family == parent.info.family
    assert child.info.parent_snapshot == parent.snapshot_id() == child.snapshot_id()
    for at in range(1, parent.snapshot_id() + 1):
        assert world.ids(f"{child.name}.t", at) == world.ids(f"{parent.name}.t", at)
    assert world.ids(f"{child.name}.t") == [id for id in range(20) if id != 3]
    assert [s.changes for s in child.snapshots()] == [s.changes for s in parent.snapshots()]


def test_a_fork_at_an_older_snapshot_knows_nothing_of_what_came_later(
    shared_world: World, parent: Catalog
) -> None:
    world = shared_world
    at = parent.snapshot_id()
    world.sql(f"DELETE FROM {parent.name}.t WHERE id = 3")
    world.sql(f"ALTER TABLE {parent.name}.t ADD COLUMN w INTEGER")
    world.sql(f"INSERT INTO {parent.name}.t VALUES (5000, 'x', 1)")
    world.sql(f"CREATE TABLE {parent.name}.later (i INTEGER)")
    child = fork(world, parent, fork_name(), at)
    assert child.snapshot_id() == at
    assert world.ids(f"{child.name}.t") == list(range(20))
    assert world.sql(f"SELECT max(id), min(id) FROM {child.name}.t") == [(19, 0)]
    columns = world.sql(f"DESCRIBE {child.name}.t")
    assert [column[0] for column in columns] == ["id", "v"]
    with pytest.raises(duckdb.Error, match="later"):
        world.sql(f"SELECT * FROM {child.name}.later")
    # The numbers of the parent's later snapshots are the fork's to use.
    world.sql(f"INSERT INTO {child.name}.t VALUES (100, 'x')")
    world.sql(f"DELETE FROM {child.name}.t WHERE id IN (3, 13)")
    assert child.snapshot_id() == at + 2
    assert world.ids(f"{child.name}.t") == [*(i for i in range(20) if i not in (3, 13)), 100]
    assert world.ids(f"{child.name}.t", at) == list(range(20))
    assert child.check() == []


def test_a_fork_before_a_drop_still_has_the_table(shared_world: World, parent: Catalog) -> None:
    world = shared_world
    at = parent.snapshot_id()
    world.sql(f"DROP TABLE {parent.name}.t")
    child = fork(world, parent, fork_name(), at)
    assert world.ids(f"{child.name}.t") == list(range(20))
    after = fork(world, parent, fork_name())
    with pytest.raises(duckdb.Error, match="does not exist"):
        world.sql(f"SELECT * FROM {after.name}.t")
    assert world.ids(f"{after.name}.t", at) == list(range(20))


def test_a_column_type_that_was_widened_later_is_narrow_in_the_fork(
    shared_world: World, parent: Catalog
) -> None:
    world = shared_world
    world.sql(f"CREATE TABLE {parent.name}.narrow AS SELECT range::TINYINT AS id FROM range(5)")
    at = parent.snapshot_id()
    world.sql(f"ALTER TABLE {parent.name}.narrow ALTER id SET DATA TYPE BIGINT")
    world.sql(f"INSERT INTO {parent.name}.narrow VALUES (5000000000)")
    child = fork(world, parent, fork_name(), at)
    assert world.ids(f"{child.name}.narrow") == list(range(5))
    world.sql(f"INSERT INTO {child.name}.narrow VALUES (100)")
    assert world.sql(f"SELECT count(*) FROM {child.name}.narrow WHERE id > 50") == [(1,)]


def test_rows_that_a_later_rewrite_left_out_are_found_in_the_fork(
    shared_world: World, parent: Catalog
) -> None:
    """A rewrite narrows the bounds of the table, and stock DuckDB leaves out what they exclude."""
    world = shared_world
    at = parent.snapshot_id()
    world.sql(f"DELETE FROM {parent.name}.t WHERE id BETWEEN 5 AND 9")
    world.sql(f"DELETE FROM {parent.name}.t WHERE id > 9")
    world.maintain(parent, "rewrite")
    child = fork(world, parent, fork_name(), at)
    for id in range(20):
        assert world.sql(f"SELECT id FROM {child.name}.t WHERE id = {id}") == [(id,)]
    world.sql(f"DELETE FROM {child.name}.t WHERE id = 7")
    world.append(child, range(100, 102))
    world.sql(f"INSERT INTO {child.name}.t VALUES (200, 'x')")
    for id in (19, 100, 200):
        assert world.sql(f"SELECT id FROM {child.name}.t WHERE id = {id}") == [(id,)]
    assert world.ids(f"{child.name}.t") == [*range(7), *range(8, 20), 100, 101, 200]


def test_rows_merged_into_a_file_after_the_fork_point_do_not_appear(
    shared_world: World, parent: Catalog
) -> None:
    world = shared_world
    at = parent.snapshot_id()
    world.append(parent, range(20, 30))
    world.append(parent, range(30, 40))
    world.maintain(parent, "merge")
    child = fork(world, parent, fork_name(), at)
    name = f"{child.name}.t"
    assert world.ids(name) == list(range(20))
    assert world.ids(name, at - 1) == list(range(10))
    for row in range(100, 106):  # past every number that the parent's rows carry
        world.sql(f"INSERT INTO {name} VALUES ({row}, 'x')")
        assert world.ids(name) == [*range(20), *range(100, row + 1)]
    assert world.ids(name, at) == list(range(20))
    world.sql(f"DELETE FROM {name} WHERE id IN (5, 15)")
    left = [*(i for i in range(20) if i not in (5, 15)), *range(100, 106)]
    assert world.ids(name) == left
    world.maintain(child, "rewrite", "merge")
    assert world.ids(name) == left
    assert world.ids(f"{parent.name}.t") == list(range(40))
    assert child.missing_files() == parent.missing_files() == []


def test_deletes_after_the_fork_point_do_not_apply_though_one_file_holds_them_all(
    shared_world: World, parent: Catalog
) -> None:
    world = shared_world
    name = f"{parent.name}.t"
    world.sql(f"DELETE FROM {name} WHERE id = 1")
    at = parent.snapshot_id()
    world.sql(f"DELETE FROM {name} WHERE id = 2")
    world.sql(f"DELETE FROM {name} WHERE id = 3")
    child = fork(world, parent, fork_name(), at)
    assert world.ids(f"{child.name}.t") == [0, *range(2, 20)]
    assert world.ids(f"{child.name}.t", at - 1) == list(range(20))
    world.sql(f"DELETE FROM {child.name}.t WHERE id = 7")
    assert world.ids(f"{child.name}.t") == [0, *range(2, 7), *range(8, 20)]
    assert world.ids(f"{child.name}.t", at) == [0, *range(2, 20)]
    assert world.ids(name) == [0, *range(4, 20)]


def test_merged_and_then_deleted_from_a_fork_takes_only_what_was_before_it(
    shared_world: World, parent: Catalog
) -> None:
    world = shared_world
    at = parent.snapshot_id()
    world.append(parent, range(20, 30))
    world.maintain(parent, "merge")
    world.sql(f"DELETE FROM {parent.name}.t WHERE id IN (4, 24)")
    middle = parent.snapshot_id()
    world.sql(f"DELETE FROM {parent.name}.t WHERE id IN (5, 25)")
    old = fork(world, parent, fork_name(), at)
    assert world.ids(f"{old.name}.t") == list(range(20))
    newer = fork(world, parent, fork_name(), middle)
    assert world.ids(f"{newer.name}.t") == [id for id in range(30) if id not in (4, 24)]
    again = fork(world, newer, fork_name(), at)
    assert world.ids(f"{again.name}.t") == list(range(20))


def test_inlined_rows_and_inlined_deletes_go_along_and_no_later_ones(
    shared_world: World, parent: Catalog
) -> None:
    world, name = shared_world, f"{parent.name}.t"
    world.inline(10)
    world.sql(f"INSERT INTO {name} VALUES (50, 'x'), (51, 'x')")
    world.sql(f"DELETE FROM {name} WHERE id IN (1, 50)")
    at = parent.snapshot_id()
    world.sql(f"INSERT INTO {name} VALUES (52, 'x')")
    world.sql(f"DELETE FROM {name} WHERE id IN (2, 51)")
    then = [0, *range(2, 20), 51]
    child = fork(world, parent, fork_name(), at)
    flushed_before = fork(world, parent, fork_name())
    world.maintain(parent, "flush")
    late = fork(world, parent, fork_name(), at)
    for forked in (child, late):
        assert world.ids(f"{forked.name}.t") == then
        assert world.ids(f"{forked.name}.t", at - 1) == [*range(20), 50, 51]
        world.sql(f"INSERT INTO {forked.name}.t VALUES (60, 'x')")
        world.sql(f"DELETE FROM {forked.name}.t WHERE id IN (3, 51)")
        assert world.ids(f"{forked.name}.t") == [0, 2, *range(4, 20), 60]
        world.maintain(forked, "flush", "rewrite", "merge")
        assert world.ids(f"{forked.name}.t") == [0, 2, *range(4, 20), 60]
        assert world.ids(f"{forked.name}.t", at) == then
    world.inline(0)
    now = [0, *range(3, 20), 52]
    assert world.ids(name) == world.ids(f"{flushed_before.name}.t") == now


def test_a_fork_of_a_fork_sees_what_both_did_before_it(
    shared_world: World, parent: Catalog
) -> None:
    world = shared_world
    child = fork(world, parent, fork_name())
    world.append(child, range(20, 30))
    world.sql(f"DELETE FROM {child.name}.t WHERE id = 0")
    grandchild = fork(world, child, fork_name())
    world.append(child, range(30, 40))
    world.append(grandchild, range(40, 50))
    assert world.ids(f"{parent.name}.t") == list(range(20))
    assert world.ids(f"{child.name}.t") == list(range(1, 40))
    assert world.ids(f"{grandchild.name}.t") == [*range(1, 30), *range(40, 50)]
    assert grandchild.info.family == parent.info.family
    assert grandchild.info.parent == child.info.id
    world.lake.drop_catalog(child.name)
    assert world.ids(f"{grandchild.name}.t") == [*range(1, 30), *range(40, 50)]
    assert grandchild.missing_files() == []


# ---- neither sees the other --------------------------------------------------------------------


@pytest.mark.parametrize("one_is_parent", [True, False], ids=["parent changes", "fork changes"])
def test_what_one_side_does_the_other_does_not_see(
    shared_world: World, parent: Catalog, one_is_parent: bool
) -> None:
    world = shared_world
    child = fork(world, parent, fork_name())
    one, other = (parent, child) if one_is_parent else (child, parent)
    changes: list[Callable[[], object]] = [
        lambda: world.append(one, range(20, 22)),
        lambda: world.sql(f"INSERT INTO {one.name}.t VALUES (100, 'x')"),
        lambda: world.sql(f"UPDATE {one.name}.t SET v = 'z' WHERE id = 1"),
        lambda: world.sql(f"DELETE FROM {one.name}.t WHERE id = 2"),
        lambda: world.sql(f"ALTER TABLE {one.name}.t ADD COLUMN w INTEGER"),
        lambda: world.sql(f"CREATE SCHEMA {one.name}.s"),
        lambda: world.sql(f"CREATE TABLE {one.name}.t2 AS SELECT 1 AS id"),
        lambda: world.sql(f"DROP TABLE {one.name}.t"),
    ]
    expected = [(id, f"v{id}") for id in range(20)]
    snapshot = other.snapshot_id()
    for change in changes:
        change()
        assert world.sql(f"SELECT * FROM {other.name}.t ORDER BY id") == expected
    assert other.snapshot_id() == snapshot
    # The same ids mean other things on each side now.
    world.sql(f"CREATE TABLE {other.name}.t3 AS SELECT 7 AS id")
    assert world.ids(f"{other.name}.t3") == [7]
    assert world.ids(f"{one.name}.t2") == [1]
    assert one.check() == other.check() == []


def test_work_that_was_done_before_the_fork_is_not_done_in_it_again(
    shared_world: World, parent: Catalog
) -> None:
    world = shared_world
    work = ("upload:1",)
    table = parent.table("main", "t")
    insert = Insert(table, tuple(world.write(table, range(20, 22))), blind=True)
    done = parent.commit(Commit((insert,), base=table.snapshot_id, ledger=work))
    child = fork(world, parent, fork_name())
    before = fork(world, parent, fork_name(), done.snapshot_id - 1)
    query = "SELECT range, 'v' FROM range(20, 22)"
    assert not child.append(world.duck, query, "main", "t", ledger=work).applied
    assert before.append(world.duck, query, "main", "t", ledger=work).applied
    assert world.ids(f"{child.name}.t") == world.ids(f"{before.name}.t") == list(range(22))


# ---- maintenance by the stock extension --------------------------------------------------------


@pytest.mark.parametrize("one_is_parent", [True, False], ids=["in the parent", "in the fork"])
def test_stock_maintenance_on_one_side_leaves_the_other_readable(
    shared_world: World, parent: Catalog, one_is_parent: bool
) -> None:
    world = shared_world
    world.sql(f"DELETE FROM {parent.name}.t WHERE id = 0")
    world.append(parent, range(20, 30))
    at = parent.snapshot_id()
    child = fork(world, parent, fork_name())
    one, other = (parent, child) if one_is_parent else (child, parent)
    world.sql(f"DELETE FROM {one.name}.t WHERE id = 1")  # replaces a shared delete file
    world.append(one, range(30, 40))
    world.maintain(one, "merge", "rewrite", "expire", "cleanup")
    world.sql(f"DROP TABLE {one.name}.t")
    world.maintain(one, "expire", "cleanup")
    for snapshot in range(2, at + 1):
        assert set(world.ids(f"{other.name}.t", snapshot)) <= set(range(30))
    assert world.ids(f"{other.name}.t") == list(range(1, 30))
    assert other.missing_files() == one.missing_files() == []
    assert other.check() == one.check() == []
    # What the other side lets go of too is the collector's to delete.
    world.sql(f"DROP TABLE {other.name}.t")
    world.maintain(other, "expire", "cleanup")
    shared = set(world.parquet())
    world.lake.collect(age=SOON)
    left = {path for path in world.parquet() & shared if f"/{parent.info.place}/" in path}
    assert left == set()


def test_without_a_fence_the_same_maintenance_breaks_the_fork(
    shared_world: World, parent: Catalog
) -> None:
    world = shared_world
    child = fork(world, parent, fork_name())
    on = " ON ducklake_files_scheduled_for_deletion" if world.on_postgres else ""
    world.tamper(parent, f"DROP TRIGGER swanlake_defer{on}")
    world.maintain(parent, "merge", "cleanup")
    with pytest.raises(duckdb.Error, match=r"Cannot open file|No such file"):
        world.ids(f"{child.name}.t")
    assert len(child.missing_files()) == 2


def test_a_stock_transaction_that_began_before_the_fork_does_not_take_its_files_away(
    shared_world: World, parent: Catalog
) -> None:
    """It cannot see which files are shared: on PostgreSQL it reads as of its beginning."""
    world = shared_world
    world.sql(f"DELETE FROM {parent.name}.t WHERE id = 0")
    with world.another_engine(parent) as stock:
        stock.execute("BEGIN")
        stock.execute(f"DELETE FROM {parent.name}.t WHERE id = 1")  # lets go of a delete file
        child = fork(world, parent, fork_name())
        if world.on_postgres:
            stock.execute("COMMIT")  # it tries again by itself
        else:
            with pytest.raises(duckdb.Error, match="locked"):
                stock.execute("COMMIT")
        expected = list(range(2 if world.on_postgres else 1, 20))
    world.maintain(parent, "cleanup")
    assert world.ids(f"{child.name}.t") == list(range(1, 20))
    assert world.ids(f"{parent.name}.t") == expected
    assert child.missing_files() == []


# ---- forks that cannot be ----------------------------------------------------------------------


def test_a_fork_that_cannot_be_made_leaves_nothing(shared_world: World, parent: Catalog) -> None:
    world, name = shared_world, fork_name()
    catalogs = [info.name for info in world.lake.catalogs()]
    newest = parent.snapshot_id()
    with pytest.raises(NotFound, match=f"There is no snapshot 99 .* newest one is {newest}"):
        world.lake.fork_catalog(parent.name, name, 99)
    with pytest.raises(NotFound, match="There is no snapshot -1"):
        world.lake.fork_catalog(parent.name, name, -1)
    with pytest.raises(NotFound, match="There is no catalog nobody"):
        world.lake.fork_catalog("nobody", name)
    with pytest.raises(AlreadyExists, match=f"There is a catalog {parent.name} already"):
        world.lake.fork_catalog(parent.name, parent.name)
    with pytest.raises(InvalidRequest, match="cannot be the name of a catalog"):
        world.lake.fork_catalog(parent.name, "no name")
    world.append(parent, range(20, 21))
    world.maintain(parent, "expire")
    with pytest.raises(NotFound, match="older ones may have been expired"):
        world.lake.fork_catalog(parent.name, name, 1)
    dropped = world.lake.create_catalog(fork_name())
    world.lake.drop_catalog(dropped.name)
    with pytest.raises(NotFound, match=f"There is no catalog {dropped.name}"):
        world.lake.fork_catalog(dropped.name, name)
    assert [info.name for info in world.lake.catalogs()] == catalogs
    assert not (world.data / name).exists()
    made = fork(world, parent, name)
    assert made.info.place == name
    assert world.ids(f"{name}.t") == list(range(21))


def test_a_fork_that_fails_halfway_leaves_nothing(shared_world: World, parent: Catalog) -> None:
    world, name = shared_world, fork_name()
    at = parent.snapshot_id()
    world.append(parent, range(20, 30))
    world.maintain(parent, "merge", "cleanup")
    files = parent.table("main", "t").directory
    hidden = world.home / f"hidden-{name}"
    (world.home / files).rename(hidden)  # the merged file must be read to be cut
    with pytest.raises(Exception, match=r"No files found|cannot be reached"):
        world.lake.fork_catalog(parent.name, name, at)
    hidden.rename(files)
    assert world.lake.find(name) is None
    assert not (world.data / name).exists()
    fork(world, parent, name, at)
    assert world.ids(f"{name}.t") == list(range(20))

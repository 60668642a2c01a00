"""Forks: initial contents, isolation from the parent, and retained files."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import duckdb
import pytest

from swanlake.errors import AlreadyExists, InvalidRequest, NotFound
from swanlake.lake.catalog import Catalog
from swanlake.lake.model.operations import Commit, Insert
from tests.integration.lake.fixtures import SOON, LakeHarness

NUMBERS = count(1)


def fork(harness: LakeHarness, parent: Catalog, name: str, at: int | None = None) -> Catalog:
    forked = harness.lake.fork_catalog(parent.name, name, at)
    harness.attach(forked)
    assert forked.check() == []
    assert forked.missing_files() == []
    return forked


@pytest.fixture
def parent(shared_harness: LakeHarness) -> Catalog:
    """A catalog with a table ``t`` of the ids 0 to 9 in one file and 10 to 19 in another."""
    catalog = shared_harness.lake.create_catalog(f"p{next(NUMBERS)}")
    shared_harness.table(catalog)
    shared_harness.append(catalog, range(10))
    shared_harness.append(catalog, range(10, 20))
    shared_harness.attach(catalog)
    return catalog


def fork_name() -> str:
    return f"f{next(NUMBERS)}"


# ---- initial contents --------------------------------------------------------------------------


def test_fork_has_the_state_and_history_of_its_parent_without_copies(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    harness = shared_harness
    harness.sql(f"DELETE FROM {parent.name}.t WHERE id = 3")
    before = harness.parquet()
    child = fork(harness, parent, fork_name())
    assert harness.parquet() == before
    assert child.info.parent == parent.info.id
    assert child.info.family == parent.info.family
    assert child.info.parent_snapshot == parent.newest_snapshot() == child.newest_snapshot()
    for at in range(1, parent.newest_snapshot() + 1):
        assert harness.ids(f"{child.name}.t", at) == harness.ids(f"{parent.name}.t", at)
    assert harness.ids(f"{child.name}.t") == [id for id in range(20) if id != 3]
    assert [s.changes for s in child.snapshots()] == [s.changes for s in parent.snapshots()]


def test_fork_at_an_older_snapshot_has_no_later_changes(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    harness = shared_harness
    at = parent.newest_snapshot()
    harness.sql(f"DELETE FROM {parent.name}.t WHERE id = 3")
    harness.sql(f"ALTER TABLE {parent.name}.t ADD COLUMN w INTEGER")
    harness.sql(f"INSERT INTO {parent.name}.t VALUES (5000, 'x', 1)")
    harness.sql(f"CREATE TABLE {parent.name}.later (i INTEGER)")
    child = fork(harness, parent, fork_name(), at)
    assert child.newest_snapshot() == at
    assert harness.ids(f"{child.name}.t") == list(range(20))
    assert harness.sql(f"SELECT max(id), min(id) FROM {child.name}.t") == [(19, 0)]
    columns = harness.sql(f"DESCRIBE {child.name}.t")
    assert [column[0] for column in columns] == ["id", "v"]
    with pytest.raises(duckdb.Error, match="later"):
        harness.sql(f"SELECT * FROM {child.name}.later")
    # The fork reuses the ids of the parent's later snapshots.
    harness.sql(f"INSERT INTO {child.name}.t VALUES (100, 'x')")
    harness.sql(f"DELETE FROM {child.name}.t WHERE id IN (3, 13)")
    assert child.newest_snapshot() == at + 2
    assert harness.ids(f"{child.name}.t") == [*(i for i in range(20) if i not in (3, 13)), 100]
    assert harness.ids(f"{child.name}.t", at) == list(range(20))
    assert child.check() == []


def test_fork_before_a_drop_has_the_table(shared_harness: LakeHarness, parent: Catalog) -> None:
    harness = shared_harness
    at = parent.newest_snapshot()
    harness.sql(f"DROP TABLE {parent.name}.t")
    child = fork(harness, parent, fork_name(), at)
    assert harness.ids(f"{child.name}.t") == list(range(20))
    after = fork(harness, parent, fork_name())
    with pytest.raises(duckdb.Error, match="does not exist"):
        harness.sql(f"SELECT * FROM {after.name}.t")
    assert harness.ids(f"{after.name}.t", at) == list(range(20))


def test_column_widened_after_the_fork_point_is_narrow_in_the_fork(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    harness = shared_harness
    harness.sql(f"CREATE TABLE {parent.name}.narrow AS SELECT range::TINYINT AS id FROM range(5)")
    at = parent.newest_snapshot()
    harness.sql(f"ALTER TABLE {parent.name}.narrow ALTER id SET DATA TYPE BIGINT")
    harness.sql(f"INSERT INTO {parent.name}.narrow VALUES (5000000000)")
    child = fork(harness, parent, fork_name(), at)
    assert harness.ids(f"{child.name}.narrow") == list(range(5))
    harness.sql(f"INSERT INTO {child.name}.narrow VALUES (100)")
    assert harness.sql(f"SELECT count(*) FROM {child.name}.narrow WHERE id > 50") == [(1,)]


def test_rows_removed_by_a_later_rewrite_are_in_the_fork(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    """A rewrite narrows the table's bounds, and stock DuckDB skips files outside them."""
    harness = shared_harness
    at = parent.newest_snapshot()
    harness.sql(f"DELETE FROM {parent.name}.t WHERE id BETWEEN 5 AND 9")
    harness.sql(f"DELETE FROM {parent.name}.t WHERE id > 9")
    harness.maintain(parent, "rewrite")
    child = fork(harness, parent, fork_name(), at)
    for id in range(20):
        assert harness.sql(f"SELECT id FROM {child.name}.t WHERE id = {id}") == [(id,)]
    harness.sql(f"DELETE FROM {child.name}.t WHERE id = 7")
    harness.append(child, range(100, 102))
    harness.sql(f"INSERT INTO {child.name}.t VALUES (200, 'x')")
    for id in (19, 100, 200):
        assert harness.sql(f"SELECT id FROM {child.name}.t WHERE id = {id}") == [(id,)]
    assert harness.ids(f"{child.name}.t") == [*range(7), *range(8, 20), 100, 101, 200]


def test_rows_merged_after_the_fork_point_do_not_appear(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    harness = shared_harness
    at = parent.newest_snapshot()
    harness.append(parent, range(20, 30))
    harness.append(parent, range(30, 40))
    harness.maintain(parent, "merge")
    child = fork(harness, parent, fork_name(), at)
    name = f"{child.name}.t"
    assert harness.ids(name) == list(range(20))
    assert harness.ids(name, at - 1) == list(range(10))
    for row in range(100, 106):  # beyond every row id of the parent
        harness.sql(f"INSERT INTO {name} VALUES ({row}, 'x')")
        assert harness.ids(name) == [*range(20), *range(100, row + 1)]
    assert harness.ids(name, at) == list(range(20))
    harness.sql(f"DELETE FROM {name} WHERE id IN (5, 15)")
    left = [*(i for i in range(20) if i not in (5, 15)), *range(100, 106)]
    assert harness.ids(name) == left
    harness.maintain(child, "rewrite", "merge")
    assert harness.ids(name) == left
    assert harness.ids(f"{parent.name}.t") == list(range(40))
    assert child.missing_files() == parent.missing_files() == []


def test_deletes_after_the_fork_point_in_a_shared_delete_file_do_not_apply(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    harness = shared_harness
    name = f"{parent.name}.t"
    harness.sql(f"DELETE FROM {name} WHERE id = 1")
    at = parent.newest_snapshot()
    harness.sql(f"DELETE FROM {name} WHERE id = 2")
    harness.sql(f"DELETE FROM {name} WHERE id = 3")
    child = fork(harness, parent, fork_name(), at)
    assert harness.ids(f"{child.name}.t") == [0, *range(2, 20)]
    assert harness.ids(f"{child.name}.t", at - 1) == list(range(20))
    harness.sql(f"DELETE FROM {child.name}.t WHERE id = 7")
    assert harness.ids(f"{child.name}.t") == [0, *range(2, 7), *range(8, 20)]
    assert harness.ids(f"{child.name}.t", at) == [0, *range(2, 20)]
    assert harness.ids(name) == [0, *range(4, 20)]


def test_fork_of_merged_and_deleted_rows_has_only_earlier_changes(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    harness = shared_harness
    at = parent.newest_snapshot()
    harness.append(parent, range(20, 30))
    harness.maintain(parent, "merge")
    harness.sql(f"DELETE FROM {parent.name}.t WHERE id IN (4, 24)")
    middle = parent.newest_snapshot()
    harness.sql(f"DELETE FROM {parent.name}.t WHERE id IN (5, 25)")
    old = fork(harness, parent, fork_name(), at)
    assert harness.ids(f"{old.name}.t") == list(range(20))
    newer = fork(harness, parent, fork_name(), middle)
    assert harness.ids(f"{newer.name}.t") == [id for id in range(30) if id not in (4, 24)]
    again = fork(harness, newer, fork_name(), at)
    assert harness.ids(f"{again.name}.t") == list(range(20))


def test_fork_has_inlined_rows_and_deletes_up_to_the_fork_point(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    harness, name = shared_harness, f"{parent.name}.t"
    harness.inline(10)
    harness.sql(f"INSERT INTO {name} VALUES (50, 'x'), (51, 'x')")
    harness.sql(f"DELETE FROM {name} WHERE id IN (1, 50)")
    at = parent.newest_snapshot()
    harness.sql(f"INSERT INTO {name} VALUES (52, 'x')")
    harness.sql(f"DELETE FROM {name} WHERE id IN (2, 51)")
    then = [0, *range(2, 20), 51]
    child = fork(harness, parent, fork_name(), at)
    flushed_before = fork(harness, parent, fork_name())
    harness.maintain(parent, "flush")
    late = fork(harness, parent, fork_name(), at)
    for forked in (child, late):
        assert harness.ids(f"{forked.name}.t") == then
        assert harness.ids(f"{forked.name}.t", at - 1) == [*range(20), 50, 51]
        harness.sql(f"INSERT INTO {forked.name}.t VALUES (60, 'x')")
        harness.sql(f"DELETE FROM {forked.name}.t WHERE id IN (3, 51)")
        assert harness.ids(f"{forked.name}.t") == [0, 2, *range(4, 20), 60]
        harness.maintain(forked, "flush", "rewrite", "merge")
        assert harness.ids(f"{forked.name}.t") == [0, 2, *range(4, 20), 60]
        assert harness.ids(f"{forked.name}.t", at) == then
    harness.inline(0)
    now = [0, *range(3, 20), 52]
    assert harness.ids(name) == harness.ids(f"{flushed_before.name}.t") == now


def test_fork_of_a_fork_has_the_changes_of_both(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    harness = shared_harness
    child = fork(harness, parent, fork_name())
    harness.append(child, range(20, 30))
    harness.sql(f"DELETE FROM {child.name}.t WHERE id = 0")
    grandchild = fork(harness, child, fork_name())
    harness.append(child, range(30, 40))
    harness.append(grandchild, range(40, 50))
    assert harness.ids(f"{parent.name}.t") == list(range(20))
    assert harness.ids(f"{child.name}.t") == list(range(1, 40))
    assert harness.ids(f"{grandchild.name}.t") == [*range(1, 30), *range(40, 50)]
    assert grandchild.info.family == parent.info.family
    assert grandchild.info.parent == child.info.id
    harness.lake.drop_catalog(child.name)
    assert harness.ids(f"{grandchild.name}.t") == [*range(1, 30), *range(40, 50)]
    assert grandchild.missing_files() == []


# ---- isolation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("one_is_parent", [True, False], ids=["parent changes", "fork changes"])
def test_changes_of_fork_and_parent_are_isolated(
    shared_harness: LakeHarness, parent: Catalog, one_is_parent: bool
) -> None:
    harness = shared_harness
    child = fork(harness, parent, fork_name())
    one, other = (parent, child) if one_is_parent else (child, parent)
    changes: list[Callable[[], object]] = [
        lambda: harness.append(one, range(20, 22)),
        lambda: harness.sql(f"INSERT INTO {one.name}.t VALUES (100, 'x')"),
        lambda: harness.sql(f"UPDATE {one.name}.t SET v = 'z' WHERE id = 1"),
        lambda: harness.sql(f"DELETE FROM {one.name}.t WHERE id = 2"),
        lambda: harness.sql(f"ALTER TABLE {one.name}.t ADD COLUMN w INTEGER"),
        lambda: harness.sql(f"CREATE SCHEMA {one.name}.s"),
        lambda: harness.sql(f"CREATE TABLE {one.name}.t2 AS SELECT 1 AS id"),
        lambda: harness.sql(f"DROP TABLE {one.name}.t"),
    ]
    expected = [(id, f"v{id}") for id in range(20)]
    snapshot = other.newest_snapshot()
    for change in changes:
        change()
        assert harness.sql(f"SELECT * FROM {other.name}.t ORDER BY id") == expected
    assert other.newest_snapshot() == snapshot
    # Both sides now use the same ids for different objects.
    harness.sql(f"CREATE TABLE {other.name}.t3 AS SELECT 7 AS id")
    assert harness.ids(f"{other.name}.t3") == [7]
    assert harness.ids(f"{one.name}.t2") == [1]
    assert one.check() == other.check() == []


def test_commit_applied_before_the_fork_is_not_repeated_in_it(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    harness = shared_harness
    work = ("upload:1",)
    table = parent.table("main", "t")
    insert = Insert(table, tuple(harness.write(table, range(20, 22))), blind=True)
    done = parent.commit(Commit((insert,), base=table.snapshot_id, ledger=work))
    child = fork(harness, parent, fork_name())
    before = fork(harness, parent, fork_name(), done.snapshot_id - 1)
    query = "SELECT range, 'v' FROM range(20, 22)"
    assert not child.append(harness.duck, query, "main", "t", ledger=work).applied
    assert before.append(harness.duck, query, "main", "t", ledger=work).applied
    assert harness.ids(f"{child.name}.t") == harness.ids(f"{before.name}.t") == list(range(22))


# ---- maintenance by the stock extension --------------------------------------------------------


@pytest.mark.parametrize("one_is_parent", [True, False], ids=["in the parent", "in the fork"])
def test_stock_maintenance_of_one_side_leaves_the_other_readable(
    shared_harness: LakeHarness, parent: Catalog, one_is_parent: bool
) -> None:
    harness = shared_harness
    harness.sql(f"DELETE FROM {parent.name}.t WHERE id = 0")
    harness.append(parent, range(20, 30))
    at = parent.newest_snapshot()
    child = fork(harness, parent, fork_name())
    one, other = (parent, child) if one_is_parent else (child, parent)
    harness.sql(f"DELETE FROM {one.name}.t WHERE id = 1")  # replaces a shared delete file
    harness.append(one, range(30, 40))
    harness.maintain(one, "merge", "rewrite", "expire", "cleanup")
    harness.sql(f"DROP TABLE {one.name}.t")
    harness.maintain(one, "expire", "cleanup")
    for snapshot in range(2, at + 1):
        assert set(harness.ids(f"{other.name}.t", snapshot)) <= set(range(30))
    assert harness.ids(f"{other.name}.t") == list(range(1, 30))
    assert other.missing_files() == one.missing_files() == []
    assert other.check() == one.check() == []
    # Files that the other side releases too are left to file clean-up.
    harness.sql(f"DROP TABLE {other.name}.t")
    harness.maintain(other, "expire", "cleanup")
    shared = set(harness.parquet())
    harness.lake.collect(age=SOON)
    left = {path for path in harness.parquet() & shared if f"/{parent.info.storage_name}/" in path}
    assert left == set()


def test_stock_maintenance_without_the_fence_breaks_the_fork(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    harness = shared_harness
    child = fork(harness, parent, fork_name())
    on = " ON ducklake_files_scheduled_for_deletion" if harness.on_postgres else ""
    harness.tamper(parent, f"DROP TRIGGER swanlake_defer{on}")
    harness.maintain(parent, "merge", "cleanup")
    with pytest.raises(duckdb.Error, match=r"Cannot open file|No such file"):
        harness.ids(f"{child.name}.t")
    assert len(child.missing_files()) == 2


def test_stock_transaction_begun_before_the_fork_keeps_its_files(
    shared_harness: LakeHarness, parent: Catalog
) -> None:
    """On PostgreSQL the transaction reads as of its start and cannot see which files are shared."""
    harness = shared_harness
    harness.sql(f"DELETE FROM {parent.name}.t WHERE id = 0")
    with harness.another_engine(parent) as stock:
        stock.execute("BEGIN")
        stock.execute(f"DELETE FROM {parent.name}.t WHERE id = 1")  # releases a delete file
        child = fork(harness, parent, fork_name())
        if harness.on_postgres:
            stock.execute("COMMIT")  # the extension retries
        else:
            with pytest.raises(duckdb.Error, match="locked"):
                stock.execute("COMMIT")
        expected = list(range(2 if harness.on_postgres else 1, 20))
    harness.maintain(parent, "cleanup")
    assert harness.ids(f"{child.name}.t") == list(range(1, 20))
    assert harness.ids(f"{parent.name}.t") == expected
    assert child.missing_files() == []


# ---- failures ----------------------------------------------------------------------------------


def test_refused_fork_leaves_nothing(shared_harness: LakeHarness, parent: Catalog) -> None:
    harness, name = shared_harness, fork_name()
    catalogs = [info.name for info in harness.lake.catalogs()]
    newest = parent.newest_snapshot()
    with pytest.raises(NotFound, match=f"There is no snapshot 99 .* newest one is {newest}"):
        harness.lake.fork_catalog(parent.name, name, 99)
    with pytest.raises(NotFound, match="There is no snapshot -1"):
        harness.lake.fork_catalog(parent.name, name, -1)
    with pytest.raises(NotFound, match="There is no catalog missing"):
        harness.lake.fork_catalog("missing", name)
    with pytest.raises(AlreadyExists, match=f"The catalog {parent.name} exists already"):
        harness.lake.fork_catalog(parent.name, parent.name)
    with pytest.raises(InvalidRequest, match="cannot be the name of a catalog"):
        harness.lake.fork_catalog(parent.name, "no name")
    harness.append(parent, range(20, 21))
    harness.maintain(parent, "expire")
    with pytest.raises(NotFound, match="older ones may have been expired"):
        harness.lake.fork_catalog(parent.name, name, 1)
    dropped = harness.lake.create_catalog(fork_name())
    harness.lake.drop_catalog(dropped.name)
    with pytest.raises(NotFound, match=f"There is no catalog {dropped.name}"):
        harness.lake.fork_catalog(dropped.name, name)
    assert [info.name for info in harness.lake.catalogs()] == catalogs
    assert not (harness.data / name).exists()
    made = fork(harness, parent, name)
    assert made.info.storage_name == name
    assert harness.ids(f"{name}.t") == list(range(21))


def test_failed_fork_leaves_nothing(shared_harness: LakeHarness, parent: Catalog) -> None:
    harness, name = shared_harness, fork_name()
    at = parent.newest_snapshot()
    harness.append(parent, range(20, 30))
    harness.maintain(parent, "merge", "cleanup")
    files = parent.table("main", "t").directory
    hidden = harness.home / f"hidden-{name}"
    (harness.home / files).rename(hidden)  # the merged file must be read to be cut
    with pytest.raises(Exception, match=r"No files found|cannot be reached"):
        harness.lake.fork_catalog(parent.name, name, at)
    hidden.rename(files)
    assert harness.lake.find(name) is None
    assert not (harness.data / name).exists()
    fork(harness, parent, name, at)
    assert harness.ids(f"{name}.t") == list(range(20))

"""File clean-up deletes exactly the files that no catalog can see."""

from __future__ import annotations

import os
import random
import shutil
import time
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from pathlib import Path

import duckdb
import psycopg
import pytest

from swanlake.lake.catalog import Catalog
from swanlake.lake.lake import Lake
from swanlake.lake.lifecycle.file_cleanup import DEFAULT_AGE, DeletionReason
from swanlake.lake.model.operations import Commit
from tests.integration.lake.fixtures import ROWS, SOON, LakeHarness


def catalog_with_rows(harness: LakeHarness, name: str, *ids: range) -> Catalog:
    catalog = harness.lake.create_catalog(name)
    harness.table(catalog, ids=ids)
    harness.attach(catalog)
    return catalog


def collected(harness: LakeHarness, *, dry_run: bool = False) -> list[tuple[str, DeletionReason]]:
    found = harness.lake.collect(age=SOON, dry_run=dry_run)
    return sorted((Path(garbage.path).name, garbage.reason) for garbage in found)


def names(paths: set[str]) -> list[str]:
    return sorted(Path(path).name for path in paths)


def test_merged_source_files_are_deleted_when_old_enough(harness: LakeHarness) -> None:
    sales = catalog_with_rows(harness, "sales", range(10), range(10, 20))
    table = sales.table("main", "t")
    sources = harness.files(sales, table)
    before = harness.parquet()
    sales.commit(Commit((harness.merge(sales, table, sources),), base=table.snapshot_id))
    assert harness.lake.collect() == []  # younger than two days
    expected = [(name, DeletionReason.SCHEDULED) for name in names(before)]
    assert collected(harness, dry_run=True) == expected
    assert before <= harness.parquet()
    assert collected(harness) == expected
    assert not before & harness.parquet()
    assert collected(harness) == []
    scheduled = harness.metadata(sales, "ducklake_files_scheduled_for_deletion")
    assert harness.sql(f"SELECT count(*) FROM {scheduled}") == [(0,)]
    assert harness.ids("sales.t", at=table.snapshot_id) == list(range(20))


def test_files_used_only_by_a_fork_are_deleted_after_it_drops_them(harness: LakeHarness) -> None:
    sales = catalog_with_rows(harness, "sales", range(10), range(10, 20))
    shared = harness.parquet()
    fork = harness.lake.fork_catalog("sales", "fork")
    harness.attach(fork)
    harness.maintain(sales, "merge", "expire", "cleanup")
    assert shared <= harness.parquet()
    assert collected(harness) == []
    assert harness.ids("fork.t") == list(range(20))
    harness.maintain(fork, "merge", "cleanup")
    assert shared <= harness.parquet()
    assert collected(harness) == [(name, DeletionReason.DEFERRED) for name in names(shared)]
    assert not shared & harness.parquet()
    for catalog in (sales, fork):
        assert harness.ids(f"{catalog.name}.t") == list(range(20))
        deferred = harness.metadata(catalog, "swanlake_deferred_file")
        assert harness.sql(f"SELECT count(*) FROM {deferred}") == [(0,)]
    assert collected(harness) == []


def test_files_of_a_dropped_catalog_are_deleted_unless_a_fork_uses_them(
    harness: LakeHarness,
) -> None:
    sales = catalog_with_rows(harness, "sales", range(10))
    shared = harness.parquet()
    fork = harness.lake.fork_catalog("sales", "fork")
    harness.append(sales, range(10, 20))
    own = harness.parquet() - shared
    harness.detach(sales)
    harness.lake.drop_catalog("sales")
    assert harness.parquet() == shared | own
    assert collected(harness) == [(name, DeletionReason.DROPPED) for name in names(own)]
    harness.attach(fork)
    assert harness.ids("fork.t") == list(range(10))
    harness.detach(fork)
    harness.lake.drop_catalog("fork")
    assert collected(harness) == [(name, DeletionReason.DROPPED) for name in names(shared)]
    assert harness.parquet() == set()
    assert collected(harness) == []


def test_uncommitted_file_is_deleted_only_when_old(harness: LakeHarness) -> None:
    sales = catalog_with_rows(harness, "sales", range(10))
    table = sales.table("main", "t")
    (lost,) = harness.write(table, range(10, 20))
    path = Path(table.directory, lost.path)
    note = path.with_name("note.txt")
    note.write_text("not a data file")
    assert harness.lake.collect() == []
    long_ago = time.time() - (DEFAULT_AGE + timedelta(hours=1)).total_seconds()
    for file in (path, note):
        os.utime(file, (long_ago, long_ago))
    (garbage,) = harness.lake.collect()
    assert (garbage.path, garbage.reason, garbage.catalog) == (
        str(path),
        DeletionReason.ORPHANED,
        "sales",
    )
    assert not path.exists()
    assert note.exists()
    assert harness.ids("sales.t") == list(range(10))


def test_recreated_catalog_does_not_share_files_with_the_dropped_one(harness: LakeHarness) -> None:
    first = catalog_with_rows(harness, "sales", range(10))
    old = harness.parquet()
    harness.detach(first)
    harness.lake.drop_catalog("sales")
    second = catalog_with_rows(harness, "sales", range(100, 103))
    assert second.info.storage_name != first.info.storage_name
    assert second.info.data_path != first.info.data_path
    assert second.info.id != first.info.id
    assert second.info.family != first.info.family
    assert collected(harness) == [(name, DeletionReason.DROPPED) for name in names(old)]
    assert harness.ids("sales.t") == [100, 101, 102]
    assert second.missing_files() == []


def test_lakes_with_one_data_directory_do_not_delete_each_others_files(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    with (
        Lake.open(tmp_path / "first", tmp_path / "data") as first,
        Lake.open(tmp_path / "second", tmp_path / "data") as second,
    ):
        for lake in (first, second):
            lake.create_catalog("sales").create_table("main", "t", ROWS)
            lake.catalog("sales").append(duck, "SELECT 1, 'a'", "main", "t")
        for lake in (first, second):
            assert lake.collect(age=SOON) == []
            assert lake.catalog("sales").missing_files() == []


def test_catalogs_with_similar_names_have_distinct_locations(harness: LakeHarness) -> None:
    """A recreated ``a`` gets a location such as ``a_1``, which may be another catalog's name."""
    retained = catalog_with_rows(harness, "a_1", range(3))
    gone = catalog_with_rows(harness, "a_2", range(3))
    harness.detach(gone)
    harness.lake.drop_catalog("a_2")
    places = {retained.info.storage_name, gone.info.storage_name}
    for round in range(3):
        again = catalog_with_rows(harness, "a", range(round, round + 5))
        assert again.info.storage_name not in places
        places.add(again.info.storage_name)
        collected(harness)
        assert harness.ids("a.t") == list(range(round, round + 5))
        assert harness.ids("a_1.t") == [0, 1, 2]
        harness.detach(again)
        harness.lake.drop_catalog("a")
    another = catalog_with_rows(harness, again.info.storage_name, range(7))
    assert another.info.storage_name not in places
    collected(harness)
    assert harness.ids(f"{another.name}.t") == list(range(7))


def adopted_elsewhere(harness: LakeHarness, name: str, data: Path) -> Catalog:
    """An adopted catalog of the stock extension with its files in ``data``."""
    with harness.another_engine() as stock:
        if isinstance(harness.metabase, Path):
            harness.metabase.mkdir(exist_ok=True)
            place, options = f"sqlite:{harness.metabase / name}.sqlite", ""
        else:
            place, options = f"postgres:{harness.metabase}", f", METADATA_SCHEMA 'lake_{name}'"
        stock.execute(f"ATTACH 'ducklake:{place}' AS {name} (DATA_PATH '{data}/'{options})")
        stock.execute(f"CREATE TABLE {name}.t AS SELECT range AS id, 'v' AS v FROM range(20)")
        stock.execute(f"DETACH {name}")
    catalog = harness.lake.adopt_catalog(name)
    harness.attach(catalog)
    return catalog


def test_unknown_files_next_to_an_adopted_catalog_are_not_deleted(
    harness: LakeHarness,
) -> None:
    elsewhere = harness.home / "elsewhere"
    one = adopted_elsewhere(harness, "one", elsewhere)
    two = adopted_elsewhere(harness, "two", elsewhere)  # stock DuckDB allows a shared directory
    around = adopted_elsewhere(harness, "around", harness.data)  # and an enclosing one
    own = catalog_with_rows(harness, "own", range(3))
    private = elsewhere / "private.parquet"
    shutil.copyfile(next(elsewhere.rglob("*.parquet")), private)
    assert collected(harness) == []
    harness.detach(one)
    harness.lake.drop_catalog("one")
    assert collected(harness) == []
    assert private.exists()
    for catalog, rows in ((two, 20), (around, 20), (own, 3)):
        assert harness.ids(f"{catalog.name}.t") == list(range(rows))
        assert catalog.missing_files() == []


def test_fork_missing_from_the_registry_keeps_its_files(harness: LakeHarness) -> None:
    """The state after a crash between creating a fork and registering it."""
    sales = catalog_with_rows(harness, "sales", range(10), range(10, 20))
    harness.lake.fork_catalog("sales", "lost")
    forget_in_registry(harness, "lost")
    assert harness.lake.find("lost") is None
    fork = harness.lake.adopt_catalog("lost")
    harness.attach(fork)
    assert fork.info.family != sales.info.family
    harness.maintain(sales, "merge", "expire", "cleanup")
    assert collected(harness) == []
    harness.detach(sales)
    harness.lake.drop_catalog("sales")
    collected(harness)
    assert harness.ids("lost.t") == list(range(20))


def forget_in_registry(harness: LakeHarness, name: str) -> None:
    statement = f"DELETE FROM swanlake_catalog WHERE name = '{name}'"
    if isinstance(harness.metabase, Path):
        harness.run_sqlite(harness.metabase / "registry.sqlite", statement)
        return
    with psycopg.connect(harness.metabase, autocommit=True) as connection:
        connection.execute(statement.replace("swanlake_catalog", "swanlake.swanlake_catalog"))


def test_stock_orphan_cleanup_spares_a_fork_but_deletes_its_deferred_files(
    harness: LakeHarness,
) -> None:
    """Known gap: files that a parent released look like orphans to the stock extension."""
    sales = catalog_with_rows(harness, "sales", range(10), range(10, 20))
    fork = harness.lake.fork_catalog("sales", "fork")
    harness.attach(fork)
    harness.append(fork, range(20, 30))
    for catalog in (sales, fork):
        harness.maintain(catalog, "orphans")
    assert harness.ids("fork.t") == list(range(30))
    assert harness.ids("sales.t") == list(range(20))
    harness.maintain(sales, "merge", "cleanup")
    assert harness.ids("fork.t") == list(range(30))
    harness.maintain(fork, "orphans")
    assert harness.ids("fork.t") == list(range(30))
    harness.maintain(sales, "orphans")
    with pytest.raises(duckdb.Error, match=r"Cannot open file|No such file"):
        harness.ids("fork.t")


# ---- random histories of forks -----------------------------------------------------------------


@dataclass
class ForkModel:
    """Catalogs and the rows that each must have at each of its snapshots."""

    harness: LakeHarness
    random: random.Random
    living: dict[str, tuple[Catalog, dict[int, frozenset[int]]]] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=count)

    def begin(self) -> None:
        name = f"c{next(self.numbers)}"
        catalog = catalog_with_rows(self.harness, name, range(5), range(5, 10))
        self.living[name] = (catalog, {catalog.newest_snapshot(): frozenset(range(10))})

    def step(self) -> str:
        catalog, history = self.living[self.random.choice(sorted(self.living))]
        action = self.random.choice(
            "append append append delete delete update inline merge merge rewrite flush expire "
            "cleanup cleanup fork fork drop collect collect".split()
        )
        newest = history[max(history)]
        match action:
            case "append":
                start = next(self.numbers) * 100 + 1000
                self.harness.append(catalog, range(start, start + 3))
                newest = newest | set(range(start, start + 3))
            case "inline":
                start = next(self.numbers) * 100 + 1000
                self.harness.inline(10)
                self.harness.sql(f"INSERT INTO {catalog.name}.t VALUES ({start}, 'x')")
                self.harness.inline(0)
                newest = newest | {start}
            case "delete":
                gone = self._choose(newest)
                self.harness.sql(f"DELETE FROM {catalog.name}.t WHERE id IN ({_in(gone)})")
                newest = newest - gone
            case "update":
                chosen = self._choose(newest)
                self.harness.sql(f"UPDATE {catalog.name}.t SET v = 'u' WHERE id IN ({_in(chosen)})")
            case "merge" | "rewrite" | "flush" | "cleanup":
                self.harness.maintain(catalog, action)
            case "expire":
                self.harness.maintain(catalog, action)
                retained = {snapshot.id for snapshot in catalog.snapshots()}
                for expired in set(history) - retained:
                    del history[expired]
            case "fork":
                self._fork(catalog, history)
                return action
            case "drop" if len(self.living) > 1:
                self.harness.detach(catalog)
                self.harness.lake.drop_catalog(catalog.name)
                del self.living[catalog.name]
                return action
            case "collect":
                self.harness.lake.collect(age=SOON)
        history[catalog.newest_snapshot()] = newest
        return action

    def check(self) -> None:
        for catalog, history in self.living.values():
            assert catalog.check() == []
            assert catalog.missing_files() == []
            for at in {max(history), self.random.choice(sorted(history))}:
                assert frozenset(self.harness.ids(f"{catalog.name}.t", at)) == history[at]

    def end(self) -> None:
        for catalog, _ in self.living.values():
            self.harness.detach(catalog)
            self.harness.lake.drop_catalog(catalog.name)
        self.harness.lake.collect(age=SOON)

    def _fork(self, parent: Catalog, history: dict[int, frozenset[int]]) -> None:
        if len(self.living) == 4:
            return
        at = self.random.choice(sorted(history))
        name = f"c{next(self.numbers)}"
        fork = self.harness.lake.fork_catalog(parent.name, name, at)
        self.harness.attach(fork)
        known = {snapshot: ids for snapshot, ids in history.items() if snapshot <= at}
        self.living[name] = (fork, known)

    def _choose(self, ids: frozenset[int]) -> set[int]:
        return set(self.random.sample(sorted(ids), min(len(ids), self.random.randint(1, 3))))


def _in(ids: set[int]) -> str:
    return ", ".join(map(str, ids)) or "NULL"


@pytest.mark.covering(1)
@pytest.mark.parametrize("seed", range(2))
def test_random_histories_of_forks_keep_exactly_the_needed_files(
    harness: LakeHarness, seed: int
) -> None:
    family = ForkModel(harness, random.Random(seed))
    family.begin()
    steps = []
    for _ in range(25):
        steps.append(family.step())
        if steps[-1] in ("collect", "cleanup", "fork"):
            family.check()
    family.check()
    family.end()
    assert harness.parquet() == set()

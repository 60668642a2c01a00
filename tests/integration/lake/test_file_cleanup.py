"""The collector deletes what no catalog can see, and never anything else."""

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

from swanlake.lake.gc import DEFAULT_AGE, Reason
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.operations import Commit
from tests.integration.lake.world import ROWS, SOON, World


def catalog_with_rows(world: World, name: str, *ids: range) -> Catalog:
    catalog = world.lake.create_catalog(name)
    world.table(catalog, ids=ids)
    world.attach(catalog)
    return catalog


def collected(world: World, *, dry_run: bool = False) -> list[tuple[str, Reason]]:
    found = world.lake.collect(age=SOON, dry_run=dry_run)
    return sorted((Path(garbage.path).name, garbage.reason) for garbage in found)


def names(paths: set[str]) -> list[str]:
    return sorted(Path(path).name for path in paths)


def test_files_that_a_merge_replaced_go_when_they_are_old_enough(world: World) -> None:
    sales = catalog_with_rows(world, "sales", range(10), range(10, 20))
    table = sales.table("main", "t")
    sources = world.files(sales, table)
    before = world.parquet()
    sales.commit(Commit((world.merge(sales, table, sources),), base=table.snapshot_id))
    assert world.lake.collect() == []  # younger than two days
    expected = [(name, Reason.SCHEDULED) for name in names(before)]
    assert collected(world, dry_run=True) == expected
    assert before <= world.parquet()
    assert collected(world) == expected
    assert not before & world.parquet()
    assert collected(world) == []
    scheduled = world.metadata(sales, "ducklake_files_scheduled_for_deletion")
    assert world.sql(f"SELECT count(*) FROM {scheduled}") == [(0,)]
    assert world.ids("sales.t", at=table.snapshot_id) == list(range(20))


def test_files_that_only_a_fork_sees_go_when_it_lets_go_of_them(world: World) -> None:
    sales = catalog_with_rows(world, "sales", range(10), range(10, 20))
    shared = world.parquet()
    fork = world.lake.fork_catalog("sales", "fork")
    world.attach(fork)
    world.maintain(sales, "merge", "expire", "cleanup")
    assert shared <= world.parquet()
    assert collected(world) == []
    assert world.ids("fork.t") == list(range(20))
    world.maintain(fork, "merge", "cleanup")
    assert shared <= world.parquet()
    assert collected(world) == [(name, Reason.DEFERRED) for name in names(shared)]
    assert not shared & world.parquet()
    for catalog in (sales, fork):
        assert world.ids(f"{catalog.name}.t") == list(range(20))
        deferred = world.metadata(catalog, "swanlake_deferred_file")
        assert world.sql(f"SELECT count(*) FROM {deferred}") == [(0,)]
    assert collected(world) == []


def test_files_of_a_dropped_catalog_go_but_those_its_fork_sees(world: World) -> None:
    sales = catalog_with_rows(world, "sales", range(10))
    shared = world.parquet()
    fork = world.lake.fork_catalog("sales", "fork")
    world.append(sales, range(10, 20))
    own = world.parquet() - shared
    world.detach(sales)
    world.lake.drop_catalog("sales")
    assert world.parquet() == shared | own
    assert collected(world) == [(name, Reason.DROPPED) for name in names(own)]
    world.attach(fork)
    assert world.ids("fork.t") == list(range(10))
    world.detach(fork)
    world.lake.drop_catalog("fork")
    assert collected(world) == [(name, Reason.DROPPED) for name in names(shared)]
    assert world.parquet() == set()
    assert collected(world) == []


def test_a_file_that_was_never_committed_goes_when_it_is_old_and_only_then(world: World) -> None:
    sales = catalog_with_rows(world, "sales", range(10))
    table = sales.table("main", "t")
    (lost,) = world.write(table, range(10, 20))
    path = Path(table.directory, lost.path)
    note = path.with_name("note.txt")
    note.write_text("not a data file")
    assert world.lake.collect() == []
    long_ago = time.time() - (DEFAULT_AGE + timedelta(hours=1)).total_seconds()
    for file in (path, note):
        os.utime(file, (long_ago, long_ago))
    (found,) = world.lake.collect()
    assert (found.path, found.reason, found.catalog) == (str(path), Reason.ORPHANED, "sales")
    assert not path.exists()
    assert note.exists()
    assert world.ids("sales.t") == list(range(10))


def test_a_catalog_made_again_under_its_old_name_never_meets_its_old_files(world: World) -> None:
    first = catalog_with_rows(world, "sales", range(10))
    old = world.parquet()
    world.detach(first)
    world.lake.drop_catalog("sales")
    second = catalog_with_rows(world, "sales", range(100, 103))
    assert second.info.place != first.info.place
    assert second.info.data_path != first.info.data_path
    assert second.info.id != first.info.id
    assert second.info.family != first.info.family
    assert collected(world) == [(name, Reason.DROPPED) for name in names(old)]
    assert world.ids("sales.t") == [100, 101, 102]
    assert second.missing_files() == []


def test_lakes_that_share_a_directory_for_files_do_not_delete_each_others(
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


def test_places_of_catalogs_whose_names_look_like_them_are_never_shared(world: World) -> None:
    """``a`` made again goes to a place like ``a_1``, which may be the name of another catalog."""
    kept = catalog_with_rows(world, "a_1", range(3))
    gone = catalog_with_rows(world, "a_2", range(3))
    world.detach(gone)
    world.lake.drop_catalog("a_2")
    places = {kept.info.place, gone.info.place}
    for round in range(3):
        again = catalog_with_rows(world, "a", range(round, round + 5))
        assert again.info.place not in places
        places.add(again.info.place)
        collected(world)
        assert world.ids("a.t") == list(range(round, round + 5))
        assert world.ids("a_1.t") == [0, 1, 2]
        world.detach(again)
        world.lake.drop_catalog("a")
    another = catalog_with_rows(world, again.info.place, range(7))
    assert another.info.place not in places
    collected(world)
    assert world.ids(f"{another.name}.t") == list(range(7))


def adopted_elsewhere(world: World, name: str, data: Path) -> Catalog:
    """A catalog of the stock extension with its files in a place of its own choosing."""
    with world.another_engine() as stock:
        if isinstance(world.metabase, Path):
            world.metabase.mkdir(exist_ok=True)
            place, options = f"sqlite:{world.metabase / name}.sqlite", ""
        else:
            place, options = f"postgres:{world.metabase}", f", METADATA_SCHEMA 'lake_{name}'"
        stock.execute(f"ATTACH 'ducklake:{place}' AS {name} (DATA_PATH '{data}/'{options})")
        stock.execute(f"CREATE TABLE {name}.t AS SELECT range AS id, 'v' AS v FROM range(20)")
        stock.execute(f"DETACH {name}")
    catalog = world.lake.adopt_catalog(name)
    world.attach(catalog)
    return catalog


def test_what_lies_beside_the_files_of_an_adopted_catalog_is_nobodys_to_delete(
    world: World,
) -> None:
    elsewhere = world.home / "elsewhere"
    one = adopted_elsewhere(world, "one", elsewhere)
    two = adopted_elsewhere(world, "two", elsewhere)  # stock DuckDB allows that
    around = adopted_elsewhere(world, "around", world.data)  # and this
    own = catalog_with_rows(world, "own", range(3))
    private = elsewhere / "private.parquet"
    shutil.copyfile(next(elsewhere.rglob("*.parquet")), private)
    assert collected(world) == []
    world.detach(one)
    world.lake.drop_catalog("one")
    assert collected(world) == []
    assert private.exists()
    for catalog, rows in ((two, 20), (around, 20), (own, 3)):
        assert world.ids(f"{catalog.name}.t") == list(range(rows))
        assert catalog.missing_files() == []


def test_a_fork_whose_kinship_was_lost_keeps_its_files(world: World) -> None:
    """As after a crash between the making of a fork and its entry in the registry."""
    sales = catalog_with_rows(world, "sales", range(10), range(10, 20))
    world.lake.fork_catalog("sales", "lost")
    forget_in_registry(world, "lost")
    assert world.lake.find("lost") is None
    fork = world.lake.adopt_catalog("lost")
    world.attach(fork)
    assert fork.info.family != sales.info.family
    world.maintain(sales, "merge", "expire", "cleanup")
    assert collected(world) == []
    world.detach(sales)
    world.lake.drop_catalog("sales")
    collected(world)
    assert world.ids("lost.t") == list(range(20))


def forget_in_registry(world: World, name: str) -> None:
    statement = f"DELETE FROM swanlake_catalog WHERE name = '{name}'"
    if isinstance(world.metabase, Path):
        world.run_sqlite(world.metabase / "registry.sqlite", statement)
        return
    with psycopg.connect(world.metabase, autocommit=True) as connection:
        connection.execute(statement.replace("swanlake_catalog", "swanlake.swanlake_catalog"))


def test_stock_orphan_cleanup_finds_nothing_of_a_fork_and_deletes_what_was_deferred_for_it(
    world: World,
) -> None:
    """The known gap: files that a parent let go of look like orphans to the stock extension."""
    sales = catalog_with_rows(world, "sales", range(10), range(10, 20))
    fork = world.lake.fork_catalog("sales", "fork")
    world.attach(fork)
    world.append(fork, range(20, 30))
    for catalog in (sales, fork):
        world.maintain(catalog, "orphans")
    assert world.ids("fork.t") == list(range(30))
    assert world.ids("sales.t") == list(range(20))
    world.maintain(sales, "merge", "cleanup")
    assert world.ids("fork.t") == list(range(30))
    world.maintain(fork, "orphans")
    assert world.ids("fork.t") == list(range(30))
    world.maintain(sales, "orphans")
    with pytest.raises(duckdb.Error, match=r"Cannot open file|No such file"):
        world.ids("fork.t")


# ---- any history of a family -------------------------------------------------------------------


@dataclass
class Family:
    """Catalogs and what each must hold at each of its snapshots."""

    world: World
    random: random.Random
    living: dict[str, tuple[Catalog, dict[int, frozenset[int]]]] = field(default_factory=dict)
    numbers: count[int] = field(default_factory=count)

    def begin(self) -> None:
        name = f"c{next(self.numbers)}"
        catalog = catalog_with_rows(self.world, name, range(5), range(5, 10))
        self.living[name] = (catalog, {catalog.snapshot_id(): frozenset(range(10))})

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
                self.world.append(catalog, range(start, start + 3))
                newest = newest | set(range(start, start + 3))
            case "inline":
                start = next(self.numbers) * 100 + 1000
                self.world.inline(10)
                self.world.sql(f"INSERT INTO {catalog.name}.t VALUES ({start}, 'x')")
                self.world.inline(0)
                newest = newest | {start}
            case "delete":
                gone = self._some(newest)
                self.world.sql(f"DELETE FROM {catalog.name}.t WHERE id IN ({_in(gone)})")
                newest = newest - gone
            case "update":
                some = self._some(newest)
                self.world.sql(f"UPDATE {catalog.name}.t SET v = 'u' WHERE id IN ({_in(some)})")
            case "merge" | "rewrite" | "flush" | "cleanup":
                self.world.maintain(catalog, action)
            case "expire":
                self.world.maintain(catalog, action)
                kept = {snapshot.id for snapshot in catalog.snapshots()}
                for gone_by in set(history) - kept:
                    del history[gone_by]
            case "fork":
                self._fork(catalog, history)
                return action
            case "drop" if len(self.living) > 1:
                self.world.detach(catalog)
                self.world.lake.drop_catalog(catalog.name)
                del self.living[catalog.name]
                return action
            case "collect":
                self.world.lake.collect(age=SOON)
        history[catalog.snapshot_id()] = newest
        return action

    def check(self) -> None:
        for catalog, history in self.living.values():
            assert catalog.check() == []
            assert catalog.missing_files() == []
            for at in {max(history), self.random.choice(sorted(history))}:
                assert frozenset(self.world.ids(f"{catalog.name}.t", at)) == history[at]

    def end(self) -> None:
        for catalog, _ in self.living.values():
            self.world.detach(catalog)
            self.world.lake.drop_catalog(catalog.name)
        self.world.lake.collect(age=SOON)

    def _fork(self, parent: Catalog, history: dict[int, frozenset[int]]) -> None:
        if len(self.living) == 4:
            return
        at = self.random.choice(sorted(history))
        name = f"c{next(self.numbers)}"
        fork = self.world.lake.fork_catalog(parent.name, name, at)
        self.world.attach(fork)
        known = {snapshot: ids for snapshot, ids in history.items() if snapshot <= at}
        self.living[name] = (fork, known)

    def _some(self, ids: frozenset[int]) -> set[int]:
        return set(self.random.sample(sorted(ids), min(len(ids), self.random.randint(1, 3))))


def _in(ids: set[int]) -> str:
    return ", ".join(map(str, ids)) or "NULL"


@pytest.mark.parametrize("seed", range(2))
def test_no_history_of_a_family_loses_a_file_that_is_needed_or_keeps_one_that_is_not(
    world: World, seed: int
) -> None:
    family = Family(world, random.Random(seed))
    family.begin()
    steps = []
    for _ in range(25):
        steps.append(family.step())
        if steps[-1] in ("collect", "cleanup", "fork"):
            family.check()
    family.check()
    family.end()
    assert world.parquet() == set()

"""Clean-ups delete what was needed once, orphans what never was; both say beforehand what goes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from swanlake.errors import CatalogUnreachable
from swanlake.lake import clock, gc
from swanlake.lake.commit import Committed
from swanlake.lake.gc import DEFAULT_AGE, Garbage, Reason
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.operations import Commit, Delete
from tests.integration.lake.world import SOON, World

LONG_AGO = (DEFAULT_AGE + timedelta(hours=1)).total_seconds()


def age(*paths: Path) -> None:
    """Makes files and folders look as if they were written long ago."""
    then = time.time() - LONG_AGO
    for path in paths:
        os.utime(path, (then, then))


def messy(world: World) -> Catalog:
    """A catalog with something to be deleted for every reason."""
    sales = world.lake.create_catalog("sales")
    table = world.table(sales, ids=[range(10), range(10, 20)])
    world.attach(sales)
    fork = world.lake.fork_catalog("sales", "fork")
    sources = world.files(sales, table)
    sales.commit(Commit((world.merge(sales, table, sources),), base=table.snapshot_id))
    world.lake.drop_catalog(fork.name)
    world.append(sales, range(20, 30))
    world.append(sales, range(30, 40))
    table = sales.table("main", "t")
    sources = world.files(sales, table)[-2:]
    sales.commit(Commit((world.merge(sales, table, sources),), base=table.snapshot_id))
    gone = world.lake.create_catalog("gone")
    world.table(gone, ids=[range(7)])
    world.lake.drop_catalog("gone")
    world.write(table, range(100, 110))
    return sales


def test_each_deletes_its_own_and_both_together_all(world: World) -> None:
    messy(world)
    both = world.lake.collect(age=SOON, dry_run=True)
    needless = world.lake.cleanup(age=SOON, dry_run=True)
    orphans = world.lake.orphans(age=SOON, dry_run=True)
    assert [*needless, *orphans] == both
    assert {garbage.reason for garbage in needless} == {
        Reason.SCHEDULED,
        Reason.DEFERRED,
        Reason.DROPPED,
    }
    assert {garbage.reason for garbage in orphans} == {Reason.ORPHANED}
    before = world.parquet()
    assert world.lake.orphans(age=SOON) == orphans
    assert before - world.parquet() == {garbage.path for garbage in orphans}
    assert world.lake.orphans(age=SOON) == []
    assert world.lake.cleanup(age=SOON, dry_run=True) == needless
    assert world.lake.cleanup(age=SOON) == needless
    assert world.lake.cleanup(age=SOON) == world.lake.collect(age=SOON) == []
    assert world.ids("sales.t") == list(range(40))
    assert world.lake.catalog("sales").missing_files() == []


def test_a_dry_run_names_every_file_in_the_same_order_with_its_size(world: World) -> None:
    messy(world)
    would = world.lake.collect(age=SOON, dry_run=True)
    assert {garbage.path for garbage in would} <= world.parquet()
    assert [garbage.size for garbage in would] == [
        Path(garbage.path).stat().st_size for garbage in would
    ]
    assert world.lake.collect(age=SOON, dry_run=True) == would
    assert world.lake.collect(age=SOON) == would


def test_what_is_young_is_left_for_later(world: World) -> None:
    messy(world)
    assert {garbage.reason for garbage in world.lake.cleanup(dry_run=True)} == {Reason.DROPPED}
    assert world.lake.orphans() == []


@pytest.mark.parametrize("wrong", [timedelta(days=400), timedelta(days=-400)], ids=["fast", "slow"])
def test_by_a_wrong_clock_nothing_goes_before_its_time(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch, wrong: timedelta
) -> None:
    world = postgres_world
    world.clear()
    sales = world.lake.create_catalog("sales")
    table = world.table(sales, ids=[range(10)])
    world.attach(sales)
    sales.commit(Commit((Delete(table, (), tuple(world.files(sales, table))),)))
    about_to_be_committed = world.insert(table, range(10, 20))
    before = world.parquet()
    with monkeypatch.context() as patched:
        patched.setattr(clock, "own_time", lambda: datetime.now(UTC) + wrong)
        assert sales.expire(older_than=DEFAULT_AGE).snapshots == ()
        assert len(sales.expire(keep_last=1).files) == 1
        assert world.lake.collect() == []
    assert world.lake.collect() == []
    assert world.parquet() == before
    sales.commit(Commit((about_to_be_committed,)))
    assert sales.missing_files() == []


def test_an_age_beyond_all_calendars_keeps_everything(world: World) -> None:
    sales = messy(world)
    ages = timedelta(days=900_000)
    assert {garbage.reason for garbage in world.lake.cleanup(age=ages)} == {Reason.DROPPED}
    assert world.lake.orphans(age=ages) == []
    assert sales.expire(older_than=ages).snapshots == ()


# ---- orphans -----------------------------------------------------------------------------------


def working_folder(world: World, catalog: Catalog) -> Path:
    """What a write leaves behind that was killed."""
    table = catalog.table("main", "t")
    folder = Path(table.directory, f".swanlake-{uuid4().hex}")
    (folder / "k=1").mkdir(parents=True)
    (folder / "data_0.parquet").write_bytes(b"half a file")
    (folder / "k=1" / "data_1.tmp").write_bytes(b"less")
    return folder


def test_a_working_folder_goes_as_a_whole_when_all_of_it_is_old(world: World) -> None:
    sales = world.lake.create_catalog("sales")
    world.table(sales, ids=[range(5)])
    world.attach(sales)
    folder = working_folder(world, sales)
    inside = sorted(folder.rglob("*"))
    age(folder, *(path for path in inside if path.name != "data_1.tmp"))
    assert world.lake.orphans() == []  # it may be that a long write still goes on there
    age(*inside)
    expected = [Garbage(f"{folder}/", Reason.ORPHANED, "sales", 15)]
    assert world.lake.cleanup(dry_run=True) == []
    assert world.lake.orphans(dry_run=True) == expected
    assert folder.exists()
    assert world.lake.orphans() == expected
    assert not folder.exists()
    assert world.lake.orphans() == []
    assert world.ids("sales.t") == list(range(5))


def test_an_empty_working_folder_goes_too_and_other_folders_stay(world: World) -> None:
    sales = world.lake.create_catalog("sales")
    table = world.table(sales, ids=[range(5)])
    empty = Path(table.directory, f".swanlake-{uuid4().hex}")
    others = [Path(table.directory, name) for name in (".swanlake-mine", f"swanlake-{'0' * 32}")]
    for folder in (empty, *others):
        folder.mkdir()
        age(folder)
    assert [garbage.path for garbage in world.lake.orphans()] == [f"{empty}/"]
    assert [folder.exists() for folder in (empty, *others)] == [False, True, True]


def test_a_file_that_is_committed_while_orphans_are_looked_for_stays(
    postgres_world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are listed first and the catalogs asked afterwards, so none falls between."""
    world = postgres_world
    world.clear()
    sales = world.lake.create_catalog("sales")
    table = world.table(sales, ids=[range(5)])
    world.attach(sales)
    insert = world.insert(table, range(5, 10), blind=True)
    ask = gc.referenced
    committed: list[Committed] = []

    def commit_first(*arguments: Any) -> Iterator[str]:
        if not committed:
            committed.append(sales.change(insert))
        return ask(*arguments)

    monkeypatch.setattr(gc, "referenced", commit_first)
    assert world.lake.orphans(age=SOON) == []
    assert committed
    assert world.ids("sales.t") == list(range(10))
    world.clear()


# ---- beside others -----------------------------------------------------------------------------


def test_a_file_that_cannot_be_deleted_is_reported_and_stays_on_the_list(world: World) -> None:
    messy(world)
    would = world.lake.cleanup(age=SOON, dry_run=True)
    stuck = next(garbage for garbage in would if garbage.reason is Reason.SCHEDULED)
    held = Path(stuck.path)
    content = held.read_bytes()
    held.unlink()
    held.mkdir()
    (held / "in_the_way").touch()
    done = world.lake.cleanup(age=SOON)
    (failed,) = [garbage for garbage in done if garbage.problem is not None]
    assert failed.path == stuck.path
    assert stuck.path in (failed.problem or "")
    assert [replace(each, problem=None, size=0) for each in done] == [
        replace(each, size=0) for each in would
    ]
    assert [garbage.path for garbage in world.lake.cleanup(age=SOON, dry_run=True)] == [stuck.path]
    (held / "in_the_way").unlink()
    held.rmdir()
    held.write_bytes(content)
    assert world.lake.cleanup(age=SOON) == [stuck]
    assert world.lake.cleanup(age=SOON) == []
    assert world.ids("sales.t") == list(range(40))


def test_a_clean_up_that_was_cut_short_is_done_again(world: World) -> None:
    """The files were deleted and the list was not told."""
    messy(world)
    would = world.lake.cleanup(age=SOON, dry_run=True)
    for garbage in would:
        Path(garbage.path).unlink()
    assert world.lake.cleanup(age=SOON) == [
        replace(garbage, size=0) for garbage in would if garbage.reason is not Reason.DROPPED
    ]
    assert world.lake.cleanup(age=SOON) == []


def test_a_catalog_that_cannot_be_asked_keeps_everything(world: World) -> None:
    sales = messy(world)
    world.lake.create_catalog("broken")
    broken = world.lake.catalog("broken")
    before = world.parquet()
    world.tamper(broken, "ALTER TABLE ducklake_data_file RENAME TO hidden")
    for clean in (world.lake.cleanup, world.lake.orphans):
        with pytest.raises(CatalogUnreachable, match="catalog broken"):
            clean(age=SOON)
    assert world.parquet() == before
    assert sales.missing_files() == []


def test_clean_ups_of_several_servers_beside_writers_forks_and_expiry(world: World) -> None:
    sales = world.lake.create_catalog("sales")
    world.table(sales, ids=[range(5), range(5, 10)])
    rounds = 6
    barrier = threading.Barrier(4)
    inserts = [
        world.insert(sales.table("main", "t"), range(n, n + 1), blind=True) for n in range(100, 112)
    ]

    def write() -> None:
        barrier.wait()
        for insert in inserts:
            sales.change(insert)

    def maintain() -> None:
        barrier.wait()
        for number in range(rounds):
            fork = world.lake.fork_catalog("sales", f"fork{number}")
            sales.expire(keep_last=2)
            fork.expire(keep_last=1)
            if number % 2:
                world.lake.drop_catalog(fork.name)

    def clean(lake: Lake) -> list[Garbage]:
        barrier.wait()
        # Files of the writer wait for their commit: only what was let go of is cleaned up here.
        return [each for _ in range(rounds) for each in lake.cleanup(age=SOON)]

    with Lake.open(world.metabase, world.data) as other, ThreadPoolExecutor(4) as pool:
        cleaners = [pool.submit(clean, lake) for lake in (world.lake, other)]
        workers = [pool.submit(write), pool.submit(maintain)]
        for future in workers:
            future.result()
        for cleaner in cleaners:
            assert not [each for each in cleaner.result() if each.problem is not None]
    for info in world.lake.catalogs():
        catalog = world.lake.catalog(info.name)
        assert catalog.missing_files() == []
        assert catalog.check() == []
        world.attach(catalog)
        for snapshot in catalog.snapshots():
            assert world.ids(f"{catalog.name}.t", snapshot.id)[:10] == list(range(10))
    assert world.ids("sales.t") == [*range(10), *range(100, 112)]

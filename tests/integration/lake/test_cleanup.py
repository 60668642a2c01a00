"""Clean-up deletes files no longer needed, orphan deletion uncommitted files."""

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
from swanlake.lake.catalog import Catalog
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.lake import Lake
from swanlake.lake.lifecycle import clock, file_cleanup
from swanlake.lake.lifecycle.file_cleanup import DEFAULT_AGE, DeletableFile, DeletionReason
from swanlake.lake.model.operations import Commit
from tests.integration.lake.fixtures import SOON, LakeHarness

LONG_AGO = (DEFAULT_AGE + timedelta(hours=1)).total_seconds()


def age(*paths: Path) -> None:
    """Sets the modification times of files and folders far into the past."""
    then = time.time() - LONG_AGO
    for path in paths:
        os.utime(path, (then, then))


def catalog_with_unused_files(harness: LakeHarness) -> Catalog:
    """A catalog with a file to delete for every reason."""
    sales = harness.lake.create_catalog("sales")
    table = harness.table(sales, ids=[range(10), range(10, 20)])
    harness.attach(sales)
    fork = harness.lake.fork_catalog("sales", "fork")
    sources = harness.files(sales, table)
    sales.commit(Commit((harness.merge(sales, table, sources),), base=table.snapshot_id))
    harness.lake.drop_catalog(fork.name)
    harness.append(sales, range(20, 30))
    harness.append(sales, range(30, 40))
    table = sales.table("main", "t")
    sources = harness.files(sales, table)[-2:]
    sales.commit(Commit((harness.merge(sales, table, sources),), base=table.snapshot_id))
    gone = harness.lake.create_catalog("gone")
    harness.table(gone, ids=[range(7)])
    harness.lake.drop_catalog("gone")
    harness.write(table, range(100, 110))
    return sales


def test_cleanup_and_orphans_together_delete_everything_unused(harness: LakeHarness) -> None:
    catalog_with_unused_files(harness)
    both = harness.lake.collect(age=SOON, dry_run=True)
    unneeded = harness.lake.cleanup(age=SOON, dry_run=True)
    orphans = harness.lake.delete_orphans(age=SOON, dry_run=True)
    assert [*unneeded, *orphans] == both
    assert {garbage.reason for garbage in unneeded} == {
        DeletionReason.SCHEDULED,
        DeletionReason.DEFERRED,
        DeletionReason.DROPPED,
    }
    assert {garbage.reason for garbage in orphans} == {DeletionReason.ORPHANED}
    before = harness.parquet()
    assert harness.lake.delete_orphans(age=SOON) == orphans
    assert before - harness.parquet() == {garbage.path for garbage in orphans}
    assert harness.lake.delete_orphans(age=SOON) == []
    assert harness.lake.cleanup(age=SOON, dry_run=True) == unneeded
    assert harness.lake.cleanup(age=SOON) == unneeded
    assert harness.lake.cleanup(age=SOON) == harness.lake.collect(age=SOON) == []
    assert harness.ids("sales.t") == list(range(40))
    assert harness.lake.catalog("sales").missing_files() == []


def test_dry_run_lists_the_same_files_with_sizes(harness: LakeHarness) -> None:
    catalog_with_unused_files(harness)
    would = harness.lake.collect(age=SOON, dry_run=True)
    assert {garbage.path for garbage in would} <= harness.parquet()
    assert [garbage.size for garbage in would] == [
        Path(garbage.path).stat().st_size for garbage in would
    ]
    assert harness.lake.collect(age=SOON, dry_run=True) == would
    assert harness.lake.collect(age=SOON) == would


def test_files_of_dropped_catalogs_alone_are_deleted_at_any_age(harness: LakeHarness) -> None:
    catalog_with_unused_files(harness)
    assert {garbage.reason for garbage in harness.lake.cleanup(dry_run=True)} == {
        DeletionReason.DROPPED
    }
    assert harness.lake.delete_orphans() == []


@pytest.mark.parametrize("wrong", [timedelta(days=400), timedelta(days=-400)], ids=["fast", "slow"])
def test_wrong_clock_deletes_nothing_early(
    postgres_harness: LakeHarness, monkeypatch: pytest.MonkeyPatch, wrong: timedelta
) -> None:
    harness = postgres_harness
    harness.clear()
    sales = harness.lake.create_catalog("sales")
    table = harness.table(sales, ids=[range(10)])
    harness.attach(sales)
    harness.sql("DELETE FROM sales.t")
    about_to_be_committed = harness.insert(table, range(10, 20))
    before = harness.parquet()
    with monkeypatch.context() as patched:
        patched.setattr(clock, "local_time", lambda: datetime.now(UTC) + wrong)
        assert sales.expire(older_than=DEFAULT_AGE).snapshots == ()
        assert len(sales.expire(keep_last=1).files) == 1
        assert harness.lake.collect() == []
    assert harness.lake.collect() == []
    assert harness.parquet() == before
    sales.commit(Commit((about_to_be_committed,)))
    assert sales.missing_files() == []


def test_age_beyond_the_calendar_deletes_only_dropped_catalogs(harness: LakeHarness) -> None:
    sales = catalog_with_unused_files(harness)
    ages = timedelta(days=900_000)
    assert {garbage.reason for garbage in harness.lake.cleanup(age=ages)} == {
        DeletionReason.DROPPED
    }
    assert harness.lake.delete_orphans(age=ages) == []
    assert sales.expire(older_than=ages).snapshots == ()


# ---- orphans -----------------------------------------------------------------------------------


def working_folder(harness: LakeHarness, catalog: Catalog) -> Path:
    """The working folder of a killed write."""
    table = catalog.table("main", "t")
    folder = Path(table.directory, f".swanlake-{uuid4().hex}")
    (folder / "k=1").mkdir(parents=True)
    (folder / "data_0.parquet").write_bytes(b"half a file")
    (folder / "k=1" / "data_1.tmp").write_bytes(b"less")
    return folder


def test_working_folder_is_deleted_when_all_its_files_are_old(harness: LakeHarness) -> None:
    sales = harness.lake.create_catalog("sales")
    harness.table(sales, ids=[range(5)])
    harness.attach(sales)
    folder = working_folder(harness, sales)
    inside = sorted(folder.rglob("*"))
    age(folder, *(path for path in inside if path.name != "data_1.tmp"))
    assert harness.lake.delete_orphans() == []  # a long write may still use it
    age(*inside)
    expected = [DeletableFile(f"{folder}/", DeletionReason.ORPHANED, "sales", 15)]
    assert harness.lake.cleanup(dry_run=True) == []
    assert harness.lake.delete_orphans(dry_run=True) == expected
    assert folder.exists()
    assert harness.lake.delete_orphans() == expected
    assert not folder.exists()
    assert harness.lake.delete_orphans() == []
    assert harness.ids("sales.t") == list(range(5))


def test_empty_working_folder_is_deleted_and_other_folders_stay(harness: LakeHarness) -> None:
    sales = harness.lake.create_catalog("sales")
    table = harness.table(sales, ids=[range(5)])
    empty = Path(table.directory, f".swanlake-{uuid4().hex}")
    others = [Path(table.directory, name) for name in (".swanlake-mine", f"swanlake-{'0' * 32}")]
    for folder in (empty, *others):
        folder.mkdir()
        age(folder)
    assert [garbage.path for garbage in harness.lake.delete_orphans()] == [f"{empty}/"]
    assert [folder.exists() for folder in (empty, *others)] == [False, True, True]


def test_file_committed_during_the_orphan_search_is_not_deleted(
    postgres_harness: LakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are listed before the catalogs are read, so no new file looks like an orphan."""
    harness = postgres_harness
    harness.clear()
    sales = harness.lake.create_catalog("sales")
    table = harness.table(sales, ids=[range(5)])
    harness.attach(sales)
    insert = harness.insert(table, range(5, 10), blind=True)
    ask = file_cleanup.referenced_files
    committed: list[Committed] = []

    def commit_first(*arguments: Any) -> Iterator[str]:
        if not committed:
            committed.append(sales.change(insert))
        return ask(*arguments)

    monkeypatch.setattr(file_cleanup, "referenced_files", commit_first)
    assert harness.lake.delete_orphans(age=SOON) == []
    assert committed
    assert harness.ids("sales.t") == list(range(10))
    harness.clear()


# ---- failures and concurrency ------------------------------------------------------------------


def test_undeletable_file_is_reported_and_stays_scheduled(harness: LakeHarness) -> None:
    catalog_with_unused_files(harness)
    would = harness.lake.cleanup(age=SOON, dry_run=True)
    stuck = next(garbage for garbage in would if garbage.reason is DeletionReason.SCHEDULED)
    held = Path(stuck.path)
    content = held.read_bytes()
    held.unlink()
    held.mkdir()
    (held / "in_the_way").touch()
    done = harness.lake.cleanup(age=SOON)
    (failed,) = [garbage for garbage in done if garbage.problem is not None]
    assert failed.path == stuck.path
    assert stuck.path in (failed.problem or "")
    assert [replace(each, problem=None, size=0) for each in done] == [
        replace(each, size=0) for each in would
    ]
    assert [garbage.path for garbage in harness.lake.cleanup(age=SOON, dry_run=True)] == [
        stuck.path
    ]
    (held / "in_the_way").unlink()
    held.rmdir()
    held.write_bytes(content)
    assert harness.lake.cleanup(age=SOON) == [stuck]
    assert harness.lake.cleanup(age=SOON) == []
    assert harness.ids("sales.t") == list(range(40))


def test_interrupted_cleanup_is_repeated(harness: LakeHarness) -> None:
    """The files were deleted, but their entries were not."""
    catalog_with_unused_files(harness)
    would = harness.lake.cleanup(age=SOON, dry_run=True)
    for garbage in would:
        Path(garbage.path).unlink()
    assert harness.lake.cleanup(age=SOON) == [
        replace(garbage, size=0)
        for garbage in would
        if garbage.reason is not DeletionReason.DROPPED
    ]
    assert harness.lake.cleanup(age=SOON) == []


def test_unreadable_catalog_prevents_every_deletion(harness: LakeHarness) -> None:
    sales = catalog_with_unused_files(harness)
    harness.lake.create_catalog("broken")
    broken = harness.lake.catalog("broken")
    before = harness.parquet()
    harness.tamper(broken, "ALTER TABLE ducklake_data_file RENAME TO hidden")
    for clean in (harness.lake.cleanup, harness.lake.delete_orphans):
        with pytest.raises(CatalogUnreachable, match="catalog broken"):
            clean(age=SOON)
    assert harness.parquet() == before
    assert sales.missing_files() == []


def test_concurrent_cleanups_writers_forks_and_expiry_lose_no_file(harness: LakeHarness) -> None:
    sales = harness.lake.create_catalog("sales")
    harness.table(sales, ids=[range(5), range(5, 10)])
    rounds = 6
    barrier = threading.Barrier(4)
    inserts = [
        harness.insert(sales.table("main", "t"), range(n, n + 1), blind=True)
        for n in range(100, 112)
    ]

    def write() -> None:
        barrier.wait()
        for insert in inserts:
            sales.change(insert)

    def maintain() -> None:
        barrier.wait()
        for number in range(rounds):
            fork = harness.lake.fork_catalog("sales", f"fork{number}")
            sales.expire(keep_last=2)
            fork.expire(keep_last=1)
            if number % 2:
                harness.lake.drop_catalog(fork.name)

    def clean(lake: Lake) -> list[DeletableFile]:
        barrier.wait()
        # The writer's files are not committed yet, so orphans are not deleted here.
        return [each for _ in range(rounds) for each in lake.cleanup(age=SOON)]

    with Lake.open(harness.metabase, harness.data) as other, ThreadPoolExecutor(4) as pool:
        cleaners = [pool.submit(clean, lake) for lake in (harness.lake, other)]
        workers = [pool.submit(write), pool.submit(maintain)]
        for future in workers:
            future.result()
        for cleaner in cleaners:
            assert not [each for each in cleaner.result() if each.problem is not None]
    for info in harness.lake.catalogs():
        catalog = harness.lake.catalog(info.name)
        assert catalog.missing_files() == []
        assert catalog.check() == []
        harness.attach(catalog)
        for snapshot in catalog.snapshots():
            assert harness.ids(f"{catalog.name}.t", snapshot.id)[:10] == list(range(10))
    assert harness.ids("sales.t") == [*range(10), *range(100, 112)]

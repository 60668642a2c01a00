"""The registry of catalogs under concurrent changes and after crashes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from swanlake.errors import AlreadyExists, CatalogUnreachable, NotFound, SwanLakeError
from swanlake.lake.lake import Lake
from tests.integration.lake.fixtures import ROWS, SOON, Engines, LakeHarness

AT_ONCE = 6


def all_at_once(*jobs: Callable[[], object]) -> list[object]:
    """The results or errors of jobs that start together."""
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return job()
        except SwanLakeError as error:
            return error

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


def test_one_of_many_concurrent_creates_succeeds(harness: LakeHarness) -> None:
    results = all_at_once(*[lambda: harness.lake.create_catalog("sales")] * AT_ONCE)
    errors = [result for result in results if isinstance(result, Exception)]
    assert len(errors) == AT_ONCE - 1
    assert all(isinstance(error, AlreadyExists) for error in errors)
    assert [info.name for info in harness.lake.catalogs()] == ["sales"]
    assert harness.lake.catalog("sales").check() == []


def test_concurrent_ensure_calls_all_get_the_catalog(harness: LakeHarness) -> None:
    with Lake.open(harness.metabase, harness.data) as other:
        lakes = [harness.lake, other] * (AT_ONCE // 2)
        results = all_at_once(*[lambda lake=lake: lake.ensure_catalog("sales") for lake in lakes])
    assert {getattr(catalog, "info", catalog).id for catalog in results} == {  # type: ignore[attr-defined]
        harness.lake.catalog("sales").info.id
    }


def test_concurrent_creates_forks_and_drops_leave_what_was_reported(harness: LakeHarness) -> None:
    parent = harness.lake.create_catalog("parent")
    harness.table(parent, ids=[range(5)])
    harness.lake.create_catalog("going")
    results = all_at_once(
        lambda: harness.lake.fork_catalog("parent", "fork_one"),
        lambda: harness.lake.fork_catalog("parent", "fork_two"),
        lambda: harness.lake.create_catalog("fresh"),
        lambda: harness.lake.drop_catalog("going"),
        lambda: harness.lake.drop_catalog("going"),
        lambda: harness.lake.collect(age=SOON),
        lambda: parent.create_schema("meanwhile"),
    )
    errors = [result for result in results if isinstance(result, Exception)]
    assert [type(error) for error in errors] == [NotFound]  # from the second drop
    names = [info.name for info in harness.lake.catalogs()]
    assert names == ["fork_one", "fork_two", "fresh", "parent"]
    for name in names:
        catalog = harness.lake.catalog(name)
        assert catalog.check() == []
        assert catalog.missing_files() == []
    for fork in ("fork_one", "fork_two"):
        harness.attach(harness.lake.catalog(fork))
        assert harness.ids(f"{fork}.t") == list(range(5))


def test_fork_during_writes_equals_one_snapshot_of_its_parent(harness: LakeHarness) -> None:
    parent = harness.lake.create_catalog("parent")
    harness.table(parent)
    table = parent.table("main", "t")
    inserts = [harness.insert(table, range(n * 10, n * 10 + 10), blind=True) for n in range(4)]
    results = all_at_once(
        *[lambda insert=insert: parent.change(insert) for insert in inserts],
        lambda: harness.lake.fork_catalog("parent", "fork"),
    )
    assert not [result for result in results if isinstance(result, Exception)]
    fork = harness.lake.catalog("fork")
    harness.attach(parent, fork)
    at = fork.newest_snapshot()
    assert fork.info.parent_snapshot == at
    assert harness.ids("fork.t") == harness.ids("parent.t", at)
    assert len(harness.ids("fork.t")) == (at - 1) * 10
    assert fork.check() == parent.check() == []


def test_recreated_catalog_gets_a_new_location(
    harness: LakeHarness,
) -> None:
    infos = []
    for _ in range(3):
        infos.append(harness.lake.create_catalog("Sales").info)
        assert harness.lake.drop_catalog("SALES").id == infos[-1].id
    assert len({info.storage_name for info in infos}) == 3
    assert len({info.data_path for info in infos}) == 3
    assert harness.lake.catalogs() == []
    with pytest.raises(NotFound, match="There is no catalog sales"):
        harness.lake.drop_catalog("sales")


def test_location_of_a_catalog_is_not_adopted_as_another(harness: LakeHarness) -> None:
    harness.lake.create_catalog("sales")
    harness.lake.drop_catalog("sales")
    again = harness.lake.create_catalog("sales")
    assert again.info.storage_name != "sales"
    with pytest.raises(NotFound, match=r"its storage belongs to the catalog sales"):
        harness.lake.adopt_catalog(again.info.storage_name)
    assert [info.name for info in harness.lake.catalogs()] == ["sales"]


def test_drop_times_out_waiting_for_a_reader(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swanlake.lake.metastore.postgres._DROP_SECONDS", 1)
    with Lake.open(postgres_database, tmp_path / "data") as lake:
        lake.create_catalog("sales")
        with psycopg.connect(postgres_database) as reader:
            reader.execute("SELECT * FROM lake_sales.ducklake_snapshot")
            with pytest.raises(CatalogUnreachable, match=r"locked for too long .*Try again"):
                lake.drop_catalog("sales")
        assert lake.catalog("sales").check() == []
        lake.drop_catalog("sales")
        assert lake.catalogs() == []


# ---- crashes, on SQLite ------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "catalogs"


#: Runs one change of the lake and exits the process at the given step.
CRASH = """
import os, sys
from pathlib import Path
from swanlake.lake.metastore.local import MetadataService, open_metastore
from swanlake.lake.lifecycle import forks
from swanlake.lake.metastore.base import Metastore
from swanlake.lake.metastore.sqlite import SqliteMetastore

directory, data, step, method, *arguments = sys.argv[1:]

def crash(*_, **__):
    os._exit(9)

def then_crash(function):
    def run(*arguments, **keywords):
        function(*arguments, **keywords)
        os._exit(9)
    return run

match step:
    case "before the file has its name":
        Path.rename = crash
    case "before the registry knows":
        Metastore.register = crash
    case "before the parent knows":
        forks.mark_shared = crash
    case "after the file is gone":
        SqliteMetastore.remove = then_crash(SqliteMetastore.remove)
    case "before the file is gone":
        SqliteMetastore.remove = crash

lake = MetadataService(open_metastore(Path(directory), data))
getattr(lake, method)(*arguments, *([None] if method == "fork" else []))
"""


def crash(directory: Path, data: Path, step: str, *change: str) -> None:
    command = [sys.executable, "-c", CRASH, str(directory), str(data), step, *change]
    assert subprocess.run(command, check=False).returncode == 9


@pytest.mark.parametrize("step", ["before the file has its name", "before the registry knows"])
def test_catalog_of_an_interrupted_create_can_be_created_or_adopted(
    directory: Path, tmp_path: Path, step: str
) -> None:
    crash(directory, tmp_path / "data", step, "create", "sales")
    with Lake.open(directory, tmp_path / "data") as lake:
        assert lake.catalogs() == []
        if step == "before the registry knows":
            with pytest.raises(AlreadyExists, match="its creation was interrupted"):
                lake.create_catalog("sales")
            sales = lake.adopt_catalog("sales")
        else:
            sales = lake.create_catalog("sales")
        sales.create_table("main", "t", ROWS)
        assert sales.check() == []


def test_interrupted_second_create_does_not_block_the_name(directory: Path, tmp_path: Path) -> None:
    with Lake.open(directory, tmp_path / "data") as lake:
        lake.create_catalog("sales")
        lake.drop_catalog("sales")
    crash(directory, tmp_path / "data", "before the registry knows", "create", "sales")
    with Lake.open(directory, tmp_path / "data") as lake:
        assert lake.create_catalog("sales").check() == []
        assert [info.name for info in lake.catalogs()] == ["sales"]


@pytest.mark.parametrize(
    "step", ["before the parent knows", "before the file has its name", "before the registry knows"]
)
def test_interrupted_fork_does_not_damage_its_parent(
    directory: Path, tmp_path: Path, sqlite_engines: Engines, step: str
) -> None:
    harness = LakeHarness(directory, tmp_path, sqlite_engines)
    parent = harness.lake.create_catalog("parent")
    harness.table(parent, ids=[range(5), range(5, 10)])
    harness.lake.close()
    crash(directory, harness.data, step, "fork", "parent", "fork")
    try:
        assert [info.name for info in harness.lake.catalogs()] == ["parent"]
        if step == "before the registry knows":
            fork = harness.lake.adopt_catalog("fork")
        else:
            fork = harness.lake.fork_catalog("parent", "fork")
        harness.attach(parent, fork)
        harness.append(parent, range(10, 12))
        harness.maintain(parent, "merge", "expire", "cleanup")
        harness.lake.collect(age=SOON)
        assert harness.ids("fork.t") == list(range(10))
        assert harness.ids("parent.t") == list(range(12))
        assert fork.check() == parent.check() == []
    finally:
        harness.close()


@pytest.mark.parametrize("step", ["before the file is gone", "after the file is gone"])
def test_interrupted_drop_can_be_repeated(directory: Path, tmp_path: Path, step: str) -> None:
    with Lake.open(directory, tmp_path / "data") as lake:
        lake.create_catalog("sales").create_table("main", "t", ROWS)
        lake.create_catalog("other")
    crash(directory, tmp_path / "data", step, "drop", "sales")
    with Lake.open(directory, tmp_path / "data") as lake:
        sales = lake.catalog("sales")  # still registered after either step
        if step == "after the file is gone":
            with pytest.raises(CatalogUnreachable):
                sales.newest_snapshot()
        lake.drop_catalog("sales")
        assert [info.name for info in lake.catalogs()] == ["other"]
        lake.collect(age=SOON)
        again = lake.create_catalog("sales")
        assert again.info.storage_name != "sales"
        again.create_table("main", "t", ROWS)


def test_unfinished_catalog_files_are_not_listed(directory: Path, tmp_path: Path) -> None:
    directory.mkdir()
    (directory / f".{uuid4()}.unfinished").write_bytes(os.urandom(100))
    with Lake.open(directory, tmp_path / "data") as lake:
        assert lake.catalogs() == []
        lake.create_catalog("sales")
        assert [info.name for info in lake.catalogs()] == ["sales"]

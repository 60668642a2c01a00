"""The committing process, its SQLite worker, its connection or its database ends during a commit.

Afterwards the commit is applied completely or not at all, its lock is released, and the reported
outcome is true.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
import time
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
from swanlake.lake.catalog import Catalog
from swanlake.lake.commit import protocol
from swanlake.lake.commit.protocol import Committed, Retries
from swanlake.lake.files import datafile
from swanlake.lake.lake import Lake
from swanlake.lake.lifecycle.file_cleanup import DeletableFile, DeletionReason
from swanlake.lake.metastore.advisory_locks import lock_catalog
from swanlake.lake.metastore.base import CatalogInfo
from swanlake.lake.metastore.local import MetadataService, open_metastore
from swanlake.lake.metastore.sqlite_worker import SqliteWorkerClient
from swanlake.lake.model.layout import DataFile, Table
from swanlake.lake.model.operations import Commit, CreateSchema, Insert
from swanlake.lake.model.types import ColumnSpec
from tests.faults.postgres_proxy import LostMessage, PostgresProxy
from tests.faults.workers import PROCESSES, LakeAddress
from tests.postgres_server import PostgresServer
from tests.waiting import eventually

COLUMNS = [ColumnSpec("id", "BIGINT", nullable=False)]
STEPS = ("locked", "planned", "written", "committed")
ONE_ATTEMPT = Retries(attempts=1, timeout=10)
BEFORE = 3
ADDED = 5


@dataclass
class Scene:
    """A catalog with a table of three rows, and a prepared commit of five more."""

    address: LakeAddress
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

    def garbage(self, *, dry_run: bool = True) -> list[DeletableFile]:
        return self.lake.collect(age=timedelta(0), dry_run=dry_run)

    def assert_sound(self) -> None:
        assert self.sales.check() == []
        assert self.sales.missing_files() == []

    def assert_lock_is_free(self) -> None:
        catalog = replace(self.sales, retries=ONE_ATTEMPT)
        assert catalog.create_schema("after").attempts == 1

    def assert_applied_once(self, done: Committed) -> None:
        """Checks that the commit's rows are stored once and file cleanup keeps them."""
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
    return set_up(LakeAddress(metabase, str(tmp_path / "data")), lake, duck)


def set_up(address: LakeAddress, lake: Lake, duck: duckdb.DuckDBPyConnection) -> Scene:
    sales = lake.create_catalog("sales")
    sales.create_table("main", "t", COLUMNS)
    sales.append(duck, f"SELECT range FROM range({BEFORE})", "main", "t")
    table = sales.table("main", "t")
    files = tuple(datafile.write_files(duck, f"SELECT range FROM range({ADDED})", table))
    commit = Commit((Insert(table, files, blind=True),), base=table.snapshot_id)
    return Scene(address, lake, sales, duck, table, files, commit)


def run_until_killed(job: Callable[..., None], *arguments: Any) -> None:
    """Runs a job in a process that must end by SIGKILL."""
    process = PROCESSES.Process(target=job, args=arguments)
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def commit_and_crash(address: LakeAddress, info: CatalogInfo, change: Commit, step: str) -> None:
    def crash(reached: str) -> None:
        if reached == step:
            os.kill(os.getpid(), signal.SIGKILL)

    store = open_metastore(address.metabase, address.data).store(info)
    store.reached = crash
    protocol.apply(store, change)


def write_files_only(address: LakeAddress) -> None:
    with address.writer("sales") as (sales, duck):
        table = sales.table("main", "t")
        datafile.write_files(duck, "SELECT range FROM range(7)", table)
        os.kill(os.getpid(), signal.SIGKILL)


# ---- the committing process crashes --------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS)
def test_commit_of_a_killed_process_is_atomic_and_its_retry_applied_once(
    scene: Scene, step: str
) -> None:
    before = scene.sales.newest_snapshot()
    run_until_killed(commit_and_crash, scene.address, scene.sales.info, scene.commit, step)
    applied = step == "committed"
    assert scene.sales.newest_snapshot() == before + applied
    assert scene.count() == BEFORE + ADDED * applied
    scene.assert_lock_is_free()
    scene.assert_sound()
    done = scene.sales.commit(scene.commit)
    assert done.snapshot_id == (before + 1 if applied else before + 2)
    scene.assert_applied_once(done)
    assert scene.sales.commit(scene.commit).snapshot_id == done.snapshot_id
    scene.assert_applied_once(done)


@pytest.mark.parametrize("step", STEPS)
def test_files_of_a_killed_process_are_collected_unless_committed(scene: Scene, step: str) -> None:
    run_until_killed(commit_and_crash, scene.address, scene.sales.info, scene.commit, step)
    applied = step == "committed"
    expected = set() if applied else scene.paths
    assert {garbage.path for garbage in scene.garbage()} == expected
    assert all(garbage.reason is DeletionReason.ORPHANED for garbage in scene.garbage())
    assert all(Path(path).exists() for path in scene.paths)
    assert {garbage.path for garbage in scene.garbage(dry_run=False)} == expected
    assert all(Path(path).exists() == applied for path in scene.paths)
    assert scene.garbage() == []
    assert scene.count() == BEFORE + ADDED * applied
    scene.assert_sound()


def test_files_of_a_process_killed_before_its_commit_are_collected(
    scene: Scene,
) -> None:
    known = {*Path(scene.table.directory).rglob("*.parquet")}
    run_until_killed(write_files_only, scene.address)
    [new] = {*Path(scene.table.directory).rglob("*.parquet")} - known
    assert str(new) in {garbage.path for garbage in scene.garbage()}
    assert str(new) in {garbage.path for garbage in scene.garbage(dry_run=False)}
    assert not new.exists()
    assert scene.count() == BEFORE
    scene.assert_sound()


def test_ledger_entry_is_applied_by_the_first_commit_only(scene: Scene) -> None:
    change = Commit(scene.commit.operations, base=scene.commit.base, ledger=("batch 1",))
    run_until_killed(commit_and_crash, scene.address, scene.sales.info, change, "committed")
    again = scene.sales.commit(change)
    assert again.applied, "the commit's own files are in the lake"
    other = scene.sales.append(
        scene.duck, "SELECT range FROM range(9)", "main", "t", ledger=("batch 1",)
    )
    assert not other.applied
    assert other.snapshot_id == again.snapshot_id
    scene.assert_applied_once(again)


# ---- the SQLite worker crashes -------------------------------------------------------------------


@pytest.fixture
def worker_scene(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> Iterator[Scene]:
    """A scene on SQLite, which a worker process commits to."""
    address = LakeAddress(tmp_path / "catalogs", str(tmp_path / "data"))
    with Lake.open(address.metabase, address.data) as lake:
        yield set_up(address, lake, duck)


@pytest.mark.parametrize("step", STEPS)
def test_commit_succeeds_once_when_its_worker_is_killed(
    worker_scene: Scene, crash_sqlite_worker: Callable[..., Path], step: str
) -> None:
    left = crash_sqlite_worker(step, 1)
    with Lake.open(worker_scene.address.metabase, worker_scene.address.data) as lake:
        done = lake.catalog("sales").commit(worker_scene.commit)
    assert list(left.iterdir()) == []
    worker_scene.assert_applied_once(done)


def test_append_keeps_its_files_when_its_worker_is_killed_after_commit(
    worker_scene: Scene, crash_sqlite_worker: Callable[..., Path]
) -> None:
    left = crash_sqlite_worker("committed", 1)
    with Lake.open(worker_scene.address.metabase, worker_scene.address.data) as lake:
        done = lake.catalog("sales").append(worker_scene.duck, "SELECT 42", "main", "t")
    assert list(left.iterdir()) == []
    assert done.applied
    worker_scene.assert_sound()
    assert worker_scene.count() == BEFORE + 1


def test_commit_state_is_unknown_when_every_worker_is_killed(
    worker_scene: Scene, crash_sqlite_worker: Callable[..., Path]
) -> None:
    crash_sqlite_worker("written", 3)
    with Lake.open(worker_scene.address.metabase, worker_scene.address.data) as lake:
        with pytest.raises(CommitStateUnknown, match=r"lost 3 times .* whole or not at all"):
            lake.catalog("sales").commit(worker_scene.commit)
        assert worker_scene.count() == BEFORE
        worker_scene.assert_applied_once(lake.catalog("sales").commit(worker_scene.commit))


def test_commit_state_is_unknown_when_the_fence_was_dropped_meanwhile(
    tmp_path: Path,
) -> None:
    """A caller that is told that nothing was written deletes files that may be committed."""
    lake = MetadataService(open_metastore(tmp_path / "catalogs", str(tmp_path / "data")))
    info = lake.create("sales")
    lake.close()
    with closing(sqlite3.connect(tmp_path / "catalogs" / "sales.sqlite")) as catalog:
        catalog.execute("DROP TRIGGER ducklake_fence")
    change = Commit((CreateSchema("raw"),))
    with pytest.raises(CatalogNotWritable, match="has no fence"):
        lake.commit(info, [change], ONE_ATTEMPT)
    with pytest.raises(CommitStateUnknown, match="has no fence"):
        lake.commit(info, [change], ONE_ATTEMPT, may_have_happened=True)
    lake.close()


def test_commit_state_is_unknown_when_the_worker_cannot_be_restarted(
    worker_scene: Scene, crash_sqlite_worker: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    crash_sqlite_worker("committed", 1)
    with Lake.open(worker_scene.address.metabase, worker_scene.address.data) as lake:
        sales = lake.catalog("sales")
        monkeypatch.setattr(
            "swanlake.lake.metastore.sqlite_worker.WorkerProcess.__init__", _refuse_to_start
        )
        with pytest.raises(CommitStateUnknown, match="whole or not at all"):
            sales.commit(worker_scene.commit)
        monkeypatch.undo()
        worker_scene.assert_applied_once(sales.commit(worker_scene.commit))


def _refuse_to_start(*_: object, **options: object) -> None:
    raise CatalogUnreachable("no worker can be started")


def test_concurrent_commits_survive_killed_workers(worker_scene: Scene) -> None:
    stop = threading.Event()
    done: list[Committed] = []
    unknown: list[Commit] = []

    def write(worker: int) -> None:
        number = 0
        while not stop.is_set():
            change = Commit((CreateSchema(f"s_{worker}_{number}"),))
            try:
                done.append(worker_scene.sales.commit(change))
            except CommitStateUnknown:
                unknown.append(change)
            number += 1

    client = worker_scene.sales.metadata
    assert isinstance(client, SqliteWorkerClient)
    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(4):
        _wait_for_ten_commits(done)
        child = client._child
        if child is not None:
            child._process.kill()
    _wait_for_ten_commits(done)
    stop.set()
    for thread in threads:
        thread.join()
    done += [worker_scene.sales.commit(change) for change in unknown]
    ids = [committed.snapshot_id for committed in done]
    assert len(set(ids)) == len(ids)
    snapshots = [snapshot.id for snapshot in worker_scene.sales.snapshots()]
    assert snapshots == list(range(len(snapshots)))
    assert sorted(ids) == snapshots[3:]
    worker_scene.assert_sound()


# ---- the connection or the database is lost ------------------------------------------------------


@pytest.fixture
def postgres_scene(
    postgres_database: str, tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> Iterator[Scene]:
    address = LakeAddress(postgres_database, str(tmp_path / "data"))
    with address.lake() as lake:
        yield set_up(address, lake, duck)


@pytest.mark.parametrize("step", STEPS[:3])
def test_commit_is_retried_when_its_backend_is_terminated(postgres_scene: Scene, step: str) -> None:
    scene, url = postgres_scene, postgres_scene.address.metabase
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

    store = open_metastore(url, scene.address.data).store(scene.sales.info)
    store.reached = terminate
    done = protocol.apply(store, scene.commit)
    store.engine.dispose()
    assert ended == 1
    assert done.attempts == 2
    scene.assert_applied_once(done)


@pytest.mark.parametrize("loss", LostMessage)
def test_commit_is_found_or_retried_when_the_connection_is_lost(
    postgres_scene: Scene, tmp_path_factory: pytest.TempPathFactory, loss: LostMessage
) -> None:
    scene, url = postgres_scene, postgres_scene.address.metabase
    assert isinstance(url, str)
    before = scene.sales.newest_snapshot()
    with PostgresProxy(url, tmp_path_factory.mktemp("wire")) as proxy:
        with LakeAddress(proxy.url, scene.address.data).lake() as lake:
            sales = lake.catalog("sales")
            proxy.lose_next_commit(loss)
            done = sales.commit(scene.commit)
            assert proxy.lost == 1
            assert (done.snapshot_id, done.attempts) == (before + 1, 2)
            scene.assert_applied_once(done)
            proxy.lose_next_commit(loss)
            appended = sales.append(scene.duck, "SELECT 42", "main", "t")
            assert proxy.lost == 2
            assert (appended.snapshot_id, appended.applied) == (before + 2, True)
    assert scene.count() == BEFORE + ADDED + 1
    assert scene.garbage(dry_run=False) == []
    scene.assert_sound()


def test_commit_state_is_unknown_until_a_stopped_database_is_back(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    with PostgresServer() as server:
        address = LakeAddress(server.url, str(tmp_path / "data"))
        with address.lake() as lake:
            scene = set_up(address, lake, duck)
            store = open_metastore(server.url, address.data).store(scene.sales.info)
            store.reached = lambda step: server.stop() if step == "written" else None
            with pytest.raises(CommitStateUnknown) as failure:
                protocol.apply(store, scene.commit, Retries(attempts=3, timeout=20))
            assert "lost during COMMIT" in failure.value.message
            assert "3 attempts in " in failure.value.message
            assert "either there whole or not at all" in failure.value.message
            store.engine.dispose()
            assert all(Path(path).exists() for path in scene.paths)
            server.start()
            scene.assert_applied_once(scene.sales.commit(scene.commit))
            scene.assert_lock_is_free()


# ---- the lock is held ----------------------------------------------------------------------------


def test_commit_lock_timeout_reports_the_waiting_time(scene: Scene) -> None:
    held, release = threading.Event(), threading.Event()
    holder = threading.Thread(target=_hold_lock, args=(scene, held, release))
    holder.start()
    try:
        assert held.wait(120)
        impatient = Lake.open(scene.address.metabase, scene.address.data, Retries(timeout=0.3))
        message = r"Waited \d\.\d s for other writers .*gave up; "
        with impatient, pytest.raises(CommitLockTimeout, match=message):
            impatient.catalog("sales").commit(scene.commit)
    finally:
        release.set()
        holder.join()
    assert scene.count() == BEFORE
    scene.assert_applied_once(scene.sales.commit(scene.commit))


def _hold_lock(scene: Scene, held: threading.Event, release: threading.Event) -> None:
    """Holds the commit lock; for a SQLite file from a process that does not attach it."""
    if isinstance(scene.address.metabase, str):
        metabase = open_metastore(scene.address.metabase, scene.address.data)
        with metabase.registry() as connection:
            connection.execute(lock_catalog(f"lake_{scene.sales.info.storage_name}"))
            held.set()
            release.wait(60)
        metabase.close()
        return
    parent, child = PROCESSES.Pipe()
    process = PROCESSES.Process(
        target=_hold_sqlite_lock, args=(scene.address, scene.sales.info, child)
    )
    process.start()
    parent.recv()
    held.set()
    release.wait(60)
    parent.send("release")
    process.join()


def _hold_sqlite_lock(address: LakeAddress, info: CatalogInfo, pipe: Any) -> None:
    store = open_metastore(address.metabase, address.data).store(info)
    with store.locked(time.monotonic() + 10):
        pipe.send("held")
        pipe.recv()


def _wait_for_ten_commits(done: list[Committed]) -> None:
    goal = len(done) + 10
    eventually(lambda: len(done) >= goal)

"""The queue with disk errors, an unreachable lake, crashed peers and damaged files."""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import duckdb
import psutil
import pyarrow as pa
import pytest

from swanlake.jobs.runner import R, Unit, WithoutTransforms
from swanlake.lake.lake import Lake
from swanlake.lake.model.ids import uuid7
from swanlake.lake.model.operations import Commit, CreateTable
from swanlake.lake.model.types import ColumnSpec, number_columns
from swanlake.lake.read import table_cache
from swanlake.queue.coordinator import Limits
from swanlake.queue.service import DucklingQueue
from swanlake.queue.settings import QueueSettings
from tests.faults.harness import (
    DEFAULT_WRITES,
    CrashingServer,
    FaultHarness,
    Load,
    Producer,
    WriteLog,
    adbc_cursor,
    insert,
    insert_bulk,
    insert_one,
)
from tests.faults.postgres_proxy import LostMessage, PostgresProxy
from tests.postgres_server import PostgresServer, new_database
from tests.waiting import eventually

#: Rows stay in the queue until an explicit flush.
NO_AUTOMATIC_FLUSH = {
    "DUCKLING_QUEUE_BUFFER_MAX_ROWS": "1000000",
    "DUCKLING_QUEUE_ROTATE_INTERVAL_SECONDS": "3600",
}

MakeHarness = Callable[..., FaultHarness]


@pytest.fixture
def make_harness(tmp_path: Path) -> Iterator[MakeHarness]:
    """Makes harnesses for one test: ``make_harness(url, **environment)``."""
    made: list[FaultHarness] = []

    def make(url: str = "", **environment: str) -> FaultHarness:
        made.append(FaultHarness(tmp_path / f"home{len(made)}", url, **environment))
        return made[-1]

    yield make
    for harness in made:
        harness.server.kill()


def insert_acknowledged(harness: FaultHarness, rows: int = 5) -> range:
    """Inserts rows one by one, all of which must be acknowledged; returns their ids."""
    ids = harness.log.allocate(rows)
    with adbc_cursor(harness.server.url) as cursor:
        for id in ids:
            insert(cursor, [id])
            harness.log.acknowledged.append(range(id, id + 1))
    return ids


def refused_write(
    harness: FaultHarness, write: Callable[[Any, WriteLog], None] = insert_one
) -> str:
    """The error of a refused write. Its rows are not logged, so they must not be stored."""
    discarded = WriteLog()
    discarded.allocate(10_000_000)
    with adbc_cursor(harness.server.url) as cursor, pytest.raises(adbc.Error) as refusal:
        write(cursor, discarded)
    return str(refusal.value)


# ---- disk errors -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ENOSPC", "its disk is full"),
        ("EROFS", "Read-only file system"),
        ("EIO", "Input/output error"),
    ],
)
def test_insert_is_refused_and_discarded_on_a_disk_error(
    make_harness: MakeHarness, error: str, reason: str
) -> None:
    harness = make_harness(**NO_AUTOMATIC_FLUSH)
    for acknowledged_before in (0, 5):
        insert_acknowledged(harness, acknowledged_before)
        harness.server.inject(f"refuse {error}")
        for write in (insert_one, insert_bulk, Producer("a producer")):
            answer = refused_write(harness, write)
            assert "QUEUE_UNAVAILABLE" in answer
            assert reason in answer
            assert "Nothing was written" in answer
        harness.server.clear_fault()
    insert_acknowledged(harness)
    all_rows = "SELECT id FROM duckling_queue.t UNION ALL SELECT id FROM swanlake.main.t"
    assert len(harness.sql(all_rows)) == 10
    harness.kill()
    harness.recover()
    harness.assert_no_loss()
    assert harness.dead_letters() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted disk of 256 kB; needs root."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(directory)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount a disk")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_full_disk_accepts_rows_again_after_it_has_space(
    make_harness: MakeHarness, small_disk: Path
) -> None:
    harness = make_harness(DUCKLING_QUEUE_ROOT=str(small_disk / "queue"), **NO_AUTOMATIC_FLUSH)
    answer = ""
    with adbc_cursor(harness.server.url) as cursor:
        while not answer:
            ids = harness.log.allocate(1)
            try:
                cursor.execute(
                    f"INSERT INTO duckling_queue.t SELECT {ids.start}, repeat('x', 10000)"
                )
            except adbc.Error as full:
                answer = str(full)
            else:
                harness.log.acknowledged.append(ids)
    assert "QUEUE_UNAVAILABLE" in answer
    assert "its disk is full" in answer
    assert len(harness.log.acknowledged) > 10
    assert "its disk is full" in refused_write(harness, insert_bulk)
    assert list(harness.root.rglob("*.partial")) == []
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    insert_acknowledged(harness)
    harness.kill()
    harness.recover()
    harness.assert_no_loss()
    assert harness.dead_letters() == []


# ---- unreachable lake --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stoppable_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture
def own_postgres(stoppable_server: PostgresServer) -> PostgresServer:
    """A PostgreSQL that the test may stop."""
    stoppable_server.start()
    return stoppable_server


@pytest.fixture
def own_database(own_postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database in it."""
    with new_database(own_postgres.url) as url:
        yield url
        own_postgres.start()


def count_acknowledged(harness: FaultHarness) -> int:
    return sum(map(len, harness.log.acknowledged))


def wait_for_more(harness: FaultHarness) -> None:
    """Waits until 30 more inserts are acknowledged."""
    goal = count_acknowledged(harness) + 30
    eventually(lambda: count_acknowledged(harness) > goal)


def test_inserts_are_acknowledged_while_the_lake_is_unreachable(
    own_postgres: PostgresServer, own_database: str, make_harness: MakeHarness
) -> None:
    harness = make_harness(own_database)
    with harness.load() as load:
        wait_for_more(harness)
        own_postgres.stop()
        # Cached metadata expires first: rows that follow need the lake.
        expired_at = time.monotonic() + 2 * table_cache._TTL_SECONDS
        eventually(lambda: load.errors or time.monotonic() > expired_at)
        before = count_acknowledged(harness)
        eventually(lambda: load.errors or count_acknowledged(harness) > before + 20)
        assert load.errors == []
        own_postgres.start()
        eventually(lambda: harness.count_ids())
    assert load.errors == []
    harness.assert_no_loss()


def test_full_queue_refuses_inserts_until_it_flushes(make_harness: MakeHarness) -> None:
    harness = make_harness(DUCKLING_QUEUE_MAX_BYTES="60000")
    with adbc_cursor(harness.server.url) as cursor:
        insert_one(cursor, harness.log)
        answer = ""
        with harness.server.held_at("unit: begins"):
            while not answer:
                ids = harness.log.allocate(200)
                try:
                    insert(cursor, ids)
                except adbc.Error as full:
                    answer = str(full)
                else:
                    harness.log.acknowledged.append(ids)
        assert "QUEUE_FULL" in answer
        assert "duckling_queue_max_bytes is 60,000. Nothing was written. Retry in a few" in answer
        eventually(lambda: accepts(cursor, harness))
    harness.assert_no_loss()


def accepts(cursor: Any, harness: FaultHarness) -> bool:
    """True if the queue accepts a row again."""
    with suppress(adbc.Error):
        insert_one(cursor, harness.log)
        return True
    harness.log.unknown.pop()  # refused, so it must not be stored
    return False


@pytest.mark.parametrize("step", ["unit: files written", "commit: written", "flush: committed"])
def test_flush_survives_a_restart_of_postgresql(
    own_postgres: PostgresServer, own_database: str, make_harness: MakeHarness, step: str
) -> None:
    harness = make_harness(own_database)
    with harness.load(insert_one), harness.server.held_at(step):
        own_postgres.restart()
    harness.assert_no_loss()


@pytest.mark.parametrize("loss", LostMessage)
def test_flush_survives_a_connection_lost_during_commit(
    make_harness: MakeHarness,
    postgres_database: str,
    tmp_path_factory: pytest.TempPathFactory,
    loss: LostMessage,
) -> None:
    with PostgresProxy(postgres_database, tmp_path_factory.mktemp("wire")) as proxy:
        harness = make_harness(proxy.url)
        with harness.load() as load:
            for _ in range(3):
                lose_one_commit(harness, proxy, loss)
        assert load.errors == []
        harness.assert_no_loss()
        harness.server.kill()


def lose_one_commit(harness: FaultHarness, proxy: PostgresProxy, loss: LostMessage) -> None:
    before = proxy.lost
    with harness.server.held_at("commit: written"):
        proxy.lose_next_commit(loss)
    eventually(lambda: proxy.lost > before)


# ---- several servers ---------------------------------------------------------------------------


def flush_all_and_assert_no_loss(harness: FaultHarness, servers: list[CrashingServer]) -> None:
    """Flushes all servers and checks that every row is stored once."""
    for server in servers:
        with adbc_cursor(server.url) as cursor:
            cursor.execute("CALL duckling_queue_flush()")
    harness.assert_no_loss()


@pytest.fixture(params=["sqlite", "postgres"])
def metabase_url(request: pytest.FixtureRequest) -> str:
    """The PostgreSQL URL; empty for SQLite."""
    if request.param == "sqlite":
        return ""
    url: str = request.getfixturevalue("postgres_database")
    return url


@pytest.fixture
def start_peer(tmp_path: Path) -> Iterator[Callable[..., CrashingServer]]:
    """Starts another server on the lake and queue of a harness, with a home of its own."""
    with ExitStack() as stack:

        def start(harness: FaultHarness, **environment: str) -> CrashingServer:
            shared = {
                "SWANLAKE_DATA_PATH": str(harness.server.home / "data"),
                "DUCKLING_QUEUE_ROOT": str(harness.root),
            }
            settings = harness.server._environment | shared | environment
            home = tmp_path / "peer"
            home.mkdir()
            # SQLite's files have no setting of their own.
            (home / "catalogs").symlink_to(harness.server.home / "catalogs")
            server = CrashingServer(home, **settings)
            stack.callback(server.kill)
            return server.start()

        yield start


def test_server_adopts_the_segments_of_a_crashed_peer(
    make_harness: MakeHarness, start_peer: Callable[..., CrashingServer], metabase_url: str
) -> None:
    harness = make_harness(metabase_url)
    peer = start_peer(harness)
    [ours] = [
        path for path in harness.root.iterdir() if str(harness.server.process.pid) in owner(path)
    ]
    with harness.load(), Load(peer.url, harness.log, DEFAULT_WRITES) as peer_load:
        wait_for_more(harness)
        harness.kill()
        eventually(lambda: not ours.exists())
    assert peer_load.errors == []
    assert re.search(rf"[1-9]\d* segments of the server {ours.name} were adopted", peer.log_text)
    with adbc_cursor(peer.url) as cursor:
        cursor.execute("CALL duckling_queue_flush()")
    harness.log.assert_matches(harness.count_ids())
    harness.recover()
    harness.assert_no_loss()


def owner(directory: Path) -> str:
    with suppress(OSError):
        return (directory / "owner.lock").read_text()
    return ""


def test_segments_of_a_running_peer_are_not_adopted(
    make_harness: MakeHarness, start_peer: Callable[..., CrashingServer], metabase_url: str
) -> None:
    harness = make_harness(metabase_url, **NO_AUTOMATIC_FLUSH)
    peer = start_peer(harness, DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS="0.05")
    insert_acknowledged(harness)
    before = harness.segments_on_disk()
    own = harness.sql("CALL duckling_queue_segments()")
    [own_lock, _] = harness.root.glob("*/owner.lock")
    # The peer removes the directory of a dead server in each search for abandoned ones. The second
    # search begins after the first has examined every directory.
    for _ in range(2):
        abandoned = harness.root / str(uuid7())
        abandoned.mkdir()
        (abandoned / "owner.lock").write_bytes(own_lock.read_bytes())
        eventually(lambda: not abandoned.exists())  # noqa: B023
    assert harness.segments_on_disk() == before
    assert len(own) == 1
    with adbc_cursor(peer.url) as cursor:
        cursor.execute("CALL duckling_queue_flush()")
        assert cursor.fetchall() == []
    assert harness.count_ids() == {}
    flush_all_and_assert_no_loss(harness, [harness.server, peer])
    assert "were adopted" not in peer.log_text


def test_servers_with_separate_queues_share_a_lake(
    make_harness: MakeHarness,
    start_peer: Callable[..., CrashingServer],
    postgres_database: str,
    tmp_path: Path,
) -> None:
    harness = make_harness(postgres_database)
    peer = start_peer(harness, DUCKLING_QUEUE_ROOT=str(tmp_path / "peer-queue"))
    with Load(peer.url, harness.log, DEFAULT_WRITES) as peer_load:
        harness.crash_at_each(["flush: before the commit", "flush: committed", "commit: written"])
    assert peer_load.errors == []
    flush_all_and_assert_no_loss(harness, [harness.server, peer])


# ---- many tables -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tables", [40, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_many_tables_need_few_open_files(make_harness: MakeHarness, tables: int) -> None:
    harness = make_harness(**NO_AUTOMATIC_FLUSH)
    columns = number_columns([ColumnSpec("id", "BIGINT")])
    with Lake.open(harness.server.home / "catalogs", harness.server.home / "data") as lake:
        tables_to_create = tuple(
            CreateTable("main", f"t{n}", tuple(columns)) for n in range(tables)
        )
        lake.catalog("swanlake").commit(Commit(tables_to_create))
    descriptors = Path(f"/proc/{harness.server.process.pid}/fd")
    with adbc_cursor(harness.server.url) as cursor:
        cursor.execute("INSERT INTO duckling_queue.t0 VALUES (0)")
        before = len(list(descriptors.iterdir()))
        for number in range(1, tables):
            cursor.execute(f"INSERT INTO duckling_queue.t{number} VALUES ({number})")
        assert len(harness.segments_on_disk()) == tables
        assert len(list(descriptors.iterdir())) < before + 20
        cursor.execute("CALL duckling_queue_flush()")
        assert len(cursor.fetchall()) == tables
        assert len(list(descriptors.iterdir())) < before + 40
    assert harness.segments_on_disk() == []
    for number in (0, 1, tables // 2, tables - 1):
        assert harness.count_ids(f"t{number}") == {number: 1}


@pytest.mark.parametrize("limit", [1, 2])
def test_no_more_tables_are_flushed_concurrently_than_configured(
    make_harness: MakeHarness, limit: int
) -> None:
    harness = make_harness(DUCKLING_QUEUE_MAX_PARALLEL_FLUSHES=str(limit), **NO_AUTOMATIC_FLUSH)
    for number in range(4):
        harness.sql(
            f"CREATE TABLE swanlake.main.t{number} (id BIGINT)",
            f"INSERT INTO duckling_queue.t{number} VALUES ({number})",
        )

    def states() -> list[str]:
        with adbc_cursor(harness.server.url) as cursor:
            cursor.execute("CALL duckling_queue_status()")
            return sorted(cursor.fetch_arrow_table()["state"].to_pylist())

    with ThreadPoolExecutor(1) as pool:
        harness.server.inject("hold unit: begins")
        flushing = pool.submit(harness.sql, "CALL duckling_queue_flush()")
        try:
            expected = ["flushing"] * limit + ["sealed"] * (4 - limit)
            eventually(lambda: states() == expected)
        finally:
            harness.server.clear_fault()
        assert len(flushing.result()) == 4
    for number in range(4):
        assert harness.count_ids(f"t{number}") == {number: 1}


def test_memory_does_not_grow_with_queued_rows(make_harness: MakeHarness) -> None:
    """Uploads that get a segment each, and inserts that share one."""
    harness = make_harness()
    harness.sql("CALL duckling_queue_pause()")
    process = psutil.Process(harness.server.process.pid)
    megabyte = 1024 * 1024

    def enqueue() -> None:
        for rows in (3000, 10_000):  # 3 MB share a segment, 10 MB get their own
            harness.sql(
                f"INSERT INTO duckling_queue.t SELECT range, repeat('x', 1000) FROM range({rows})"
            )

    for _ in range(10):
        enqueue()
    memory = process.memory_info().rss
    queued = sum(path.stat().st_size for path in harness.segments_on_disk())
    for _ in range(50):
        enqueue()
    more = sum(path.stat().st_size for path in harness.segments_on_disk()) - queued
    assert more > 600 * megabyte
    # The allocator keeps some of what an insert needed.
    assert process.memory_info().rss - memory < more / 2


# ---- damaged files -----------------------------------------------------------------------------


def flip_byte(path: Path, offset: int) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 0xFF
    path.write_bytes(content)


def test_damaged_batch_becomes_a_dead_letter_and_the_rest_is_flushed(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(**NO_AUTOMATIC_FLUSH)
    ids = insert_acknowledged(harness, 9)
    harness.kill()
    [segment] = harness.segments_on_disk()
    flip_byte(segment, segment.stat().st_size * 3 // 4)
    harness.recover()
    harness.flush()
    stored = harness.count_ids()
    assert set(stored.values()) == {1}
    [lost] = set(ids) - stored.keys()
    assert ids.start < lost < ids.stop - 1
    [letter] = harness.dead_letters()
    assert letter["segment_id"] == segment.stem
    assert not letter["replayable"]
    assert "part of the segment is damaged" in letter["reason"]
    assert "8 rows of it were recovered" in letter["reason"]
    assert Path(letter["path"]).stat().st_size == letter["bytes"] > 0


def test_segment_with_a_damaged_header_becomes_a_dead_letter(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(**NO_AUTOMATIC_FLUSH)
    harness.sql("CREATE TABLE swanlake.main.other (id BIGINT, note VARCHAR)")
    harness.sql("INSERT INTO duckling_queue.other VALUES (1, 'lost')")
    [damaged] = harness.segments_on_disk()
    insert_acknowledged(harness)
    harness.kill()
    flip_byte(damaged, 40)
    harness.recover()
    harness.assert_no_loss()
    [letter] = harness.dead_letters()
    assert (letter["segment_id"], letter["table_name"]) == (damaged.stem, "other")
    assert "the segment is damaged" in letter["reason"]
    assert harness.count_ids("other") == {}


def test_unwritable_dead_letters_do_not_block_other_segments(
    make_harness: MakeHarness, tmp_path: Path
) -> None:
    letters = tmp_path / "letters"
    letters.touch()
    harness = make_harness(DUCKLING_QUEUE_DLQ_TARGET=str(letters), **NO_AUTOMATIC_FLUSH)
    harness.sql("CREATE TABLE swanlake.main.a (id BIGINT, note VARCHAR)")
    harness.sql("INSERT INTO duckling_queue.a VALUES (1, 'damaged')")
    [damaged] = harness.segments_on_disk()
    insert_acknowledged(harness)
    harness.kill()
    flip_byte(damaged, 40)
    harness.recover()

    def all_rows_are_flushed() -> bool:
        with suppress(adbc.Error):
            harness.sql("CALL duckling_queue_flush()")
        return len(harness.count_ids()) == 5

    eventually(all_rows_are_flushed)
    letters.unlink()
    eventually(lambda: len(harness.dead_letters()) == 1)
    harness.assert_no_loss()


# ---- shutdown ----------------------------------------------------------------------------------


def test_stopped_server_keeps_every_acknowledged_row(
    make_harness: MakeHarness,
) -> None:
    harness = make_harness(SWANLAKE_SHUTDOWN_GRACE_SECONDS="10")
    for _ in range(2):
        with harness.load():
            wait_for_more(harness)
            assert harness.server.stop() == 0
        harness.recover()
    harness.assert_no_loss()
    assert harness.dead_letters() == []


class BlockedRunner(WithoutTransforms):
    """Runs units only after it is released."""

    def __init__(self, duck: duckdb.DuckDBPyConnection) -> None:
        self._duck = duck
        self.started = threading.Event()
        self.released = threading.Event()

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        self.started.set()
        assert self.released.wait(60)
        return [unit.run(self._duck) for unit in units]


def test_stop_waits_only_for_the_running_flush(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    with Lake.open(tmp_path / "catalogs", tmp_path / "data") as lake:
        catalog = lake.create_catalog("swanlake")
        catalog.create_table("main", "t", [ColumnSpec("id", "BIGINT")])
        runner = BlockedRunner(duck)
        settings = QueueSettings(tmp_path / "queue", Limits(max_rows=1))
        queue = DucklingQueue(settings, lake, runner)
        target = queue.table_cache.find("swanlake", "main", "t")
        queue.enqueue(target, [pa.record_batch({"id": pa.array([1], pa.int64())})])
        assert runner.started.wait(60)
        queue.enqueue(target, [pa.record_batch({"id": pa.array([2], pa.int64())})])
        eventually(
            lambda: [segment.state for segment in queue.segments()] == ["flushing", "sealed"]
        )
        stop = threading.Thread(target=queue.stop, args=[60.0])
        stop.start()
        queue._director.join(60)
        assert stop.is_alive()
        runner.released.set()
        stop.join(60)
        assert not stop.is_alive()

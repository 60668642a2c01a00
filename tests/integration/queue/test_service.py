"""The queue without a server: replays and readers during flushes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from swanlake.engine.host import SharedHost
from swanlake.engine.instance import EngineSpec
from swanlake.errors import QueueUnavailable
from swanlake.jobs.inline import InlineRunner
from swanlake.lake.lake import Lake
from swanlake.lake.model.table_ref import TableRef
from swanlake.lake.model.types import ColumnSpec
from swanlake.lake.read.table_cache import CachedTable
from swanlake.queue import director
from swanlake.queue.flush.flusher import Flusher, FlushReport
from swanlake.queue.service import DucklingQueue
from swanlake.queue.settings import QueueSettings
from swanlake.queue.storage.ownership import lease_name
from swanlake.queue.storage.store import SegmentFile
from tests.waiting import eventually

PATIENCE = 240.0


class HeldFlush:
    """A flush that does its work and then blocks until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = threading.Event()
        self.may_end = threading.Event()
        flush = Flusher.flush

        def held(flusher: Flusher, table: TableRef, segments: Sequence[SegmentFile]) -> FlushReport:
            report = flush(flusher, table, segments)
            self.done.set()
            assert self.may_end.wait(PATIENCE)
            return report

        monkeypatch.setattr(Flusher, "flush", held)


@pytest.fixture
def sales(tmp_path: Path) -> Iterator[Lake]:
    with Lake.open(tmp_path / "catalogs", tmp_path / "data") as lake:
        catalog = lake.ensure_catalog("swanlake")
        catalog.create_table("main", "t", [ColumnSpec("i", "BIGINT")])
        yield lake


@pytest.fixture
def queue(sales: Lake, tmp_path: Path) -> Iterator[DucklingQueue]:
    location = sales.location(sales.catalog("swanlake").info)
    host = SharedHost(EngineSpec(lake=location, temp_directory=tmp_path / "tmp"))
    settings = QueueSettings(tmp_path / "queue", dead_letters=str(tmp_path / "letters"))
    queue = DucklingQueue(settings, sales, InlineRunner(host))
    yield queue
    queue.stop(PATIENCE)
    host.close()


@pytest.fixture
def target(queue: DucklingQueue) -> CachedTable:
    return queue.table_cache.find("swanlake", "main", "t")


@pytest.fixture
def later() -> Iterator[Callable[..., Any]]:
    with ThreadPoolExecutor(4) as threads:
        yield threads.submit


def numbers(*values: int) -> list[Any]:
    return [pa.record_batch({"i": pa.array(values, pa.int64())})]


def queued_rows(queue: DucklingQueue, target: CachedTable, **reader: Any) -> int:
    return sum(one.rows for one in queue.open_segments(target.table, lambda: None, **reader))


def test_letter_cannot_be_replayed_during_its_flush(
    queue: DucklingQueue,
    sales: Lake,
    target: CachedTable,
    later: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue.enqueue(target, numbers(1, 2))
    sales.catalog("swanlake").drop_table("main", "t")
    held = HeldFlush(monkeypatch)
    flushed = later(queue.flush)
    assert held.done.wait(PATIENCE)
    [letter] = queue.dead_letters()
    with pytest.raises(QueueUnavailable, match="not over yet"):
        queue.replay(letter.segment_id)
    held.may_end.set()
    assert flushed.result(PATIENCE)[0].dead_letters == 1
    sales.catalog("swanlake").create_table("main", "t", [ColumnSpec("i", "BIGINT")])
    assert [one.refused for one in queue.replay()] == [None]
    assert queue.flush()[0].rows == 2


def test_concurrent_replays_restore_a_letter_once(
    queue: DucklingQueue, sales: Lake, target: CachedTable, later: Callable[..., Any]
) -> None:
    queue.enqueue(target, numbers(1, 2))
    sales.catalog("swanlake").drop_table("main", "t")
    assert queue.flush()[0].dead_letters == 1
    sales.catalog("swanlake").create_table("main", "t", [ColumnSpec("i", "BIGINT")])
    replays = [later(queue.replay) for _ in range(4)]
    assert sum(len(replay.result(PATIENCE)) for replay in replays) == 1
    queue.flush()
    assert queue.status() == []
    assert queue.dead_letters() == []


def test_flushed_segment_is_retained_for_a_reader(
    queue: DucklingQueue,
    target: CachedTable,
    later: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue.enqueue(target, numbers(1, 2, 3))
    reader = queue.register_reader()
    held = HeldFlush(monkeypatch)
    flushed = later(queue.flush)
    assert held.done.wait(PATIENCE)
    assert queued_rows(queue, target, reader=reader) == 3
    held.may_end.set()
    flushed.result(PATIENCE)
    assert queued_rows(queue, target, reader=reader) == 3
    assert queued_rows(queue, target) == 0
    queue.release_reader(reader)
    assert list(queue.settings.root.rglob("*.arrows")) == []


def test_queue_that_another_server_took_over_refuses_rows(
    sales: Lake, queue: DucklingQueue, target: CachedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other server acquired the lease while this one could not confirm it."""
    monkeypatch.setattr(director, "_HEARTBEAT_SECONDS", 0.0)
    queue.enqueue(target, numbers(1))
    own, others = queue._leases, sales.leases()
    name = lease_name(queue._ownership.directory)

    def take_over() -> bool:
        own.release(name)
        return others.acquire(name)  # unless a heartbeat was faster

    eventually(take_over)
    eventually(lambda: queue._state.lost_ownership)
    with pytest.raises(QueueUnavailable, match=r"took its queue over\. Restart it"):
        queue.enqueue(target, numbers(2))
    assert queue.flush()[0].rows == 1
    others.close()

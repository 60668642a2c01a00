"""Group commit to the open segment of a table, and disk errors."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from swanlake._internal import waiting
from swanlake.errors import QueryCancelled, QueueStateUnknown, QueueUnavailable
from swanlake.lake.model.layout import Column
from swanlake.queue.batch_ids import BatchId
from swanlake.queue.ingest import writer
from swanlake.queue.ingest.writer import TableWriter
from swanlake.queue.storage.segment import Segment, open_segment
from swanlake.queue.storage.store import SUFFIX, OpenSegmentFile, SegmentStore
from tests.unit.queue.samples import layout, numbers, queue_table, values_of
from tests.waiting import eventually

PATIENCE = 240.0
ONE = layout()
OTHER = layout(Column(1, "i", "int64"), Column(2, "s", "varchar"))


class Disk:
    """A disk whose syncs are counted, can be blocked, and fail when it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.syncs = 0
        self.full: Callable[[], bool] = lambda: False
        #: What runs out of space: ``pwrite`` after half of the bytes, or ``fdatasync``.
        self.fails_in = "fdatasync"
        self.began = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.is_slow = False
        self._fdatasync, self._pwrite = os.fdatasync, os.pwrite
        monkeypatch.setattr(os, "fdatasync", self.fdatasync)
        monkeypatch.setattr(os, "pwrite", self.pwrite)

    def fdatasync(self, descriptor: int) -> None:
        self.syncs += 1
        if self.is_slow:
            self.began.release()
            assert self.may_end.acquire(timeout=PATIENCE)
        if self.fails_in == "fdatasync" and self.full():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fdatasync(descriptor)

    def pwrite(self, descriptor: int, data: memoryview, place: int) -> int:
        if self.fails_in == "pwrite" and self.full():
            self._pwrite(descriptor, data[: len(data) // 2], place)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._pwrite(descriptor, data, place)

    def await_sync(self) -> None:
        assert self.began.acquire(timeout=PATIENCE)

    def end_sync(self) -> None:
        self.may_end.release()


class Queue:
    """A writer, its concurrent callers, and its callbacks."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sealed: list[OpenSegmentFile] = []
        self.written: list[tuple[OpenSegmentFile, int]] = []
        self.writer = TableWriter(
            queue_table(),
            SegmentStore(root, root / "server"),
            lambda: 1.0,
            self._record_written,
            self.sealed.append,
        )
        self.bytes_by_caller: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(16)
        self._waiting = threading.Semaphore(0)

    def _record_written(self, segment: OpenSegmentFile, written: Mapping[str, int]) -> None:
        self.written.append((segment, segment.rows))
        self.bytes_by_caller.update(written)

    def append(
        self,
        *values: int,
        ingest: BatchId | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.writer.append(numbers(*values), ONE, ingest, check)

    def append_later(
        self, *values: int, check: Callable[[], None] = lambda: None, rows: Any = None
    ) -> Future[None]:
        """Appends in a new thread."""

        def checked() -> None:
            self._waiting.release()
            check()

        batch = numbers(*values) if rows is None else rows
        return self._pool.submit(self.writer.append, batch, ONE, None, checked)

    def await_waiting(self) -> None:
        """Returns when a waiting caller has run its check."""
        assert self._waiting.acquire(timeout=PATIENCE)

    def await_time_check(self) -> None:
        """Returns when a waiting caller has looked at the clock since."""
        while self._waiting.acquire(blocking=False):
            pass
        self.await_waiting()
        self.await_waiting()  # the clock is read between two checks

    def append_while_writing(self, *values: int, **how: Any) -> Future[None]:
        """Appends while another write is under way; returns when the caller waits."""
        future = self.append_later(*values, **how)
        self.await_waiting()
        return future

    @property
    def files(self) -> list[Path]:
        return sorted(self.root.rglob(f"*{SUFFIX}"))

    def found(self) -> list[Segment]:
        """The rows that another process reads from disk."""
        return [open_segment(str(path), path.stat().st_size) for path in self.files]

    def values(self) -> list[int]:
        segments = self.found()
        assert not any(segment.damages for segment in segments)
        return [value for segment in segments for value in values_of(segment)]

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    queue = Queue(tmp_path)
    yield queue
    queue.close()


def test_rows_are_on_disk_when_append_returns(queue: Queue, disk: Disk) -> None:
    queue.append(1, 2)
    assert disk.syncs == 1
    assert queue.values() == [1, 2]
    queue.append(3)
    assert disk.syncs == 2
    assert queue.values() == [1, 2, 3]
    assert [rows for _, rows in queue.written] == [2, 3]


def test_concurrent_appends_share_the_next_write(queue: Queue, disk: Disk) -> None:
    disk.is_slow = True
    first = queue.append_later(0)
    disk.await_sync()
    others = [queue.append_later(number) for number in range(1, 9)]
    for _ in others:
        queue.await_waiting()
    # A waiter may have run its check more than once: only waiting ones are counted.
    while len(queue.writer._waiting) < len(others):
        queue.await_waiting()
    disk.end_sync()
    disk.end_sync()
    for future in (first, *others):
        future.result(PATIENCE)
    assert disk.syncs == 2
    assert sorted(queue.values()) == list(range(9))
    [segment] = queue.found()
    assert [batch.rows for batch in segment.batches] == [1, 8]


def test_one_write_has_a_limited_number_of_rows(
    queue: Queue, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More rows than the limit in one append are a write of their own."""
    monkeypatch.setattr(writer, "_MAX_GROUP_ROWS", 4)
    disk.is_slow = True
    appends = [queue.append_later(0)]
    disk.await_sync()
    for values in ([1, 2], [3, 4], [5], [6, 7, 8, 9, 10], [11]):
        appends.append(queue.append_later(*values))
        while len(queue.writer._waiting) < len(appends) - 1:
            queue.await_waiting()
    for _ in range(5):
        disk.end_sync()
    for future in appends:
        future.result(PATIENCE)
    [segment] = queue.found()
    assert [batch.rows for batch in segment.batches] == [1, 4, 1, 5, 1]
    assert queue.values() == list(range(12))


def test_batches_that_share_a_write_keep_their_ids(queue: Queue, disk: Disk) -> None:
    names = [BatchId("p", number) for number in range(3)]
    for number, name in enumerate(names):
        queue.append(number, ingest=name)
    [segment] = queue.found()
    assert [batch.batch_id for batch in segment.batches] == names
    assert all(name in queue.written[0][0].batch_ids for name in names)


@pytest.mark.parametrize("fails_in", ["pwrite", "fdatasync"])
def test_failed_first_write_leaves_no_file(queue: Queue, disk: Disk, fails_in: str) -> None:
    disk.fails_in, disk.full = fails_in, lambda: True
    with pytest.raises(QueueUnavailable, match=r"disk is full .* Nothing was written"):
        queue.append(1)
    assert queue.files == []
    assert queue.written == []
    assert queue.sealed == []


@pytest.mark.parametrize("fails_in", ["pwrite", "fdatasync"])
def test_failed_later_write_keeps_acknowledged_rows(
    queue: Queue, disk: Disk, fails_in: str
) -> None:
    queue.append(1, 2)
    acknowledged = queue.files[0].read_bytes()
    disk.fails_in, disk.full = fails_in, lambda: True
    with pytest.raises(QueueUnavailable):
        queue.append(3)
    assert queue.files[0].read_bytes() == acknowledged
    assert queue.values() == [1, 2]
    assert [segment.rows for segment in queue.sealed] == [2]


@pytest.mark.parametrize("fails_in", ["pwrite", "fdatasync"])
def test_writes_succeed_again_when_the_disk_has_space(
    queue: Queue, disk: Disk, fails_in: str
) -> None:
    queue.append(1)
    disk.fails_in, disk.full = fails_in, lambda: True
    for _ in range(3):
        with pytest.raises(QueueUnavailable):
            queue.append(2, ingest=BatchId("p", 0))
    disk.full = lambda: False
    queue.append(3)
    assert queue.values() == [1, 3]
    assert len(queue.sealed) == 1
    assert not any(segment.batch_ids for segment, _ in queue.written)


def test_segment_is_sealed_after_a_failed_write(queue: Queue, disk: Disk) -> None:
    queue.append(1)
    failures = iter([True])
    disk.full = lambda: next(failures, False)
    with pytest.raises(QueueUnavailable):
        queue.append(2)
    [segment] = queue.found()
    assert segment.sealed
    assert values_of(segment) == [1]


def test_failed_write_fails_only_its_own_group(queue: Queue, disk: Disk) -> None:
    disk.is_slow = True
    before = queue.append_later(1)
    disk.await_sync()
    shared = [queue.append_while_writing(2), queue.append_later(3)]
    while len(queue.writer._waiting) < 2:
        queue.await_waiting()
    disk.end_sync()
    before.result(PATIENCE)

    disk.await_sync()  # of the two
    after = queue.append_while_writing(4)
    failures = iter([True])
    disk.full = lambda: next(failures, False)
    disk.is_slow = False
    disk.end_sync()
    for future in shared:
        with pytest.raises(QueueUnavailable):
            future.result(PATIENCE)
    after.result(PATIENCE)
    assert queue.values() == [1, 4]


def test_encoding_error_leaves_the_segment_open(queue: Queue) -> None:
    queue.append(1)
    wrong = pa.record_batch({"i": pa.array(["no number"])})
    with pytest.raises(pa.ArrowInvalid):
        queue.writer.append(wrong, ONE, None, lambda: None)
    queue.append(2)
    assert queue.values() == [1, 2]
    assert queue.sealed == []


class Cancelled:
    """A check that raises once the caller is cancelled."""

    def __init__(self) -> None:
        self.wanted = threading.Event()
        self.said = threading.Event()

    def __call__(self) -> None:
        if self.wanted.is_set():
            self.said.set()
            raise QueryCancelled("cancelled")


def test_cancelled_waiter_writes_no_rows(queue: Queue, disk: Disk) -> None:
    cancelled = Cancelled()
    disk.is_slow = True
    first = queue.append_later(1)
    disk.await_sync()
    waiter = queue.append_while_writing(2, check=cancelled)
    cancelled.wanted.set()
    with pytest.raises(QueryCancelled):
        waiter.result(PATIENCE)
    disk.end_sync()
    first.result(PATIENCE)
    disk.is_slow = False
    queue.append(3)
    assert queue.values() == [1, 3]


def test_cancelled_writer_learns_the_outcome_of_a_started_write(queue: Queue, disk: Disk) -> None:
    cancelled = Cancelled()
    disk.is_slow = True
    first = queue.append_later(1)
    disk.await_sync()
    second = queue.append_while_writing(2)
    third = queue.append_while_writing(3, check=cancelled)
    while len(queue.writer._waiting) < 2:
        queue.await_waiting()
    disk.end_sync()
    disk.await_sync()  # the second writes for both
    cancelled.wanted.set()
    assert cancelled.said.wait(PATIENCE)
    disk.end_sync()
    for future in (first, second, third):
        future.result(PATIENCE)
    assert queue.values() == [1, 2, 3]


class Clock:
    """The clock of the waits in a writer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        for module in (writer, waiting):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_rows_behind_a_hung_disk_are_not_written(queue: Queue, disk: Disk, clock: Clock) -> None:
    disk.is_slow = True
    first = queue.append_later(1)
    disk.await_sync()
    second = queue.append_while_writing(2)
    clock.now += writer._WRITE_SECONDS - 0.1
    queue.await_time_check()
    assert not second.done()
    clock.now += 0.1
    with pytest.raises(QueueUnavailable, match=r"for 60 s\. Nothing was written") as raised:
        second.result(PATIENCE)
    assert not raised.value.in_doubt
    disk.is_slow = False
    disk.end_sync()
    first.result(PATIENCE)
    queue.append(3)
    assert queue.values() == [1, 3]


def test_outcome_of_rows_on_a_hung_disk_is_unknown(queue: Queue, disk: Disk, clock: Clock) -> None:
    disk.is_slow = True
    first = queue.append_later(1)
    disk.await_sync()
    second, third = queue.append_while_writing(2), queue.append_later(3)
    while len(queue.writer._waiting) < 2:
        queue.await_waiting()
    disk.end_sync()
    disk.await_sync()  # one of the two writes for both
    clock.now += writer._WRITE_SECONDS
    eventually(lambda: second.done() or third.done())
    unknown, writing = (second, third) if second.done() else (third, second)
    with pytest.raises(QueueStateUnknown, match="not known whether the rows are kept") as raised:
        unknown.result(0)
    assert raised.value.identifier == "QUEUE_STATE_UNKNOWN"
    assert raised.value.in_doubt
    disk.end_sync()
    for future in (first, writing):
        future.result(PATIENCE)
    assert sorted(queue.values()) == [1, 2, 3]


def test_outcome_that_arrives_at_the_deadline_counts(
    queue: Queue, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(block: Callable[[float], bool], check: Callable[[], None], deadline: float) -> bool:
        check()
        assert block(PATIENCE)
        return False  # as if the deadline had passed just before

    monkeypatch.setattr(writer, "wait", late)
    disk.is_slow = True
    first = queue.append_later(1)
    disk.await_sync()
    others = [queue.append_while_writing(number) for number in (2, 3)]
    disk.is_slow = False
    disk.end_sync()
    for future in (first, *others):
        future.result(PATIENCE)
    assert sorted(queue.values()) == [1, 2, 3]


def test_changed_columns_start_a_new_segment(queue: Queue) -> None:
    queue.append(1)
    rows = pa.record_batch({"i": pa.array([2]), "s": pa.array(["x"])})
    queue.writer.append(rows, OTHER, None, lambda: None)
    assert [segment.rows for segment in queue.sealed] == [1]
    old, new = queue.found()
    assert old.sealed
    assert not new.sealed
    assert (old.schema.names, new.schema.names) == (["i"], ["i", "s"])


def test_rows_of_sessions_with_other_arrow_types_share_a_segment(queue: Queue, disk: Disk) -> None:
    disk.is_slow = True
    first = queue.append_later(1)
    disk.await_sync()
    narrow = pa.record_batch({"i": pa.array([2], pa.int32())})
    others = [queue.append_while_writing(rows=narrow), queue.append_while_writing(3)]
    while len(queue.writer._waiting) < 2:
        queue.await_waiting()
    disk.is_slow = False
    disk.end_sync()
    for future in (first, *others):
        future.result(PATIENCE)
    assert queue.values() == [1, 2, 3]
    assert len(queue.files) == 1


def test_rows_after_sealing_go_to_a_new_segment(queue: Queue) -> None:
    queue.append(1)
    queue.writer.seal()
    queue.append(2)
    first, second = queue.found()
    assert (first.sealed, second.sealed) == (True, False)
    assert [segment.rows for segment in queue.sealed] == [1]


def test_sealing_a_sealed_segment_does_nothing(queue: Queue) -> None:
    queue.append(1)
    [(segment, _)] = queue.written
    queue.writer.seal(segment)
    queue.append(2)
    queue.writer.seal(segment)
    assert queue.sealed == [segment]


def test_sealing_without_rows_does_nothing(queue: Queue) -> None:
    queue.writer.seal()
    assert queue.sealed == []
    assert queue.files == []


def test_batch_sent_twice_is_written_once(queue: Queue, disk: Disk) -> None:
    disk.is_slow = True
    first = queue.append_later(1)
    disk.await_sync()
    names = [BatchId("p", 7), BatchId("p", 7), BatchId("p", 8)]
    waiting = [
        queue._pool.submit(queue.append, value, ingest=name, check=queue._waiting.release)
        for value, name in zip((2, 2, 3), names, strict=True)
    ]
    for _ in waiting:
        queue.await_waiting()
    disk.is_slow = False
    disk.end_sync()
    for future in (first, *waiting):
        future.result(PATIENCE)
    queue.append(2, ingest=BatchId("p", 7))
    assert sorted(queue.values()) == [1, 2, 3]


def test_bytes_are_reported_by_caller(tmp_path: Path) -> None:
    queue = Queue(tmp_path)
    queue.writer.append(numbers(1, 2), ONE, None, lambda: None, "alice")
    queue.writer.append(numbers(3), ONE, None, lambda: None, "bob")
    queue.writer.append(numbers(4), ONE, None, lambda: None)
    assert queue.bytes_by_caller == {"alice": 16, "bob": 8}

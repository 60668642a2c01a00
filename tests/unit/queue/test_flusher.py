"""What a flush does with its files, by the outcome of their commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swanlake.errors import (
    CommitConflict,
    CommitStateUnknown,
    ConnectionLost,
    InvalidValue,
    LakeError,
    SwanLakeError,
)
from swanlake.jobs.runner import WithoutTransforms
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.model.ids import uuid7
from swanlake.lake.model.layout import DataFile, Table
from swanlake.lake.model.operations import Commit, Insert
from swanlake.queue.batch_ids import BatchId, ledger_prefix
from swanlake.queue.flush import flusher
from swanlake.queue.flush.flusher import Flusher, ledger_entry
from swanlake.queue.flush.units import FlushResult, FlushUnit
from swanlake.queue.storage.segment import SegmentHeader
from swanlake.queue.storage.store import SegmentFile, SegmentStore
from tests.unit.queue.samples import CATALOG_ID, layout, numbers, queue_table


class FakeCatalog:
    """A catalog whose commits end as the test says."""

    name = "swanlake"
    info = SimpleNamespace(id=CATALOG_ID)

    def __init__(self, table: Table) -> None:
        self.outcomes: list[Committed | SwanLakeError] = []
        self.commits: list[Commit] = []
        self._table = table

    def table_by_id(self, table_id: int) -> Table:
        return self._table

    def find_in_ledger(self, entries: Sequence[str]) -> dict[str, int]:
        return {}

    def list_ledger(self, prefix: str) -> list[str]:
        return []

    def commit(self, commit: Commit, name: str) -> Committed:
        self.commits.append(commit)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, SwanLakeError):
            raise outcome
        return outcome


class FakeRunner(WithoutTransforms):
    """Writes one file per unit, whose content does not matter."""

    def __init__(self) -> None:
        self.count = 0

    def run(self, units: Sequence[FlushUnit], title: str) -> list[FlushResult]:
        return [FlushResult((self._write(unit),)) for unit in units]

    def _write(self, unit: FlushUnit) -> DataFile:
        self.count += 1
        file = DataFile(f"{self.count}.parquet", 1, 1, 1)
        Path(unit.table.directory + file.path).touch()
        return file


class Flush:
    """A flusher between a runner that writes files and a catalog that commits them."""

    def __init__(self, root: Path) -> None:
        self.data = root / "data"
        self.data.mkdir()
        self.catalog = FakeCatalog(replace(layout(), directory=f"{self.data}/"))
        lake = SimpleNamespace(catalog=lambda name: self.catalog)
        self._flusher = Flusher(cast(Any, lake), cast(Any, FakeRunner()), cast(Any, None))
        self.segment = _segment(root)

    def run(self, *outcomes: Committed | SwanLakeError) -> int:
        """The number of rows that the flush reports."""
        self.catalog.outcomes = list(outcomes)
        return self._flusher.flush(queue_table(), [self.segment]).rows

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.data.iterdir())


def _segment(root: Path) -> SegmentFile:
    store = SegmentStore(root, root / "server")
    segment = store.new_segment(queue_table(), layout(), numbers().schema, 1.0)
    segment.append([(numbers(1), None)])
    return segment


@pytest.fixture
def flush(tmp_path: Path) -> Flush:
    return Flush(tmp_path)


def test_files_and_ledger_entry_are_in_one_commit(flush: Flush) -> None:
    assert flush.run(Committed(5)) == 1
    [commit] = flush.catalog.commits
    [insert] = commit.operations
    assert isinstance(insert, Insert)
    assert [file.path for file in insert.files] == flush.files == ["1.parquet"]
    assert commit.ledger == (ledger_entry(flush.segment.id),)


@pytest.mark.parametrize("error", [CommitStateUnknown("lost"), ConnectionLost("lost")])
def test_files_of_a_commit_in_doubt_are_kept(flush: Flush, error: SwanLakeError) -> None:
    assert error.in_doubt
    with pytest.raises(type(error)):
        flush.run(error)
    assert flush.files == ["1.parquet"]


def test_files_of_a_failed_commit_are_deleted(flush: Flush) -> None:
    with pytest.raises(LakeError):
        flush.run(LakeError("no"))
    assert flush.files == []


def test_files_of_each_lost_race_are_deleted(flush: Flush) -> None:
    assert flush.run(CommitConflict("altered"), CommitConflict("altered"), Committed(5)) == 1
    assert flush.files == ["3.parquet"]


def test_files_of_a_flush_that_was_committed_before_are_deleted(flush: Flush) -> None:
    assert flush.run(Committed(5, applied=False)) == 0
    assert flush.files == []


class FakeDeadLetters:
    """Records what becomes a dead letter, and why."""

    def __init__(self) -> None:
        self.added: list[tuple[SegmentFile, str]] = []

    def add_segment(self, segment: SegmentFile, reason: str) -> None:
        self.added.append((segment, reason))


def test_bad_segment_makes_no_dead_letters_of_the_others(flush: Flush, tmp_path: Path) -> None:
    letters = FakeDeadLetters()
    flush._flusher._dead_letters = cast(Any, letters)
    segments = [_segment(tmp_path) for _ in range(3)]
    # Of all together, and of the second one alone.
    bad = InvalidValue("too large")
    flush.catalog.outcomes = [bad, Committed(5), bad, Committed(6)]
    report = flush._flusher.flush(queue_table(), segments)
    assert letters.added == [(segments[1], "too large")]
    assert (report.rows, report.dead_letters, report.snapshot_id) == (2, 1, 6)
    stored = [commit.ledger for commit in flush.catalog.commits]
    assert stored[1::2] == [(ledger_entry(segments[0].id),), (ledger_entry(segments[2].id),)]


def test_rows_of_a_dropped_catalog_are_not_for_another_one_of_its_name(flush: Flush) -> None:
    letters = FakeDeadLetters()
    flush._flusher._dead_letters = cast(Any, letters)
    flush.catalog.info = SimpleNamespace(id=uuid7())
    assert flush.run() == 0
    assert flush.catalog.commits == []
    assert [segment for segment, _ in letters.added] == [flush.segment]


def test_batch_in_two_segments_is_written_once(tmp_path: Path) -> None:
    """Its producer sent it again to the server that adopted the first segment."""
    segments = []
    for name in ("first", "second", "third"):
        header = SegmentHeader(uuid7(), queue_table(), 1.0)
        segments.append(SegmentFile(tmp_path / name, header))
    first, second, third = (segment.batch_ids for segment in segments)
    for number in (1, 2):
        first.add(BatchId("p", number))
    for number in (2, 3):
        second.add(BatchId("p", number))
    for producer, number in (("p", 3), ("q", 2), ("p", 9)):
        third.add(BatchId(producer, number))
    notes = {ledger_prefix("p", 1): [f"{ledger_prefix('p', 1)}9-9@x"], ledger_prefix("q", 1): []}
    catalog: Any = SimpleNamespace(list_ledger=notes.__getitem__)
    skips = flusher._find_duplicates(catalog, 1, segments)
    assert [skips[segment.id] for segment in segments] == [
        set(),
        {BatchId("p", 2)},
        {BatchId("p", 3), BatchId("p", 9)},
    ]

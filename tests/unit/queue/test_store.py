"""Segments on disk: atomic writes, adoption, examination and removal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from swanlake.errors import QueryTimeout, QueueUnavailable
from swanlake.lake.model.layout import Column
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.batch_ids import BatchId
from swanlake.queue.storage.segment import SegmentDamaged, SegmentHeader
from swanlake.queue.storage.store import SegmentFile, SegmentStore
from tests.unit.queue.samples import CATALOG_ID, numbers, queue_table, values_of

HEADER = SegmentHeader(UUID(int=9), queue_table(), 5.0)
SCHEMA = HEADER.schema(numbers().schema, [Column(1, "i", "int64")])


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore(tmp_path, tmp_path / "mine")


def write(store: SegmentStore, *batches: Any, header: SegmentHeader = HEADER) -> SegmentFile:
    named = ((batch, BatchId("p", number)) for number, batch in enumerate(batches))
    schema = header.schema(numbers().schema, [Column(1, "i", "int64")])
    return store.write_sealed(header, schema, named)


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_large_insert_gets_its_own_sealed_segment(store: SegmentStore) -> None:
    segment = write(store, numbers(1, 2), numbers(3))
    assert (segment.rows, segment.size) == (3, segment.path.stat().st_size)
    assert BatchId("p", 1) in segment.batch_ids
    found = segment.read()
    assert values_of(found) == [1, 2, 3]
    assert found.sealed


@pytest.mark.parametrize("error", [QueryTimeout("too long"), ValueError("no"), OSError("no disk")])
def test_failed_large_insert_leaves_no_file(
    store: SegmentStore, tmp_path: Path, error: Exception
) -> None:
    def batches() -> Iterator[tuple[Any, None]]:
        yield numbers(1), None
        raise error

    is_the_disk = type(error) is OSError
    with pytest.raises(QueueUnavailable if is_the_disk else type(error)):
        store.write_sealed(HEADER, SCHEMA, batches())
    assert files_in(tmp_path) == []


def test_adoption_moves_segments(store: SegmentStore, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    written = write(SegmentStore(tmp_path, theirs), numbers(1))
    [moved] = list(store.adopt(theirs))
    assert not written.path.exists()
    assert moved.is_relative_to(tmp_path / "mine")
    segment = store.examine(moved)
    assert (segment.header, segment.rows) == (HEADER, 1)
    assert BatchId("p", 0) in segment.batch_ids


def test_adoption_skips_unacknowledged_files(store: SegmentStore, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    segment = write(SegmentStore(tmp_path, theirs), numbers(1))
    segment.path.rename(segment.path.with_name("x.arrows.partial"))
    segment.path.touch()
    assert list(store.adopt(theirs)) == []
    assert files_in(theirs) == []


def test_truncated_segment_is_examined_up_to_the_cut(store: SegmentStore) -> None:
    segment = write(store, numbers(1), numbers(2))
    os.truncate(segment.path, segment.size - 30)
    assert store.examine(segment.path).rows == 1


def test_examine_raises_for_a_file_that_is_not_a_segment(
    store: SegmentStore, tmp_path: Path
) -> None:
    file = tmp_path / "x.arrows"
    file.write_text("not Arrow")
    with pytest.raises(SegmentDamaged):
        store.examine(file)


def test_flushed_segment_is_removed(store: SegmentStore, tmp_path: Path) -> None:
    segment = write(store, numbers(1))
    store.remove(segment, keep=False)
    store.remove(segment, keep=False)  # again after a crash
    assert files_in(tmp_path) == []


def test_flushed_segment_is_kept_for_the_retention(store: SegmentStore, tmp_path: Path) -> None:
    segment = write(store, numbers(1))
    store.remove(segment, keep=True)
    assert not segment.path.exists()
    store.remove_expired(older_than_seconds=3600.0)
    [kept] = (tmp_path / "flushed").rglob("*.arrows")
    assert values_of(store.examine(kept).read()) == [1]
    store.remove_expired(older_than_seconds=0.0)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("name", ["a/b", "..", "a.b", "é ü", "x" * 300, "%2E", "a\x00b"])
def test_table_names_cannot_escape_the_directory(
    store: SegmentStore, tmp_path: Path, name: str
) -> None:
    table = TableRef(name, name, name, CATALOG_ID, 1)
    segment = write(store, numbers(1), header=SegmentHeader(UUID(int=1), table, 0.0))
    assert segment.path.parents[2] == tmp_path / "mine"
    assert store.examine(segment.path).table == table

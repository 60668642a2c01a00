"""Segments on disk: written whole, taken over, examined, and let go."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from swanlake.errors import QueryTimeout, QueueUnavailable
from swanlake.lake.layout import Column
from swanlake.queue.names import Ingest, QueueTable
from swanlake.queue.segment import Header, SegmentDamaged
from swanlake.queue.store import SegmentFile, Store
from tests.unit.queue.samples import CATALOG_ID, numbers, queue_table, values_of

HEADER = Header(UUID(int=9), queue_table(), 5.0)
SCHEMA = HEADER.schema(numbers().schema, [Column(1, "i", "int64")])


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, tmp_path / "mine")


def write(store: Store, *batches: Any, header: Header = HEADER) -> SegmentFile:
    named = ((batch, Ingest("p", number)) for number, batch in enumerate(batches))
    schema = header.schema(numbers().schema, [Column(1, "i", "int64")])
    return store.write_sealed(header, schema, named)


def files_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


def test_a_large_insert_is_a_sealed_segment_of_its_own(store: Store) -> None:
    segment = write(store, numbers(1, 2), numbers(3))
    assert (segment.rows, segment.size) == (3, segment.path.stat().st_size)
    assert Ingest("p", 1) in segment.taken
    found = segment.open()
    assert values_of(found) == [1, 2, 3]
    assert found.sealed


@pytest.mark.parametrize("error", [QueryTimeout("too long"), ValueError("no"), OSError("no disk")])
def test_a_large_insert_that_fails_midway_leaves_nothing(
    store: Store, tmp_path: Path, error: Exception
) -> None:
    def batches() -> Iterator[tuple[Any, None]]:
        yield numbers(1), None
        raise error

    is_the_disk = type(error) is OSError
    with pytest.raises(QueueUnavailable if is_the_disk else type(error)):
        store.write_sealed(HEADER, SCHEMA, batches())
    assert files_in(tmp_path) == []


def test_segments_of_another_server_are_moved_here(store: Store, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    written = write(Store(tmp_path, theirs), numbers(1))
    [moved] = list(store.take_over(theirs))
    assert not written.path.exists()
    assert moved.is_relative_to(tmp_path / "mine")
    segment = store.examine(moved)
    assert (segment.header, segment.rows) == (HEADER, 1)
    assert Ingest("p", 0) in segment.taken


def test_what_another_server_never_acknowledged_is_not_taken_over(
    store: Store, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    segment = write(Store(tmp_path, theirs), numbers(1))
    segment.path.rename(segment.path.with_name("x.arrows.partial"))
    segment.path.touch()
    assert list(store.take_over(theirs)) == []
    assert files_in(theirs) == []


def test_a_segment_that_was_cut_off_is_examined_up_to_there(store: Store) -> None:
    segment = write(store, numbers(1), numbers(2))
    os.truncate(segment.path, segment.size - 30)
    assert store.examine(segment.path).rows == 1


def test_a_file_that_is_no_segment_cannot_be_examined(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "x.arrows"
    file.write_text("not Arrow")
    with pytest.raises(SegmentDamaged):
        store.examine(file)


def test_a_segment_that_is_in_the_lake_is_removed(store: Store, tmp_path: Path) -> None:
    segment = write(store, numbers(1))
    store.remove(segment, keep=False)
    store.remove(segment, keep=False)  # again after a crash
    assert files_in(tmp_path) == []


def test_a_segment_is_kept_for_as_long_as_it_shall_be(store: Store, tmp_path: Path) -> None:
    segment = write(store, numbers(1))
    store.remove(segment, keep=True)
    assert not segment.path.exists()
    store.remove_kept(older_than_seconds=3600.0)
    [kept] = (tmp_path / "flushed").rglob("*.arrows")
    assert values_of(store.examine(kept).open()) == [1]
    store.remove_kept(older_than_seconds=0.0)
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("name", ["a/b", "..", "a.b", "é ü", "x" * 300, "%2E", "a\x00b"])
def test_names_of_tables_are_no_paths(store: Store, tmp_path: Path, name: str) -> None:
    table = QueueTable(name, name, name, CATALOG_ID, 1)
    segment = write(store, numbers(1), header=Header(UUID(int=1), table, 0.0))
    assert segment.path.parents[2] == tmp_path / "mine"
    assert store.examine(segment.path).table == table

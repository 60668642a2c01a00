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
from tests.unit.queue.samples import CATALOG_ID, layout, numbers, queue_table, values_of

HEADER = SegmentHeader(UUID(int=9), queue_table(), 5.0)
SCHEMA = HEADER.schema(numbers().schema, [Column(1, "i", "int64")])


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore(tmp_path, tmp_path / "mine")


class Synced:
    """The files and directories that were synced, in order, by their paths at that moment."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.contents: list[Path] = []
        self.directories: list[Path] = []
        #: The files in a directory when it was synced.
        self.names: dict[Path, list[str]] = {}
        monkeypatch.setattr(os, "fdatasync", self._fdatasync)
        monkeypatch.setattr(os, "fsync", self._fsync)

    def clear(self) -> None:
        self.contents.clear()
        self.directories.clear()

    def _fdatasync(self, descriptor: int) -> None:
        self.contents.append(_path_of(descriptor))

    def _fsync(self, descriptor: int) -> None:
        directory = _path_of(descriptor)
        self.directories.append(directory)
        self.names[directory] = sorted(os.listdir(directory))


def _path_of(descriptor: int) -> Path:
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Synced:
    return Synced(monkeypatch)


def directories_to(path: Path, root: Path) -> list[Path]:
    """The directories from the root to a file."""
    return sorted(parent for parent in path.parents if parent.is_relative_to(root))


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


def test_name_of_a_new_segment_is_synced(
    store: SegmentStore, synced: Synced, tmp_path: Path
) -> None:
    table = queue_table()
    segment = store.new_segment(table, layout(), numbers().schema, 5.0)
    segment.append([(numbers(1), None)])
    assert synced.contents == [segment.path]
    assert sorted(synced.directories) == directories_to(segment.path, tmp_path)
    assert synced.names[segment.path.parent] == [segment.path.name]
    synced.clear()
    segment.append([(numbers(2), None)])
    assert synced.contents == [segment.path]
    assert synced.directories == []
    other = store.new_segment(table, layout(), numbers().schema, 5.0)
    other.append([(numbers(3), None)])
    assert synced.directories == [other.path.parent]


def test_large_insert_is_synced_before_it_gets_its_name(
    store: SegmentStore, synced: Synced, tmp_path: Path
) -> None:
    segment = write(store, numbers(1, 2), numbers(3))
    assert synced.contents == [segment.path.with_name(f"{segment.path.name}.partial")]
    assert sorted(synced.directories) == directories_to(segment.path, tmp_path)
    assert synced.names[segment.path.parent] == [segment.path.name]


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


def test_adopted_segments_are_synced_in_their_new_directories(
    store: SegmentStore, synced: Synced, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"
    for number in (1, 2):
        header = SegmentHeader(UUID(int=number), queue_table(f"t{number}", number), 5.0)
        write(SegmentStore(tmp_path, theirs), numbers(1), header=header)
    synced.clear()
    moved = list(store.adopt(theirs))
    assert len(moved) == 2
    for path in moved:
        assert set(directories_to(path, tmp_path)) <= set(synced.directories)
        assert synced.names[path.parent] == [path.name]


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

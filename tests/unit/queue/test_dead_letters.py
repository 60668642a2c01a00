"""Dead letters and their replay."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from swanlake.errors import InvalidRequest, NotFound
from swanlake.lake.model.layout import Column
from swanlake.lake.model.table_ref import TableRef
from swanlake.lake.read.table_cache import CachedTable
from swanlake.queue.batch_ids import BatchId
from swanlake.queue.flush.dead_letters import DeadLetters
from swanlake.queue.flush.replay import restore_segment
from swanlake.queue.storage.segment import SegmentDamaged, SegmentHeader, column_ids
from swanlake.queue.storage.store import SegmentFile, SegmentStore
from tests.unit.queue.samples import CATALOG_ID, layout, queue_table

ROWS = pa.record_batch({"i": pa.array([1, 2]), "s": pa.array(["x", None])})
COLUMNS = [Column(1, "i", ""), Column(2, "s", "")]


@pytest.fixture
def letters(tmp_path: Path) -> DeadLetters:
    return DeadLetters(str(tmp_path / "dead-letters"))


@pytest.fixture
def store(tmp_path: Path) -> SegmentStore:
    return SegmentStore(tmp_path, tmp_path / "server")


def segment_in(store: SegmentStore, number: int = 1, table: TableRef | None = None) -> SegmentFile:
    header = SegmentHeader(UUID(int=number), table or queue_table(), 5.0)
    batches = iter([(ROWS, None), (ROWS, BatchId("p", 7))])
    return store.write_sealed(header, header.schema(ROWS.schema, COLUMNS), batches)


def test_letter_holds_segment_and_reason(letters: DeadLetters, store: SegmentStore) -> None:
    segment = segment_in(store)
    letters.add_segment(segment, "the table was dropped")
    [letter] = letters.list_all()
    assert letter == letters.get(str(segment.id))
    assert (letter.catalog, letter.schema, letter.table) == ("swanlake", "main", "readings")
    assert (letter.rows, letter.bytes) == (4, segment.size)
    assert (letter.reason, letter.replayable) == ("the table was dropped", True)
    assert letters.read(letter).rows == 4
    assert Path(letter.path).read_bytes() == segment.path.read_bytes()


def test_letter_holds_only_acknowledged_bytes(letters: DeadLetters, store: SegmentStore) -> None:
    segment = segment_in(store)
    with segment.path.open("ab") as file:
        file.write(b"half of a batch")
    letters.add_segment(segment, "no")
    assert not letters.read(letters.list_all()[0]).damages


@pytest.mark.parametrize(("limit", "lengths"), [(1, [1]), (2, [2]), (3, [2, 1]), (9, [2, 2])])
def test_first_rows_stop_at_the_limit(
    letters: DeadLetters, store: SegmentStore, limit: int, lengths: list[int]
) -> None:
    segment = segment_in(store)
    letters.add_segment(segment, "no")
    rows = letters.first_rows(str(segment.id), limit)
    assert [batch.num_rows for batch in rows] == lengths
    assert rows[0].to_pylist() == ROWS.to_pylist()[:limit]


def test_damaged_letter_has_no_first_rows(letters: DeadLetters, store: SegmentStore) -> None:
    segment = segment_in(store)
    segment.path.write_bytes(b"not Arrow")
    letters.add_unreadable(segment.path, "no")
    assert letters.first_rows(str(segment.id), 5) == []


def test_adding_a_letter_twice_replaces_it(letters: DeadLetters, store: SegmentStore) -> None:
    segment = segment_in(store)
    letters.add_segment(segment, "first")
    letters.add_segment(segment, "second")
    assert [letter.reason for letter in letters.list_all()] == ["second"]


def test_letters_are_listed_and_removed(letters: DeadLetters, store: SegmentStore) -> None:
    segments = [segment_in(store, number) for number in (1, 2, 3)]
    for segment in segments:
        letters.add_segment(segment, "no")
    assert {letter.segment_id for letter in letters.list_all()} == {str(one.id) for one in segments}
    letters.remove(letters.get(str(UUID(int=2))))
    assert len(letters.list_all()) == 2
    with pytest.raises(NotFound, match="no dead letter 00000000"):
        letters.get(str(UUID(int=2)))


def test_missing_directory_has_no_letters(letters: DeadLetters) -> None:
    assert letters.list_all() == []


def test_segment_without_description_is_not_listed(
    letters: DeadLetters, store: SegmentStore
) -> None:
    letters.add_segment(segment_in(store), "no")
    Path(letters.list_all()[0].path + ".json").unlink()
    assert letters.list_all() == []


def test_letters_in_a_relative_directory(
    store: SegmentStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    letters = DeadLetters("aside/")
    letters.add_segment(segment_in(store), "no")
    [letter] = letters.list_all()
    assert Path(letter.path).is_relative_to(tmp_path / "aside")


def test_damaged_bytes_are_stored_but_not_replayable(
    letters: DeadLetters, store: SegmentStore
) -> None:
    segment = segment_in(store)
    content = bytearray(segment.path.read_bytes())
    content[-20] ^= 1
    segment.path.write_bytes(content)
    found = segment.read()
    letters.add_damaged_parts(segment, tuple(found.damages), recovered=found.rows)
    [letter] = letters.list_all()
    [damage] = found.damages
    assert Path(letter.path).read_bytes() == content[damage.start : damage.end]
    assert not letter.replayable
    assert "its checksum is wrong" in letter.reason
    assert "2 rows of it were recovered" in letter.reason
    with pytest.raises(InvalidRequest, match="no rows to replay"):
        restore_segment(letter, letters, CachedTable(queue_table(), layout()), store)


@pytest.mark.parametrize("name", ["readings", "a.b", "é ü", "a/b", 'say "hi"', "50%"])
def test_unreadable_file_is_stored_under_its_table(
    letters: DeadLetters, store: SegmentStore, name: str
) -> None:
    segment = segment_in(store, table=TableRef(name, name, name, CATALOG_ID, 1))
    segment.path.write_bytes(b"not Arrow")
    with pytest.raises(SegmentDamaged) as damaged:
        store.examine(segment.path)
    letters.add_unreadable(segment.path, str(damaged.value))
    [letter] = letters.list_all()
    assert (letter.catalog, letter.schema, letter.table) == (name, name, name)
    assert letter.segment_id == str(segment.id)
    assert not letter.replayable
    assert Path(letter.path).read_bytes() == b"not Arrow"


# ---- replay ------------------------------------------------------------------------------------


def put(letters: DeadLetters, store: SegmentStore) -> None:
    segment = segment_in(store)
    letters.add_segment(segment, "no")
    store.remove(segment, keep=False)


def test_replayed_letter_equals_its_segment(letters: DeadLetters, store: SegmentStore) -> None:
    put(letters, store)
    renamed = CachedTable(
        queue_table("renamed"), layout(Column(1, "number", "int64"), Column(2, "text", "varchar"))
    )
    segment = restore_segment(letters.list_all()[0], letters, renamed, store)
    content = store.examine(segment.path).read()
    assert content.header == SegmentHeader(UUID(int=1), queue_table("renamed"), 5.0)
    assert column_ids(content.schema) == [1, 2]
    assert [batch.to_pylist() for batch in content.record_batches()] == [ROWS.to_pylist()] * 2
    assert content.sealed
    assert BatchId("p", 7) in segment.batch_ids


def test_replay_into_recreated_table_matches_columns_by_name(
    letters: DeadLetters, store: SegmentStore
) -> None:
    put(letters, store)
    recreated = CachedTable(
        queue_table(table_id=2),
        layout(Column(8, "S", "varchar"), Column(9, "more", "int64"), Column(7, "I", "int64")),
    )
    segment = restore_segment(letters.list_all()[0], letters, recreated, store)
    content = segment.read()
    assert content.header.table.table_id == 2
    assert column_ids(content.schema) == [7, 8]
    assert segment.rows == 4


def test_replay_is_refused_when_the_table_lacks_a_column(
    letters: DeadLetters, store: SegmentStore
) -> None:
    put(letters, store)
    narrower = CachedTable(queue_table(table_id=2), layout(Column(7, "i", "int64")))
    with pytest.raises(InvalidRequest, match=r"has no column s, .* Add the column"):
        restore_segment(letters.list_all()[0], letters, narrower, store)
    assert len(letters.list_all()) == 1


def test_replay_into_another_catalog_matches_columns_by_name(
    letters: DeadLetters, store: SegmentStore
) -> None:
    put(letters, store)
    table = TableRef("swanlake", "main", "readings", UUID(int=8), 1)
    target = CachedTable(table, layout(Column(3, "i", "int64"), Column(4, "s", "varchar")))
    segment = restore_segment(letters.list_all()[0], letters, target, store)
    assert column_ids(segment.read().schema) == [3, 4]

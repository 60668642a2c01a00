"""Segments that were put aside, and their way back into the queue."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest

from swanlake.errors import InvalidRequest, NotFound
from swanlake.lake.layout import Column
from swanlake.queue.dead_letters import DeadLetters
from swanlake.queue.names import Ingest, QueueTable
from swanlake.queue.replay import replayed
from swanlake.queue.segment import Header, SegmentDamaged, column_ids
from swanlake.queue.store import SegmentFile, Store
from swanlake.queue.targets import Target
from tests.unit.queue.samples import CATALOG_ID, layout, queue_table

ROWS = pa.record_batch({"i": pa.array([1, 2]), "s": pa.array(["x", None])})
COLUMNS = [Column(1, "i", ""), Column(2, "s", "")]


@pytest.fixture
def letters(tmp_path: Path) -> DeadLetters:
    return DeadLetters(str(tmp_path / "dead-letters"))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path, tmp_path / "server")


def segment_in(store: Store, number: int = 1, table: QueueTable | None = None) -> SegmentFile:
    header = Header(UUID(int=number), table or queue_table(), 5.0)
    batches = iter([(ROWS, None), (ROWS, Ingest("p", 7))])
    return store.write_sealed(header, header.schema(ROWS.schema, COLUMNS), batches)


def test_a_letter_is_the_segment_and_the_reason(letters: DeadLetters, store: Store) -> None:
    segment = segment_in(store)
    letters.put(segment, "the table was dropped")
    [letter] = letters.all()
    assert letter == letters.named(str(segment.id))
    assert (letter.catalog, letter.schema, letter.table) == ("swanlake", "main", "readings")
    assert (letter.rows, letter.bytes) == (4, segment.size)
    assert (letter.reason, letter.replayable) == ("the table was dropped", True)
    assert letters.open(letter).rows == 4
    assert Path(letter.path).read_bytes() == segment.path.read_bytes()


def test_a_letter_holds_only_what_was_acknowledged(letters: DeadLetters, store: Store) -> None:
    segment = segment_in(store)
    with segment.path.open("ab") as file:
        file.write(b"half of a batch")
    letters.put(segment, "no")
    assert not letters.open(letters.all()[0]).damages


def test_a_letter_that_is_put_again_is_one_letter(letters: DeadLetters, store: Store) -> None:
    segment = segment_in(store)
    letters.put(segment, "first")
    letters.put(segment, "second")
    assert [letter.reason for letter in letters.all()] == ["second"]


def test_letters_are_listed_and_removed_one_by_one(letters: DeadLetters, store: Store) -> None:
    segments = [segment_in(store, number) for number in (1, 2, 3)]
    for segment in segments:
        letters.put(segment, "no")
    assert {letter.segment_id for letter in letters.all()} == {str(one.id) for one in segments}
    letters.remove(letters.named(str(UUID(int=2))))
    assert len(letters.all()) == 2
    with pytest.raises(NotFound, match="no dead letter 00000000"):
        letters.named(str(UUID(int=2)))


def test_where_nothing_was_put_there_are_no_letters(letters: DeadLetters) -> None:
    assert letters.all() == []


def test_a_segment_without_its_description_is_no_letter_yet(
    letters: DeadLetters, store: Store
) -> None:
    letters.put(segment_in(store), "no")
    Path(letters.all()[0].path + ".json").unlink()
    assert letters.all() == []


def test_letters_can_go_to_a_relative_directory(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    letters = DeadLetters("aside/")
    letters.put(segment_in(store), "no")
    [letter] = letters.all()
    assert Path(letter.path).is_relative_to(tmp_path / "aside")


def test_damaged_bytes_are_kept_and_cannot_be_replayed(letters: DeadLetters, store: Store) -> None:
    segment = segment_in(store)
    content = bytearray(segment.path.read_bytes())
    content[-20] ^= 1
    segment.path.write_bytes(content)
    found = segment.open()
    letters.put_damaged(segment, tuple(found.damages), recovered=found.rows)
    [letter] = letters.all()
    [damage] = found.damages
    assert Path(letter.path).read_bytes() == content[damage.start : damage.end]
    assert not letter.replayable
    assert "its checksum is wrong" in letter.reason
    assert "2 rows of it were recovered" in letter.reason
    with pytest.raises(InvalidRequest, match="no rows to replay"):
        replayed(letter, letters, Target(queue_table(), layout()), store)


@pytest.mark.parametrize("name", ["readings", "a.b", "é ü", "a/b", 'say "hi"', "50%"])
def test_a_file_that_cannot_be_read_is_kept_under_the_name_of_its_table(
    letters: DeadLetters, store: Store, name: str
) -> None:
    segment = segment_in(store, table=QueueTable(name, name, name, CATALOG_ID, 1))
    segment.path.write_bytes(b"not Arrow")
    with pytest.raises(SegmentDamaged) as damaged:
        store.examine(segment.path)
    letters.put_unreadable(segment.path, str(damaged.value))
    [letter] = letters.all()
    assert (letter.catalog, letter.schema, letter.table) == (name, name, name)
    assert letter.segment_id == str(segment.id)
    assert not letter.replayable
    assert Path(letter.path).read_bytes() == b"not Arrow"


# ---- replay ------------------------------------------------------------------------------------


def put(letters: DeadLetters, store: Store) -> None:
    segment = segment_in(store)
    letters.put(segment, "no")
    store.remove(segment, keep=False)


def test_a_replayed_letter_is_the_segment_it_was(letters: DeadLetters, store: Store) -> None:
    put(letters, store)
    renamed = Target(
        queue_table("renamed"), layout(Column(1, "number", "int64"), Column(2, "text", "varchar"))
    )
    segment = replayed(letters.all()[0], letters, renamed, store)
    content = store.examine(segment.path).open()
    assert content.header == Header(UUID(int=1), queue_table("renamed"), 5.0)
    assert column_ids(content.schema) == [1, 2]
    assert [batch.to_pylist() for batch in content.record_batches()] == [ROWS.to_pylist()] * 2
    assert content.sealed
    assert Ingest("p", 7) in segment.taken


def test_a_letter_for_a_table_that_was_made_anew_finds_its_columns_by_name(
    letters: DeadLetters, store: Store
) -> None:
    put(letters, store)
    made_anew = Target(
        queue_table(table_id=2),
        layout(Column(8, "S", "varchar"), Column(9, "more", "int64"), Column(7, "I", "int64")),
    )
    segment = replayed(letters.all()[0], letters, made_anew, store)
    content = segment.open()
    assert content.header.table.table_id == 2
    assert column_ids(content.schema) == [7, 8]
    assert segment.rows == 4


def test_a_table_that_lacks_a_column_of_the_letter_does_not_get_the_rest(
    letters: DeadLetters, store: Store
) -> None:
    put(letters, store)
    narrower = Target(queue_table(table_id=2), layout(Column(7, "i", "int64")))
    with pytest.raises(InvalidRequest, match=r"has no column s, .* Add the column"):
        replayed(letters.all()[0], letters, narrower, store)
    assert len(letters.all()) == 1


def test_a_letter_for_a_table_of_another_catalog_finds_its_columns_by_name(
    letters: DeadLetters, store: Store
) -> None:
    put(letters, store)
    table = QueueTable("swanlake", "main", "readings", UUID(int=8), 1)
    target = Target(table, layout(Column(3, "i", "int64"), Column(4, "s", "varchar")))
    segment = replayed(letters.all()[0], letters, target, store)
    assert column_ids(segment.open().schema) == [3, 4]

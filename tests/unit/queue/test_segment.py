"""The segment format: round trips, and detection of any damage."""

from __future__ import annotations

import datetime
import io
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swanlake.lake.model.layout import Column
from swanlake.queue.batch_ids import BatchId
from swanlake.queue.storage.segment import (
    END,
    Encoder,
    Segment,
    SegmentDamaged,
    SegmentHeader,
    column_ids,
    open_segment,
)
from tests.unit.queue.samples import numbers, queue_table, values_of

MICROSECONDS = st.integers(-(2**40), 2**40).map(
    lambda value: datetime.datetime(2000, 1, 1) + datetime.timedelta(microseconds=value)
)
WHOLE = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (pa.int64(), WHOLE),
    (pa.int8(), st.integers(-128, 127)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.string(), TEXT),
    (pa.binary(), st.binary(max_size=40) | st.just(END * 3)),
    (pa.null(), st.none()),
    (pa.timestamp("us"), MICROSECONDS),
    (pa.decimal128(20, 2), st.integers(-(10**15), 10**15).map(lambda n: Decimal(n).scaleb(-2))),
    (pa.list_(pa.int64()), st.lists(WHOLE | st.none(), max_size=3)),
    (
        pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"a": WHOLE | st.none(), "b": st.lists(TEXT, max_size=2)}),
    ),
    (
        pa.map_(pa.string(), pa.int64()),
        st.dictionaries(TEXT, WHOLE, max_size=2).map(lambda found: list(found.items())),
    ),
]


@dataclass(frozen=True)
class Written:
    """The bytes of a segment."""

    content: bytes
    batches: list[Any]
    #: The ends of the schema and of each batch.
    ends: list[int]
    sealed: bool
    header: SegmentHeader

    @property
    def head(self) -> int:
        return self.ends[0]


def written(
    batches: list[Any], sealed: bool = True, ingests: list[BatchId] | None = None
) -> Written:
    """The bytes of a segment with these batches."""
    header = SegmentHeader(UUID(int=5), queue_table(), 1234.5)
    names = batches[0].schema.names
    columns = [Column(10 + i, name, "") for i, name in enumerate(names)]
    schema = header.schema(batches[0].schema, columns)
    encoder = Encoder(schema)
    content = bytearray(encoder.start)
    ends = [len(content)]
    for sequence, batch in enumerate(batches):
        content += encoder.encode(batch, sequence, ingests[sequence] if ingests else None)
        ends.append(len(content))
    if sealed:
        content += END
    return Written(bytes(content), batches, ends, sealed, header)


def segment_of(content: bytes | bytearray) -> Segment:
    return Segment(pa.py_buffer(bytes(content)))


@st.composite
def segments(draw: st.DrawFn) -> Written:
    """Any batches of any types."""
    types = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=3))
    batches = []
    for _ in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(0, 4))
        columns = [
            pa.array(draw(st.lists(values | st.none(), min_size=rows, max_size=rows)), type)
            for type, values in types
        ]
        batches.append(pa.record_batch(columns, [f"c{i}" for i in range(len(types))]))
    return written(batches, draw(st.booleans()))


def check_honest(original: Written, content: bytes) -> None:
    """Asserts that each batch that is read was written, and that damage is reported."""
    try:
        segment = segment_of(content)
    except SegmentDamaged:
        assert content[: original.head] != original.content[: original.head]
        return
    assert segment.header == original.header
    sequences = [batch.sequence for batch in segment.batches]
    assert sequences == sorted(set(sequences))
    for batch, rows in zip(segment.batches, segment.record_batches(), strict=True):
        was = original.batches[batch.sequence]
        assert rows.to_pylist() == was.to_pylist()
        assert rows.schema.types == was.schema.types
        assert batch.rows == was.num_rows
    if content == original.content:
        assert not segment.damages
        assert len(sequences) == len(original.batches)
        assert segment.sealed == original.sealed
        return
    cut_between_batches = original.content.startswith(content) and len(content) in original.ends
    only_the_end_is_hit = original.sealed and content[:-8] == original.content[:-8]
    if cut_between_batches:
        assert not segment.sealed
    elif only_the_end_is_hit:
        assert len(sequences) == len(original.batches)
        assert not segment.sealed
    else:
        assert segment.damages


@settings(deadline=None)
@given(segments())
def test_batches_of_all_types_round_trip(original: Written) -> None:
    check_honest(original, original.content)


@settings(deadline=None)
@given(segments())
def test_stock_arrow_reads_a_segment(original: Written) -> None:
    with pa.ipc.open_stream(io.BytesIO(original.content)) as stream:
        found = list(stream)
    assert [batch.to_pylist() for batch in found] == [
        batch.to_pylist() for batch in original.batches
    ]


@settings(deadline=None)
@given(segments(), st.data())
def test_truncated_segment_yields_complete_batches(original: Written, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(original.content)))
    check_honest(original, original.content[:place])


@settings(deadline=None)
@given(segments(), st.data())
def test_changed_bytes_are_detected(original: Written, data: st.DataObject) -> None:
    content = bytearray(original.content)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    check_honest(original, bytes(content))


@settings(deadline=None)
@given(segments(), st.data())
def test_moved_bytes_are_detected(original: Written, data: st.DataObject) -> None:
    content = original.content
    places = st.integers(0, len(content))
    first, last = sorted((data.draw(places), data.draw(places)))
    at = data.draw(places)
    spliced = content[:at] + content[first:last] + content[data.draw(places) :]
    check_honest(original, spliced)


@settings(deadline=None)
@given(segments(), st.data())
def test_batches_around_a_damaged_one_are_recovered(original: Written, data: st.DataObject) -> None:
    hit = data.draw(st.integers(0, len(original.batches) - 1))
    place = data.draw(st.integers(original.ends[hit], original.ends[hit + 1] - 1))
    content = bytearray(original.content)
    content[place] ^= data.draw(st.integers(1, 255))
    segment = segment_of(content)
    kept = [number for number in range(len(original.batches)) if number != hit]
    assert [batch.sequence for batch in segment.batches] == kept
    [damage] = segment.damages
    assert original.ends[hit] <= damage.start < damage.end <= original.ends[hit + 1]


SMALL = written([numbers(1, 2), numbers(3), numbers(4, 5)])
SMALLEST = written([numbers(1), numbers(2)])


def test_every_flipped_bit_is_detected() -> None:
    for place in range(len(SMALLEST.content)):
        for bit in range(8):
            content = bytearray(SMALLEST.content)
            content[place] ^= 1 << bit
            check_honest(SMALLEST, bytes(content))


def test_every_truncation_is_detected() -> None:
    for place in range(len(SMALL.content)):
        check_honest(SMALL, SMALL.content[:place])


def test_changed_schema_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(pa.ipc, "read_schema")
    for place in range(SMALL.head):
        content = bytearray(SMALL.content)
        content[place] ^= 0x10
        with pytest.raises(SegmentDamaged, match="does not begin with a schema"):
            segment_of(content)


@given(st.binary(max_size=2_000))
def test_garbage_is_refused(content: bytes) -> None:
    with pytest.raises(SegmentDamaged):
        segment_of(content)


@given(st.binary(max_size=200))
def test_garbage_that_looks_like_a_message_is_refused(content: bytes) -> None:
    for size in (8, 64, len(content), 2**31 - 1, 2**32 - 1):
        with pytest.raises(SegmentDamaged):
            segment_of(b"\xff\xff\xff\xff" + size.to_bytes(4, "little") + content)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=100) | st.just(END) | st.just(END[:4]), max_size=8))
def test_trailing_garbage_does_not_affect_rows(pieces: list[bytes]) -> None:
    garbage = b"".join(pieces)
    segment = segment_of(SMALL.content[: SMALL.ends[-1]] + garbage)
    assert values_of(segment) == [1, 2, 3, 4, 5]
    assert segment.batches[-1].end == SMALL.ends[-1]
    assert segment.sealed >= (garbage == END)
    assert bool(segment.damages) == (garbage not in (b"", END))


def test_missing_batch_is_detected() -> None:
    content = SMALL.content[: SMALL.ends[1]] + SMALL.content[SMALL.ends[2] :]
    segment = segment_of(content)
    assert values_of(segment) == [1, 2, 4, 5]
    assert [damage.reason for damage in segment.damages] == ["1 batches before it are missing"]


def test_duplicate_batch_is_read_once() -> None:
    twice = SMALL.content[SMALL.ends[1] : SMALL.ends[2]]
    segment = segment_of(SMALL.content[: SMALL.ends[2]] + twice + SMALL.content[SMALL.ends[2] :])
    assert values_of(segment) == [1, 2, 3, 4, 5]
    assert [damage.reason for damage in segment.damages] == ["the batch is in the file twice"]


def test_batch_of_another_segment_is_not_read() -> None:
    other = SegmentHeader(UUID(int=6), queue_table(), 1234.5)
    encoder = Encoder(other.schema(numbers().schema, [Column(10, "i", "int64")]))
    content = SMALL.content[: SMALL.ends[1]] + bytes(encoder.encode(numbers(7), 1))
    segment = segment_of(content)
    assert values_of(segment) == [1, 2]
    [damage] = segment.damages
    assert "not written with the schema" in damage.reason


def test_segment_names_its_table_and_columns() -> None:
    segment = segment_of(SMALL.content)
    assert segment.header == SMALL.header
    assert column_ids(segment.schema) == [10]
    assert segment.rows == 5


def test_segment_of_unknown_format_is_refused() -> None:
    schema = SMALL.header.schema(numbers().schema, [Column(1, "i", "int64")])
    newer = {
        key: value.replace(b'"format": 1', b'"format": 2') for key, value in schema.metadata.items()
    }
    with pytest.raises(SegmentDamaged, match="format 2, not 1"):
        segment_of(Encoder(schema.with_metadata(newer)).start)


@given(TEXT, WHOLE)
def test_batch_id_round_trips(producer: str, sequence: int) -> None:
    ingest = BatchId(producer, sequence)
    segment = segment_of(written([numbers(1)], ingests=[ingest]).content)
    assert [batch.batch_id for batch in segment.batches] == [ingest]


@pytest.mark.parametrize("producer", ["00000000", "0" * 9, "0" * 40])
def test_batch_id_that_looks_like_an_empty_checksum_round_trips(producer: str) -> None:
    batch_id = BatchId(producer, 1)
    [stored] = segment_of(written([numbers(1)], ingests=[batch_id]).content).batches
    assert stored.batch_id == batch_id


def test_skipped_batches_are_not_read() -> None:
    names = [BatchId("p", 0), BatchId("p", 1), BatchId("q", 1)]
    content = written([numbers(0), numbers(1), numbers(2)], ingests=names).content
    segment = Segment(pa.py_buffer(content), frozenset({BatchId("p", 1)}))
    assert values_of(segment) == [0, 2]
    assert len(segment.batches) == 3


def test_bytes_beyond_the_acknowledged_size_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "one.arrows"
    file.write_bytes(SMALL.content)
    segment = open_segment(str(file), SMALL.ends[2])
    assert values_of(segment) == [1, 2, 3]
    assert not segment.damages


def test_segment_stays_readable_after_file_removal(tmp_path: Path) -> None:
    file = tmp_path / "one.arrows"
    file.write_bytes(SMALL.content)
    segment = open_segment(str(file), len(SMALL.content))
    file.unlink()
    assert values_of(segment) == [1, 2, 3, 4, 5]


def test_empty_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.arrows"
    file.touch()
    with pytest.raises(SegmentDamaged):
        open_segment(str(file), 0)


def test_sliced_batch_is_written_as_its_rows() -> None:
    segment = segment_of(written([numbers(*range(100)).slice(90, 3)]).content)
    assert values_of(segment) == [90, 91, 92]

"""Which inserts a full queue refuses: no table and no caller can take all of its space."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from hypothesis import given
from hypothesis import strategies as st

from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.storage.segment_index import SegmentIndex
from tests.unit.queue.samples import queue_table

EVENTS, LOGS, ORDERS = (queue_table(name, number) for number, name in enumerate("elo"))


@dataclass(frozen=True)
class Segment:
    """What the index needs to know of a segment."""

    table: TableRef
    size: int
    id: UUID = field(default_factory=uuid4)


def add(index: Any, table: TableRef, size: int, caller: str = "") -> Segment:
    segment = Segment(table, size)
    index.add(segment, {caller: size} if caller else {})
    return segment


def test_table_alone_is_accepted_up_to_four_fifths() -> None:
    index = SegmentIndex(1000)
    assert index.find_refusal(EVENTS, "alice") == ""
    add(index, EVENTS, 800)
    assert index.find_refusal(EVENTS, "alice") == ""
    add(index, EVENTS, 1)
    assert "801 of them for swanlake.main.e" in index.find_refusal(EVENTS, "alice")


def test_full_table_does_not_block_another() -> None:
    index = SegmentIndex(1000)
    add(index, EVENTS, 999)
    assert index.find_refusal(EVENTS, "alice") != ""
    assert index.find_refusal(LOGS, "alice") == ""


def test_caller_that_filled_its_share_does_not_block_others() -> None:
    index = SegmentIndex(1000)
    add(index, EVENTS, 450, "mallory")
    add(index, LOGS, 450, "mallory")
    assert "900 of them from mallory" in index.find_refusal(ORDERS, "mallory")
    assert index.find_refusal(ORDERS, "alice") == ""


def test_table_without_rows_is_accepted_whatever_its_insert_will_take() -> None:
    index = SegmentIndex(1000)
    add(index, EVENTS, 5000, "alice")
    assert "The queue holds 5,000 bytes" in index.find_refusal(LOGS, "bob")
    empty = SegmentIndex(1000)
    assert empty.find_refusal(EVENTS, "alice") == ""


def test_rows_of_another_process_count_for_their_table_and_no_caller() -> None:
    index = SegmentIndex(1000)
    add(index, EVENTS, 900)
    assert index.callers.held == 0
    assert index.find_refusal(EVENTS, "") != ""
    assert index.find_refusal(LOGS, "") == ""


def test_flush_gives_its_share_back() -> None:
    index: Any = SegmentIndex(1000)
    segment = add(index, EVENTS, 300, "alice")
    grown = Segment(EVENTS, 700, segment.id)
    index.add(grown, {"bob": 350})
    assert (index.tables[EVENTS], index.callers.as_dict()) == (700, {"alice": 300, "bob": 350})
    index.remove([grown])
    assert (index.tables.held, index.callers.held) == (0, 0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from([EVENTS, LOGS, ORDERS]),
        st.sampled_from(["alice", "bob", ""]),
        st.integers(1, 200),
        st.booleans(),
    ),
    max_size=60,
)


@given(STEPS)
def test_accepted_rows_are_counted_until_they_are_flushed(
    steps: list[tuple[TableRef, str, int, bool]],
) -> None:
    index: Any = SegmentIndex(1000)
    queued: list[tuple[Segment, str]] = []
    for table, caller, size, flushes in steps:
        if flushes and queued:
            index.remove([queued.pop(0)[0]])
        elif index.find_refusal(table, caller) == "":
            queued.append((add(index, table, size, caller), caller))
        by_table: Counter[TableRef] = Counter()
        by_caller: Counter[str] = Counter()
        for segment, owner in queued:
            by_table[segment.table] += segment.size
            by_caller[owner] += segment.size if owner else 0
        assert index.tables.as_dict() == +by_table
        assert index.callers.as_dict() == +by_caller


@given(STEPS)
def test_newcomer_is_accepted_unless_the_queue_is_full(
    steps: list[tuple[TableRef, str, int, bool]],
) -> None:
    index: Any = SegmentIndex(1000)
    newcomer = queue_table("new", 99)
    for table, caller, size, _ in steps:
        if index.find_refusal(table, caller) == "":
            add(index, table, size, caller)
        is_full = index.tables.held >= 1000
        assert (index.find_refusal(newcomer, "carol") == "") is not is_full

"""Batch ids, interval sets and deduplication."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swanlake.errors import QueryCancelled
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.batch_ids import (
    BatchId,
    BatchIdSet,
    IntervalSet,
    ledger_notes,
    ledger_prefix,
    parse_ledger_notes,
)
from swanlake.queue.ingest import deduplication
from swanlake.queue.ingest.deduplication import Deduplicator
from tests.unit.queue.samples import queue_table

PATIENCE = 240.0
TABLE = queue_table()
NUMBERS = st.integers(0, 60)
NAMES = st.text(st.characters(codec="utf-8"), max_size=10) | st.sampled_from(
    ["", ":", "a:1", "a", "a%3A1", "%", "_", "@", "-", "a:1:5-6@x", "é", "a\nb", "/..", "\0"]
)


# ---- ranges ------------------------------------------------------------------------------------


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 5))))
def test_interval_set_behaves_like_a_set(added: list[tuple[int, int]]) -> None:
    ranges, model = IntervalSet(), set[int]()
    for first, more in added:
        ranges.add(first, first + more)
        model |= set(range(first, first + more + 1))
    assert {number for number in range(-2, 70) if number in ranges} == model
    assert [n for first, last in ranges.intervals for n in range(first, last + 1)] == sorted(model)


@given(st.lists(NUMBERS))
def test_intervals_are_disjoint_and_not_adjacent(added: list[int]) -> None:
    ranges = IntervalSet()
    for number in added:
        ranges.add(number, number)
    for (_, last), (first, _) in zip(ranges.intervals, ranges.intervals[1:], strict=False):
        assert last + 1 < first


def test_consecutive_numbers_are_one_interval() -> None:
    ranges = IntervalSet()
    ranges.add(0, 999_998)
    ranges.add(999_999, 999_999)
    assert ranges.intervals == [(0, 999_999)]


def test_set_contains_only_the_batches_that_were_added() -> None:
    ids = BatchIdSet()
    assert BatchId("p", 1) not in ids
    ids.add(BatchId("p", 1))
    assert BatchId("p", 1) in ids
    assert BatchId("p", 2) not in ids
    assert BatchId("q", 1) not in ids


@given(st.sets(NUMBERS), st.sets(NUMBERS))
def test_intersection_finds_common_batches(mine: set[int], theirs: set[int]) -> None:
    taken, others = BatchIdSet(), IntervalSet()
    for number in mine:
        taken.add(BatchId("p", number))
    for number in theirs:
        others.add(number, number)
    assert {ingest.sequence for ingest in taken.intersection("p", others)} == mine & theirs
    assert taken.intersection("another", others) == []


# ---- notes -------------------------------------------------------------------------------------


@given(st.dictionaries(NAMES, st.sets(NUMBERS, min_size=1), max_size=4))
def test_ledger_notes_round_trip(batches: dict[str, set[int]]) -> None:
    taken = BatchIdSet()
    for producer, sequences in batches.items():
        for sequence in sequences:
            taken.add(BatchId(producer, sequence))
    ledger = ledger_notes(taken, 17, UUID(int=3))
    assert len(set(ledger)) == len(ledger)
    for producer, sequences in batches.items():
        own = [entry for entry in ledger if entry.startswith(ledger_prefix(producer, 17))]
        found = parse_ledger_notes(own)
        assert {number for number in range(70) if number in found} == sequences


@example("a:1", "a", 5, 1)
@given(NAMES, NAMES, st.integers(0, 20), st.integers(0, 20))
def test_ledger_prefixes_do_not_overlap(one: str, other: str, table: int, other_table: int) -> None:
    taken = BatchIdSet()
    taken.add(BatchId(one, 1))
    [note] = ledger_notes(taken, table, UUID(int=3))
    is_the_same = (one, table) == (other, other_table)
    assert note.startswith(ledger_prefix(other, other_table)) == is_the_same


# ---- taking ------------------------------------------------------------------------------------


def nothing_taken(table: TableRef, producer: str) -> IntervalSet:
    return IntervalSet()


def take(producers: Deduplicator, ingest: BatchId, table: TableRef = TABLE) -> bool:
    with producers.admit(table, ingest, lambda: None) as is_new:
        return is_new


def test_batch_is_new_once() -> None:
    producers = Deduplicator(nothing_taken)
    assert take(producers, BatchId("p", 5))
    assert not take(producers, BatchId("p", 5))
    assert take(producers, BatchId("p", 4))
    assert take(producers, BatchId("q", 5))
    assert take(producers, BatchId("p", 5), queue_table("other", 2))


def test_ingested_batches_are_read_once() -> None:
    asked: list[str] = []

    def taken_by(table: TableRef, producer: str) -> IntervalSet:
        asked.append(producer)
        return IntervalSet([(0, 9)])

    producers = Deduplicator(taken_by)
    assert not take(producers, BatchId("p", 3))
    assert take(producers, BatchId("p", 10))
    assert asked == ["p"]
    producers.invalidate()
    assert take(producers, BatchId("p", 10))
    assert asked == ["p", "p"]


def test_failed_batch_is_new_again() -> None:
    producers = Deduplicator(nothing_taken)
    with pytest.raises(OSError, match="no disk"):
        with producers.admit(TABLE, BatchId("p", 1), lambda: None):
            raise OSError("no disk")
    assert take(producers, BatchId("p", 1))


def test_failed_batch_may_be_on_disk_all_the_same() -> None:
    on_disk = IntervalSet()
    producers = Deduplicator(lambda table, producer: IntervalSet(list(on_disk.intervals)))

    def fail_after_the_write() -> None:
        with producers.admit(TABLE, BatchId("p", 1), lambda: None) as is_new:
            assert is_new
            on_disk.add(1, 1)
            raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        fail_after_the_write()
    assert not take(producers, BatchId("p", 1))


def test_cache_is_cleared_when_it_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deduplication, "_MAX_CACHED", 2)
    asked: list[str] = []

    def taken_by(table: TableRef, producer: str) -> IntervalSet:
        asked.append(producer)
        return IntervalSet()

    producers = Deduplicator(taken_by)
    for producer in "ababcca":
        take(producers, BatchId(producer, len(asked)))
    assert "".join(asked) == "abca"


@pytest.mark.parametrize("succeeds", [True, False])
def test_concurrent_duplicate_waits_for_the_first(succeeds: bool) -> None:
    producers = Deduplicator(nothing_taken)
    waits = threading.Event()
    answers: list[bool] = []

    def again() -> None:
        with producers.admit(TABLE, BatchId("p", 1), waits.set) as is_new:
            answers.append(is_new)

    with ThreadPoolExecutor(1) as pool:
        try:
            with producers.admit(TABLE, BatchId("p", 1), lambda: None) as is_new:
                second = pool.submit(again)
                assert waits.wait(PATIENCE)
                assert is_new
                assert not answers
                if not succeeds:
                    raise OSError("no disk")
        except OSError:
            pass
        second.result(PATIENCE)
    assert answers == [not succeeds]


def test_waiting_duplicate_can_be_cancelled() -> None:
    producers = Deduplicator(nothing_taken)

    def cancelled() -> None:
        raise QueryCancelled("cancelled")

    with producers.admit(TABLE, BatchId("p", 1), lambda: None):
        with pytest.raises(QueryCancelled):
            with producers.admit(TABLE, BatchId("p", 1), cancelled):
                pytest.fail("it was let in")
    assert not take(producers, BatchId("p", 1))


def test_concurrent_batches_of_one_producer_are_all_recorded() -> None:
    producers = Deduplicator(nothing_taken)
    batches = [BatchId("p", number) for number in range(0, 800, 2)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda ingest: take(producers, ingest), batches))
    assert not any(take(producers, ingest) for ingest in batches)

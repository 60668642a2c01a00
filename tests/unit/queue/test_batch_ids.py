"""Batches that producers gave a name: taken once, however often they are sent."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swanlake.errors import QueryCancelled
from swanlake.queue.names import Ingest, QueueTable
from swanlake.queue.producers import Producers, Ranges, Taken, notes, prefix, read_notes
from tests.unit.queue.samples import queue_table

PATIENCE = 30.0
TABLE = queue_table()
NUMBERS = st.integers(0, 60)
NAMES = st.text(st.characters(codec="utf-8"), max_size=10) | st.sampled_from(
    ["", ":", "a:1", "a", "a%3A1", "%", "_", "@", "-", "a:1:5-6@x", "é", "a\nb", "/..", "\0"]
)


# ---- ranges ------------------------------------------------------------------------------------


@given(st.lists(st.tuples(NUMBERS, st.integers(0, 5))))
def test_ranges_are_a_set_of_numbers(added: list[tuple[int, int]]) -> None:
    ranges, model = Ranges(), set[int]()
    for first, more in added:
        ranges.add(first, first + more)
        model |= set(range(first, first + more + 1))
    assert {number for number in range(-2, 70) if number in ranges} == model
    assert [n for first, last in ranges.ranges for n in range(first, last + 1)] == sorted(model)


@given(st.lists(NUMBERS))
def test_ranges_have_gaps_between_them(added: list[int]) -> None:
    ranges = Ranges()
    for number in added:
        ranges.add(number, number)
    for (_, last), (first, _) in zip(ranges.ranges, ranges.ranges[1:], strict=False):
        assert last + 1 < first


def test_a_million_numbers_in_a_row_are_one_range() -> None:
    ranges = Ranges()
    ranges.add(0, 999_998)
    ranges.add(999_999, 999_999)
    assert ranges.ranges == [(0, 999_999)]


@given(st.sets(NUMBERS), st.sets(NUMBERS))
def test_what_is_in_both_is_found(mine: set[int], theirs: set[int]) -> None:
    taken, others = Taken(), Ranges()
    for number in mine:
        taken.add(Ingest("p", number))
    for number in theirs:
        others.add(number, number)
    assert {ingest.sequence for ingest in taken.both("p", others)} == mine & theirs
    assert taken.both("another", others) == []


# ---- notes -------------------------------------------------------------------------------------


@given(st.dictionaries(NAMES, st.sets(NUMBERS, min_size=1), max_size=4))
def test_notes_in_the_ledger_give_back_what_was_taken(batches: dict[str, set[int]]) -> None:
    taken = Taken()
    for producer, sequences in batches.items():
        for sequence in sequences:
            taken.add(Ingest(producer, sequence))
    ledger = notes(taken, 17, UUID(int=3))
    assert len(set(ledger)) == len(ledger)
    for producer, sequences in batches.items():
        own = [entry for entry in ledger if entry.startswith(prefix(producer, 17))]
        found = read_notes(own)
        assert {number for number in range(70) if number in found} == sequences


@example("a:1", "a", 5, 1)
@given(NAMES, NAMES, st.integers(0, 20), st.integers(0, 20))
def test_no_note_looks_like_that_of_another_producer_or_table(
    one: str, other: str, table: int, other_table: int
) -> None:
    taken = Taken()
    taken.add(Ingest(one, 1))
    [note] = notes(taken, table, UUID(int=3))
    is_the_same = (one, table) == (other, other_table)
    assert note.startswith(prefix(other, other_table)) == is_the_same


# ---- taking ------------------------------------------------------------------------------------


def nothing_taken(table: QueueTable, producer: str) -> Ranges:
    return Ranges()


def take(producers: Producers, ingest: Ingest, table: QueueTable = TABLE) -> bool:
    with producers.taking(table, ingest, lambda: None) as is_new:
        return is_new


def test_a_batch_is_new_once() -> None:
    producers = Producers(nothing_taken)
    assert take(producers, Ingest("p", 5))
    assert not take(producers, Ingest("p", 5))
    assert take(producers, Ingest("p", 4))
    assert take(producers, Ingest("q", 5))
    assert take(producers, Ingest("p", 5), queue_table("other", 2))


def test_what_was_taken_before_is_looked_up_once() -> None:
    asked: list[str] = []

    def taken_by(table: QueueTable, producer: str) -> Ranges:
        asked.append(producer)
        return Ranges([(0, 9)])

    producers = Producers(taken_by)
    assert not take(producers, Ingest("p", 3))
    assert take(producers, Ingest("p", 10))
    assert asked == ["p"]
    producers.forget()
    assert take(producers, Ingest("p", 10))
    assert asked == ["p", "p"]


def test_a_batch_that_could_not_be_kept_is_new_again() -> None:
    producers = Producers(nothing_taken)
    with pytest.raises(OSError, match="no disk"):
        with producers.taking(TABLE, Ingest("p", 1), lambda: None):
            raise OSError("no disk")
    assert take(producers, Ingest("p", 1))


@pytest.mark.parametrize("succeeds", [True, False])
def test_who_sends_the_same_at_the_same_time_waits_for_how_it_ends(succeeds: bool) -> None:
    producers = Producers(nothing_taken)
    waits = threading.Event()
    answers: list[bool] = []

    def again() -> None:
        with producers.taking(TABLE, Ingest("p", 1), waits.set) as is_new:
            answers.append(is_new)

    with ThreadPoolExecutor(1) as pool:
        try:
            with producers.taking(TABLE, Ingest("p", 1), lambda: None) as is_new:
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


def test_who_waits_for_the_same_can_be_cancelled() -> None:
    producers = Producers(nothing_taken)

    def cancelled() -> None:
        raise QueryCancelled("cancelled")

    with producers.taking(TABLE, Ingest("p", 1), lambda: None):
        with pytest.raises(QueryCancelled):
            with producers.taking(TABLE, Ingest("p", 1), cancelled):
                pytest.fail("it was let in")
    assert not take(producers, Ingest("p", 1))


def test_many_batches_of_one_producer_at_once_are_all_remembered() -> None:
    producers = Producers(nothing_taken)
    batches = [Ingest("p", number) for number in range(0, 800, 2)]
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda ingest: take(producers, ingest), batches))
    assert not any(take(producers, ingest) for ingest in batches)

"""Which snapshots go, and which rows only they could see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.errors import InvalidRequest
from swanlake.lake.expiry import Kept, check_rule, expired
from swanlake.lake.reading import Snapshot

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def snapshot(id: int, age: timedelta) -> Snapshot:
    return Snapshot(id, NOW - age, 0, "")


#: One an hour, the newest of this moment.
HOURLY = [snapshot(id, (9 - id) * HOUR) for id in range(10)]


@pytest.mark.parametrize(
    ("older_than", "keep_last", "gone"),
    [
        (None, None, []),
        (None, 1, list(range(9))),
        (None, 3, list(range(7))),
        (None, 10, []),
        (None, 99, []),
        (3 * HOUR, None, list(range(6))),  # exactly three hours is not older
        (100 * HOUR, None, []),
        (timedelta(0), None, list(range(9))),
        (-HOUR, None, list(range(9))),
        (NOW - 3 * HOUR, None, list(range(6))),
        (NOW + HOUR, None, list(range(9))),
        (3 * HOUR, 2, list(range(6))),  # the age decides
        (3 * HOUR, 8, [0, 1]),  # the number decides
        (3 * HOUR, 1, list(range(6))),
    ],
)
def test_age_and_number(
    older_than: timedelta | datetime | None, keep_last: int | None, gone: list[int]
) -> None:
    found = expired(HOURLY, NOW, older_than, keep_last)
    assert [each.id for each in found] == gone


def test_a_catalog_with_one_snapshot_keeps_it() -> None:
    only = [snapshot(7, 1000 * HOUR)]
    assert expired(only, NOW, timedelta(0), 1) == []
    assert expired([], NOW, timedelta(0), None) == []


def test_each_goes_by_its_own_time_where_times_and_ids_disagree() -> None:
    """Stock DuckDB dates a snapshot when its transaction begins."""
    disagreeing = [snapshot(1, HOUR), snapshot(2, 5 * HOUR), snapshot(3, HOUR), snapshot(4, HOUR)]
    found = expired(disagreeing, NOW, 2 * HOUR, None)
    assert [each.id for each in found] == [2]


ages = st.timedeltas(min_value=timedelta(days=-3), max_value=timedelta(days=3000))


@given(
    st.lists(st.tuples(st.integers(0, 1000), ages), unique_by=lambda pair: pair[0]),
    st.none() | ages,
    st.none() | st.integers(1, 50),
)
def test_any_rule(
    taken: list[tuple[int, timedelta]], older_than: timedelta | None, keep_last: int | None
) -> None:
    known = [snapshot(id, age) for id, age in taken]
    gone = expired(known, NOW, older_than, keep_last)
    ids = [each.id for each in gone]
    kept = sorted(each.id for each in known if each.id not in ids)
    assert ids == sorted(ids)
    assert not known or max(each.id for each in known) in kept
    last = sorted(each.id for each in known)[-(keep_last or 1) :]
    assert set(last) <= set(kept)
    for each in known:
        may_go = each.id not in last and (older_than is not None or keep_last is not None)
        is_old = older_than is None or each.time < NOW - older_than
        assert (each.id in ids) == (may_go and is_old)


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(0, 40), st.integers(1, 41) | st.none())
def test_a_row_is_needed_while_a_kept_snapshot_is_in_its_life(
    kept: set[int], begin: int, length: int | None
) -> None:
    end = None if length is None else begin + length
    seen = end is None or any(begin <= id < end for id in kept)
    assert Kept(kept).need(begin, end) == seen
    assert Kept(kept).oldest == min(kept)


@pytest.mark.parametrize(
    ("older_than", "keep_last", "complaint"),
    [
        (None, None, "Say which snapshots may go"),
        (None, 0, "the newest one always stays"),
        (HOUR, -1, "the newest one always stays"),
        (datetime(2026, 1, 1), None, "has no time zone"),
    ],
)
def test_rules_that_say_nothing_or_the_impossible_are_refused(
    older_than: timedelta | datetime | None, keep_last: int | None, complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        check_rule(older_than, keep_last)

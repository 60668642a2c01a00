"""Which snapshots expire, and which rows the retained ones can see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.errors import InvalidRequest
from swanlake.lake.lifecycle.retention import RetainedSnapshots, check_rule, select_expired
from swanlake.lake.read.metadata import Snapshot

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def snapshot(id: int, age: timedelta) -> Snapshot:
    return Snapshot(id, NOW - age, 0, "")


#: One snapshot an hour, the newest at ``NOW``.
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
def test_age_and_number_select_expired_snapshots(
    older_than: timedelta | datetime | None, keep_last: int | None, gone: list[int]
) -> None:
    expired = select_expired(HOURLY, NOW, older_than, keep_last)
    assert [each.id for each in expired] == gone


def test_only_snapshot_never_expires() -> None:
    only = [snapshot(7, 1000 * HOUR)]
    assert select_expired(only, NOW, timedelta(0), 1) == []
    assert select_expired([], NOW, timedelta(0), None) == []


def test_snapshots_expire_by_time_not_by_id() -> None:
    """Stock DuckDB dates a snapshot when its transaction begins."""
    disagreeing = [snapshot(1, HOUR), snapshot(2, 5 * HOUR), snapshot(3, HOUR), snapshot(4, HOUR)]
    expired = select_expired(disagreeing, NOW, 2 * HOUR, None)
    assert [each.id for each in expired] == [2]


ages = st.timedeltas(min_value=timedelta(days=-3), max_value=timedelta(days=3000))


@given(
    st.lists(st.tuples(st.integers(0, 1000), ages), unique_by=lambda pair: pair[0]),
    st.none() | ages,
    st.none() | st.integers(1, 50),
)
def test_any_rule_expires_only_old_snapshots_beyond_the_last(
    taken: list[tuple[int, timedelta]], older_than: timedelta | None, keep_last: int | None
) -> None:
    known = [snapshot(id, age) for id, age in taken]
    gone = select_expired(known, NOW, older_than, keep_last)
    ids = [each.id for each in gone]
    retained = sorted(each.id for each in known if each.id not in ids)
    assert ids == sorted(ids)
    assert not known or max(each.id for each in known) in retained
    last = sorted(each.id for each in known)[-(keep_last or 1) :]
    assert set(last) <= set(retained)
    for each in known:
        may_go = each.id not in last and (older_than is not None or keep_last is not None)
        is_old = older_than is None or each.time < NOW - older_than
        assert (each.id in ids) == (may_go and is_old)


@given(st.sets(st.integers(0, 40), min_size=1), st.integers(0, 40), st.integers(1, 41) | st.none())
def test_row_is_visible_if_a_retained_snapshot_is_in_its_range(
    retained: set[int], begin: int, length: int | None
) -> None:
    end = None if length is None else begin + length
    seen = end is None or any(begin <= id < end for id in retained)
    assert RetainedSnapshots(retained).can_see(begin, end) == seen
    assert RetainedSnapshots(retained).oldest == min(retained)


@pytest.mark.parametrize(
    ("older_than", "keep_last", "complaint"),
    [
        (None, None, "Say which snapshots expire"),
        (None, 0, "the newest one always stays"),
        (HOUR, -1, "the newest one always stays"),
        (datetime(2026, 1, 1), None, "has no time zone"),
    ],
)
def test_empty_or_impossible_rule_is_refused(
    older_than: timedelta | datetime | None, keep_last: int | None, complaint: str
) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        check_rule(older_than, keep_last)

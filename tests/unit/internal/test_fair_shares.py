"""Fair shares: no holder can take everything, and nothing is lost or invented."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swanlake._internal.fair_shares import FairShares, is_fair


def fill(shares: FairShares, holder: str, step: int = 1) -> int:
    """Takes as much as the holder gets."""
    while shares.fits(holder, step):
        shares.add(holder, step)
    return shares[holder]


def test_one_holder_alone_gets_four_fifths() -> None:
    assert fill(FairShares(1000), "alice") == 800


def test_newcomer_gets_four_fifths_of_the_rest() -> None:
    shares = FairShares(1000)
    fill(shares, "alice")
    assert fill(shares, "bob") == 160
    assert fill(shares, "carol") == 32


def test_holder_above_its_share_waits_until_others_are_level() -> None:
    shares = FairShares(900)
    fill(shares, "alice")
    fill(shares, "bob")
    before = shares["alice"]
    shares.add("alice", -100)
    assert fill(shares, "bob") > 115
    assert fill(shares, "alice") < before


@given(st.integers(1, 10**6), st.integers(2, 20))
def test_something_is_left_for_the_next_holder(limit: int, holders: int) -> None:
    shares = FairShares(limit)
    step = max(limit // 1000, 1)
    for holder in range(holders):
        fill(shares, str(holder), step)
    assert 0 <= shares.held < limit


@given(
    st.integers(0, 100),
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 40), st.booleans()), max_size=60),
)
def test_sums_match_after_any_steps(limit: int, steps: list[tuple[str, int, bool]]) -> None:
    shares = FairShares(limit)
    model = dict.fromkeys("abc", 0)
    for holder, amount, takes in steps:
        if takes and shares.fits(holder, amount):
            shares.add(holder, amount)
            model[holder] += amount
        elif not takes and model[holder] >= amount:
            shares.add(holder, -amount)
            model[holder] -= amount
        assert shares.held == sum(model.values()) <= limit
        assert shares.as_dict() == {holder: held for holder, held in model.items() if held}


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_less_is_allowed_where_more_is(limit: int, others: int, own: int, amount: int) -> None:
    if amount and is_fair(limit, others + own, own, amount):
        assert is_fair(limit, others + own, own, amount - 1)

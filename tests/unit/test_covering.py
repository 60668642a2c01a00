"""Which combinations of parameters always run."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.covering import Choice, covering

PRODUCT = [
    Choice({"a": a, "b": b, "c": c}) for a, b, c in product(*map(list, ("xy", "xyz", "wxyz")))
]


@pytest.mark.parametrize(("together", "size"), [(1, 4), (2, 12), (3, 24), (4, 24)])
def test_every_set_of_values_is_chosen_with_few_combinations(together: int, size: int) -> None:
    chosen = [PRODUCT[number] for number in covering(PRODUCT, together)]
    assert len(chosen) == size
    for names in combinations("abc", min(together, 3)):
        wanted, found = (
            {tuple(choice.values[name] for name in names) for choice in choices}
            for choices in (PRODUCT, chosen)
        )
        assert found == wanted


def test_values_are_used_equally_often() -> None:
    chosen = covering([Choice({"a": a, "b": b}) for a in "xy" for b in "stuv"], 1)
    assert len(chosen) == 4
    assert sum(number < 4 for number in chosen) == 2


def test_case_without_a_value_of_its_own_is_chosen() -> None:
    cases = [("s", "t"), ("s", "u"), ("v", "t"), ("v", "u")]
    choices = [Choice({"a": a, "b": b}, [f"{a}-{b}"]) for a, b in cases]
    assert covering(choices, 1) == [0, 1, 2, 3]


def test_tests_without_parameters_are_chosen() -> None:
    assert covering([Choice({})], 2) == [0]
    assert covering([], 2) == []

"""Combinations of parameters that contain every value, or every pair of values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations


@dataclass(frozen=True)
class Choice:
    """One combination of parameters."""

    #: The values by the names of their parameters.
    values: Mapping[str, str]
    #: The case of each ``parametrize``, which may give values to several parameters.
    cases: Sequence[str] = ()

    def sets(self, together: int) -> frozenset[frozenset[tuple[str, str]]]:
        """All sets of that many values, or of all if there are fewer; and each case."""
        values = combinations(self.values.items(), min(together, len(self.values)))
        cases = (((f"case {number}", case),) for number, case in enumerate(self.cases))
        return frozenset(map(frozenset, (*values, *cases)))


def covering(choices: Sequence[Choice], together: int) -> list[int]:
    """The numbers of choices that contain every case and all sets of ``together`` values of any.

    >>> covering([Choice({"a": a, "b": b}) for a in "xy" for b in "xy"], 1)
    [0, 3]
    """
    contained = [choice.sets(together) for choice in choices]
    missing = frozenset().union(*contained)
    uses: Counter[tuple[str, str]] = Counter()
    chosen = []

    def gain(number: int) -> tuple[int, int]:
        """What a choice adds; of equals, that with the values which were used least."""
        used = sum(uses[value] for value in choices[number].values.items())
        return len(contained[number] & missing), -used

    while missing:
        best = max(range(len(choices)), key=gain)
        chosen.append(best)
        missing -= contained[best]
        uses.update(choices[best].values.items())
    return sorted(chosen)

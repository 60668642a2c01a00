"""SwanLake has the outcomes of stock DuckDB, in every configuration.

A failure of random statements prints its seed; ``DIFFERENTIAL_SEED`` repeats it.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import SystemRandom

import pytest

from tests.sqllogic.conftest import PairFactory
from tests.sqllogic.feed_model import check_change_feed
from tests.sqllogic.random_statements import SEED_VARIABLE, compare_random_statements
from tests.sqllogic.script import read_script
from tests.sqllogic.session_model import check_concurrent_sessions

_SCRIPTS = sorted(Path(__file__).parent.glob("*.test"))
#: Scripts about sessions and names, whose outcome does not depend on where rows and metadata are.
_OF_NAMES = "comments macros queries settings temporary views".split()
#: The quick tests are the same on every machine.
_FIXED_SEED = 1


@pytest.mark.parametrize(
    "path", [path for path in _SCRIPTS if path.stem not in _OF_NAMES], ids=lambda path: path.stem
)
def test_script(pairs: PairFactory, path: Path) -> None:
    with pairs(path.stem) as pair:
        pair.run_script(read_script(path))


@pytest.mark.covering(1)
@pytest.mark.parametrize("stem", _OF_NAMES)
def test_script_of_names(pairs: PairFactory, stem: str) -> None:
    with pairs(stem) as pair:
        pair.run_script(read_script(Path(__file__).with_name(f"{stem}.test")))


def test_random_statements(pairs: PairFactory) -> None:
    with pairs("random") as pair:
        compare_random_statements(pair, seed=_seed(_FIXED_SEED), statements=100)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_many_random_statements(pairs: PairFactory, number: int) -> None:
    with pairs(f"random{number}") as pair:
        compare_random_statements(pair, seed=_seed(SystemRandom().getrandbits(32)), statements=400)


def test_concurrent_sessions_lose_and_repeat_nothing(pairs: PairFactory) -> None:
    with pairs("sessions") as pair:
        check_concurrent_sessions(pair, seed=_seed(_FIXED_SEED), statements=8)


@pytest.mark.slow
def test_many_statements_of_concurrent_sessions(pairs: PairFactory) -> None:
    with pairs("many_sessions") as pair:
        check_concurrent_sessions(pair, seed=_seed(SystemRandom().getrandbits(32)), statements=150)


def test_change_feed_before_and_after_compaction(pairs: PairFactory) -> None:
    with pairs("feed") as pair:
        check_change_feed(pair, seed=_seed(_FIXED_SEED), statements=5)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
def test_many_change_feeds_before_and_after_compaction(pairs: PairFactory, number: int) -> None:
    with pairs(f"feeds{number}") as pair:
        check_change_feed(pair, seed=_seed(SystemRandom().getrandbits(32)), statements=12)


def _seed(default: int) -> int:
    return int(os.environ.get(SEED_VARIABLE, default))

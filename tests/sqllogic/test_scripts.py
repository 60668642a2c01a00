"""Scripts have the same outcomes in SwanLake and in stock DuckDB, in every configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sqllogic.conftest import PairFactory
from tests.sqllogic.script import read_script

_SCRIPTS = sorted(Path(__file__).parent.glob("*.test"))


@pytest.mark.parametrize("path", _SCRIPTS, ids=lambda path: path.stem)
def test_outcomes_are_those_of_stock(pairs: PairFactory, path: Path) -> None:
    with pairs(path.stem) as pair:
        pair.run_script(read_script(path))

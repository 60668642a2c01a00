"""When an engine is to be replaced."""

from __future__ import annotations

import pytest

from swanlake.engine.instance import is_outgrown


@pytest.mark.parametrize(
    ("cached", "needed", "expected"),
    [
        (100, 0, False),
        (101, 0, True),
        (120, 10, False),  # what the catalogs need is not garbage
        (121, 10, True),
    ],
)
def test_engine_is_outgrown_by_what_no_statement_needs(
    cached: int, needed: int, expected: bool
) -> None:
    assert is_outgrown(cached, needed, 100, catalogs=1, age_seconds=0.0) is expected


@pytest.mark.parametrize(
    ("catalogs", "age", "expected"),
    [(64, 601.0, False), (65, 600.0, False), (65, 601.0, True)],
)
def test_engine_is_outgrown_by_catalogs_that_may_be_forgotten(
    catalogs: int, age: float, expected: bool
) -> None:
    assert is_outgrown(0, 0, 100, catalogs=catalogs, age_seconds=age) is expected

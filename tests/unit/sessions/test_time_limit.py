"""The time limit of a statement."""

from __future__ import annotations

import pytest

from swanlake.sessions.run import time_limit


@pytest.mark.parametrize(
    ("requested", "ceiling", "limit"),
    [(0.0, 0.0, 0.0), (5.0, 0.0, 5.0), (0.0, 7.0, 7.0), (5.0, 7.0, 5.0), (9.0, 7.0, 7.0)],
)
def test_caller_can_only_shorten_the_limit(requested: float, ceiling: float, limit: float) -> None:
    assert time_limit(requested, ceiling) == limit

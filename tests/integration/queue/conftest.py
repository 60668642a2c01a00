"""Fixtures of the queue tests."""

from __future__ import annotations

import itertools

import pytest

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """The name of a table that no other test uses."""
    return f"queued_{next(_numbers)}"

"""The metadata of result columns."""

from __future__ import annotations

import pytest

from swanlake.sessions.results.columns import PREFIX, type_metadata


@pytest.mark.parametrize(
    ("sql_type", "details"),
    [
        ("BIGINT", {"TYPE_NAME": "BIGINT", "PRECISION": "19", "SCALE": "0"}),
        ("DECIMAL(12,3)", {"TYPE_NAME": "DECIMAL(12,3)", "PRECISION": "12", "SCALE": "3"}),
        ("DECIMAL(4,2)[]", {"TYPE_NAME": "DECIMAL(4,2)[]"}),
        ("DOUBLE", {"TYPE_NAME": "DOUBLE", "PRECISION": "53"}),
        ("VARCHAR", {"TYPE_NAME": "VARCHAR"}),
        ("ENUM('a', 'b')", {"TYPE_NAME": "ENUM"}),
    ],
)
def test_type_has_precision_and_scale(sql_type: str, details: dict[str, str]) -> None:
    expected = {f"{PREFIX}{key}".encode(): value.encode() for key, value in details.items()}
    assert dict(type_metadata(sql_type)) == expected

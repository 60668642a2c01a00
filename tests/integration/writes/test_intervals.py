"""An INTERVAL whose time is too long for Parquet is refused, and never stored as another one."""

from __future__ import annotations

import pytest

from tests.integration.writes.both_sides import Ours

LONGEST = "1 day 1193:02:47.295"
TOO_LONG = "1193:02:47.296"
SHAPES = {
    "INTERVAL": "{}",
    "STRUCT(i INTERVAL)": "{{'i': {}}}",
    "INTERVAL[]": "[NULL, {}]",
    "MAP(VARCHAR, INTERVAL)": "MAP {{'k': {}}}",
}


@pytest.mark.parametrize("column", SHAPES, ids=["plain", "struct", "list", "map"])
def test_longest_interval_is_stored_and_a_longer_one_refused(
    schema: str, ours: Ours, native_only: None, column: str
) -> None:
    def value(text: str) -> str:
        return SHAPES[column].format(f"INTERVAL '{text}'")

    ours.run(f"CREATE TABLE t (v {column})")
    assert ours.run(f"INSERT INTO t VALUES ({value(LONGEST)}), (NULL)") == 2
    for refused in (
        f"INSERT INTO t VALUES ({value(TOO_LONG)})",
        f"INSERT INTO t SELECT {value(TOO_LONG)}",
        f"INSERT INTO t VALUES ({value(TOO_LONG)}) RETURNING *",
        f"CREATE TABLE c AS SELECT {value(TOO_LONG)} AS v",
    ):
        identifier, message = ours.run(refused)
        assert (identifier, "1193 hours" in message) == ("CONVERSION_ERROR", True), refused
    stored = ours.run(f"SELECT v IS NOT DISTINCT FROM {value(LONGEST)} FROM t WHERE v IS NOT NULL")
    assert stored == [(True,)]

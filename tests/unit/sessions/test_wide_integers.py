"""The condition that finds integers which DOUBLE may have rounded."""

from __future__ import annotations

import duckdb
import pytest

from swanlake.lake.model.types import ColumnSpec, number_columns
from swanlake.sessions.execution.wide_integers import inexact_sql

SHAPES = {
    "HUGEINT": "{}",
    "HUGEINT[]": "[1, NULL, {}]",
    "STRUCT(a INTEGER, h HUGEINT)": "{{'a': 1, 'h': {}}}",
    "STRUCT(h HUGEINT[])[]": "[{{'h': [{}]}}]",
    "MAP(HUGEINT, VARCHAR)": "MAP {{{}: 'x'}}",
    "MAP(VARCHAR, HUGEINT)": "MAP {{'x': {}}}",
}


@pytest.mark.parametrize("type_", SHAPES)
def test_condition_finds_the_integers_that_may_be_rounded(type_: str) -> None:
    [column] = number_columns([ColumnSpec("v", type_)])
    condition = inexact_sql(column, "v")
    for value, is_inexact in {
        2**53 - 1: False,
        1 - 2**53: False,
        2**53: True,
        -(2**53): True,
    }.items():
        row = f"SELECT CAST({SHAPES[type_].format(value)} AS {type_}) AS v"
        assert duckdb.sql(f"SELECT {condition} FROM ({row})").fetchall() == [(is_inexact,)]


@pytest.mark.parametrize("type_", ["BIGINT", "DECIMAL(38,0)", "STRUCT(a INTEGER)", "VARCHAR[]"])
def test_other_types_have_no_condition(type_: str) -> None:
    [column] = number_columns([ColumnSpec("v", type_)])
    assert inexact_sql(column, "v") is None

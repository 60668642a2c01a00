"""Calls of table functions are found where tables stand, and nowhere else."""

from __future__ import annotations

import pytest

from swanlake.sql.table_functions import find_calls, with_tables

NAMES = {"f", "g"}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("FROM f()", "FROM <0>"),
        ("SELECT * FROM F ( 1, 'a)' ) x", "SELECT * FROM <0> x"),
        ("SELECT f(1) FROM t", "SELECT f(1) FROM t"),
        ("SELECT 1, f(1) FROM t", "SELECT 1, f(1) FROM t"),
        ("SELECT 'FROM f()' -- FROM f()", "SELECT 'FROM f()' -- FROM f()"),
        ("FROM t, f() JOIN g(a => 2) USING (i)", "FROM t, <0> JOIN <1> USING (i)"),
        ("FROM (f() CROSS JOIN g())", "FROM (<0> CROSS JOIN <1>)"),
        (
            "FROM t WHERE i IN (SELECT i, f() FROM g())",
            "FROM t WHERE i IN (SELECT i, f() FROM <0>)",
        ),
        ("INSERT INTO t SELECT 'é' FROM f()", "INSERT INTO t SELECT 'é' FROM <0>"),
        ("FROM s.f()", "FROM s.f()"),
        ("FROM f", "FROM f"),
        ("FROM f(", "FROM f("),
    ],
)
def test_calls_are_replaced(sql: str, expected: str) -> None:
    calls = find_calls(sql, NAMES)
    assert with_tables(sql, calls, lambda number: f"<{number}>", lambda text: False) == expected


def test_function_without_alias_gets_its_name() -> None:
    calls = find_calls("SELECT f.i FROM f()", NAMES)
    assert with_tables("SELECT f.i FROM f()", calls, str, lambda text: True).endswith(
        'FROM 0 AS "f"'
    )

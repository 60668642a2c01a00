"""Which queries are so plain that they mean the same wherever their tables are."""

from __future__ import annotations

import duckdb
import pytest

from swanlake.sql.reads import is_alone, plain_query
from swanlake.sql.tokens import tokenize


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT * FROM t", [("t",)]),
        ("select a from lake.s.t where a > 1 order by a limit 3", [("lake", "s", "t")]),
        ('SELECT "A a" FROM "s s"."T""t" AS x', [("s s", 'T"t')]),
        ("SELECT * FROM t x JOIN s.u AS y ON x.a = y.a LEFT JOIN v USING (a)", None),
        ("SELECT 1 FROM t UNION ALL SELECT 2 FROM u ORDER BY 1", [("t",), ("u",)]),
        ("SELECT * FROM (SELECT a FROM t) s JOIN (SELECT b FROM u) ON true", [("t",), ("u",)]),
        ("SELECT a IS DISTINCT FROM b, a IS NOT DISTINCT FROM b FROM t", [("t",)]),
        ("SELECT count(*) FILTER (WHERE a > 1), sum(a) OVER (PARTITION BY b) FROM t", [("t",)]),
        ("SELECT CAST(a AS DECIMAL(10, 2)), b::VARCHAR FROM t GROUP BY ALL", [("t",)]),
        ("SELECT 'from u, current_user' FROM t -- FROM u", [("t",)]),
        ("SELECT * FROM t /* as x */ WHERE a = $1 AND b = ?", [("t",)]),
    ],
)
def test_tables_are_found(sql: str, tables: list[tuple[str, ...]] | None) -> None:
    found = plain_query(sql)
    assert found is not None
    expected = tables or [("t",), ("s", "u"), ("v",)]
    assert [table.parts for table in found.tables] == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "FROM t",
        "TABLE t",
        "WITH t AS (SELECT 1) SELECT * FROM t",
        "SELECT * FROM t, u",
        "SELECT * FROM (SELECT 1) s, t",
        "SELECT * FROM t a, u b",
        "SELECT * FROM t JOIN u USING (a), v",
        "SELECT * FROM range(3)",
        "SELECT * FROM t JOIN range(3) r ON true",
        "SELECT * FROM 'file.csv'",
        "SELECT * FROM t AT (VERSION => 3)",
        "SELECT * FROM (t JOIN u ON true)",
        "SELECT * FROM (VALUES (1)) v",
        "SELECT * FROM (FROM t)",
        "SELECT * FROM (DESCRIBE t)",
        "SELECT * FROM t TABLESAMPLE 10%",
        "SELECT * FROM t USING SAMPLE 3",
        "SELECT * FROM t PIVOT (sum(a) FOR b IN (1))",
        "SELECT now(), a FROM t",
        "SELECT random() FROM t",
        "SELECT my_macro(a) FROM t",
        "SELECT s.main.f(a) FROM t",
        "SELECT getvariable('x') FROM t",
        "SELECT current_schema() FROM t",
        "SELECT current_user FROM t",
        "SELECT current_date FROM t",
        "SELECT rowid FROM t",
        "SELECT COLUMNS('a') FROM t",
        "SELECT extract(year FROM a) FROM t",
        "SELECT unnest(a) FROM t",
        "SELECT a FROM t AS x(b)",
        "SELECT * FROM query('SELECT 1')",
        "SELECT a FROM t value",
        "SELECT (SELECT max(a) FROM t)",
        "SELECT a, a IN (SELECT b FROM u) FROM t",
        "SELECT exists (SELECT b FROM u) FROM t",
        "SELECT (FROM u) FROM t",
        "SELECT a IN (FROM u) FROM t",
        "SELECT a IS NOT DISTINCT FROM (SELECT b FROM u) FROM t",
        'SELECT "current_catalog" FROM t',
        "SELECT current_catalog--x\n FROM t",
        'SELECT "Rowid" FROM t',
    ],
)
def test_whatever_else_a_query_says_is_not_tried(sql: str) -> None:
    assert plain_query(sql) is None


@pytest.mark.parametrize(
    ("sql", "over"),
    [
        ("SELECT t.a FROM t WHERE t.a = 1", 'SELECT t.a FROM (Q0) AS "t" WHERE t.a = 1'),
        ("SELECT a FROM s.t;", 'SELECT a FROM (Q0) AS "t";'),
        ("SELECT x.a FROM s.t AS x", "SELECT x.a FROM (Q0) AS x"),
        ("SELECT x.a FROM s.t x", "SELECT x.a FROM (Q0) x"),
        (
            'SELECT é FROM "é""t" JOIN u ON true',
            'SELECT é FROM (Q0) AS "é""t" JOIN (Q1) AS "u" ON true',
        ),
        ("SELECT a FROM t-- no\nWHERE a", 'SELECT a FROM (Q0) AS "t"-- no\nWHERE a'),
        ('SELECT a FROM "t" -- no\nWHERE a', 'SELECT a FROM (Q0) AS "t" -- no\nWHERE a'),
        ("SELECT * FROM (SELECT a FROM t)", 'SELECT * FROM (SELECT a FROM (Q0) AS "t")'),
    ],
)
def test_queries_stand_in_for_tables(sql: str, over: str) -> None:
    found = plain_query(sql)
    assert found is not None
    assert found.over([f"Q{place}" for place in range(len(found.tables))]) == over


def test_names_before_dots_are_told_apart_from_tables() -> None:
    found = plain_query('SELECT x.a, lake.s.t.b, "Y".c FROM lake.s.t AS x JOIN "Y" ON true')
    assert found is not None
    assert found.qualifiers == {"x", "lake", "s", "t", "y"}


@pytest.mark.parametrize(
    ("sql", "alone"),
    [
        ("UPDATE t SET a = a + 1, b = upper(b) WHERE c IN (1, 2)", True),
        ("DELETE FROM t WHERE a IS DISTINCT FROM 3", True),
        ("DELETE FROM t", True),
        ("DELETE FROM t WHERE a = (SELECT max(a) FROM t)", False),
        ("UPDATE t SET a = now()", False),
        ("UPDATE t SET a = nextval('s')", False),
        ("DELETE FROM t WHERE rowid = 1", False),
        ('DELETE FROM t WHERE "rowid" = 1', False),
        ("DELETE FROM t WHERE a IN (FROM u)", False),
        ("UPDATE t SET a = (FROM u)", False),
        ("UPDATE t SET a = 1 FROM u", False),
        ("UPDATE t SET a = b IS NOT DISTINCT FROM c", True),
    ],
)
def test_changes_of_a_table_alone(sql: str, alone: bool) -> None:
    assert is_alone(tokenize(sql)) is alone


def test_what_is_taken_for_pure_is_no_macro_and_has_no_effects() -> None:
    from swanlake.sql import reads

    with duckdb.connect() as connection:
        volatile = connection.execute(
            "SELECT DISTINCT function_name FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
        ).fetchall()
        known = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions()")
        names = {name for (name,) in known.fetchall()}
    assert not reads._PURE & {name for (name,) in volatile}
    syntax = {"cast", "coalesce", "decimal", "if", "ifnull", "nullif", "numeric", "try_cast"}
    assert names | syntax | {"varchar"} >= reads._PURE

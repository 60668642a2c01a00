"""Queries that give the same rows wherever the rows of their tables are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import duckdb
import pytest

from swanlake.sql import reads
from swanlake.sql.syntax_tree import read_syntax_tree


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


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
        ("SELECT * FROM t /* as x */ WHERE a = $1", [("t",)]),
        ("FROM t", [("t",)]),
        ("FROM t SELECT a", [("t",)]),
        ("SELECT * FROM t, s.u, v", None),
        ("SELECT * FROM (t JOIN s.u ON true) JOIN v ON true", None),
        ("SELECT * FROM (FROM t) UNION ALL FROM u", [("t",), ("u",)]),
        ("SELECT b FROM t AS x(b)", [("t",)]),
        ("SELECT a FROM my_table", [("my_table",)]),
        ("SELECT 1 + $1 AS b ORDER BY b", []),
    ],
)
def test_tables_are_found(
    connection: duckdb.DuckDBPyConnection, sql: str, tables: list[tuple[str, ...]] | None
) -> None:
    found = reads.plain_query(connection, sql)
    assert found is not None
    expected = [("t",), ("s", "u"), ("v",)] if tables is None else tables
    assert [table.parts for table in found.tables] == expected


@pytest.mark.parametrize(
    "sql",
    [
        "TABLE t",
        "SELECT * FROM (TABLE t)",
        "WITH t AS (SELECT 1) SELECT * FROM t",
        "SELECT * FROM t WHERE a IN (WITH u AS (SELECT 1) FROM u)",
        "SELECT * FROM range(3)",
        "SELECT * FROM t JOIN range(3) r ON true",
        "SELECT * FROM 'file.csv'",
        "SELECT * FROM t AT (VERSION => 3)",
        "SELECT * FROM (VALUES (1)) v",
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
        "SELECT extract(year FROM a) FROM t",
        "SELECT unnest(a) FROM t",
        "SELECT unlist(a) FROM t",
        "SELECT memory.main.upper(a) FROM t",
        "SELECT (DEFAULT) FROM t",
        "SELECT a FROM t WHERE upper(b) = main.upper(b)",
        "SELECT a AS rowid, rowid + 1 FROM t",
        "SELECT a COLLATE nocase FROM t",
        "SELECT a::mood FROM t",
        "SELECT list_transform([a], lambda x: x + 1) FROM t",
        "SELECT #1 FROM t",
        "SELECT nextval('s') FROM t",
        "SELECT current_setting('TimeZone') FROM t",
        "SELECT lake.main.t.a FROM t",
        "SELECT * FROM query('SELECT 1')",
        "SELECT (SELECT max(a) FROM t)",
        "SELECT a, a IN (SELECT b FROM u) FROM t",
        "SELECT exists (SELECT b FROM u) FROM t",
        "SELECT (FROM u) FROM t",
        "SELECT a IN (FROM u) FROM t",
        "SELECT a IS NOT DISTINCT FROM (SELECT b FROM u) FROM t",
        'SELECT "current_catalog" FROM t',
        "SELECT current_catalog--x\n FROM t",
        "SELECT t.a.b FROM t",
        "INSERT INTO t VALUES (1)",
        'SELECT "Rowid" FROM t',
    ],
)
def test_other_queries_are_not_plain(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    found = reads.plain_query(connection, sql)
    assert found is None or not found.names_only(["a", "b"])


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
def test_queries_replace_tables(connection: duckdb.DuckDBPyConnection, sql: str, over: str) -> None:
    found = reads.plain_query(connection, sql)
    assert found is not None
    assert found.replace_tables([f"Q{place}" for place in range(len(found.tables))]) == over


@pytest.mark.parametrize(
    ("sql", "known"),
    [
        ('SELECT x.A, "Y".b, y AS n FROM lake.s.t AS x JOIN "Y" ON true ORDER BY n', True),
        ("SELECT t.a FROM lake.s.t", True),
        ("SELECT t.a, b FROM t", True),
        ("SELECT c FROM t", False),
        ("SELECT t.rowid FROM t", False),
        ("SELECT current_date FROM t", False),
        ("SELECT user FROM t", False),
    ],
)
def test_names_are_known_as_columns_tables_or_aliases(
    connection: duckdb.DuckDBPyConnection, sql: str, known: bool
) -> None:
    found = reads.plain_query(connection, sql)
    assert found is not None
    assert found.names_only(["a", "B"]) is known


def test_all_that_is_listed_may_be_together(connection: duckdb.DuckDBPyConnection) -> None:
    tree = read_syntax_tree(connection, "SELECT a FROM t")
    assert tree is not None
    everything = replace(
        tree, nodes=reads._NODES, expressions=reads._EXPRESSIONS, functions=reads._FUNCTIONS
    )
    assert reads._is_plain(everything)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT (a + 1), (upper(b)), ($1) FROM t WHERE a IN (1, 2)", True),
        ("SELECT (CASE WHEN a THEN [1, 2] ELSE NULL END) FROM t", True),
        ("SELECT (sum(a) OVER ()) FROM t", False),
        ("SELECT (row_number() OVER ()) FROM t", False),
        ("SELECT (COLUMNS(*)) FROM t", False),
        ("SELECT * FROM t", False),
        ("SELECT a FROM t WHERE COLUMNS(*) > 1", False),
    ],
)
def test_row_wise_query_takes_each_value_from_one_row(
    connection: duckdb.DuckDBPyConnection, sql: str, expected: bool
) -> None:
    found = reads.plain_query(connection, sql)
    assert found is not None
    assert found.is_row_wise is expected


def test_plain_functions_are_duckdb_functions_without_side_effects(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    functions = dict(
        connection.execute(
            "SELECT function_name, bool_and(stability = 'CONSISTENT') FROM duckdb_functions() "
            "WHERE function_type <> 'macro' GROUP BY ALL"
        ).fetchall()
    )
    # DuckDB defines these by its grammar or by a macro of its own.
    others = "dense_rank first_value if lag last_value lead nullif rank row_number".split()
    for name in reads._FUNCTIONS - set(others):
        assert functions[name.removeprefix("main.")], name

"""What expressions may depend on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import duckdb
import pytest

from swanlake.sql import expressions
from swanlake.sql.builtins import ROW_FUNCTIONS
from swanlake.sql.expressions import adds_no_collation, reads_only
from swanlake.sql.syntax_tree import SyntaxTree, read_syntax_tree


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def tree_of(connection: duckdb.DuckDBPyConnection, sql: str) -> SyntaxTree:
    tree = read_syntax_tree(connection, sql)
    assert tree is not None
    return tree


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("VALUES (1, 'x', NULL, -2.5, [1], {'a': 1}, DATE '2020-01-01', ?)", True),
        ("VALUES (upper('x'), 1 + 1, system.main.now(), uuid(), random())", True),
        ("VALUES (getvariable('x'))", True),
        ("VALUES (DEFAULT, CAST('1' AS INTEGER))", True),
        ("SELECT r.c0, lower(r.c1) FROM r", True),
        ("VALUES ((SELECT max(a) FROM t))", False),
        ("VALUES ((FROM t))", False),
        ("VALUES ((TABLE t))", False),
        ("VALUES (1) UNION ALL SELECT a FROM t", False),
        ("VALUES (my_macro())", False),
        ("VALUES (lake.main.upper('x'))", False),
        ("VALUES (nextval('s'))", False),
        ("VALUES (currval('s'))", False),
        ("SELECT r.c0, my_macro() FROM r", False),
        ("SELECT r.c0 FROM r JOIN t ON true", False),
        ("SELECT r.c0 FROM r, query('FROM t')", False),
        ("SELECT * FROM table_macro()", False),
        ("WITH v AS (FROM t) SELECT * FROM v", False),
        ("SELECT exists (FROM t) FROM r", False),
        ("SELECT c0 FROM t", False),
        ("SELECT c0 FROM s.r", False),
        ("SELECT DISTINCT c0 FROM r", False),
        ("SELECT c0 COLLATE nocase FROM r", False),
    ],
)
def test_queries_that_read_only_one_table(
    connection: duckdb.DuckDBPyConnection, query: str, expected: bool
) -> None:
    assert reads_only(tree_of(connection, query), "r") is expected


def test_all_that_is_listed_may_be_together(connection: duckdb.DuckDBPyConnection) -> None:
    tree = tree_of(connection, "SELECT r.c0 FROM r")
    scalars = expressions.builtin_functions("scalar")
    everything = replace(
        tree,
        nodes=expressions._QUERY_NODES,
        expressions=expressions._ROW_EXPRESSIONS | {"DEFAULT", "STAR"},
        functions=expressions.builtin_functions("scalar", "CONSISTENT") | ROW_FUNCTIONS,
    )
    assert reads_only(everything, "r")
    sources = expressions.builtin_functions("aggregate") | expressions._SOURCES
    assert adds_no_collation(replace(tree, functions=scalars | sources))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("SELECT a, upper(b), max(c) OVER () FROM t JOIN range(3) ON true", True),
        ("FROM read_parquet('x.parquet')", True),
        ("SELECT a COLLATE nocase FROM t", False),
        ("SELECT my_macro(a) FROM t", False),
        ("FROM query_table('t')", False),
        ("FROM my_table_macro()", False),
    ],
)
def test_queries_that_add_no_collation(
    connection: duckdb.DuckDBPyConnection, query: str, expected: bool
) -> None:
    assert adds_no_collation(tree_of(connection, query)) is expected


@pytest.mark.parametrize(
    "sql",
    ["INSERT INTO t VALUES (1)", "SELECT 1; SELECT 2", "DEFAULT VALUES", "PIVOT t ON a", "", "(1"],
)
def test_other_texts_have_no_tree(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert read_syntax_tree(connection, sql) is None

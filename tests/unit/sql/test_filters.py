"""Conditions of a query on the columns of its tables."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal

import duckdb
import pytest

from swanlake.sql.filters import Comparison, Filter, Operand, Parameter, parse_timestamp
from swanlake.sql.syntax_tree import read_syntax_tree

COLUMNS = {"t": frozenset({"id", "a", "d", "s"}), "u": frozenset({"id", "b"})}


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def filters(
    connection: duckdb.DuckDBPyConnection, sql: str
) -> dict[str, list[tuple[str, Comparison, tuple[Operand, ...]]]]:
    """The conditions on each table, by its name."""
    tree = read_syntax_tree(connection, sql)
    assert tree is not None
    columns = {table.start: COLUMNS[table.parts[-1]] for table in tree.tables}
    names = {table.start: table.parts[-1] for table in tree.tables}
    return {
        names[found.start]: conditions
        for found in tree.filters
        if (
            conditions := [
                (column, one.comparison, one.operands) for column, one in found.of_table(columns)
            ]
        )
    }


EQUAL, LESS, GREATER = Comparison.EQUAL, Comparison.LESS, Comparison.GREATER
AT_LEAST, AT_MOST = Comparison.GREATER_OR_EQUAL, Comparison.LESS_OR_EQUAL


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("id = 42", ("id", EQUAL, (42,))),
        ("42 = id", ("id", EQUAL, (42,))),
        ("ID = -5", ("id", EQUAL, (-5,))),
        ('"Id" = 1', ("id", EQUAL, (1,))),
        ("t.id < 1", ("id", LESS, (1,))),
        ("1 < id", ("id", GREATER, (1,))),
        ("1 >= id", ("id", AT_MOST, (1,))),
        ("1 <= id", ("id", AT_LEAST, (1,))),
        ("id = $1", ("id", EQUAL, (Parameter("1"),))),
        ("id = $name", ("id", EQUAL, (Parameter("name"),))),
        ("a = 1.50", ("a", EQUAL, (Decimal("1.50"),))),
        ("s = 'x'", ("s", EQUAL, ("x",))),
        ("s IN ('x', $1)", ("s", EQUAL, ("x", Parameter("1")))),
        ("d >= DATE '2026-01-01'", ("d", AT_LEAST, (date(2026, 1, 1),))),
        ("d < '2026-01-01'::TIMESTAMP", ("d", LESS, (datetime(2026, 1, 1),))),
        ("a IS NULL", ("a", Comparison.IS_NULL, ())),
    ],
)
def test_condition_is_found(
    connection: duckdb.DuckDBPyConnection, condition: str, expected: object
) -> None:
    assert filters(connection, f"SELECT * FROM t WHERE {condition}") == {"t": [expected]}
    both = filters(connection, f"SELECT * FROM t WHERE s <> 'y' AND (a > 0 AND {condition})")
    assert both == {"t": [("a", GREATER, (0,)), expected]}


def test_bounds_of_between_are_two_conditions(connection: duckdb.DuckDBPyConnection) -> None:
    found = filters(connection, "SELECT * FROM t WHERE id BETWEEN 1 AND $2")
    assert found == {"t": [("id", AT_LEAST, (1,)), ("id", AT_MOST, (Parameter("2"),))]}


@pytest.mark.parametrize(
    "condition",
    [
        "id = 1 OR id = 2",
        "NOT id = 1",
        "id <> 1",
        "id NOT IN (1, 2)",
        "id IN (1, NULL)",
        "id = NULL",
        "id IS NOT NULL",
        "id + 1 = 2",
        "id = a",
        "id = 1e3",
        "id = true",
        "id = TRY_CAST('2026-01-01' AS DATE)",
        "id = 170141183460469231731687303715884105727",
        "d = DATE 'yesterday'",
        "d = DATE '2026-02-30'",
        "missing = 1",
        "u.id = 1",
        "s.id.x = 1",
        "s NOT BETWEEN 'a' AND 'b'",
        "s LIKE 'x'",
    ],
)
def test_other_conditions_bound_nothing(
    connection: duckdb.DuckDBPyConnection, condition: str
) -> None:
    assert filters(connection, f"SELECT * FROM t WHERE {condition}") == {}


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM t x WHERE x.id = 1", {"t": [("id", EQUAL, (1,))]}),
        ("SELECT * FROM t x WHERE t.id = 1", {}),
        ("SELECT * FROM t AS x(id, b, c) WHERE id = 1", {}),
        ("SELECT * FROM t, u WHERE t.id = 1", {"t": [("id", EQUAL, (1,))]}),
        ("SELECT * FROM t, u WHERE id = 1", {}),
        ("SELECT * FROM t JOIN u USING (id) WHERE id = 1", {}),
        (
            "SELECT * FROM t LEFT JOIN u ON true WHERE a = 1 AND u.b = 2",
            {"t": [("a", EQUAL, (1,))], "u": [("b", EQUAL, (2,))]},
        ),
        ("SELECT * FROM t LEFT JOIN u ON true WHERE b IS NULL", {}),
        ("SELECT * FROM t JOIN u ON true WHERE b IS NULL", {"u": [("b", Comparison.IS_NULL, ())]}),
        ("SELECT * FROM t POSITIONAL JOIN u WHERE a = 1", {}),
        ("SELECT * FROM t ASOF JOIN u ON t.id >= u.id WHERE b = 1", {}),
        ("SELECT * FROM t SEMI JOIN u USING (id) WHERE a = 1", {}),
        ("SELECT * FROM t ANTI JOIN u USING (id) WHERE a = 1", {}),
        ("SELECT * FROM t, (SELECT 1 AS a) WHERE a = 1", {}),
        ("SELECT * FROM t, (SELECT 1 AS a) WHERE t.a = 1", {"t": [("a", EQUAL, (1,))]}),
        ("SELECT id + 1 AS id FROM t WHERE id = 1", {}),
        ("SELECT * FROM (SELECT * FROM t WHERE id = 1)", {"t": [("id", EQUAL, (1,))]}),
        ("SELECT * FROM (SELECT * FROM t) WHERE id = 1", {}),
        ("SELECT 1 FROM t WHERE a = 1 UNION SELECT 2 FROM u", {"t": [("a", EQUAL, (1,))]}),
        ("SELECT count(*) FROM t GROUP BY a HAVING a = 1", {}),
        ("SELECT a FROM t QUALIFY a = 1", {}),
    ],
)
def test_condition_counts_for_the_table_that_it_certainly_means(
    connection: duckdb.DuckDBPyConnection, sql: str, expected: object
) -> None:
    assert filters(connection, sql) == expected


def test_values_of_other_types_are_unknown() -> None:
    condition = Filter(("id",), EQUAL, (Parameter("1"), 2))
    assert condition.values({"1": 1}) == [1, 2]
    for value in (True, None, b"x", [1]):
        assert condition.values({"1": value}) is None
    assert condition.values({}) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02", datetime(2026, 1, 2)),
        ("2026-01-02 03:04:05", datetime(2026, 1, 2, 3, 4, 5)),
        ("2026-01-02T03:04:05.5", datetime(2026, 1, 2, 3, 4, 5, 500_000)),
        ("2026-01-02 03:04:05+00", None),
        ("2026-01-02 25:00:00", None),
        ("infinity", None),
        ("", None),
    ],
)
def test_timestamps_in_iso_form_are_parsed(text: str, expected: datetime | None) -> None:
    assert parse_timestamp(text) == expected

"""Literal rows are read exactly as DuckDB reads them, or left to DuckDB."""

from __future__ import annotations

from itertools import product
from typing import Any

import duckdb
import pytest

from swanlake.lake.model.layout import Default, DefaultKind, Table
from swanlake.lake.model.types import ColumnSpec, number_columns
from swanlake.sessions.native.insert_rows import literal_rows, literal_table
from swanlake.sql.insert import insert_head

_TYPES = [
    *("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "UINTEGER", "UBIGINT"),
    *("FLOAT", "DOUBLE", "DECIMAL(5,2)", "DECIMAL(38,10)", "HUGEINT", "VARCHAR", "BLOB"),
    *("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMPTZ", "INTERVAL", "UUID", "INTEGER[]"),
]
_LITERALS = r"""
NULL null TRUE false 0 1 -1 +7 007 127 128 -128 -129 255 256 32768 2147483648 -2147483648 4294967295
9223372036854775807 9223372036854775808 -9223372036854775808 18446744073709551615 99999999999999999
1.5 -0.0 -0 0.1 99.95 123.456 1234.5 999.99 1000.00 3.333333333333333 123456789012345.6789 1e3
0.30000000000000004 12345678.1234567 '1' 'x' '' 'it''s' '''' 'a\nb' '🦢' 'NULL' 'true' '2024-02-29'
'2023-02-29' '0001-01-01' '9999-12-31' '10000-01-01' '2024-1-1' 'infinity' '2024-02-29T23:59:59.5'
'2024-02-29T24:00:00' '2024-02-29T23:59:60' '2024-02-29T10:00:00+02' '2024-02-29T10:00' '12:30:00'
'2024-02-29T10:00:00Z' '2024-02-29T10:00:00.123456' '2024-02-29T10:00:00.1234567' '[1]'
""".split()
_LITERALS += [one.replace("T", " ") for one in _LITERALS if one.startswith("'2024-02-29T")]


def table(*columns: ColumnSpec) -> Table:
    return Table(1, "main", "t", "/data/main/t/", number_columns(columns))


def rows(sql: str, *columns: ColumnSpec) -> Any:
    head = insert_head(sql)
    assert head is not None
    found = literal_table(sql.encode()[head.body :].decode(), head, table(*columns))
    return None if found is None else [tuple(row.values()) for row in found.to_pylist()]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("VALUES (1)", [["1"]]),
        ("values (1,2),\n( -3 , NULL ) ;", [["1", "2"], ["-3", "NULL"]]),
        ("VALUES ('a, (b)', 'it''s'), ('', True)", [["'a, (b)'", "'it''s'"], ["''", "True"]]),
        ("VALUES (1.50, +2)", [["1.50", "+2"]]),
        ("VALUES (';', '--')", [["';'", "'--'"]]),
    ],
)
def test_literals_are_split_into_rows(values: str, expected: list[list[str]]) -> None:
    assert literal_rows(values) == expected


@pytest.mark.parametrize(
    "rows",
    """
() | (1), | (1),(1,2) | (1) RETURNING a | (1) ON CONFLICT DO NOTHING | (1 -- one\n) | (1 /* one */)
(1 + 1) | (a) | (?) | ($1) | (now()) | (DEFAULT) | ('1'::INTEGER) | (DATE '2024-01-01') | (--1\n1)
((1)) | ((SELECT 1)) | (E'a') | ($$a$$) | ('a' 'b') | ('a'\n'b') | (0x1F) | (1_000) | (.5) | (5.)
(1e5) | (1)(2) | (1) LIMIT 0 | ([1]) | ("a") | (nulls) | (1;2) | ('a) | (- 1)
""".replace("\n(", " | (")
    .strip(" |\n")
    .split(" | "),
)
def test_other_expressions_are_left_to_duckdb(rows: str) -> None:
    assert literal_rows(f"VALUES {rows}".replace("\\n", "\n")) is None


def test_long_statements_and_queries_are_left_to_duckdb() -> None:
    assert literal_rows(f"VALUES ('{'x' * 70_000}')") is None
    assert literal_rows("SELECT 1") is None


def test_every_value_equals_that_of_duckdb() -> None:
    taken = 0
    with duckdb.connect() as connection:
        for type_, literal in product(_TYPES, _LITERALS):
            sql = f"INSERT INTO t VALUES ({literal})"
            found = rows(sql, ColumnSpec("a", type_))
            if found is None:
                continue
            connection.execute(f"CREATE OR REPLACE TABLE t (a {type_})")
            expected = connection.execute(f"{sql} RETURNING *").fetchall()
            assert (type_, literal, repr(found)) == (type_, literal, repr(expected))
            taken += 1
    assert taken > 150


def test_column_list_and_defaults_are_applied() -> None:
    columns = [
        ColumnSpec("a", "INTEGER", default=Default("42")),
        ColumnSpec("b", "VARCHAR", default=Default("it's")),
        ColumnSpec("c", "DATE", default=Default("2024-01-01")),
        ColumnSpec("d", "BOOLEAN"),
    ]
    assert str(rows("INSERT INTO t (d) VALUES (true)", *columns)) == (
        """[(42, "it's", datetime.date(2024, 1, 1), True)]"""
    )
    given = rows("INSERT INTO t (D, c, A) VALUES (NULL, NULL, 1), (false, NULL, 2)", *columns)
    assert given == [(1, "it's", None, None), (2, "it's", None, False)]
    for refused in ("(a, a) VALUES (1, 2)", "(z) VALUES (1)", "VALUES (1)", "BY NAME VALUES (1)"):
        assert rows(f"INSERT INTO t {refused}", *columns) is None


def test_computed_defaults_are_left_to_duckdb() -> None:
    now = Default("now()", DefaultKind.EXPRESSION)
    columns = [ColumnSpec("a", "INTEGER"), ColumnSpec("b", "TIMESTAMP", default=now)]
    assert rows("INSERT INTO t (a) VALUES (1)", *columns) is None
    assert rows("INSERT INTO t VALUES (1, NULL)", *columns) == [(1, None)]


def test_null_in_a_not_null_column_is_left_to_duckdb() -> None:
    columns = [ColumnSpec("a", "INTEGER", nullable=False), ColumnSpec("b", "INTEGER")]
    assert rows("INSERT INTO t VALUES (1, NULL)", *columns) == [(1, None)]
    assert rows("INSERT INTO t VALUES (1, 2), (NULL, 2)", *columns) is None
    assert rows("INSERT INTO t (b) VALUES (1)", *columns) is None

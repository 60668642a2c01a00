"""The heads of CREATE TABLE and COPY FROM."""

from __future__ import annotations

import duckdb
import pytest

from swanlake.sql.heads import CopyHead, CreateHead, copy_head, create_head
from swanlake.sql.statement import Statement, parse


def parsed(sql: str) -> Statement:
    [statement] = parse(duckdb.connect(), sql)
    return statement


@pytest.mark.parametrize(
    ("sql", "head"),
    [
        (
            "CREATE TABLE a.b AS SELECT 1",
            CreateHead(("a", "b"), False, False, "SELECT 1", with_data=True),
        ),
        (
            'create or replace table "x y".t as FROM z WITH NO DATA;',
            CreateHead(("x y", "t"), True, False, "FROM z"),
        ),
        (
            "CREATE TABLE IF NOT EXISTS q AS (SELECT 1) WITH DATA",
            CreateHead(("q",), False, True, "(SELECT 1)", with_data=True),
        ),
        (
            "-- why\nCREATE TABLE t AS WITH x AS (SELECT 1) FROM x",
            CreateHead(("t",), False, False, "WITH x AS (SELECT 1) FROM x", with_data=True),
        ),
        (
            "CREATE TABLE t (i INTEGER NOT NULL, d DECIMAL(10, 2), s STRUCT(a INT[]))",
            CreateHead(
                ("t",),
                False,
                False,
                None,
                "(i INTEGER NOT NULL, d DECIMAL(10, 2), s STRUCT(a INT[]))",
            ),
        ),
        (
            'CREATE TABLE t ("default" INTEGER);',
            CreateHead(("t",), False, False, None, '("default" INTEGER)'),
        ),
    ],
)
def test_create_table_with_a_query_or_plain_columns_has_a_head(sql: str, head: CreateHead) -> None:
    assert create_head(parsed(sql)) == head


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TEMP TABLE t AS SELECT 1",
        "CREATE TABLE t(a) AS SELECT 1",
        "CREATE TABLE t (i INTEGER DEFAULT 5)",
        "CREATE TABLE t (i INTEGER PRIMARY KEY)",
        "CREATE TABLE t (i INTEGER, UNIQUE (i))",
        "CREATE TABLE t (i INTEGER CHECK (i > 0))",
        "CREATE TABLE t (i INTEGER, j INTEGER GENERATED ALWAYS AS (i + 1))",
        "CREATE VIEW v AS SELECT 1",
        "CREATE SCHEMA s",
        "SELECT 1",
    ],
)
def test_statements_with_other_clauses_have_no_head(sql: str) -> None:
    assert create_head(parsed(sql)) is None


def test_copy_into_a_table_has_a_head() -> None:
    assert copy_head(parsed("COPY t FROM 'x.csv'")) == CopyHead(("t",), 5, 6)
    assert copy_head(parsed("""COPY a."b c"(i, j) FROM 'x' (FORMAT csv)""")) == CopyHead(
        ("a", "b c"), 5, 12
    )
    assert copy_head(parsed("COPY t TO 'x.csv'")) is None
    assert copy_head(parsed("COPY (SELECT 1) TO 'x.csv'")) is None
    assert copy_head(parsed("SELECT 1")) is None

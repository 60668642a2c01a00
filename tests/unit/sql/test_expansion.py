"""Statements that DuckDB expands are one statement with several steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from duckdb import StatementType

from swanlake.sql.expansion import split_text
from swanlake.sql.statement import Kind, Statement, parse

PIVOT = "PIVOT s ON k USING sum(v)"


@pytest.fixture(params=["autocommit", "transaction"])
def connection(request: pytest.FixtureRequest) -> Iterator[duckdb.DuckDBPyConnection]:
    """DuckDB adds other statements around the steps when a transaction is open."""
    with duckdb.connect() as connection:
        if request.param == "transaction":
            connection.execute("BEGIN")
        yield connection


def parse_one(connection: duckdb.DuckDBPyConnection, sql: str) -> Statement:
    (statement,) = parse(connection, sql)
    return statement


@pytest.mark.parametrize(
    ("sql", "type_", "kind", "preparation"),
    [
        (PIVOT, StatementType.SELECT, Kind.QUERY, 1),
        ("PIVOT s ON k, l USING sum(v)", StatementType.SELECT, Kind.QUERY, 2),
        (f"DESCRIBE {PIVOT}", StatementType.SELECT, Kind.QUERY, 1),
        (f"EXPLAIN {PIVOT}", StatementType.EXPLAIN, Kind.QUERY, 1),
        (f"CREATE TABLE t AS {PIVOT}", StatementType.CREATE, Kind.CHANGE, 1),
        (f"INSERT INTO t {PIVOT}", StatementType.INSERT, Kind.CHANGE, 1),
        (f"INSERT INTO t {PIVOT} RETURNING *", StatementType.INSERT, Kind.QUERY, 1),
        (f"COPY ({PIVOT}) TO 'x.csv'", StatementType.COPY, Kind.CHANGE, 1),
        ("ALTER TABLE t ADD j INT DEFAULT random()", StatementType.ALTER, Kind.COMMAND, 2),
        ("ALTER TABLE t ADD j INT DEFAULT 1", StatementType.ALTER, Kind.COMMAND, 0),
        ("COPY FROM DATABASE a TO b", StatementType.COPY_DATABASE, Kind.COMMAND, 1),
        ("PIVOT s ON k IN ('a') USING sum(v)", StatementType.SELECT, Kind.QUERY, 0),
    ],
)
def test_expanded_statement_is_one(
    connection: duckdb.DuckDBPyConnection,
    sql: str,
    type_: StatementType,
    kind: Kind,
    preparation: int,
) -> None:
    statement = parse_one(connection, sql)
    assert (statement.type, statement.kind) == (type_, kind)
    assert len(statement.preparation) == preparation
    assert statement.is_expanded is (preparation > 0)
    assert statement.text == sql


def test_import_is_one_statement(connection: duckdb.DuckDBPyConnection, tmp_path: Path) -> None:
    with duckdb.connect() as source:
        source.execute("CREATE TABLE t AS SELECT 1 AS i")
        source.execute(f"EXPORT DATABASE '{tmp_path}'")
    for sql in (f"IMPORT DATABASE '{tmp_path}'", f"PRAGMA import_database('{tmp_path}')"):
        statement = parse_one(connection, sql)
        assert (statement.is_import, statement.kind) == (True, Kind.COMMAND)
        assert (statement.may_write, statement.changes_tables) == (True, True)


def test_neighbours_of_an_expanded_statement_keep_their_text(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    statements = parse(connection, f"SELECT 'é;'; {PIVOT} -- ;\n; PRAGMA version;; SELECT 2;")
    assert [statement.is_expanded for statement in statements] == [False, True, False, False]
    texts = [statement.text.strip() for statement in statements]
    assert texts == ["SELECT 'é;'", f"{PIVOT} -- ;", "SELECT * FROM pragma_version();", "SELECT 2"]


def test_parameters_of_an_expanded_statement_are_counted_in_text_order(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    sql = f"UPDATE t SET a = ? FROM ({PIVOT}) AS p WHERE t.b = ? AND t.c <> '?'"
    statement = parse_one(connection, sql)
    assert statement.parameters == ("1", "2")
    assert statement.text == sql.replace("a = ?", "a = $1").replace("b = ?", "b = $2")


@pytest.mark.parametrize(
    ("sql", "texts"),
    [
        ("", []),
        (" ; ;", []),
        ("a", ["a"]),
        ("a;b", ["a", "b"]),
        ("a ;; b; ", ["a ", " b"]),
        ("'é;' ; \"é;\" -- ;", ["'é;' ", ' "é;" -- ;']),
    ],
)
def test_text_is_split_at_its_semicolons(sql: str, texts: list[str]) -> None:
    assert split_text(sql) == texts

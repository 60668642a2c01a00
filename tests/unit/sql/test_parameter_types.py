"""The types of parameters are those that DuckDB's binder infers."""

from __future__ import annotations

import json

import duckdb
import pytest

from swanlake.sql.parameter_types import infer_types
from swanlake.sql.statement import parse

CONNECTION = duckdb.connect()
CONNECTION.execute(
    "CREATE TABLE t (id INTEGER, name VARCHAR, d DECIMAL(10,2), ts TIMESTAMP, l INTEGER[], "
    'a DOUBLE[2], s STRUCT("x y" BIGINT), m MAP(VARCHAR, DATE), u UUID)'
)


def plan(text: str) -> str:
    [(plan,)] = CONNECTION.execute("SELECT json_serialize_plan(?)", [text]).fetchall()
    return str(plan)


@pytest.mark.parametrize(
    ("sql", "types"),
    [
        ("FROM t LIMIT ? OFFSET ?", ["BIGINT", "BIGINT"]),
        ("FROM t WHERE name IN (?, ?) LIMIT ?", ["VARCHAR", "VARCHAR", "BIGINT"]),
        ("FROM t WHERE id IN (?, ?)", ["INTEGER", "INTEGER"]),
        ("FROM t WHERE ts BETWEEN ? AND ?", ["TIMESTAMP", "TIMESTAMP"]),
        ("FROM t WHERE ? < d AND l = ?", ["DECIMAL(10,2)", "INTEGER[]"]),
        ("FROM t WHERE a = ? AND s = ?", ["DOUBLE[2]", 'STRUCT("x y" BIGINT)']),
        ("FROM t WHERE m = ? AND u = ?", ["MAP(VARCHAR, DATE)", "UUID"]),
        ("SELECT CAST(? AS INTEGER), ?::TIMESTAMPTZ", ["INTEGER", "TIMESTAMP WITH TIME ZONE"]),
        ("SELECT id + ?, ? * t.id, d - ? FROM t", ["INTEGER", "INTEGER", "DECIMAL(10,2)"]),
        ("SELECT ts + ? FROM t", ["INTERVAL"]),
        ("SELECT substr(name, ?, ?), list_contains(l, ?) FROM t", ["BIGINT", "BIGINT", "INTEGER"]),
        ("SELECT 1 FROM t JOIN t AS o ON t.id = o.id AND o.u = ?", ["UUID"]),
        ("UPDATE t SET d = ?, ts = ? WHERE id = ?", ["DECIMAL(10,2)", "TIMESTAMP", "INTEGER"]),
        ("DELETE FROM t WHERE id = $1 OR name = $1", ["INTEGER"]),
        ("INSERT INTO t (ts, id) SELECT ?, ?", ["TIMESTAMP", "INTEGER"]),
        (
            "MERGE INTO t USING (SELECT ?::INT AS id) AS s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET d = ? WHEN NOT MATCHED THEN INSERT (ts) VALUES (?)",
            ["INTEGER", "DECIMAL(10,2)", "TIMESTAMP"],
        ),
        ("SELECT ?, name || ? FROM t", ["VARCHAR", "VARCHAR"]),
    ],
)
def test_types_are_inferred(sql: str, types: list[str]) -> None:
    (statement,) = parse(CONNECTION, sql)
    inferred = infer_types(statement, plan)
    assert [inferred[name] for name in statement.parameters] == types


def test_parameter_without_a_type_hides_no_other() -> None:
    (statement,) = parse(CONNECTION, "SELECT abs(?) FROM t WHERE id = ? AND d < $3")
    assert infer_types(statement, plan) == {"2": "INTEGER", "3": "DECIMAL(10,2)"}


def test_statement_without_a_plan_has_no_types() -> None:
    for sql in ("EXPLAIN SELECT ?::INT", "FROM no_such_table WHERE i = ?", "SELECT abs(?)"):
        (statement,) = parse(CONNECTION, sql)
        assert infer_types(statement, plan) == {}


def test_texts_that_have_no_plan_are_not_planned() -> None:
    for sql in (f"SELECT ?, '{'x' * 5000}'", "SELECT ? FROM (PIVOT t ON id USING sum(d))"):
        (statement,) = parse(CONNECTION, sql)
        assert infer_types(statement, json.loads) == {}

"""The heads of UPDATE and DELETE."""

from __future__ import annotations

import duckdb
import pytest

from swanlake.sql.heads import ChangeHead, change_head
from swanlake.sql.statement import parse


def head(sql: str) -> ChangeHead | None:
    with duckdb.connect() as connection:
        (statement,) = parse(connection, sql)
        return change_head(statement)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("DELETE FROM t", ChangeHead(("t",), None, None, None)),
        ("delete from a.b.t;", ChangeHead(("a", "b", "t"), None, None, None)),
        ("DELETE FROM t AS x WHERE x.a = 1;", ChangeHead(("t",), "x", None, "x.a = 1")),
        ("DELETE FROM t x WHERE true -- no", ChangeHead(("t",), "x", None, "true -- no")),
        ("UPDATE t SET a = 1", ChangeHead(("t",), None, (("a", "1"),), None)),
        ('UPDATE t AS "X y" SET a = 1', ChangeHead(("t",), "X y", (("a", "1"),), None)),
        (
            'UPDATE "s s"."t" SET "A a" = f(a, b), b = [1, 2][1] WHERE c IN (SELECT 1 FROM u)',
            ChangeHead(
                ("s s", "t"),
                None,
                (("A a", "f(a, b)"), ("b", "[1, 2][1]")),
                "c IN (SELECT 1 FROM u)",
            ),
        ),
        (
            "UPDATE t SET a = b IS DISTINCT FROM c, d = extract(year FROM e) WHERE f = 'where'",
            ChangeHead(
                ("t",),
                None,
                (("a", "b IS DISTINCT FROM c"), ("d", "extract(year FROM e)")),
                "f = 'where'",
            ),
        ),
        (
            "UPDATE t SET a = (b) * c, d = e * 2, f = [1][1] * 3",
            ChangeHead(("t",), None, (("a", "(b) * c"), ("d", "e * 2"), ("f", "[1][1] * 3")), None),
        ),
        (
            "UPDATE t SET a = $1, c = $3 WHERE b = $2;",
            ChangeHead(("t",), None, (("a", "$1"), ("c", "$3")), "b = $2"),
        ),
        ("UPDATE t SET a = 1 -- one", ChangeHead(("t",), None, (("a", "1 -- one"),), None)),
        (
            "UPDATE t SET a = 'é' WHERE b = 'ü'",
            ChangeHead(("t",), None, (("a", "'é'"),), "b = 'ü'"),
        ),
    ],
)
def test_head_has_the_parts_of_the_statement(sql: str, expected: ChangeHead) -> None:
    assert head(sql) == expected


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "TRUNCATE t",
        "INSERT INTO t VALUES (1)",
        "WITH v AS (SELECT 1) DELETE FROM t",
        "WITH v AS (SELECT 1) UPDATE t SET a = 1",
        "DELETE FROM t USING u WHERE t.a = u.a",
        "DELETE FROM t RETURNING a",
        "DELETE FROM t WHERE a = 1 RETURNING a",
        "UPDATE t SET a = 1 FROM u",
        "UPDATE t SET a = b IS DISTINCT FROM c FROM u WHERE true",
        "UPDATE t SET a = 1 RETURNING a",
        "UPDATE t SET a = 1 WHERE true RETURNING a",
        "UPDATE t SET (a, b) = (1, 2)",
    ],
)
def test_statements_with_other_parts_have_no_head(sql: str) -> None:
    assert head(sql) is None

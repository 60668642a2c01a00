"""Macros, views, subqueries and volatile functions in native statements mean what stock gives."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.integration.writes.both_sides import Ours, Transcript, Writes, play, set_inline_limit

_TABLES = [
    "CREATE TABLE t (a INTEGER, b VARCHAR)",
    "INSERT INTO t VALUES (1, 'one'), (2, 'two'), (3, NULL)",
    "CREATE TABLE w (a INTEGER)",
    "INSERT INTO w VALUES (7)",
    "CREATE VIEW v AS SELECT max(a) AS a FROM w",
]

SCRIPTS = {
    "macros that read tables": """
        CREATE MACRO newest() AS (SELECT max(a) FROM w)
        CREATE MACRO both() AS TABLE SELECT a FROM w UNION ALL SELECT a + 1 FROM w
        INSERT INTO t VALUES (newest(), 'x')
        INSERT INTO t SELECT a, 'both' FROM both()
        UPDATE t SET a = newest() WHERE b = 'one'
        UPDATE t SET a = a - 1 WHERE a = newest()
        DELETE FROM t WHERE a = newest() - 1
        DELETE FROM t WHERE a IN (FROM both())
        CREATE TABLE made AS FROM both()
    """,
    "macros that hide windows and unnest": """
        CREATE MACRO total(x) AS sum(x) OVER ()
        CREATE MACRO each(x) AS unnest(x)
        CREATE MACRO summed(x) AS sum(x)
        UPDATE t SET a = total(a)
        UPDATE t SET a = each([a])
        UPDATE t SET a = each([])
        UPDATE t SET a = summed(a)
        UPDATE t SET a = unnest([5])
        UPDATE t SET a = sum(a) OVER ()
        UPDATE t SET a = COLUMNS('a')
        UPDATE t SET a = DEFAULT
        DELETE FROM t WHERE each([a]) = 1
    """,
    "subqueries and views": """
        INSERT INTO t VALUES ((TABLE w), 'table')
        INSERT INTO t VALUES ((FROM w), 'from')
        INSERT INTO t VALUES ((SELECT a FROM v), 'view')
        INSERT INTO t FROM v SELECT a, 'from first'
        INSERT INTO t VALUES (1, 'a') UNION ALL SELECT a, 'w' FROM w
        INSERT INTO t WITH w AS (SELECT 9 AS a) SELECT a, 'cte' FROM w
        WITH w AS (SELECT 8 AS a) INSERT INTO t SELECT a, 'outer cte' FROM w
        WITH "insert" AS (SELECT 10 AS a) INSERT INTO t SELECT a, 'quoted' FROM "insert"
        UPDATE t SET a = (TABLE w) WHERE b = 'two'
        UPDATE t SET a = (SELECT a FROM v) + a WHERE b = 'one'
        UPDATE t SET b = (SELECT string_agg(b, ',' ORDER BY b) FROM t) WHERE a IS NULL
        DELETE FROM t WHERE a IN (TABLE w)
        DELETE FROM v
        INSERT INTO v VALUES (1)
    """,
    "comments and quotes": """
        INSERT INTO t /* VALUES (1, 'no') */ VALUES (1, '/* yes */') -- SELECT
        INSERT INTO t (/* a, */ b, a) VALUES ('--', 2 /* ; */)
        UPDATE /* DELETE */ t SET /* a = 1, */ b = 'from' /* , */ WHERE a /* = 2 OR a */ = 1
        UPDATE t SET b = 'x''; DELETE FROM t; --' WHERE a = 2
        DELETE /* nothing */ FROM t WHERE b = 'where' -- OR true
        CREATE TABLE "select" ("from" INTEGER, "where" VARCHAR)
        INSERT INTO "select" VALUES (1, 'select')
        INSERT INTO "select" ("where", "from") SELECT "where", "from" + 1 FROM "select"
        UPDATE "select" SET "from" = "from" + 10, "where" = 'set' WHERE "where" = 'select'
        DELETE FROM "select" WHERE "from" IS NOT DISTINCT FROM 11
    """,
    "functions of the session": """
        SET VARIABLE x = 5
        INSERT INTO t VALUES (getvariable('x'), 'variable')
        UPDATE t SET a = getvariable('x') + a WHERE b = 'one'
        DELETE FROM t WHERE a = getvariable('x')
        INSERT INTO t VALUES (1, current_setting('integer_division'))
        INSERT INTO t VALUES (1, current_catalog()), (2, current_schema() = 'main')
        UPDATE t SET b = "current_catalog" WHERE a = 2
        UPDATE t SET b = typeof(random() + rowid) WHERE a = 3
        UPDATE t SET b = typeof(now()), a = random() >= 0 WHERE a = 3
        INSERT INTO t SELECT rowid, typeof(uuid()) FROM t
        UPDATE t SET b = error('no') WHERE a = 1
    """,
    "sequences": """
        CREATE SEQUENCE memory.main.s_{schema}
        INSERT INTO t VALUES (nextval('memory.main.s_{schema}'), 'x')
        INSERT INTO t SELECT nextval('memory.main.s_{schema}'), 'y' FROM range(2)
        UPDATE t SET a = nextval('memory.main.s_{schema}') WHERE b = 'x'
        DELETE FROM t WHERE a = currval('memory.main.s_{schema}')
    """,
    "temporary macros": """
        CREATE TEMP MACRO upper(x) AS 'temporary'
        INSERT INTO t VALUES (1, upper('x'))
        UPDATE t SET b = upper(b) WHERE a = 2
        DELETE FROM t WHERE upper(b) = 'TWO'
        SELECT upper(b) FROM t ORDER BY ALL
        DROP MACRO temp.main.upper
    """,
    "collations": """
        CREATE TABLE memory.main.c_{schema} (a VARCHAR COLLATE NOCASE)
        CREATE VIEW memory.main.cv_{schema} AS FROM memory.main.c_{schema}
        CREATE VIEW cv AS FROM memory.main.c_{schema}
        CREATE TABLE c1 AS FROM memory.main.c_{schema}
        CREATE TABLE c2 AS SELECT upper(a) AS a FROM memory.main.cv_{schema}
        CREATE TABLE c3 AS FROM cv
        CREATE TABLE c4 AS SELECT 'x' COLLATE NOCASE AS a
        CREATE TABLE c5 AS SELECT a::INTEGER AS a FROM memory.main.c_{schema}
        CREATE TABLE c6 (a VARCHAR COLLATE NOCASE)
        CREATE TABLE c7 AS SELECT "a" AS "collate" FROM t
        INSERT INTO t SELECT 1, a FROM memory.main.c_{schema}
    """,
}


@pytest.mark.parametrize("inline_limit", [0, 10], ids=["files", "metadata"])
@pytest.mark.parametrize("subject", SCRIPTS)
def test_outcome_is_that_of_stock(
    writes: Writes,
    ours: Ours,
    stock_transcript: Callable[..., Transcript],
    schema: str,
    subject: str,
    inline_limit: int,
) -> None:
    script = [*_TABLES, *map(str.strip, SCRIPTS[subject].strip().splitlines())]
    expected = stock_transcript(subject, script, inline_limit, each_content=writes.is_native)
    set_inline_limit(ours, schema, inline_limit)
    found = play(ours, script, {"{schema}": schema}, each_content=writes.is_native)
    assert found == expected
    assert writes.orphans(schema) == []

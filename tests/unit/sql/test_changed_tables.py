"""Which table a statement fills, alters or rewrites."""

from __future__ import annotations

import duckdb
import pytest

from swanlake.sql.alteration import Action, Alteration
from swanlake.sql.statement import Statement, parse

T = ("t",)


def parsed(sql: str) -> Statement:
    [statement] = parse(duckdb.connect(), sql)
    return statement


@pytest.mark.parametrize(
    ("sql", "table", "changes_rows"),
    [
        ("WITH c AS (SELECT 1) INSERT INTO a.t FROM c", ("a", "t"), True),
        ("UPDATE t SET a = 1", ("t",), True),
        ("DELETE FROM t", ("t",), True),
        ('MERGE INTO "x y".t USING s ON true WHEN MATCHED THEN DELETE', ("x y", "t"), True),
        ("COPY t (a) FROM 'x.csv'", ("t",), True),
        ("CREATE OR REPLACE TABLE a.b AS SELECT 1", ("a", "b"), True),
        ("CREATE TABLE IF NOT EXISTS t (a INTEGER)", ("t",), False),
        ("CREATE VIEW v AS SELECT 1", None, False),
        ("EXECUTE p", None, True),
        ("EXPLAIN ANALYZE DELETE FROM t", None, True),
        ("EXPLAIN DELETE FROM t", None, False),
        ("SELECT 1", None, False),
    ],
)
def test_written_table_and_its_rows(
    sql: str, table: tuple[str, ...] | None, changes_rows: bool
) -> None:
    assert (parsed(sql).written_table, parsed(sql).changes_rows) == (table, changes_rows)


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("ALTER TABLE a.t ADD COLUMN b INTEGER", Alteration(("a", "t"), Action.ADD_COLUMN, ("b",))),
        ("ALTER TABLE t ADD IF NOT EXISTS s.b INT", Alteration(T, Action.ADD_COLUMN, ("s", "b"))),
        ("ALTER TABLE t DROP IF EXISTS s.b CASCADE", Alteration(T, Action.DROP_COLUMN, ("s", "b"))),
        ("ALTER TABLE IF EXISTS t RENAME TO u", Alteration(T, Action.RENAME, (), "u")),
        ('ALTER TABLE t RENAME "TO" TO b', Alteration(T, Action.RENAME_COLUMN, ("TO",), "b")),
        ("ALTER TABLE t RENAME COLUMN a TO b", Alteration(T, Action.RENAME_COLUMN, ("a",), "b")),
        ("ALTER TABLE t ALTER a TYPE INT", Alteration(T, Action.CHANGE_TYPE, ("a",))),
        (
            "ALTER TABLE t ALTER COLUMN a SET DATA TYPE INT",
            Alteration(T, Action.CHANGE_TYPE, ("a",)),
        ),
        ("ALTER TABLE t ALTER a SET DEFAULT 1", Alteration(T, Action.OTHER, ("a",))),
        ("ALTER TABLE t SET PARTITIONED BY (a)", Alteration(T, Action.OTHER)),
        ("ALTER VIEW t RENAME TO w", Alteration(T, Action.RENAME, (), "w")),
        ("COMMENT ON COLUMN t.a IS 'x'", Alteration(T, Action.COMMENT_COLUMN, ("a",))),
        ("COMMENT ON TABLE t IS 'x'", Alteration(T, Action.OTHER)),
        ("COMMENT ON TYPE t IS 'x'", None),
        ("EXPLAIN ANALYZE ALTER TABLE t RENAME TO u", Alteration(T, Action.RENAME, (), "u")),
        ("EXPLAIN SELECT comment FROM t", None),
        ("ALTER SEQUENCE s OWNED BY t", None),
        ("SELECT 1", None),
    ],
)
def test_alteration(sql: str, expected: Alteration | None) -> None:
    assert parsed(sql).alteration == expected


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("CHECKPOINT", True),
        ("CALL ducklake_merge_adjacent_files('l')", True),
        ("CALL l.merge_adjacent_files()", True),
        ("CALL l.snapshots()", False),
        ("SELECT 1", False),
    ],
)
def test_rewriting_procedures_are_known_by_any_name(sql: str, expected: bool) -> None:
    assert parsed(sql).may_rewrite_files(("merge_adjacent_files",)) is expected

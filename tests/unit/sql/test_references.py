"""Finding and replacing the queue's tables in a statement."""

from __future__ import annotations

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.sql.quoting import identifier
from swanlake.sql.references import Replacement, references, replaced

QUEUE = "duckling_queue"
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


def named(sql: str) -> list[tuple[str, ...]]:
    return [reference.parts for reference in references(sql, QUEUE)]


@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT 1", []),
        ("FROM duckling_queue.t", [("duckling_queue", "t")]),
        ("FROM Duckling_Queue.main.T", [("Duckling_Queue", "main", "T")]),
        ('FROM "duckling_queue"."a.b"', [("duckling_queue", "a.b")]),
        ('FROM "DUCKLING_QUEUE" . "a""b"', [("DUCKLING_QUEUE", 'a"b')]),
        ("FROM duckling_queue /* x */ . t -- y\n", [("duckling_queue", "t")]),
        ("FROM duckling_queue.é.🦆", [("duckling_queue", "é", "🦆")]),
        ("FROM 'é', duckling_queue.t", [("duckling_queue", "t")]),
        ("SELECT duckling_queue.t.i FROM duckling_queue.t", [(QUEUE, "t", "i"), (QUEUE, "t")]),
        ("SELECT t.* FROM duckling_queue.t, duckling_queue.u", [(QUEUE, "t"), (QUEUE, "u")]),
        ("SELECT 'duckling_queue.t'", []),
        ("SELECT $$ duckling_queue.t $$", []),
        ("SELECT 1 -- duckling_queue.t", []),
        ("SELECT 1 /* duckling_queue.t */", []),
        ("FROM other.duckling_queue.t", []),
        ("SELECT duckling_queue FROM t", []),
        ("FROM duckling_queue_t.x", []),
        ("SELECT duckling_queue(1.5)", []),
        ("CALL duckling_queue_flush()", []),
        ("duckling_queue.t", [("duckling_queue", "t")]),
        ("SELECT duckling_queue.*", []),
        ("SELECT duckling_queue.t.*", [("duckling_queue", "t")]),
        ("FROM duckling_queue.", []),
        ("FROM duckling_queue", []),
    ],
)
def test_names_of_the_catalog_are_found_and_nothing_else(
    sql: str, found: list[tuple[str, ...]]
) -> None:
    assert named(sql) == found


@given(NAMES, NAMES)
def test_quoted_names_are_unquoted(schema: str, table: str) -> None:
    sql = f"SELECT 'ü' FROM duckling_queue.{identifier(schema)}.{identifier(table)} WHERE 1 = 1"
    assert named(sql) == [(QUEUE, schema, table)]


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_has_references_or_none(sql: str) -> None:
    for reference in references(sql + " duckling_queue.t", QUEUE):
        assert reference.parts[0].lower() == QUEUE


# ---- replacing ---------------------------------------------------------------------------------

CONNECTION = duckdb.connect()
CONNECTION.execute("CREATE TABLE rows_0 AS SELECT 1 AS i, 'one' AS s")
CONNECTION.execute("CREATE TABLE rows_1 AS SELECT 1 AS i, 'uno' AS u")


def is_sql(sql: str) -> bool:
    try:
        CONNECTION.extract_statements(sql)
    except duckdb.Error:
        return False
    return True


def with_rows(sql: str) -> str:
    """The statement with the tables ``t`` and ``u`` of the queue replaced."""
    tables = {"t": "memory.main.rows_0", "u": "memory.main.rows_1"}
    chosen = []
    for reference in references(sql, QUEUE):
        taken = 3 if reference.parts[1] == "main" else 2
        name = reference.parts[taken - 1]
        chosen.append(Replacement(reference, taken, tables[name], name))
    return replaced(sql, chosen, is_sql)


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("FROM duckling_queue.t", [(1, "one")]),
        ("SELECT s FROM duckling_queue.main.t", [("one",)]),
        ("SELECT t.s FROM duckling_queue.t", [("one",)]),
        ("SELECT x.s FROM duckling_queue.t x", [("one",)]),
        ("SELECT x.s FROM duckling_queue.t AS x (i, s)", [("one",)]),
        ("SELECT duckling_queue.t.s FROM duckling_queue.t", [("one",)]),
        ("SELECT duckling_queue.main.t.s FROM duckling_queue.main.t WHERE t.i = 1", [("one",)]),
        ("SELECT s, u FROM duckling_queue.t JOIN duckling_queue.u USING (i)", [("one", "uno")]),
        ("SELECT t.s, b.u FROM duckling_queue.t, duckling_queue.u b", [("one", "uno")]),
        ("SELECT count(*) FROM duckling_queue.t a, duckling_queue.t b WHERE a.i = b.i", [(1,)]),
        ("SELECT (SELECT max(s) FROM duckling_queue.t)", [("one",)]),
        ("WITH t AS (FROM duckling_queue.t) SELECT s FROM t", [("one",)]),
        ("SELECT 'duckling_queue.t', s FROM duckling_queue.t", [("duckling_queue.t", "one")]),
        ("SELECT s FROM duckling_queue.t -- the queue's", [("one",)]),
        ("SELECT s FROM duckling_queue.t /* x */ WHERE i = 1", [("one",)]),
        ("SELECT 'é', s FROM duckling_queue.t ORDER BY t.s", [("é", "one")]),
        ("SELECT i FROM duckling_queue.t UNION ALL SELECT i FROM duckling_queue.u", [(1,), (1,)]),
        (
            "SELECT s FROM duckling_queue.t WHERE EXISTS (FROM duckling_queue.u WHERE u.i = t.i)",
            [("one",)],
        ),
    ],
)
def test_tables_of_the_queue_are_replaced(sql: str, rows: list[tuple[object]]) -> None:
    text = with_rows(sql)
    assert CONNECTION.execute(text).fetchall() == rows


def test_replaced_table_has_its_name_as_alias_unless_it_has_one() -> None:
    replaced = with_rows("FROM duckling_queue.t, duckling_queue.u AS x")
    assert replaced == 'FROM memory.main.rows_0 AS "t", memory.main.rows_1 AS x'


def test_text_without_references_is_unchanged() -> None:
    sql = "SELECT 'é' /* duckling_queue.t */"
    assert replaced(sql, [], is_sql) == sql

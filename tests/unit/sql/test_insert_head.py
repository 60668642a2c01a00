"""The head of an INSERT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swanlake.sql.insert import InsertHead, insert_head
from swanlake.sql.quoting import identifier, unquoted

CONNECTION = duckdb.connect()
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


def head_of(sql: str) -> InsertHead:
    """The head of an INSERT that DuckDB can parse."""
    [statement] = CONNECTION.extract_statements(sql)
    assert statement.type == duckdb.StatementType.INSERT
    head = insert_head(sql)
    assert head is not None
    return head


def body_of(sql: str) -> str:
    return sql.encode()[head_of(sql).body :].decode()


@pytest.mark.parametrize(
    ("sql", "target"),
    [
        ("INSERT INTO t VALUES (1)", ("t",)),
        ("insert into T values (1)", ("T",)),
        ("INSERT INTO a.b.c VALUES (1)", ("a", "b", "c")),
        ("INSERT INTO a . b VALUES (1)", ("a", "b")),
        ('INSERT INTO "a""b"."c.d" VALUES (1)', ('a"b', "c.d")),
        ('INSERT INTO"t"VALUES (1)', ("t",)),
        ('INSERT INTO "t -- x" VALUES (1)', ("t -- x",)),
        ('INSERT INTO "VALUES" VALUES (1)', ("VALUES",)),
        ("INSERT INTO é.ü VALUES (1)", ("é", "ü")),
        ("INSERT INTO 🦆.t$1 VALUES (1)", ("🦆", "t$1")),
        ("INSERT INTO t -- note\nVALUES (1)", ("t",)),
        ("INSERT INTO t/* note */VALUES (1)", ("t",)),
        ("INSERT /* INTO x */ INTO a /* b */ . /* c */ d VALUES (1)", ("a", "d")),
        ("-- INSERT INTO x\nINSERT INTO t VALUES (1)", ("t",)),
        ("/* INSERT INTO x */ INSERT INTO t VALUES (1)", ("t",)),
        ("\n\t INSERT\nINTO\nt\nVALUES (1);", ("t",)),
        ("WITH a AS (SELECT 1) INSERT INTO t FROM a", ("t",)),
        ('WITH "insert" AS (SELECT \'INSERT INTO x\') INSERT INTO t FROM "insert"', ("t",)),
        ("INSERT OR REPLACE INTO t VALUES (1)", ("t",)),
        ("INSERT INTO t AS u VALUES (1)", ("t",)),
        ("INSERT INTO t DEFAULT VALUES", ("t",)),
    ],
)
def test_target_is_the_named_table(sql: str, target: tuple[str, ...]) -> None:
    assert head_of(sql).target == target


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("INSERT INTO t VALUES (1)", None),
        ("INSERT INTO t (a, b) VALUES (1, 2)", ("a", "b")),
        ("INSERT INTO t(a)VALUES(1)", ("a",)),
        ('INSERT INTO t ("a b", "c""d", "e,f", ")") VALUES (1)', ("a b", 'c"d', "e,f", ")")),
        ("INSERT INTO t (a -- first\n, b /* second */) VALUES (1, 2)", ("a", "b")),
        ("INSERT INTO t (é, 🦆) VALUES (1, 2)", ("é", "🦆")),
        ("INSERT INTO t AS u (a) VALUES (1)", ("a",)),
        ("INSERT INTO t (a) (SELECT 1)", ("a",)),
        ("INSERT INTO t (values) VALUES (1)", ("values",)),
        ("INSERT INTO t (name, date, values) VALUES (1)", ("name", "date", "values")),
        ("INSERT INTO t (SELECT 1)", None),
        ("INSERT INTO t (VALUES (1))", None),
        ("INSERT INTO t ((SELECT 1))", None),
        ("INSERT INTO t (FROM u)", None),
        ("INSERT INTO t (WITH a AS (SELECT 1) SELECT * FROM a)", None),
        ("INSERT INTO t ( -- note\n SELECT 1)", None),
        ('INSERT INTO t ("select") VALUES (1)', ("select",)),
    ],
)
def test_columns_are_read_unless_the_parentheses_hold_a_query(
    sql: str, columns: tuple[str, ...] | None
) -> None:
    assert head_of(sql).columns == columns


@pytest.mark.parametrize(
    ("sql", "body"),
    [
        ("INSERT INTO t VALUES (1)", "VALUES (1)"),
        ("INSERT INTO t (a) SELECT 1", "SELECT 1"),
        ("INSERT INTO t(a)(SELECT 1)", "(SELECT 1)"),
        ("INSERT INTO é (ü) VALUES ('ß')", "VALUES ('ß')"),
        ("INSERT INTO t FROM u", "FROM u"),
        ("INSERT INTO t WITH a AS (SELECT 1) FROM a", "WITH a AS (SELECT 1) FROM a"),
        ("INSERT INTO t DEFAULT VALUES", "DEFAULT VALUES"),
        ("INSERT INTO t BY NAME SELECT 1 AS a", "SELECT 1 AS a"),
        ("INSERT INTO t BY POSITION FROM u", "FROM u"),
        ("INSERT INTO t /* x */ VALUES (1) RETURNING *", "VALUES (1) RETURNING *"),
    ],
)
def test_body_begins_after_the_head(sql: str, body: str) -> None:
    assert body_of(sql) == body


@pytest.mark.parametrize(
    ("sql", "by_name"),
    [
        ("INSERT INTO t BY NAME SELECT 1 AS a", True),
        ("INSERT INTO t by /* x */ name SELECT 1 AS a", True),
        ("INSERT INTO t BY POSITION SELECT 1", False),
        ("INSERT INTO t SELECT 1", False),
    ],
)
def test_rows_can_come_by_name(sql: str, by_name: bool) -> None:
    assert head_of(sql).by_name is by_name


@pytest.mark.parametrize(
    ("sql", "alternative"),
    [
        ("INSERT OR REPLACE INTO t VALUES (1)", "REPLACE"),
        ("INSERT or ignore INTO t VALUES (1)", "IGNORE"),
        ("INSERT INTO t VALUES (1)", None),
    ],
)
def test_conflict_alternative_is_read(sql: str, alternative: str | None) -> None:
    assert head_of(sql).alternative == alternative


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "INSERT",
        "INSERT INTO",
        "SELECT 1",
        "SELECT 'INSERT INTO t VALUES (1)'",
        "EXPLAIN SELECT 1",
        "/* INSERT INTO t VALUES (1) */",
        'SELECT "insert" FROM t',
    ],
)
def test_other_texts_have_no_head(sql: str) -> None:
    assert insert_head(sql) is None


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_has_a_head_or_none(sql: str) -> None:
    insert_head(sql)
    insert_head("INSERT INTO " + sql)


@given(st.lists(NAMES, min_size=1, max_size=3), st.lists(NAMES, min_size=1, max_size=5))
def test_quoted_names_are_unquoted(target: list[str], columns: list[str]) -> None:
    written = ".".join(map(identifier, target))
    sql = f"INSERT INTO {written} ({', '.join(map(identifier, columns))}) VALUES (1)"
    head = insert_head(sql)
    assert head is not None
    assert (head.target, head.columns) == (tuple(target), tuple(columns))
    assert sql.encode()[head.target_start : head.target_end].decode() == written


@given(NAMES)
def test_quoted_name_loses_its_quotes_and_a_comment(name: str) -> None:
    assert unquoted(identifier(name)) == name
    assert unquoted(identifier(name) + ' /* "x" */') == name


@pytest.mark.parametrize(
    "sql",
    [
        "WITH a AS (SELECT 1) INSERT OR IGNORE INTO one.two AS x (first, values) VALUES (1)",
        'INSERT INTO "a b"."c" (é, "d e") BY NAME SELECT 1 AS é',
        "INSERT INTO t /* note */ BY NAME (SELECT 1)",
        "INSERT INTO t (SELECT 1)",
        "INSERT INTO t AS u (VALUES (1))",
    ],
)
def test_head_is_independent_of_the_length_of_the_first_read(sql: str) -> None:
    whole = insert_head(sql)
    assert whole is not None
    for padding in range(1024 - len(sql), 1024):
        comment = "/*" + "x" * (padding - 4) + "*/"
        head = insert_head(comment + sql + " " * 2000)
        assert head is not None
        assert (head.target, head.columns) == (whole.target, whole.columns)
        assert (head.alternative, head.by_name) == (whole.alternative, whole.by_name)
        assert head.body - padding == whole.body
        assert head.target_start - padding == whole.target_start
        assert head.target_end - padding == whole.target_end


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1)",
        "insert into ü.t (ä, values) values(1, 2)",
        "INSERT INTO t (values) VALUES (1)",
        "INSERT INTO t (VALUES (1))",
        "INSERT INTO values VALUES (1)",
        "INSERT OR IGNORE INTO t BY NAME VALUES (1)",
        "INSERT INTO t AS x VALUES (1)",
        "INSERT INTO t SELECT * FROM (VALUES (1)) v",
        "INSERT INTO t (a) FROM (VALUES (1))",
        "INSERT INTO t WITH q AS (SELECT 1) VALUES (1)",
        "WITH a AS (VALUES (1)) INSERT INTO t VALUES (2)",
        'INSERT INTO "values (" VALUES (1)',
        "INSERT INTO t -- VALUES (\n VALUES (1)",
        "EXPLAIN INSERT INTO t VALUES (1)",
        "SELECT * FROM t WHERE a IN (VALUES (1))",
    ],
)
def test_head_is_that_of_the_whole_text(sql: str) -> None:
    # A comment first, so that the text is read to its end.
    whole, head = insert_head(f"/**/{sql}"), insert_head(sql)
    if whole is None or head is None:
        assert whole is head
        return
    moved = {name: getattr(whole, name) - 4 for name in ("start", "target_start", "target_end")}
    assert head == replace(whole, body=whole.body - 4, **moved)


def test_head_is_read_once_for_rows_of_any_literals(monkeypatch: pytest.MonkeyPatch) -> None:
    first = insert_head("INSERT INTO literal_rows (a, b) VALUES (1, 'x')")
    monkeypatch.setattr(duckdb, "tokenize", None)
    assert insert_head("INSERT INTO literal_rows (a, b) VALUES (2, 'it''s y')") == first


# ---- long texts --------------------------------------------------------------------------------


@pytest.fixture
def longest_lexed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """The length of the longest text passed to the lexer."""
    lengths = [0]
    tokenize = duckdb.tokenize

    def recorded(sql: str) -> list[tuple[int, duckdb.token_type]]:
        lengths.append(len(sql))
        return tokenize(sql)

    monkeypatch.setattr(duckdb, "tokenize", recorded)
    return lambda: max(lengths)


MEGABYTES = 20 * 1024 * 1024


@pytest.mark.parametrize(
    "body",
    [
        "VALUES " + "(1, 'x')," * (MEGABYTES // 9),
        "VALUES ('" + "x" * MEGABYTES + "')",
        "VALUES ('" + "🦆" * (MEGABYTES // 4) + "')",
        "VALUES ($$" + "'" * MEGABYTES + "$$)",
        "SELECT 1 /* " + "x" * MEGABYTES + " */",
        '(SELECT 1 AS "' + "x" * MEGABYTES + '")',
    ],
    ids=["rows", "text", "unicode", "dollars", "comment", "name"],
)
def test_large_body_is_not_tokenized(body: str, longest_lexed: Callable[[], int]) -> None:
    head = insert_head(f"INSERT INTO duckling_queue.t (a, b) {body}")
    assert head is not None
    assert head.target == ("duckling_queue", "t")
    assert head.columns == ("a", "b")
    assert head.body == len("INSERT INTO duckling_queue.t (a, b) ")
    assert longest_lexed() <= 1024


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 3000))
def test_long_column_list_is_read_completely(count: int) -> None:
    columns = tuple(f"column {number}" for number in range(count))
    listed = ", ".join(map(identifier, columns))
    head = insert_head(f"INSERT INTO t ({listed}) VALUES ({', '.join('?' * count)})")
    assert head is not None
    assert head.columns == columns


def test_thousand_columns_do_not_tokenize_the_body(
    longest_lexed: Callable[[], int],
) -> None:
    listed = ", ".join(f"c{number}" for number in range(1000))
    head = insert_head(f"INSERT INTO t ({listed}) VALUES ('{'x' * MEGABYTES}')")
    assert head is not None
    assert head.columns is not None
    assert len(head.columns) == 1000
    assert longest_lexed() <= 16 * 1024

"""Finding the calls that ask for the last commit."""

from __future__ import annotations

import pytest

from swanlake.sql.last_commit import LastCommitCall, last_commit_calls, replace_calls


@pytest.mark.parametrize(
    ("call", "qualifiers"),
    [
        ("ducklake_last_committed_snapshot('a''b')", ("a'b", "main")),
        ("system.main.DuckLake_Last_Committed_Snapshot ( 'lake' )", ("lake", "main")),
        ("last_committed_snapshot()", ()),
        ('"my lake".last_committed_snapshot()', ("my lake",)),
        ("lake.main.last_committed_snapshot ()", ("lake", "main")),
    ],
)
def test_calls_are_found_in_any_form(call: str, qualifiers: tuple[str, ...]) -> None:
    text = f"SELECT 'ä', id FROM {call} AS f(x)"
    start = len("SELECT 'ä', id FROM ".encode())
    assert last_commit_calls(text) == [LastCommitCall(qualifiers, start, start + len(call))]
    assert replace_calls(text, lambda _: "SELECT 1") == "SELECT 'ä', id FROM (SELECT 1) AS f(x)"
    assert replace_calls(text, lambda _: None) == text
    assert replace_calls(f" call {call};", lambda _: "SELECT 1") == "FROM (SELECT 1);"


@pytest.mark.parametrize("argument", ["?", "$1", "$name", "'a' || lower('b')", "(SELECT 'a')"])
def test_argument_that_is_no_literal_is_kept(argument: str) -> None:
    text = f"FROM ducklake_last_committed_snapshot({argument}) AS f"
    [call] = last_commit_calls(text)
    assert call.argument == argument
    assert replace_calls(text, lambda call: f"SELECT {call.argument}") == (
        f"FROM (SELECT {argument}) AS f"
    )


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'last_committed_snapshot()'",
        "SELECT last_committed_snapshot FROM t",
        "FROM ducklake_last_committed_snapshot()",
        "FROM ducklake_last_committed_snapshot('a', 'b')",
        "FROM ducklake_last_committed_snapshot(catalog => 'a')",
        "FROM lake.last_committed_snapshot('lake')",
        "FROM ducklake_current_snapshot('lake')",
        "FROM ducklake_last_committed_snapshot(",
        "SELECT last_committed_snapshot",
        "last_committed_snapshot",
        "SELECT 1",
        "FROM other(last_committed_snapshot)",
        "FROM (SELECT ducklake_last_committed_snapshot AS x)",
        "FROM last_committed_snapshots(), lake.last_commit()",
    ],
)
def test_other_texts_stay(text: str) -> None:
    assert last_commit_calls(text) == []


def test_call_may_be_the_whole_text() -> None:
    for qualifiers in ((), ("lake",), ("lake", "main"), ("a", "b", "c")):
        text = ".".join([*qualifiers, "last_committed_snapshot()"])
        assert last_commit_calls(text) == [LastCommitCall(qualifiers, 0, len(text))]


def test_operator_before_a_dot_is_no_qualifier() -> None:
    for text in ("FROM (x).last_committed_snapshot()", ".last_committed_snapshot() AS x"):
        [call] = last_commit_calls(text)
        assert (call.qualifiers, call.start) == ((), text.index("last"))


def test_commas_inside_of_an_argument_are_its_own() -> None:
    argument = "concat('a', 'b')"
    [call] = last_commit_calls(f"FROM ducklake_last_committed_snapshot({argument})")
    assert call.argument == argument


def test_several_calls_are_replaced() -> None:
    text = "FROM a.last_committed_snapshot(), b.last_committed_snapshot()"
    replaced = replace_calls(text, lambda call: f"SELECT {call.qualifiers[0]!r}")
    assert replaced == "FROM (SELECT 'a'), (SELECT 'b')"

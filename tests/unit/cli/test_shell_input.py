"""The shell reads statements and commands, and knows when Enter should run them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake.cli.shell.commands import COMMANDS, SPELLINGS, help_lines, parse_command
from swanlake.cli.shell.input import Command, Statement, is_complete, split
from swanlake.cli.shell.lexing import Kind, pieces
from swanlake.cli.shell.shell import Shell
from swanlake.errors import InvalidRequest
from swanlake.sql.tokens import tokenize


def items(text: str) -> list[str]:
    return [item.text for item in split(text)]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("\\d trips", [Command]),
        (".tables", [Command]),
        ("SELECT 1;\n.mode csv\nSELECT\n.5;", [Statement, Command, Statement]),
        ("SELECT 1; \\q", [Statement, Command]),
        ("SELECT '\\d' || $$\n.x\n$$;", [Statement]),
        ("SELECT E'\\'\\\\';", [Statement]),
        ("exit", [Command]),
        ("quit;", [Command]),
        ("help", [Command]),
    ],
)
def test_commands_are_told_from_statements(text: str, kinds: list[type]) -> None:
    assert [type(item) for item in split(text)] == kinds


def test_command_after_an_unfinished_statement_has_it_as_buffer() -> None:
    [command] = split("SELECT 1\n  \\gx")
    assert command == Command("\\gx", 2, "SELECT 1")


def test_items_know_their_line() -> None:
    text = "SELECT 1;\n\nSELECT\n2; \\x\n-- comment\nSELECT 3"
    assert [item.line for item in split(text)] == [1, 3, 4, 5]


@pytest.mark.parametrize("text", ["\\nosuch", "\\d", ".tabels", "SELECT 1 \\g", "SELECT 1; \\x"])
def test_line_with_a_command_runs_at_once(text: str) -> None:
    assert is_complete(text)


@given(st.lists(st.sampled_from(
    ["SELECT", " ", "\n", ";", "'a;b'", '"q;"', "$$;$$", "$t$;$t$", "-- c;\n", "/* ; /* ; */ */",
     "E'\\';'", "1.5e3", "a$1", "+", "(", "''", "é"]
), max_size=12))  # fmt: skip
def test_text_is_split_where_duckdb_sees_semicolons(parts: list[str]) -> None:
    text = " ".join(parts)
    semicolons = sum(1 for token in tokenize(text) if token.is_operator and token.text == ";")
    assert sum(1 for piece in pieces(text) if piece.text == ";") == semicolons


@given(st.text(max_size=60))
def test_pieces_are_the_whole_text(text: str) -> None:
    assert "".join(piece.text for piece in pieces(text)) == text


@pytest.mark.parametrize("text", ["'abc", '"abc', "$$abc", "/* abc", "E'abc\\'"])
def test_unfinished_piece_reaches_to_the_end_and_is_open(text: str) -> None:
    [piece] = pieces(text)
    assert piece.is_open


def test_keyword_and_name_are_told_apart() -> None:
    kinds = [piece.kind for piece in pieces("SELECT trips")]
    assert kinds == [Kind.KEYWORD, Kind.SPACE, Kind.NAME]


# ---- commands ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [(".tabels", ".tables"), ("\\dtt", "\\dt"), ("\\wach", "\\watch"), (".mod", ".mode")],
)
def test_unknown_command_names_the_nearest(typed: str, nearest: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_command(typed)
    assert f"no command {typed}; the nearest is {nearest}." in str(refused.value)


def test_arguments_keep_quoted_names_and_spaces() -> None:
    assert parse_command('\\d "My Table".x').arguments == ('"My Table".x',)
    assert parse_command("\\i 'a b.sql'").arguments == ("a b.sql",)
    assert parse_command("\\d+ trips").is_verbose


@pytest.mark.parametrize("text", ["\\i", "\\d a b", "\\q now", ".nullvalue"])
def test_wrong_number_of_arguments_shows_the_usage(text: str) -> None:
    with pytest.raises(InvalidRequest, match="Usage: "):
        parse_command(text)


def test_every_command_has_a_handler_and_a_line_of_help() -> None:
    shown = "\n".join(help_lines())
    for command in COMMANDS.values():
        assert hasattr(Shell, f"_do_{command.name}")
        assert command.help in shown


def test_commands_that_users_of_psql_and_duckdb_expect_exist() -> None:
    expected = (
        "\\d \\dt \\dn \\l \\x \\timing \\watch \\i \\o \\e \\q \\? \\c \\df \\du "
        ".tables .schema .mode .help .timer .read .output .quit"
    )
    assert set(expected.split()) <= set(SPELLINGS)

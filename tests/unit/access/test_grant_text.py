"""Names, roles and grants as operators write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from swanlake.access.certificates import read_subjects
from swanlake.access.grant_text import (
    NO_CATALOG,
    checked_caller_name,
    format_grant,
    parse_explicit_grants,
    parse_grant,
)
from swanlake.access.identity import Grant, Identity, Privilege, Role
from swanlake.errors import ConfigError, InvalidRequest


@pytest.mark.parametrize("text", ["sales_*=read", "a=write", "?=none"])
def test_grant_is_read_and_written(text: str) -> None:
    assert format_grant(parse_grant(text)) == text


@pytest.mark.parametrize(
    "text", ["", "sales", "sales=", "=read", "sales=all", "a b=read", "[a]=read"]
)
def test_text_that_is_no_grant_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="is not a grant"):
        parse_grant(text)


def test_empty_list_of_grants_grants_nothing() -> None:
    assert parse_explicit_grants(None) == ()
    assert parse_explicit_grants([]) == NO_CATALOG
    assert Identity("a", Role.WRITER, NO_CATALOG).privilege("sales") is Privilege.NONE
    with pytest.raises(InvalidRequest, match="not a list"):
        parse_explicit_grants("sales=read")


@pytest.mark.parametrize("name", ["alice", "alice@example.com", "_a-b.c+d", "7"])
def test_name_of_a_caller_is_accepted(name: str) -> None:
    assert checked_caller_name(name) == name


@pytest.mark.parametrize("name", ["", ".signing-key", "jwt:alice", "a b", "a\nb", "é", "a" * 129])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be the name of a caller"):
        checked_caller_name(name)


def test_subjects_are_read_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "subjects.toml"
    file.write_text(
        '["loader.example.com"]\nname = "loader"\nrole = "writer"\ngrants = ["sales=write"]\n'
        '[plain]\nrole = "reader"\n'
    )
    assert read_subjects(file) == {
        "loader.example.com": Identity("loader", Role.WRITER, (Grant("sales", Privilege.WRITE),)),
        "plain": Identity("plain", Role.READER),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("=", "is not valid TOML"),
        ("a = 1", "the subject 'a' needs a table"),
        ("[a]\nname = 'a'", "the subject 'a' needs a table"),
        ("[a]\nrole = 'reader'\ngrant = []", "the subject 'a' needs a table"),
        ("[a]\nrole = 'root'", "'root' is not a role"),
        ("[a]\nrole = 'reader'\ngrants = ['x']", "'x' is not a grant"),
        ("['a b']\nrole = 'reader'", "cannot be the name of a caller"),
    ],
)
def test_wrong_subjects_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    file = tmp_path / "subjects.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_subjects(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_subjects(tmp_path / "none")

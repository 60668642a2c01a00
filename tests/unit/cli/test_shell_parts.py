"""Errors have one form, a lost session is described, and a long statement shows its progress."""

from __future__ import annotations

import pytest

from swanlake.cli.shell.error_text import error_lines
from swanlake.cli.shell.running import running_text
from swanlake.cli.shell.session_state import SessionState
from swanlake.errors import InvalidRequest, InvalidStatement, SwanLakeError

MARKED = InvalidStatement(
    "Catalog Error: Table with name nope does not exist!\nDid you mean \"n\"?\n\n"
    "LINE 2: FROM nope\n             ^",
    identifier="CATALOG_ERROR",
)  # fmt: skip


def test_error_names_its_identifier_once_and_marks_the_place() -> None:
    assert list(error_lines(MARKED)) == [
        "CATALOG_ERROR: Table with name nope does not exist!",
        'Did you mean "n"?',
        "LINE 2: FROM nope",
        "             ^",
    ]


def test_error_in_a_script_counts_the_lines_of_the_script() -> None:
    lines = list(error_lines(MARKED, where="load.sql:99", first_line=99))
    assert lines[0].startswith("load.sql:99: CATALOG_ERROR: ")
    assert lines[2:] == ["LINE 100: FROM nope", "               ^"]


def test_error_without_a_place_is_one_line() -> None:
    assert list(error_lines(InvalidRequest("No."))) == ["INVALID_REQUEST: No."]
    other = SwanLakeError("Binder Error: x", identifier="QUERY_FAILED")
    assert list(error_lines(other)) == ["QUERY_FAILED: Binder Error: x"]


@pytest.mark.parametrize(
    ("statements", "lost"),
    [
        ([], []),
        (["SELECT 1", "INSERT INTO t VALUES (1)", "CREATE TABLE temp (i INT)"], []),
        (["BEGIN"], ["the open transaction"]),
        (["BEGIN TRANSACTION", "COMMIT"], []),
        (["START TRANSACTION", "ROLLBACK"], []),
        (["CREATE TEMP TABLE a (i INT)", "CREATE OR REPLACE TEMPORARY VIEW b AS FROM a"],
         ["temporary a, b"]),
        (["CREATE TEMP TABLE IF NOT EXISTS a (i INT)"], ["temporary a"]),
        (["CREATE TEMP TABLE a (i INT)", "DROP TABLE a"], []),
        (["SET threads = 1", "SET SESSION TimeZone = 'UTC'", "SET VARIABLE v = 1"],
         ["setting threads, TimeZone, v"]),
        (["SET threads = 1", "RESET threads"], []),
        (["USE trial.main"], ["USE trial.main"]),
        (["PREPARE p AS SELECT 1"], ["prepared p"]),
        (["ATTACH ':memory:' AS other"], ["attached other"]),
        (["ATTACH ':memory:' AS other", "DETACH other"], []),
    ],
)  # fmt: skip
def test_lost_session_is_described(statements: list[str], lost: list[str]) -> None:
    state = SessionState()
    for statement in statements:
        state.record(statement)
    assert state.lost() == lost


def test_progress_is_a_bar_and_without_it_there_is_the_time() -> None:
    assert running_text(1.25, None, 0) == "1.2 s  (Ctrl-C cancels)"
    assert running_text(75.0, None, 1234567) == "1:15 min  1,234,567 rows  (Ctrl-C cancels)"
    bar = running_text(3.0, 0.5, 0)
    assert bar.count("█") == bar.count("░") > 0
    assert " 50%" in bar

"""Which errors of DuckDB mean that others came first, and which only sound so."""

from __future__ import annotations

import duckdb
import pytest

from swanlake.engine.errors import is_interrupt, translate
from swanlake.errors import CommitConflict, CommitLockTimeout, QueryError

FAILED = "TransactionContext Error: Failed to commit: Failed to commit DuckLake transaction.\n"


@pytest.mark.parametrize(
    "message",
    [
        f"{FAILED}Failed to flush changes into DuckLake: database is locked",
        f"{FAILED}Exceeded the maximum retry count of 15 set by the setting.",
        f"{FAILED}ERROR:  snapshot 9 conflict: concurrent commit moved the DuckLake head",
        f"{FAILED}Transaction conflict - attempting to alter table - but it has been dropped",
        'IO Error: Failed to execute query "BEGIN": database is locked',
    ],
)
def test_a_commit_that_came_second_is_a_conflict(message: str) -> None:
    assert isinstance(translate(duckdb.Error(message)), CommitConflict)


@pytest.mark.parametrize("kind", [duckdb.TransactionException, duckdb.IOException])
def test_what_another_program_keeps_locked_is_waited_for_in_vain(kind: type[duckdb.Error]) -> None:
    message = f"{FAILED}ERROR:  canceling statement due to lock timeout\nCONTEXT:  while deleting"
    assert isinstance(translate(kind(message)), CommitLockTimeout)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT error('database is locked')",
        "SELECT 'deadlock detected'::INTEGER",
        "SELECT 'canceling statement due to lock timeout'::INTEGER",
    ],
)
def test_words_of_a_statement_are_no_conflict(sql: str) -> None:
    with pytest.raises(duckdb.Error) as failed:
        duckdb.connect().execute(sql).fetchall()
    assert type(translate(failed.value)) is QueryError


def test_an_interrupt_is_known_by_its_kind_and_by_its_words() -> None:
    assert is_interrupt(duckdb.InterruptException("stopped"))
    assert is_interrupt(OSError("INTERRUPT Error: Interrupted!"))  # as it comes through Arrow
    assert not is_interrupt(duckdb.ConversionException("Conversion Error: interrupted"))

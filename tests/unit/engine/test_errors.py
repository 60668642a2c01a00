"""Translation of DuckDB errors into conflicts, lock time-outs and interrupts."""

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
def test_lost_commit_becomes_a_conflict(message: str) -> None:
    assert isinstance(translate(duckdb.Error(message)), CommitConflict)


@pytest.mark.parametrize("kind", [duckdb.TransactionException, duckdb.IOException, duckdb.Error])
def test_postgres_lock_timeout_becomes_a_commit_lock_timeout(kind: type[duckdb.Error]) -> None:
    message = f"{FAILED}ERROR:  canceling statement due to lock timeout\nCONTEXT:  while deleting"
    assert isinstance(translate(kind(message)), CommitLockTimeout)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT error('database is locked')",
        "SELECT 'deadlock detected'::INTEGER",
        "SELECT 'canceling statement due to lock timeout'::INTEGER",
        "SELECT error('canceling statement due to lock timeout')",
    ],
)
def test_conflict_words_in_user_data_are_not_a_conflict(sql: str) -> None:
    with pytest.raises(duckdb.Error) as failed:
        duckdb.connect().execute(sql).fetchall()
    assert type(translate(failed.value)) is QueryError


def test_interrupt_is_recognized_by_class_and_by_message() -> None:
    assert is_interrupt(duckdb.InterruptException("stopped"))
    assert is_interrupt(OSError("INTERRUPT Error: Interrupted!"))  # as Arrow reports it
    assert not is_interrupt(duckdb.ConversionException("Conversion Error: interrupted"))

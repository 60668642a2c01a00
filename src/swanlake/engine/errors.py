"""What DuckDB's errors mean to a caller."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import duckdb

from swanlake.errors import (
    Code,
    CommitConflict,
    CommitLockTimeout,
    QueryError,
    SwanLakeError,
    TransactionAborted,
)

#: Everything an execution or a fetch can raise: DuckDB's own errors, and what its Arrow stream
#: makes of them on the way through pyarrow (ArrowException is a plain Exception, an I/O one an
#: OSError).
ENGINE_ERRORS: tuple[type[Exception], ...] = (duckdb.Error, OSError, ValueError, RuntimeError)

_PREFIX = re.compile(r"^([A-Za-z][A-Za-z ]*?) ?(?:Error|Exception):")
_LOCKED = "database is locked"
#: What is said when others came first: by DuckLake that gave up, by the fence and its indexes, and
#: by the databases about their locks.
_LOST_TO_OTHERS = (
    "Exceeded the maximum retry count",
    "moved the DuckLake head",
    "ducklake_snapshot_pkey",
    "UNIQUE constraint failed: ducklake_",
    "_active_uidx",
    "could not serialize access",
    "deadlock detected",
    _LOCKED,
)
_HELD = "canceling statement due to lock timeout"
_CONFLICT = re.compile(r"Transaction conflict - ([^\n]+)")
_TABLE = re.compile(r'table with index "(\d+)"')
_FILE = re.compile(r'file with index "\d+"')
_ABORTED = "Current transaction is aborted"

_CALLER_IS_WRONG = {
    "PARSER_ERROR",
    "SYNTAX_ERROR",
    "BINDER_ERROR",
    "CATALOG_ERROR",
    "CONSTRAINT_ERROR",
    "CONVERSION_ERROR",
    "DEPENDENCY_ERROR",
    "INVALID_INPUT_ERROR",
    "INVALID_TYPE_ERROR",
    "MISMATCH_TYPE_ERROR",
    "OUT_OF_RANGE_ERROR",
    "PARAMETER_NOT_RESOLVED_ERROR",
    "PARAMETER_NOT_ALLOWED_ERROR",
    "SEQUENCE_ERROR",
    "SETTINGS_ERROR",
    "TRANSACTIONCONTEXT_ERROR",
}


def is_interrupt(error: Exception) -> bool:
    """True if DuckDB says that it was interrupted, and not what is wrong.

    If nobody asked for it, as the run would say, it reports the interrupt of its other threads in
    place of the error that made it interrupt them.
    """
    return isinstance(error, duckdb.InterruptException) or "INTERRUPT Error" in str(error)


def translate(
    error: Exception,
    table_name: Callable[[int], str] = lambda id: f"with the id {id}",
    written: Iterable[str] = (),
) -> SwanLakeError:
    """The error as a caller should see it: a stable identifier, a code, DuckDB's own words.

    DuckLake knows tables by their ids in some messages; ``table_name`` gives their names. In others
    it names none, and all that were ``written`` to are named.
    """
    if isinstance(error, SwanLakeError):
        return error
    # DuckDB appends a stack trace, with the paths of this machine, to what it calls internal.
    message = str(error).split("\n\nStack Trace:")[0].strip()
    if is_interrupt(error):
        return QueryError(
            "The statement failed in one of its threads, and DuckDB did not say why; run it again "
            "to see the error.",
            identifier="INTERRUPT_ERROR",
        )
    if _ABORTED in message:
        return TransactionAborted(
            "A statement failed in this transaction, so it can no longer be used; ROLLBACK ends it."
        )
    to = ", ".join(written)
    if conflict := _CONFLICT.search(message):
        what = _TABLE.sub(lambda found: f"table {table_name(int(found[1]))}", conflict[1])
        if to:
            what = _FILE.sub(f"a file of {to}", what)
        return CommitConflict(
            f"Nothing was committed: {what.replace(' - but', ', but')}. Begin it again."
        )
    if isinstance(error, duckdb.OperationalError) and _HELD in message:
        return CommitLockTimeout(
            "Another program kept what the statement needs of the lake's metadata locked for too "
            "long, in a transaction that it left open. Nothing was done; try again."
        )
    if _came_second(error, message):
        what = f"Nothing that was written to {to} was committed" if to else "Nothing was committed"
        return CommitConflict(f"{what}: others committed since it began. Begin it again.")
    found = _PREFIX.match(message)
    identifier = found[1].upper().replace(" ", "_") + "_ERROR" if found else "ENGINE_ERROR"
    return QueryError(message, identifier=identifier, code=_code(identifier, message))


def _came_second(error: Exception, message: str) -> bool:
    """True if a commit failed because of others; the words alone may be those of a statement."""
    if message.endswith(_LOCKED):
        return not isinstance(error, duckdb.InvalidInputException)  # what error('…') raises
    return "Failed to commit" in message and any(words in message for words in _LOST_TO_OTHERS)


def _code(identifier: str, message: str) -> Code:
    if identifier == "CATALOG_ERROR" and "does not exist" in message:
        return Code.NOT_FOUND
    if identifier in _CALLER_IS_WRONG:
        return Code.INVALID_ARGUMENT
    if identifier == "NOT_IMPLEMENTED_ERROR":
        return Code.UNIMPLEMENTED
    if identifier == "PERMISSION_ERROR":
        return Code.PERMISSION_DENIED
    return Code.INTERNAL


def may_invalidate(error: BaseException) -> bool:
    """True for the errors after which an instance may refuse every further statement."""
    return isinstance(error, duckdb.FatalException | duckdb.InternalException) or str(
        error
    ).startswith(("FATAL Error", "INTERNAL Error"))

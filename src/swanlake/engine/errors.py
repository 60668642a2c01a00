"""Translates DuckDB's errors to SwanLake's."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import duckdb

from swanlake.errors import (
    AccessDenied,
    Code,
    CommitConflict,
    CommitLockTimeout,
    QueryError,
    StorageUnreachable,
    SwanLakeError,
    TransactionAborted,
)

#: What an execution or a fetch can raise: DuckDB's errors, and those of its Arrow stream as
#: pyarrow raises them (ArrowException is a plain Exception, an I/O error is an OSError).
ENGINE_ERRORS: tuple[type[Exception], ...] = (duckdb.Error, OSError, ValueError, RuntimeError)

_PREFIX = re.compile(r"^([A-Za-z][A-Za-z ]*?) ?(?:Error|Exception):")
_LOCKED = "database is locked"
#: Messages of a lost race: of DuckLake's last retry, of the fence and its indexes, and of the
#: database's locks.
_CONFLICT_MESSAGES = (
    "Exceeded the maximum retry count",
    "moved the DuckLake head",
    "ducklake_snapshot_pkey",
    "UNIQUE constraint failed: ducklake_",
    "_active_uidx",
    "could not serialize access",
    "deadlock detected",
    _LOCKED,
)
_LOCK_TIMEOUT = "canceling statement due to lock timeout"
_CONFLICT = re.compile(r"Transaction conflict - ([^\n]+)")
_TABLE = re.compile(r'table with index "(\d+)"')
_FILE = re.compile(r'file with index "\d+"')
#: What an engine says that has read-only catalogs, or is barred from files.
_READ_ONLY = re.compile(r'on database "([^"]*)" which is attached in read-only mode')
_BARRED = re.compile(r'Cannot access (?:file|directory) "([^"]*)" - file system operations are')
#: What httpfs says if it gets no answer.
_UNREACHABLE = re.compile(r"(?P<reason>[^:\n]+) error for HTTP [A-Z]+ to '(?P<url>[^'?]*)")
_ABORTED = "Current transaction is aborted"

_INVALID_STATEMENTS = """
    PARSER_ERROR SYNTAX_ERROR BINDER_ERROR CATALOG_ERROR CONSTRAINT_ERROR CONVERSION_ERROR
    DEPENDENCY_ERROR INVALID_INPUT_ERROR INVALID_TYPE_ERROR MISMATCH_TYPE_ERROR OUT_OF_RANGE_ERROR
    PARAMETER_NOT_RESOLVED_ERROR PARAMETER_NOT_ALLOWED_ERROR SEQUENCE_ERROR SETTINGS_ERROR
    TRANSACTIONCONTEXT_ERROR
""".split()


def is_interrupt(error: Exception) -> bool:
    """True if the error is DuckDB's report of an interrupt.

    Without a cancellation it hides another error: a thread failed, and DuckDB reports the
    interrupt of the other threads in its place.
    """
    return isinstance(error, duckdb.InterruptException) or "INTERRUPT Error" in str(error)


def translate(
    error: Exception,
    table_name: Callable[[int], str] = lambda id: f"with the id {id}",
    written: Iterable[str] = (),
    *,
    lost_engine: bool = False,
) -> SwanLakeError:
    """The error for the caller: a stable identifier, a status code and DuckDB's message.

    Some messages of DuckLake contain table ids, for which ``table_name`` gives the name. Others
    name no table; then all tables that were ``written`` are named. ``lost_engine`` says that a
    fatal error has invalidated the instance.
    """
    if isinstance(error, SwanLakeError):
        return error
    # DuckDB appends a stack trace with local paths to internal errors.
    message = str(error).split("\n\nStack Trace:")[0].strip()
    if is_interrupt(error) and lost_engine:
        return QueryError(
            "Another statement had a fatal error, after which the engine was replaced. This "
            "statement was stopped; run it again.",
            identifier="FATAL_ERROR",
        )
    if is_interrupt(error):
        return QueryError(
            "The statement failed in one of its threads, and DuckDB did not report why; run it "
            "again to see the error.",
            identifier="INTERRUPT_ERROR",
        )
    if _ABORTED in message:
        return TransactionAborted(
            "A statement failed in this transaction, so it can no longer be used; ROLLBACK ends it."
        )
    to = ", ".join(written)
    if conflict := _CONFLICT.search(message):
        what = _TABLE.sub(lambda match: f"table {table_name(int(match[1]))}", conflict[1])
        if to:
            what = _FILE.sub(f"a file of {to}", what)
        return CommitConflict(
            f"Nothing was committed: {what.replace(' - but', ', but')}. Retry it."
        )
    if _LOCK_TIMEOUT in message and is_from_extension(error):
        return CommitLockTimeout(
            "Another program held a lock on the lake's metadata for too long, in a transaction "
            "that it left open. Nothing was changed; retry the statement."
        )
    if _is_lost_race(error, message):
        what = f"Nothing that was written to {to} was committed" if to else "Nothing was committed"
        return CommitConflict(f"{what}: a concurrent commit came first. Retry it.")
    if is_io_error(error) and (unreachable := _UNREACHABLE.search(message)):
        return StorageUnreachable(
            f"{unreachable['url']} cannot be reached: {unreachable['reason'].strip()}. Retry the "
            "statement."
        )
    prefix = _PREFIX.match(message)
    identifier = prefix[1].upper().replace(" ", "_") + "_ERROR" if prefix else "ENGINE_ERROR"
    return QueryError(message, identifier=identifier, code=_code(identifier, message))


def as_denied(error: SwanLakeError) -> SwanLakeError:
    """The error of a restricted engine as AccessDenied, if it is about what it restricts."""
    if read_only := _READ_ONLY.search(error.message):
        return AccessDenied(f"You may not write to the catalog {read_only[1]}.")
    if file := _BARRED.search(error.message):
        return AccessDenied(f"You may not use the file {file[1]}.")
    return error


def is_io_error(error: Exception) -> bool:
    """True if a file or URL failed; pyarrow raises it as an OSError while rows are fetched."""
    return isinstance(error, duckdb.IOException | OSError)


def is_from_extension(error: Exception) -> bool:
    """True if no statement can have this message: extensions raise errors without a kind."""
    return isinstance(error, duckdb.OperationalError) or type(error) is duckdb.Error


def _is_lost_race(error: Exception, message: str) -> bool:
    """True if a commit lost a race; the words alone could be those of a statement."""
    if message.endswith(_LOCKED):
        return not isinstance(error, duckdb.InvalidInputException)  # as error('…') raises
    return "Failed to commit" in message and any(words in message for words in _CONFLICT_MESSAGES)


def _code(identifier: str, message: str) -> Code:
    if identifier == "CATALOG_ERROR" and "does not exist" in message:
        return Code.NOT_FOUND
    if identifier in _INVALID_STATEMENTS:
        return Code.INVALID_ARGUMENT
    if identifier == "NOT_IMPLEMENTED_ERROR":
        return Code.UNIMPLEMENTED
    if identifier == "PERMISSION_ERROR":
        return Code.PERMISSION_DENIED
    return Code.INTERNAL


def may_invalidate(error: BaseException) -> bool:
    """True for errors after which an instance may refuse every further statement."""
    return isinstance(error, duckdb.FatalException | duckdb.InternalException) or str(
        error
    ).startswith(("FATAL Error", "INTERNAL Error"))

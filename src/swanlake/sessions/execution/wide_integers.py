"""Refuses what DuckLake's extension would store with fewer digits.

The extension writes HUGEINT and UHUGEINT to files as DOUBLE, which holds integers below 2^53
exactly. SwanLake's own files hold 38 digits. So the rows that a statement wrote through the
extension are checked before their commit, and what would rewrite files is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import duckdb
from duckdb import StatementType

from swanlake.errors import Code, InvalidValue, Unsupported
from swanlake.lake.model.conditions import any_value_sql
from swanlake.lake.model.layout import Column, folded
from swanlake.lake.model.type_registry import find_type
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.execution.lake_tables import (
    SNAPSHOT_COLUMN,
    describe_table,
    is_of_lake,
    numbered_columns,
)
from swanlake.sql.quoting import identifier, literal
from swanlake.sql.statement import Statement

#: The integers below it are exact as DOUBLE, and all others are at least this after rounding.
_FIRST_INEXACT = 2**53
_WRITES_ROWS = (
    StatementType.INSERT,
    StatementType.UPDATE,
    StatementType.MERGE_INTO,
    StatementType.COPY,
    StatementType.CREATE,
    StatementType.EXECUTE,
    StatementType.EXPLAIN,
)
#: The extension's procedures that write rows of files, or inlined rows, to new files.
_REWRITES = ("merge_adjacent_files", "rewrite_data_files", "flush_inlined_data")


@contextmanager
def checked_integers(
    session: EngineSession, statement: Statement, *, in_transaction: bool
) -> Iterator[None]:
    """Around a statement on the extension: rows with rounded integers undo it, and it fails.

    Unless it is ``in_transaction`` already the statement gets one, so that it can be undone.
    """
    if statement.may_rewrite_files(_REWRITES):
        _refuse_rewrite(session, statement)
    if not _may_round(session, statement):
        yield
        return
    is_autocommit = not in_transaction
    if is_autocommit:
        session.connection.execute("BEGIN TRANSACTION")
    try:
        yield
        _check_rows(session, statement)
        if is_autocommit:
            session.connection.execute("COMMIT")
    except BaseException:
        if is_autocommit:
            session.roll_back()
        raise


def inexact_sql(column: Column, value: str) -> str | None:
    """A condition that is true if an integer in a value may have been rounded; None if none can."""
    return any_value_sql(column, value, _inexact_integer)


def _inexact_integer(column: Column, value: str) -> str | None:
    type_ = find_type(column.type)
    if type_ is None or type_.stored_as is None:
        return None
    return f"{value} NOT BETWEEN {1 - _FIRST_INEXACT} AND {_FIRST_INEXACT - 1}"


def _may_round(session: EngineSession, statement: Statement) -> bool:
    if statement.type not in _WRITES_ROWS or not session.names.written_catalogs(statement):
        return False
    if statement.type == StatementType.CREATE:
        return statement.creates_table
    return any(True for _ in _wide_tables(session, statement))


def _check_rows(session: EngineSession, statement: Statement) -> None:
    for table, columns in _wide_tables(session, statement):
        conditions = [inexact_sql(column, identifier(column.name)) for column in columns]
        inexact = " OR ".join(condition for condition in conditions if condition)
        query = f"SELECT 1 FROM {table} WHERE ({inexact})"
        if SNAPSHOT_COLUMN not in {folded(column.name) for column in columns}:
            query += f" AND {SNAPSHOT_COLUMN} IS NULL"
        try:
            is_inexact = bool(session.connection.execute(f"{query} LIMIT 1").fetchall())
        except duckdb.ConversionException:
            is_inexact = True  # a DOUBLE that is no HUGEINT any more
        if is_inexact:
            session.transaction.aborted = session.transaction.open
            raise InvalidValue(
                f"{table} would lose digits: DuckLake's extension, which runs this statement, "
                "stores a HUGEINT or UHUGEINT of 2^53 or more as DOUBLE; only an INSERT, CREATE "
                "TABLE AS or COPY outside of a transaction, with native_statements on, stores it.",
                identifier="CONVERSION_ERROR",
                code=Code.INVALID_ARGUMENT,
            )


def _refuse_rewrite(session: EngineSession, statement: Statement) -> None:
    for location in session.names.written_catalogs(statement):
        for table, _ in _wide_tables_of(session, location.catalog):
            raise Unsupported(
                f"DuckLake's extension would round the integers of {table}, which has a HUGEINT or "
                "UHUGEINT column; CALL swanlake_compact() writes the same files exactly."
            )


def _wide_tables(
    session: EngineSession, statement: Statement
) -> Iterator[tuple[str, list[Column]]]:
    """The tables of a statement with such a column: their names as SQL, and all their columns."""
    target = statement.written_table
    if target is None:
        for location in session.names.written_catalogs(statement):
            yield from _wide_tables_of(session, location.catalog)
        return
    described = describe_table(session, statement, target)
    if described is not None and _are_wide(described[1]) and is_of_lake(session, described[0]):
        yield described


def _wide_tables_of(session: EngineSession, catalog: str) -> Iterator[tuple[str, list[Column]]]:
    found = session.connection.execute(
        "SELECT schema_name, table_name, list(column_name ORDER BY column_index), "
        "list(data_type ORDER BY column_index) FROM duckdb_columns() "
        f"WHERE database_name = {literal(catalog)} GROUP BY ALL "
        "HAVING bool_or(contains(data_type, 'HUGEINT'))"
    ).fetchall()
    for schema, table, names, types in found:
        name = ".".join(map(identifier, (catalog, schema, table)))
        columns = numbered_columns(zip(names, types, strict=True))
        if _are_wide(columns) and is_of_lake(session, name):
            yield name, columns


def _are_wide(columns: Iterable[Column]) -> bool:
    return any(inexact_sql(column, "") for column in columns)

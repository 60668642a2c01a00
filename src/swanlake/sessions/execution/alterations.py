"""Refuses the alterations that DuckLake's extension would do wrong.

They would invalidate the whole engine, make a catalog unreadable, or give older rows other values.
"""

from __future__ import annotations

from swanlake.errors import Code, InvalidStatement, NotFound, Unsupported
from swanlake.lake.model.layout import Column, folded
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.execution.lake_tables import describe_table, is_of_lake
from swanlake.sessions.execution.names import TableName
from swanlake.sql.alteration import Action, Alteration
from swanlake.sql.statement import Kind, Statement

#: What may read a table without naming it.
_VIEWS_AND_MACROS = """
    SELECT view_name FROM duckdb_views() WHERE NOT internal
    UNION ALL SELECT function_name FROM duckdb_functions() WHERE NOT internal
"""


def check_transaction(session: EngineSession, statement: Statement) -> None:
    """Raises Unsupported for a statement that the transaction's earlier ones make go wrong."""
    if not session.transaction.open:
        return
    _check_unreadable(session, statement)
    alteration, transaction = statement.alteration, session.transaction
    if alteration is None:
        return
    target = ".".join(alteration.target)
    if _follows(session, alteration, Action.ADD_COLUMN, transaction.changed_rows_of):
        # For a table without earlier rows, the extension takes the bounds of the new column from
        # the rows that have the column, and finds the others by no condition.
        raise Unsupported(
            f"ADD COLUMN cannot follow a change of the rows of {target} in the same "
            "transaction: commit the rows first, or add the column before them."
        )
    if _follows(session, alteration, Action.RENAME, transaction.altered):
        # The extension would add the new name and forget the other changes and the end of the old
        # name: two tables with one id, after which no table of the catalog can be read.
        raise Unsupported(
            f"RENAME TO cannot follow another change of {target} in the same transaction: commit "
            "that change first, or rename before it."
        )


def _follows(
    session: EngineSession,
    alteration: Alteration,
    action: Action,
    changed: set[TableName | None],
) -> bool:
    """True if it is this action, on one of these objects."""
    if alteration.action is not action or not changed:
        return False
    return None in changed or session.folded_name(alteration.target) in changed


def _check_unreadable(session: EngineSession, statement: Statement) -> None:
    """Raises if the transaction changed a type so that the extension reads NULL in older rows."""
    unreadable = session.transaction.unreadable
    if not unreadable or statement.kind in (Kind.COMMIT, Kind.ROLLBACK):
        return
    if _is_of_other_column(session, statement.alteration):
        return
    names = {folded(name[2]) for name in unreadable if name is not None}
    # Also words that are no names of tables: the next COMMIT is all that is lost.
    may_read = None in unreadable or bool(names & statement.names)
    if not may_read:
        rows = session.connection.execute(_VIEWS_AND_MACROS).fetchall()
        may_read = any(folded(name) in statement.names for (name,) in rows)
    if may_read:
        of_tables = f" of {', '.join(sorted(names))}" if names else ""
        raise Unsupported(
            f"The transaction changed the type of a column{of_tables} that has a default for older "
            "rows, and DuckLake's extension would read NULL there. Commit the change of the type "
            "first."
        )


def _is_of_other_column(session: EngineSession, alteration: Alteration | None) -> bool:
    """True for a change that reads no rows and redefines no column of which the type changed."""
    if alteration is None or None in session.transaction.unreadable:
        return False
    name = session.folded_name(alteration.target)
    changed = session.transaction.unreadable.get(name)
    if changed is None or alteration.action in (Action.COMMENT_COLUMN, Action.DROP_COLUMN):
        return True
    return not alteration.column or folded(alteration.column[0]) not in changed


def check_columns(session: EngineSession, statement: Statement) -> None:
    """Raises InvalidStatement for a column that would make the extension fail fatally."""
    alteration = statement.alteration
    if alteration is None or alteration.action not in (Action.COMMENT_COLUMN, Action.DROP_COLUMN):
        return
    is_drop = alteration.action is Action.DROP_COLUMN
    if is_drop and len(alteration.column) == 1:
        return
    described = describe_table(session, statement, alteration.target)
    if described is None or not is_of_lake(session, described[0]):
        return
    _, columns = described
    path, table = ".".join(alteration.column), alteration.target[-1]
    if is_drop and is_only_field(columns, alteration.column):
        raise InvalidStatement(
            f"The field {path} of the table {table} is the last one of its struct, and a struct "
            "cannot be empty; drop the struct instead.",
            identifier="CATALOG_ERROR",
            code=Code.INVALID_ARGUMENT,
        )
    if not is_drop and _find(columns, alteration.column[0]) is None:
        raise InvalidStatement(
            f'Binder Error: Table "{table}" does not have a column with name "{path}"',
            identifier="BINDER_ERROR",
            code=Code.INVALID_ARGUMENT,
        )


def is_only_field(columns: list[Column], path: tuple[str, ...]) -> bool:
    """True if the path leads to the only field of a struct."""
    siblings, parent = columns, None
    for name in path[:-1]:
        parent = _find(siblings, name)
        if parent is None:
            return False
        siblings = list(parent.children)
    is_struct = parent is not None and parent.type == "struct"
    return is_struct and len(siblings) == 1 and _find(siblings, path[-1]) is not None


def _find(columns: list[Column], name: str) -> Column | None:
    return next((column for column in columns if folded(column.name) == folded(name)), None)


def record_alteration(session: EngineSession, statement: Statement) -> None:
    """Takes note of what a successful statement of an open transaction did to tables and views."""
    transaction = session.transaction
    if not transaction.open:
        return
    if statement.creates_table:
        transaction.created.add(session.folded_name(statement.written_table))
    alteration = statement.alteration
    if alteration is None:
        return
    name = session.folded_name(alteration.target)
    if alteration.action is Action.RENAME:
        new = None if name is None else (*name[:2], folded(alteration.new_name))
        for names in (transaction.changed_rows_of, transaction.altered, transaction.created):
            if name in names:
                names.add(new)
    elif name is None or name not in transaction.created:
        transaction.altered.add(name)
        if alteration.action is Action.CHANGE_TYPE and _has_initial_value(
            session, name, alteration.column
        ):
            transaction.unreadable.setdefault(name, set()).add(folded(alteration.column[0]))


def _has_initial_value(
    session: EngineSession, name: TableName | None, column: tuple[str, ...]
) -> bool:
    """False only if the column is certainly NULL in rows that are older than the column."""
    if name is None:
        return True
    try:
        table = session.services.queue.table_cache.find(*name).layout
    except NotFound:  # renamed in this transaction
        return True
    known = _find(list(table.columns), column[0])
    if known is None:  # added or renamed in this transaction
        return True
    initial = session.services.lake.catalog(name[0]).columns_with_initial_values(table.id)
    return any(one.id in initial for one in known.tree())

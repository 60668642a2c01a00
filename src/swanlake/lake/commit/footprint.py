"""The footprint of a commit: what it touches, for conflict checks and for its reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Row

from swanlake.lake.commit.conflicts import Action, TableIntent
from swanlake.lake.model.layout import Table, folded
from swanlake.lake.model.operations import (
    Commit,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    FlushInlined,
    InlineDelete,
    InlineInsert,
    Insert,
    Merge,
    Rewrite,
)

#: The prefix of the ledger entry with a commit's own id.
COMMIT_ENTRY = "commit:"
_INDEPENDENT = (Insert, InlineInsert, InlineDelete, CreateTable)


def table_intents(commit: Commit) -> list[TableIntent]:
    """What a commit does to existing tables."""
    intents = []
    for operation in commit.operations:
        match operation:
            case Insert(table=Table() as table) | InlineInsert(table=Table() as table):
                action = Action.APPEND if operation.blind else Action.INSERT
            case InlineDelete(table=table):
                action = Action.INLINED_DELETE
            case Merge(table=table):
                action = Action.MERGE
            case Rewrite(table=table):
                action = Action.REWRITE
            case FlushInlined(table=table):
                action = Action.FLUSH
            case _:
                continue
        intents.append(TableIntent(action, table.id, table.full_name))
    return intents


def drop_intents(
    commit: Commit, schemas: dict[str, Row[Any]], objects: dict[tuple[int, str], tuple[str, int]]
) -> list[TableIntent]:
    """The tables that a commit drops, among the schemas, tables and views of its base."""
    intents = []
    wanted: str | None
    made = {tuple(map(folded, name)) for name in created_names(commit)}
    for operation in commit.operations:
        match operation:
            case DropTable(schema=schema):
                wanted = folded(operation.name)
            case DropSchema(name=schema, cascade=True):
                wanted = None
            case _:
                continue
        row = schemas.get(folded(schema))
        for (schema_id, name), (kind, table_id) in objects.items():
            if row is None or schema_id != row.schema_id or kind != "table":
                continue
            if wanted is None or name == wanted:
                act = Action.REPLACE if (folded(schema), name) in made else Action.DROP
                intents.append(TableIntent(act, table_id, f"{row.schema_name}.{name}"))
    return intents


def dropped_names(commit: Commit) -> list[tuple[str, ...]]:
    """The tables that a commit drops by name."""
    return [(operation.schema, operation.name) for operation in commit.of_type(DropTable)]


def created_names(commit: Commit) -> list[tuple[str, ...]]:
    """The names of the schemas and tables that a commit creates."""
    names: list[tuple[str, ...]] = []
    for operation in commit.operations:
        match operation:
            case CreateSchema(name=name):
                names.append((name,))
            case CreateTable(schema=schema, name=name):
                names.append((schema, name))
    return names


def file_ids(commit: Commit) -> set[int]:
    """The data files that must be live for a commit."""
    ids: set[int] = set()
    for operation in commit.operations:
        match operation:
            case Merge(sources=sources):
                ids |= set(sources)
            case Rewrite(sources=rewritten):
                ids |= {source.data_file_id for source in rewritten}
    return ids


def inlining_tables(commit: Commit) -> list[int]:
    """The existing tables for which a commit inlines rows."""
    tables = [operation.table for operation in commit.of_type(InlineInsert)]
    return sorted({table.id for table in tables if isinstance(table, Table)})


def needs_names(operations: Iterable[Any]) -> bool:
    """True if schemas and tables are created or dropped."""
    return any(
        isinstance(operation, CreateSchema | DropSchema | CreateTable | DropTable)
        for operation in operations
    )


def ledger_entries(commit: Commit) -> Sequence[str]:
    """The ledger entries of a commit: its own id, its work and its notes."""
    return (own_entry(commit), *commit.ledger, *commit.notes)


def own_entry(commit: Commit) -> str:
    """The entry by which a retry finds out whether the commit succeeded."""
    return f"{COMMIT_ENTRY}{commit.id}"


def independent_groups(commits: Sequence[Commit]) -> list[list[Commit]]:
    """The commits in their order, in groups in which none reads what another wrote.

    Those of a group only create tables or change rows of different tables; several may append to
    the same table.
    """
    groups: list[list[Commit]] = []
    seen: dict[int, set[Action]] = {}
    for commit in commits:
        actions = _actions_by_table(commit)
        is_independent = actions is not None and all(
            seen.get(id, set()) | done <= {Action.APPEND}
            for id, done in actions.items()
            if id in seen
        )
        if not groups or not is_independent or _actions_by_table(groups[-1][0]) is None:
            groups.append([])
            seen = {}
        groups[-1].append(commit)
        for id, done in (actions or {}).items():
            seen.setdefault(id, set()).update(done)
    return groups


def _actions_by_table(commit: Commit) -> dict[int, set[Action]] | None:
    """The actions of a commit by table; None if it does more, or must read the history."""
    if not all(isinstance(operation, _INDEPENDENT) for operation in commit.operations):
        return None
    if commit.ledger or (commit.of_type(CreateTable) and commit.base is not None):
        return None
    actions: dict[int, set[Action]] = {}
    for intent in table_intents(commit):
        actions.setdefault(intent.table_id, set()).add(intent.action)
    return actions

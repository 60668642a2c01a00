"""What a commit means to do, as far as others may be in its way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Row

from swanlake.lake.conflicts import Act, Touch
from swanlake.lake.layout import Table, folded
from swanlake.lake.operations import (
    Commit,
    CreateSchema,
    CreateTable,
    Delete,
    DropSchema,
    DropTable,
    Fold,
    InlineDelete,
    InlinedRows,
    InlineInsert,
    Insert,
    Merge,
    Rewrite,
)

#: How ledger entries begin that are a commit's own id.
COMMIT_ENTRY = "commit:"
_UNCONNECTED = (Insert, InlineInsert, InlineDelete, Delete, CreateTable)


def touches(commit: Commit) -> list[Touch]:
    """What a commit does to tables that were there before it."""
    found = []
    for operation in commit.operations:
        match operation:
            case Insert(table=Table() as table) | InlineInsert(table=Table() as table):
                act = Act.APPEND if operation.blind else Act.INSERT
            case Delete(table=table):
                act = Act.DELETE
            case InlineDelete(table=table):
                act = Act.INLINED_DELETE
            case Merge(table=table):
                act = Act.MERGE
            case Rewrite(table=table):
                act = Act.REWRITE
            case Fold(table=table):
                act = Act.FLUSH
            case _:
                continue
        found.append(Touch(act, table.id, table.full_name))
    return found


def drops(
    commit: Commit,
    schemas: dict[str, Row[Any]],
    objects: dict[tuple[int, str], tuple[str, int]],
) -> list[Touch]:
    """The tables that a commit drops, out of the schemas, tables and views of its base."""
    found = []
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
                act = Act.REPLACE if (folded(schema), name) in made else Act.DROP
                found.append(Touch(act, table_id, f"{row.schema_name}.{name}"))
    return found


def dropped_names(commit: Commit) -> list[tuple[str, ...]]:
    """The names of the tables that a commit drops one by one."""
    return [
        (operation.schema, operation.name)
        for operation in commit.operations
        if isinstance(operation, DropTable)
    ]


def created_names(commit: Commit) -> list[tuple[str, ...]]:
    """The names a commit gives to new schemas and tables."""
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
            case Delete(files=files, dropped=dropped):
                ids |= {file.data_file_id for file in files} | set(dropped)
            case Merge(sources=sources):
                ids |= set(sources)
            case Rewrite(sources=rewritten):
                ids |= {source.data_file_id for source in rewritten}
    return ids


def inlined_rows(commit: Commit) -> list[InlinedRows]:
    """The tables of rows in the metadata that a commit empties."""
    return [
        rows
        for operation in commit.operations
        if isinstance(operation, Fold)
        for rows in operation.inlined
    ]


def inlining_tables(commit: Commit) -> list[int]:
    """The tables that were there before a commit and get rows in the metadata from it."""
    return sorted(
        {
            operation.table.id
            for operation in commit.operations
            if isinstance(operation, InlineInsert) and isinstance(operation.table, Table)
        }
    )


def makes_tables(commit: Commit) -> bool:
    """True if there are tables after a commit that were not there before it."""
    return any(isinstance(operation, CreateTable) for operation in commit.operations)


def needs_names(operations: Iterable[Any]) -> bool:
    """True if schemas and tables are created or dropped."""
    return any(
        isinstance(operation, CreateSchema | DropSchema | CreateTable | DropTable)
        for operation in operations
    )


def ledger_entries(commit: Commit) -> Sequence[str]:
    """What a commit leaves in the ledger: its own id, the work it was for, and its notes."""
    return (own_entry(commit), *commit.ledger, *commit.notes)


def own_entry(commit: Commit) -> str:
    """The entry by which a commit finds out whether it happened."""
    return f"{COMMIT_ENTRY}{commit.id}"


def unconnected(commits: Sequence[Commit]) -> list[list[Commit]]:
    """The commits in their order, in groups in which none asks the catalog for what another wrote.

    Those only change rows, of tables of their own, or make tables; several may append to one.
    """
    groups: list[list[Commit]] = []
    acts: dict[int, set[Act]] = {}
    for commit in commits:
        mine = _acts(commit)
        is_free = mine is not None and all(
            acts.get(id, set()) | done <= {Act.APPEND} for id, done in mine.items() if id in acts
        )
        if not groups or not is_free or _acts(groups[-1][0]) is None:
            groups.append([])
            acts = {}
        groups[-1].append(commit)
        for id, done in (mine or {}).items():
            acts.setdefault(id, set()).update(done)
    return groups


def _acts(commit: Commit) -> dict[int, set[Act]] | None:
    """What a commit does to which tables; None if it does more, or must look at the past."""
    acts: dict[int, set[Act]] = {}
    for operation in commit.operations:
        if not isinstance(operation, _UNCONNECTED):
            return None
    if commit.ledger or (makes_tables(commit) and commit.base is not None):
        return None
    for touch in touches(commit):
        acts.setdefault(touch.table_id, set()).add(touch.act)
    return acts

"""Which changes of others a commit cannot follow.

The stock extension's matrix, with the pairs it misses: a drop would swallow rows inserted
meanwhile, a table made of the one that it replaces would undo what was done to that, a compaction
would bring rows back that an inlined delete removed, and two deletes may meet on one file in more
ways than it looks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from swanlake.errors import CommitConflict
from swanlake.lake.changes import Change, ChangeType
from swanlake.lake.layout import folded


class Act(Enum):
    """What a commit does to a table, in the words of an error message."""

    APPEND = "append to"  # rows that do not depend on what the lake held
    INSERT = "insert into"  # rows that were worked out from the lake at the base
    DELETE = "delete from"
    INLINED_DELETE = "delete inlined rows from"
    FLUSH = "flush"
    MERGE = "merge files of"
    REWRITE = "rewrite files of"
    ALTER = "alter"
    DROP = "drop"
    REPLACE = "replace"  # by one of the same name, which may hold what was read from it


_INSERTS = {ChangeType.INSERTED, ChangeType.INLINED_INSERT}
_COMPACTIONS = {ChangeType.MERGE_ADJACENT, ChangeType.REWRITE_DELETE, ChangeType.COMPACTED}
_FLUSHES = {ChangeType.INLINE_FLUSH, ChangeType.FLUSHED_INLINED}
_DROP = {ChangeType.DROPPED_TABLE}
_RESHAPED = {ChangeType.ALTERED_TABLE, *_DROP}
_DELETES = {ChangeType.DELETED, ChangeType.INLINED_DELETE}
#: Compacting a table and deleting from it exclude each other, in every form both can take.
_COMPACTING = {*_DROP, *_DELETES, *_COMPACTIONS}

#: What this commit does to a table, and what nobody may have done to it since the base. Deletes
#: from files are not here: they exclude each other only on the same file.
MATRIX: dict[Act, frozenset[ChangeType]] = {
    Act.APPEND: frozenset(_RESHAPED),
    Act.INSERT: frozenset(_RESHAPED | _DELETES),
    Act.DELETE: frozenset(_RESHAPED | _INSERTS | _COMPACTIONS),
    Act.INLINED_DELETE: frozenset(_RESHAPED | _INSERTS | _DELETES | _FLUSHES | _COMPACTIONS),
    Act.FLUSH: frozenset(_DROP | {ChangeType.INLINED_DELETE} | _FLUSHES),
    Act.MERGE: frozenset(_COMPACTING),
    Act.REWRITE: frozenset(_COMPACTING),
    Act.ALTER: frozenset(_RESHAPED),
    Act.DROP: frozenset(_DROP | _INSERTS),
    Act.REPLACE: frozenset(_RESHAPED | _INSERTS | _DELETES),
}

#: Changes after which two deletes may have met on one file.
TOUCHES_FILES = frozenset(_DELETES | _FLUSHES)

_DID = {
    ChangeType.INSERTED: "rows were inserted into it",
    ChangeType.INLINED_INSERT: "rows were inserted into it",
    ChangeType.DELETED: "rows were deleted from it",
    ChangeType.INLINED_DELETE: "rows were deleted from it",
    ChangeType.ALTERED_TABLE: "it was altered",
    ChangeType.DROPPED_TABLE: "it was dropped",
    ChangeType.MERGE_ADJACENT: "its files were merged",
    ChangeType.REWRITE_DELETE: "its files were rewritten",
    ChangeType.COMPACTED: "its files were compacted",
    ChangeType.INLINE_FLUSH: "its inlined rows were flushed",
    ChangeType.FLUSHED_INLINED: "its inlined rows were flushed",
}


@dataclass(frozen=True)
class Touch:
    """What a commit does to one table."""

    act: Act
    table_id: int
    table: str


class Happened(NamedTuple):
    """A change that somebody committed, and in which snapshot; of many commits there are many."""

    snapshot_id: int
    change: Change


def check_tables(mine: Iterable[Touch], theirs: Sequence[Happened], base: int) -> None:
    """Raises CommitConflict if a table was changed since the base in a way that does not fit."""
    for touch in mine:
        for happened in theirs:
            change = happened.change
            if change.id == touch.table_id and change.type in MATRIX[touch.act]:
                raise CommitConflict(
                    f"Cannot {touch.act.value} the table {touch.table} (id {touch.table_id}): "
                    f"{_DID[change.type]} in snapshot {happened.snapshot_id}, after snapshot "
                    f"{base} on which this commit was based. Read the table again and repeat it."
                )


def check_renamed(mine: Iterable[Touch], named_at: Mapping[int, int], base: int) -> None:
    """Raises CommitConflict if a table got its name after the base; given is when each did."""
    for touch in mine:
        since = named_at.get(touch.table_id, base)
        if since > base:
            raise CommitConflict(
                f"Cannot {touch.act.value} the table {touch.table} (id {touch.table_id}): it was "
                f"renamed in snapshot {since}, after snapshot {base} on which this commit was "
                "based. Look it up again and repeat it."
            )


def check_files(
    touch: Touch, mine: Iterable[int], theirs: Iterable[int], base: int, head: int
) -> None:
    """Raises CommitConflict if both sides deleted from, or replaced, the same data file."""
    both = sorted(set(mine) & set(theirs))
    if both:
        raise CommitConflict(
            f"Cannot {touch.act.value} the table {touch.table} (id {touch.table_id}): data file "
            f"{both[0]} was changed by another commit between snapshot {base}, on which this one "
            f"was based, and snapshot {head}. Read the table again and repeat it."
        )


def check_names(created: Iterable[tuple[str, ...]], theirs: Sequence[Happened], base: int) -> None:
    """Raises CommitConflict if somebody made an object of the same name since the base."""
    wanted = {_folded(name): name for name in created}
    for happened in theirs:
        name = wanted.get(_made(happened.change))
        if name:
            raise CommitConflict(
                f"Cannot create {'.'.join(name)}: snapshot {happened.snapshot_id} created it, "
                f"after snapshot {base} on which this commit was based. Use the one that is there, "
                "or choose another name."
            )


def check_table_drops(
    dropped: Iterable[tuple[str, ...]], theirs: Sequence[Happened], base: int
) -> None:
    """Raises CommitConflict if a table to drop is not the one that had its name at the base."""
    wanted = {_folded(name): name for name in dropped}
    for happened in theirs:
        name = wanted.get(_made(happened.change))
        if name:
            raise CommitConflict(
                f"Cannot drop the table {'.'.join(name)}: snapshot {happened.snapshot_id} gave "
                f"that name to another one, after snapshot {base} on which this commit was based. "
                "Look at the table again and repeat it."
            )


def check_schema_use(schema_id: int, schema: str, theirs: Sequence[Happened], base: int) -> None:
    """Raises CommitConflict if a schema in which something is created was dropped."""
    for happened in theirs:
        if _drops_schema(happened.change, schema_id):
            raise CommitConflict(
                f"Cannot create anything in the schema {schema} (id {schema_id}): snapshot "
                f"{happened.snapshot_id} dropped it, after snapshot {base} on which this commit "
                "was based. Look at the schema again and repeat it."
            )


def check_schema_drop(schema_id: int, schema: str, theirs: Sequence[Happened], base: int) -> None:
    """Raises CommitConflict if the schema was dropped, or something was made in it."""
    for happened in theirs:
        change = happened.change
        dropped = _drops_schema(change, schema_id)
        filled = len(change.name) == 2 and _folded(change.name[:1]) == _folded((schema,))
        if dropped or filled:
            what = "dropped it" if dropped else f"created {'.'.join(change.name)} in it"
            raise CommitConflict(
                f"Cannot drop the schema {schema} (id {schema_id}): snapshot "
                f"{happened.snapshot_id} {what}, after snapshot {base} on which this commit was "
                "based. Look at the schema again and repeat it."
            )


def _made(change: Change) -> tuple[str, ...]:
    """The name a change gave to a schema, table or view; macros have names of their own kind."""
    macro = change.type in (ChangeType.CREATED_SCALAR_MACRO, ChangeType.CREATED_TABLE_MACRO)
    return () if macro else _folded(change.name)


def _drops_schema(change: Change, schema_id: int) -> bool:
    return change.type is ChangeType.DROPPED_SCHEMA and change.id == schema_id


def _folded(name: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(folded(part) for part in name)

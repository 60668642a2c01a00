"""Which concurrent changes conflict with a commit.

The stock extension's matrix, with the pairs it misses: a drop would lose rows inserted meanwhile, a
table created from the one that it replaces would undo changes to that, and a compaction would
restore rows that an inlined delete removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from swanlake.errors import CommitConflict
from swanlake.lake.commit.changes import Change, ChangeType
from swanlake.lake.model.layout import folded


class Action(Enum):
    """What a commit does to a table, as error messages say it."""

    APPEND = "append to"  # rows that do not depend on the lake
    INSERT = "insert into"  # rows that were computed from the lake at the base
    INLINED_DELETE = "delete inlined rows from"
    FLUSH = "flush"
    MERGE = "merge files of"
    REWRITE = "rewrite files of"
    ALTER = "alter"
    DROP = "drop"
    REPLACE = "replace"  # by a table of the same name, which may hold rows read from it


_INSERTS = {ChangeType.INSERTED, ChangeType.INLINED_INSERT}
_COMPACTIONS = {ChangeType.MERGE_ADJACENT, ChangeType.REWRITE_DELETE, ChangeType.COMPACTED}
_FLUSHES = {ChangeType.INLINE_FLUSH, ChangeType.FLUSHED_INLINED}
_DROP = {ChangeType.DROPPED_TABLE}
_RESHAPED = {ChangeType.ALTERED_TABLE, *_DROP}
_DELETES = {ChangeType.DELETED, ChangeType.INLINED_DELETE}
#: Compaction and deletes exclude each other, in all their forms.
_COMPACTING = {*_DROP, *_DELETES, *_COMPACTIONS}

#: By action, the changes since the base that conflict with it.
MATRIX: dict[Action, frozenset[ChangeType]] = {
    Action.APPEND: frozenset(_RESHAPED),
    Action.INSERT: frozenset(_RESHAPED | _DELETES),
    Action.INLINED_DELETE: frozenset(_RESHAPED | _INSERTS | _DELETES | _FLUSHES | _COMPACTIONS),
    Action.FLUSH: frozenset(_DROP | {ChangeType.INLINED_DELETE} | _FLUSHES),
    Action.MERGE: frozenset(_COMPACTING),
    Action.REWRITE: frozenset(_COMPACTING),
    Action.ALTER: frozenset(_RESHAPED),
    Action.DROP: frozenset(_DROP | _INSERTS),
    Action.REPLACE: frozenset(_RESHAPED | _INSERTS | _DELETES),
}

_DESCRIPTIONS = {
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
class TableIntent:
    """What a commit does to one table."""

    action: Action
    table_id: int
    table: str

    def __str__(self) -> str:
        return f"{self.action.value} the table {self.table} (id {self.table_id})"


class CommittedChange(NamedTuple):
    """A change that was committed, and its snapshot."""

    snapshot_id: int
    change: Change


def check_tables(
    intents: Iterable[TableIntent], committed: Sequence[CommittedChange], base: int
) -> None:
    """Raises CommitConflict if a table was changed since the base in a conflicting way."""
    for intent in intents:
        for each in committed:
            change = each.change
            if change.id == intent.table_id and change.type in MATRIX[intent.action]:
                raise CommitConflict(
                    f"Cannot {intent}: {_DESCRIPTIONS[change.type]} in snapshot "
                    f"{each.snapshot_id}, after snapshot {base} on which this commit was "
                    "based. Read the table again and repeat it."
                )


def check_renamed(intents: Iterable[TableIntent], named_at: Mapping[int, int], base: int) -> None:
    """Raises CommitConflict if a table was renamed after the base; ``named_at`` says when."""
    for intent in intents:
        since = named_at.get(intent.table_id, base)
        if since > base:
            raise CommitConflict(
                f"Cannot {intent}: it was renamed in snapshot {since}, after snapshot {base} on "
                "which this commit was based. Look it up again and repeat it."
            )


def check_names(
    created: Iterable[tuple[str, ...]], committed: Sequence[CommittedChange], base: int
) -> None:
    """Raises CommitConflict if an object of the same name was created since the base."""
    for name, snapshot_id in _recreated(created, committed):
        raise CommitConflict(
            f"Cannot create {name}: snapshot {snapshot_id} created it, after snapshot {base} on "
            "which this commit was based. Use the existing one, or choose another name."
        )


def check_table_drops(
    dropped: Iterable[tuple[str, ...]], committed: Sequence[CommittedChange], base: int
) -> None:
    """Raises CommitConflict if another table has the name of a table to drop."""
    for name, snapshot_id in _recreated(dropped, committed):
        raise CommitConflict(
            f"Cannot drop the table {name}: snapshot {snapshot_id} gave that name to another one, "
            f"after snapshot {base} on which this commit was based. Look at the table again and "
            "repeat it."
        )


def check_schema_use(
    schema_id: int, schema: str, committed: Sequence[CommittedChange], base: int
) -> None:
    """Raises CommitConflict if the schema of a new object was dropped."""
    for each in committed:
        if _drops_schema(each.change, schema_id):
            raise CommitConflict(
                f"Cannot create anything in the schema {schema} (id {schema_id}): snapshot "
                f"{each.snapshot_id} dropped it, after snapshot {base} on which this commit "
                "was based. Look at the schema again and repeat it."
            )


def check_schema_drop(
    schema_id: int, schema: str, committed: Sequence[CommittedChange], base: int
) -> None:
    """Raises CommitConflict if the schema was dropped, or an object was created in it."""
    for each in committed:
        change = each.change
        dropped = _drops_schema(change, schema_id)
        filled = len(change.name) == 2 and _folded(change.name[:1]) == _folded((schema,))
        if dropped or filled:
            what = "dropped it" if dropped else f"created {'.'.join(change.name)} in it"
            raise CommitConflict(
                f"Cannot drop the schema {schema} (id {schema_id}): snapshot "
                f"{each.snapshot_id} {what}, after snapshot {base} on which this commit was "
                "based. Look at the schema again and repeat it."
            )


def _recreated(
    names: Iterable[tuple[str, ...]], committed: Sequence[CommittedChange]
) -> Iterator[tuple[str, int]]:
    """The names that a schema, table or view got, and in which snapshot."""
    wanted = {_folded(name): ".".join(name) for name in names}
    macros = (ChangeType.CREATED_SCALAR_MACRO, ChangeType.CREATED_TABLE_MACRO)
    for snapshot_id, change in committed:
        key = _folded(change.name)
        if key in wanted and change.type not in macros:  # macros have their own names
            yield wanted[key], snapshot_id


def _drops_schema(change: Change, schema_id: int) -> bool:
    return change.type is ChangeType.DROPPED_SCHEMA and change.id == schema_id


def _folded(name: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(folded(part) for part in name)

"""Turns a Commit and the state of the catalog into the rows to write, without I/O.

Rows, order and encoding are those of the stock extension, so that it can read, alter and compact
what SwanLake wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement

from swanlake.errors import InvalidRequest
from swanlake.lake.commit import plan_compaction, plan_data, plan_schemas
from swanlake.lake.commit.draft import Draft, Plan, State
from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.operations import (
    Commit,
    Compaction,
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
    SetProperty,
)

_PLANS: dict[type, Callable[[Draft, Any], None]] = {
    CreateSchema: plan_schemas.create_schema,
    DropSchema: plan_schemas.drop_schema,
    CreateTable: plan_schemas.create_table,
    DropTable: plan_schemas.drop_table,
    SetProperty: plan_schemas.set_property,
    Insert: plan_data.add_files,
    InlineInsert: plan_data.add_inlined_rows,
    InlineDelete: plan_data.delete_inlined_rows,
    Merge: plan_compaction.merge_files,
    Rewrite: plan_compaction.rewrite_files,
    FlushInlined: plan_compaction.flush_inlined_rows,
}


def plan(
    commit: Commit,
    state: State,
    tables: CatalogTables,
    now: ColumnElement[datetime],
    earliest: datetime,
) -> Plan:
    """The statements of a commit, in the order in which the stock extension sends them.

    ``now`` is the time of the commit, in a statement with the parameter ``earliest``.
    """
    _check_alone(commit)
    draft = Draft(state, tables, now, earliest)
    for operation in commit.operations:
        _PLANS[type(operation)](draft, operation)
    return draft.finish(commit)


def _check_alone(commit: Commit) -> None:
    """A compaction is alone: to the stock extension its snapshot is one without changes."""
    kinds = {
        type(operation) if isinstance(operation, Compaction) else None
        for operation in commit.operations
    }
    if len(kinds) > 1:
        raise InvalidRequest("A commit that compacts a table can do nothing else.")
    if commit.base is None and kinds & {Rewrite, FlushInlined}:
        raise InvalidRequest("A commit that compacts a table names the snapshot it is based on.")

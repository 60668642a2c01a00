"""Planning turns a commit and the state of the catalog into rows, without a database."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import bindparam

from swanlake.errors import AlreadyExists, CommitConflict, InvalidRequest, NotFound
from swanlake.lake.catalog import new_table
from swanlake.lake.commit.conflicts import Action, TableIntent
from swanlake.lake.commit.draft import State
from swanlake.lake.commit.footprint import (
    created_names,
    drop_intents,
    dropped_names,
    file_ids,
    needs_names,
    table_intents,
)
from swanlake.lake.commit.planning import plan
from swanlake.lake.commit.state import Head, LiveTable
from swanlake.lake.metastore.tables import tables_in
from swanlake.lake.model.layout import (
    Column,
    ColumnStats,
    DataFile,
    Table,
    directory_name,
)
from swanlake.lake.model.operations import (
    Commit,
    CreateSchema,
    CreateTable,
    DropSchema,
    DropTable,
    InlineDelete,
    Insert,
    Merge,
    Operation,
    Rewrite,
    RewriteSource,
    SetProperty,
)
from swanlake.lake.model.types import ColumnSpec

TABLES = tables_in(None)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
UUID_1 = UUID("01a1e084-44e1-7b2f-8ce1-6fbc08be1dc2")
T = Table(5, "main", "t", "/data/main/t/", (Column(1, "id", "int64"),), snapshot_id=7)
OTHER = Table(6, "raw", "u", "/data/raw/u/", (Column(1, "id", "int64"),), snapshot_id=7)
SCHEMAS: dict[str, Any] = {
    "main": SimpleNamespace(schema_id=0, schema_name="main"),
    "raw": SimpleNamespace(schema_id=3, schema_name="Raw"),
}
OBJECTS = {(0, "t"): ("table", 5), (3, "u"): ("table", 6), (3, "v"): ("view", 8)}


def data_file(name: str, rows: int = 10, low: int = 0) -> DataFile:
    stats = ColumnStats(1, 50, rows, 0, str(low), str(low + rows - 1))
    return DataFile(f"{name}.parquet", rows, 100, 20, (stats,))


def live_file(file_id: int, table_id: int = 5) -> Any:
    return SimpleNamespace(
        data_file_id=file_id,
        table_id=table_id,
        path=f"{file_id}.parquet",
        path_is_relative=True,
        partition_id=None,
    )


def state(**parts: Any) -> State:
    defaults: dict[str, Any] = {
        "schemas": dict(SCHEMAS),
        "objects": dict(OBJECTS),
        "tables": {5: LiveTable(5, "main/t/", True), 6: LiveTable(6, "raw/u/", True)},
    }
    return State(HEAD, **(defaults | parts))


HEAD = Head(
    next_snapshot_id=8,
    snapshot_id=7,
    snapshot_time=NOON,
    schema_version=4,
    next_catalog_id=20,
    next_file_id=30,
)


def rows_of(
    *operations: Operation, current: State | None = None
) -> dict[str, list[dict[str, Any]]]:
    """The new rows by table name without prefix, and without the ``earliest`` column."""
    planned = plan(Commit(operations), current or state(), TABLES, bindparam("earliest"), NOON)
    made: dict[str, list[dict[str, Any]]] = {}
    for write in planned.writes:
        statement: Any = write.statement
        if statement.is_insert:
            rows = [{k: v for k, v in row.items() if k != "earliest"} for row in write.rows or ()]
            made[statement.table.name.removeprefix("ducklake_")] = rows
    return made


def changes_of(*operations: Operation, current: State | None = None) -> str:
    (row,) = rows_of(*operations, current=current)["snapshot_changes"]
    return str(row["changes_made"])


# ---- what a commit touches ---------------------------------------------------------------------


def test_table_intents_name_only_existing_tables() -> None:
    operation = new_table("main", "new", [ColumnSpec("id", "BIGINT")])
    merge = Merge(T, (1, 2), data_file("m"), 3, 0)
    commit = Commit(
        (
            Insert(T, (), blind=True),
            Insert(T, ()),
            InlineDelete(OTHER, "ducklake_inlined_data_6_4", (1,)),
            merge,
            operation,
            Insert(operation, ()),
            CreateSchema("s"),
            SetProperty("k", "v"),
        )
    )
    assert table_intents(commit) == [
        TableIntent(Action.APPEND, 5, "main.t"),
        TableIntent(Action.INSERT, 5, "main.t"),
        TableIntent(Action.INLINED_DELETE, 6, "raw.u"),
        TableIntent(Action.MERGE, 5, "main.t"),
    ]
    assert created_names(commit) == [("main", "new"), ("s",)]
    assert needs_names(commit.operations)
    assert not needs_names([merge, Insert(T, ())])


def test_drop_intents_resolve_names_at_the_base() -> None:
    commit = Commit((DropTable("MAIN", "T"), DropSchema("raw", cascade=True)))
    assert drop_intents(commit, SCHEMAS, OBJECTS) == [
        TableIntent(Action.DROP, 5, "main.t"),
        TableIntent(Action.DROP, 6, "Raw.u"),  # not the view
    ]
    assert dropped_names(commit) == [("MAIN", "T")]
    nothing = (DropTable("raw", "v"), DropTable("gone", "t"), DropSchema("raw"), CreateSchema("s"))
    assert drop_intents(Commit(nothing), SCHEMAS, OBJECTS) == []


def test_file_ids_are_those_of_merged_and_rewritten_files() -> None:
    rewrite = Rewrite(T, (RewriteSource(1), RewriteSource(2, 9)), ())
    merge = Merge(T, (3, 4), data_file("m"), 1, 0)
    assert file_ids(Commit((rewrite, merge, Insert(T, (data_file("a"),))))) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("orders_1-a", "orders_1-a/"),
        ("Orders", "Orders/"),
        ("a b", f"{UUID_1}/"),
        ("a/b", f"{UUID_1}/"),
        ("..", f"{UUID_1}/"),
        ("ä", f"{UUID_1}/"),
        ("a" * 200, "a" * 200 + "/"),
        ("a" * 300, f"{UUID_1}/"),
    ],
)
def test_directory_is_the_name_only_if_the_name_is_plain(name: str, directory: str) -> None:
    assert directory_name(name, UUID_1) == directory


# ---- ids ---------------------------------------------------------------------------------------


def test_ids_are_allocated_in_order_and_counted_in_the_snapshot() -> None:
    one = new_table("raw", "one", [ColumnSpec("id", "BIGINT")], partition_by=["id"])
    two = new_table("RAW", "two", [ColumnSpec("id", "BIGINT")])
    made = rows_of(CreateSchema("s"), one, two, Insert(two, (data_file("a"), data_file("b"))))
    assert [row["schema_id"] for row in made["schema"]] == [20]
    assert [(row["table_id"], row["schema_id"]) for row in made["table"]] == [(21, 3), (23, 3)]
    assert [row["partition_id"] for row in made["partition_info"]] == [22]
    assert [row["data_file_id"] for row in made["data_file"]] == [30, 31]
    (snapshot,) = made["snapshot"]
    assert snapshot == {
        "snapshot_id": 8,
        "schema_version": 5,
        "next_catalog_id": 24,
        "next_file_id": 32,
    }
    assert {row["schema_version"] for row in made["schema_versions"]} == {5}
    assert changes_of(CreateSchema("s"), one, Insert(one, ())) == (
        'created_schema:"s",created_table:"Raw"."one"'
    )


def test_data_change_without_a_file_advances_the_file_id() -> None:
    (snapshot,) = rows_of(InlineDelete(T, "ducklake_inlined_data_5_4", (1,)))["snapshot"]
    assert (snapshot["schema_version"], snapshot["next_file_id"]) == (4, 31)


def test_empty_commit_advances_no_id_and_records_no_change() -> None:
    made = rows_of(Insert(T, ()), InlineDelete(T, "", ()), SetProperty("k", "v"))
    assert made["snapshot"][0]["next_file_id"] == 30
    assert made["snapshot_changes"][0]["changes_made"] is None
    assert "data_file" not in made


# ---- rows of data ------------------------------------------------------------------------------


@pytest.mark.parametrize("has_stats", [True, False])
def test_inserts_into_one_table_get_consecutive_row_ids(has_stats: bool) -> None:
    live = LiveTable(5, "main/t/", True, has_stats, 10, 100, 1000, {})
    inserts = [Insert(T, (data_file(f"f{n}", 10, n * 10),)) for n in range(3)]
    made = rows_of(*inserts, current=state(tables={5: live}))
    assert [row["row_id_start"] for row in made["data_file"]] == [100, 110, 120]
    if has_stats:
        assert "table_stats" not in made
        return
    assert made["table_stats"] == [
        {"table_id": 5, "record_count": 40, "next_row_id": 130, "file_size_bytes": 1300}
    ]
    ((low, high),) = [(row["min_value"], row["max_value"]) for row in made["table_column_stats"]]
    assert (low, high) == ("0", "29")


def test_inserts_into_a_new_table_get_consecutive_row_ids() -> None:
    operation = new_table("main", "new", [ColumnSpec("id", "BIGINT")])
    inserts = [Insert(operation, (data_file(f"f{n}", 10, n * 10),)) for n in range(2)]
    made = rows_of(operation, *inserts)
    assert [row["row_id_start"] for row in made["data_file"]] == [0, 10]
    assert [row["next_row_id"] for row in made["table_stats"]] == [20]
    assert len(made["table_column_stats"]) == 1


def test_missing_file_or_file_of_another_table_is_a_conflict() -> None:
    for files in ({}, {1: live_file(1, table_id=6)}):
        with pytest.raises(CommitConflict, match=r"Data file 1 of the table main\.t is no longer"):
            rows_of(Merge(T, (1,), data_file("m"), 1, 0), current=state(data_files=files))


def test_missing_table_is_a_conflict_that_names_both_snapshots() -> None:
    with pytest.raises(CommitConflict, match=r"at snapshot 7, no longer exists at snapshot 7"):
        rows_of(Insert(T, (data_file("a"),)), current=state(tables={}))


def test_merge_schedules_its_sources_and_preserves_their_snapshots() -> None:
    whole = live_file(2)
    whole.path, whole.path_is_relative = "/elsewhere/2.parquet", False
    current = state(data_files={1: live_file(1), 2: whole})
    merge = Merge(T, (1, 2), data_file("m", 20), 3, 40, partial_max=6)
    made = rows_of(merge, current=current)
    assert made["files_scheduled_for_deletion"] == [
        {"data_file_id": 1, "path": "main/t/1.parquet", "path_is_relative": True},
        {"data_file_id": 2, "path": "/elsewhere/2.parquet", "path_is_relative": False},
    ]
    (row,) = made["data_file"]
    assert (row["data_file_id"], row["begin_snapshot"], row["row_id_start"]) == (30, 3, 40)
    assert row["partial_max"] == 6
    assert changes_of(merge, current=current) == "inline_flush:5,merge_adjacent:5"


@pytest.mark.parametrize("deletes", [{"delete_files": {2: 9}}, {"inlined_deletes": {2}}])
def test_merge_of_a_file_with_deleted_rows_is_a_conflict(deletes: dict[str, Any]) -> None:
    current = state(data_files={1: live_file(1), 2: live_file(2)}, **deletes)
    with pytest.raises(CommitConflict, match="rows were deleted from data file 2"):
        rows_of(Merge(T, (1, 2), data_file("m"), 3, 0), current=current)


# ---- names -------------------------------------------------------------------------------------


def test_names_ignore_ascii_case_only() -> None:
    columns = [ColumnSpec("id", "BIGINT")]
    with pytest.raises(AlreadyExists, match=r"The table MAIN\.T exists already"):
        rows_of(new_table("MAIN", "T", columns))
    with pytest.raises(AlreadyExists, match=r"The view raw\.V exists already"):
        rows_of(new_table("raw", "V", columns))
    with pytest.raises(AlreadyExists, match="The schema RAW exists already"):
        rows_of(CreateSchema("RAW"))
    with pytest.raises(AlreadyExists):
        rows_of(CreateSchema("s"), CreateSchema("S"))
    taken = state(objects={(0, "straße"): ("table", 5)})
    assert changes_of(new_table("main", "STRASSE", columns), current=taken) == (
        'created_table:"main"."STRASSE"'
    )
    with pytest.raises(NotFound, match=r"There is no table main\.strasse"):
        rows_of(DropTable("main", "strasse"), current=taken)


def test_drop_records_ids_and_needs_an_empty_schema_or_cascade() -> None:
    assert changes_of(DropTable("main", "T")) == "dropped_table:5"
    assert changes_of(DropSchema("raw", cascade=True)) == (
        "dropped_schema:3,dropped_table:6,dropped_view:8"
    )
    with pytest.raises(InvalidRequest, match="still holds 2 tables, views"):
        rows_of(DropSchema("raw"))
    for missing in (DropSchema("gone"), DropTable("gone", "t"), DropTable("raw", "v")):
        with pytest.raises(NotFound):
            rows_of(missing)


def test_table_can_be_dropped_and_created_in_one_commit() -> None:
    operation = new_table("main", "t", [ColumnSpec("id", "BIGINT")])
    assert isinstance(operation, CreateTable)
    assert changes_of(DropTable("main", "t"), operation) == (
        'dropped_table:5,created_table:"main"."t"'
    )

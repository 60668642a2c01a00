"""From a commit and the state of the catalog to rows: no database takes part."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import bindparam

from swanlake.errors import AlreadyExists, CommitConflict, InvalidRequest, NotFound
from swanlake.lake.conflicts import Act, Touch
from swanlake.lake.draft import State
from swanlake.lake.intents import (
    created_names,
    dropped_names,
    drops,
    file_ids,
    needs_names,
    touches,
)
from swanlake.lake.lake import new_table
from swanlake.lake.layout import Column, ColumnStats, DataFile, DeleteFile, Table, directory_name
from swanlake.lake.operations import (
    Commit,
    CreateSchema,
    CreateTable,
    Delete,
    DropSchema,
    DropTable,
    FileDelete,
    Insert,
    Merge,
    Operation,
    SetProperty,
)
from swanlake.lake.planning import plan
from swanlake.lake.state import Head, LiveTable
from swanlake.lake.tables import tables_in
from swanlake.lake.types import ColumnSpec

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
    given: dict[str, Any] = {
        "schemas": dict(SCHEMAS),
        "objects": dict(OBJECTS),
        "tables": {5: LiveTable(5, "main/t/", True), 6: LiveTable(6, "raw/u/", True)},
    }
    return State(HEAD, **(given | parts))


HEAD = Head(
    next_snapshot_id=8,
    snapshot_id=7,
    snapshot_time=NOON,
    schema_version=4,
    next_catalog_id=20,
    next_file_id=30,
)


def rows_of(*operations: Operation, found: State | None = None) -> dict[str, list[dict[str, Any]]]:
    """The new rows by table, without prefix and without what every commit adds alike."""
    planned = plan(Commit(operations), found or state(), TABLES, bindparam("earliest"), NOON)
    made: dict[str, list[dict[str, Any]]] = {}
    for write in planned.writes:
        statement: Any = write.statement
        if statement.is_insert:
            rows = [{k: v for k, v in row.items() if k != "earliest"} for row in write.rows or ()]
            made[statement.table.name.removeprefix("ducklake_")] = rows
    return made


def changes_of(*operations: Operation, found: State | None = None) -> str:
    (row,) = rows_of(*operations, found=found)["snapshot_changes"]
    return str(row["changes_made"])


# ---- what a commit touches ---------------------------------------------------------------------


def test_touches_are_what_a_commit_does_to_tables_that_were_there() -> None:
    operation = new_table("main", "new", [ColumnSpec("id", "BIGINT")])
    merge = Merge(T, (1, 2), data_file("m"), 3, 0)
    commit = Commit(
        (
            Insert(T, (), blind=True),
            Insert(T, ()),
            Delete(OTHER),
            merge,
            operation,
            Insert(operation, ()),
            CreateSchema("s"),
            SetProperty("k", "v"),
        )
    )
    assert touches(commit) == [
        Touch(Act.APPEND, 5, "main.t"),
        Touch(Act.INSERT, 5, "main.t"),
        Touch(Act.DELETE, 6, "raw.u"),
        Touch(Act.MERGE, 5, "main.t"),
    ]
    assert created_names(commit) == [("main", "new"), ("s",)]
    assert needs_names(commit.operations)
    assert not needs_names([merge, Insert(T, ())])


def test_drops_are_found_by_the_names_of_the_base() -> None:
    commit = Commit((DropTable("MAIN", "T"), DropSchema("raw", cascade=True)))
    assert drops(commit, SCHEMAS, OBJECTS) == [
        Touch(Act.DROP, 5, "main.t"),
        Touch(Act.DROP, 6, "Raw.u"),  # and not the view
    ]
    assert dropped_names(commit) == [("MAIN", "T")]
    nothing = (DropTable("raw", "v"), DropTable("gone", "t"), DropSchema("raw"), CreateSchema("s"))
    assert drops(Commit(nothing), SCHEMAS, OBJECTS) == []


def test_the_files_of_a_commit_are_those_it_deletes_from_drops_or_merges() -> None:
    deleted = FileDelete(1, DeleteFile("d", 1, 1, 1))
    commit = Commit((Delete(T, (deleted,), (2,)), Merge(T, (3, 4), data_file("m"), 1, 0)))
    assert file_ids(commit) == {1, 2, 3, 4}


@pytest.mark.parametrize(
    ("name", "directory"),
    [
        ("orders_1-a", "orders_1-a/"),
        ("Orders", "Orders/"),
        ("a b", f"{UUID_1}/"),
        ("a/b", f"{UUID_1}/"),
        ("..", f"{UUID_1}/"),
        ("ä", f"{UUID_1}/"),
    ],
)
def test_directories_are_names_only_where_names_are_plain(name: str, directory: str) -> None:
    assert directory_name(name, UUID_1) == directory


# ---- ids ---------------------------------------------------------------------------------------


def test_ids_are_given_in_order_and_the_snapshot_holds_the_next_ones() -> None:
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


def test_a_change_of_data_moves_the_file_id_even_without_a_file() -> None:
    found = state(data_files={1: live_file(1)})
    (snapshot,) = rows_of(Delete(T, dropped=(1,)), found=found)["snapshot"]
    assert (snapshot["schema_version"], snapshot["next_file_id"]) == (4, 31)


def test_a_commit_of_nothing_moves_nothing_and_says_nothing() -> None:
    made = rows_of(Insert(T, ()), Delete(T), SetProperty("k", "v"))
    assert made["snapshot"][0]["next_file_id"] == 30
    assert made["snapshot_changes"][0]["changes_made"] is None
    assert "data_file" not in made


# ---- rows of data ------------------------------------------------------------------------------


@pytest.mark.parametrize("has_stats", [True, False])
def test_several_inserts_into_one_table_follow_on_each_other(has_stats: bool) -> None:
    live = LiveTable(5, "main/t/", True, has_stats, 10, 100, 1000, {})
    inserts = [Insert(T, (data_file(f"f{n}", 10, n * 10),)) for n in range(3)]
    made = rows_of(*inserts, found=state(tables={5: live}))
    assert [row["row_id_start"] for row in made["data_file"]] == [100, 110, 120]
    if has_stats:
        assert "table_stats" not in made
        return
    assert made["table_stats"] == [
        {"table_id": 5, "record_count": 40, "next_row_id": 130, "file_size_bytes": 1300}
    ]
    ((low, high),) = [(row["min_value"], row["max_value"]) for row in made["table_column_stats"]]
    assert (low, high) == ("0", "29")


def test_several_inserts_into_a_new_table_follow_on_each_other() -> None:
    operation = new_table("main", "new", [ColumnSpec("id", "BIGINT")])
    inserts = [Insert(operation, (data_file(f"f{n}", 10, n * 10),)) for n in range(2)]
    made = rows_of(operation, *inserts)
    assert [row["row_id_start"] for row in made["data_file"]] == [0, 10]
    assert [row["next_row_id"] for row in made["table_stats"]] == [20]
    assert len(made["table_column_stats"]) == 1


def test_a_delete_must_replace_the_delete_file_that_is_there() -> None:
    file = DeleteFile("d.parquet", 3, 100, 20)
    found = state(data_files={1: live_file(1)}, delete_files={1: 9})
    for replaces in (None, 8):
        with pytest.raises(CommitConflict, match=r"another delete file \(9\)"):
            rows_of(Delete(T, (FileDelete(1, file, replaces),)), found=found)
    (row,) = rows_of(Delete(T, (FileDelete(1, file, 9),)), found=found)["delete_file"]
    assert (row["delete_file_id"], row["data_file_id"], row["delete_count"]) == (30, 1, 3)
    assert (row["begin_snapshot"], row["partial_max"]) == (8, None)


def test_files_that_are_gone_or_of_another_table_are_a_conflict() -> None:
    for files in ({}, {1: live_file(1, table_id=6)}):
        for operation in (Delete(T, dropped=(1,)), Merge(T, (1,), data_file("m"), 1, 0)):
            with pytest.raises(
                CommitConflict, match=r"Data file 1 of the table main\.t is no longer"
            ):
                rows_of(operation, found=state(data_files=files))


def test_a_table_that_is_gone_is_a_conflict_that_names_both_snapshots() -> None:
    with pytest.raises(CommitConflict, match=r"at snapshot 7, is no longer there at snapshot 7"):
        rows_of(Insert(T, (data_file("a"),)), found=state(tables={}))


def test_a_merge_schedules_its_sources_and_keeps_their_snapshots() -> None:
    whole = live_file(2)
    whole.path, whole.path_is_relative = "/elsewhere/2.parquet", False
    found = state(data_files={1: live_file(1), 2: whole})
    merge = Merge(T, (1, 2), data_file("m", 20), 3, 40, partial_max=6)
    made = rows_of(merge, found=found)
    assert made["files_scheduled_for_deletion"] == [
        {"data_file_id": 1, "path": "main/t/1.parquet", "path_is_relative": True},
        {"data_file_id": 2, "path": "/elsewhere/2.parquet", "path_is_relative": False},
    ]
    (row,) = made["data_file"]
    assert (row["data_file_id"], row["begin_snapshot"], row["row_id_start"]) == (30, 3, 40)
    assert row["partial_max"] == 6
    assert changes_of(merge, found=found) == "inline_flush:5,merge_adjacent:5"


@pytest.mark.parametrize("deletes", [{"delete_files": {2: 9}}, {"inlined_deletes": {2}}])
def test_a_file_with_deleted_rows_is_not_merged(deletes: dict[str, Any]) -> None:
    found = state(data_files={1: live_file(1), 2: live_file(2)}, **deletes)
    with pytest.raises(CommitConflict, match="rows were deleted from data file 2"):
        rows_of(Merge(T, (1, 2), data_file("m"), 3, 0), found=found)


# ---- names -------------------------------------------------------------------------------------


def test_names_are_taken_and_found_without_regard_to_ascii_case_only() -> None:
    columns = [ColumnSpec("id", "BIGINT")]
    with pytest.raises(AlreadyExists, match=r"There is a table MAIN\.T already"):
        rows_of(new_table("MAIN", "T", columns))
    with pytest.raises(AlreadyExists, match=r"There is a view raw\.V already"):
        rows_of(new_table("raw", "V", columns))
    with pytest.raises(AlreadyExists, match="The schema RAW exists already"):
        rows_of(CreateSchema("RAW"))
    with pytest.raises(AlreadyExists):
        rows_of(CreateSchema("s"), CreateSchema("S"))
    taken = state(objects={(0, "straße"): ("table", 5)})
    assert changes_of(new_table("main", "STRASSE", columns), found=taken) == (
        'created_table:"main"."STRASSE"'
    )
    with pytest.raises(NotFound, match=r"There is no table main\.strasse"):
        rows_of(DropTable("main", "strasse"), found=taken)


def test_a_drop_names_ids_and_a_schema_must_be_empty_unless_all_of_it_goes() -> None:
    assert changes_of(DropTable("main", "T")) == "dropped_table:5"
    assert changes_of(DropSchema("raw", cascade=True)) == (
        "dropped_schema:3,dropped_table:6,dropped_view:8"
    )
    with pytest.raises(InvalidRequest, match="still holds 2 tables, views"):
        rows_of(DropSchema("raw"))
    for missing in (DropSchema("gone"), DropTable("gone", "t"), DropTable("raw", "v")):
        with pytest.raises(NotFound):
            rows_of(missing)


def test_a_table_may_be_dropped_and_made_again_in_one_commit() -> None:
    operation = new_table("main", "t", [ColumnSpec("id", "BIGINT")])
    assert isinstance(operation, CreateTable)
    assert changes_of(DropTable("main", "t"), operation) == (
        'dropped_table:5,created_table:"main"."t"'
    )

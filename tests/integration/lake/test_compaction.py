"""A compacted table is the same table: to every snapshot, to its change feed, to stock DuckDB."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest

from swanlake.errors import CatalogUnreachable, PipelineFailed
from swanlake.lake.operations import Commit
from swanlake.pipeline.compact import Progress, compact
from swanlake.pipeline.compact_plan import Skipped
from swanlake.pipeline.compact_units import FoldUnit, MergeUnit, RewriteUnit
from swanlake.pipeline.runner import R, Unit
from tests.integration.lake.compacting import Lab, PlainRunner, new_lab
from tests.integration.lake.world import SOON, World

TABLE = "CREATE TABLE {t} (i INTEGER, s VARCHAR)"


def insert(first: int, end: int) -> str:
    return f"INSERT INTO {{t}} SELECT range, 'v' || range FROM range({first}, {end})"


def test_small_files_become_one(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 5), insert(5, 9), insert(9, 12))
    with lab.unchanged():
        report = lab.compact()
    assert (report.files_merged, report.files_made) == (3, 1)
    assert len(lab.files.files) == 1
    assert lab.compact().steps == ()


def test_files_with_deleted_rows_are_split(world: World) -> None:
    lab = new_lab(
        world,
        TABLE,
        insert(0, 10),
        insert(10, 14),
        "DELETE FROM {t} WHERE i < 3",
        "DELETE FROM {t} WHERE i IN (3, 11)",
    )
    with lab.unchanged():
        report = lab.compact()
    assert (report.files_rewritten, report.files_made) == (2, 2)
    (file,) = lab.files.files
    assert (file.record_count, file.deletes) == (9, ())


def test_inlined_rows_are_folded(world: World) -> None:
    lab = new_lab(
        world,
        TABLE,
        insert(0, 3),
        insert(3, 5),
        "DELETE FROM {t} WHERE i = 1",
        "UPDATE {t} SET s = 'new' WHERE i = 2",
        inlined=10,
    )
    with lab.unchanged():
        report = lab.compact()
    assert report.rows_folded == 6
    assert lab.files.inlined_rows == 0


# ---- kinds of tables ---------------------------------------------------------------------------

NESTED = (
    "CREATE TABLE {t} (i INTEGER, s VARCHAR, st STRUCT(a INTEGER, b VARCHAR), "
    "l STRUCT(x INTEGER)[], m MAP(VARCHAR, STRUCT(p INTEGER)))"
)


def insert_nested(first: int, end: int) -> str:
    return (
        "INSERT INTO {t} (i, s, st, l, m) SELECT range, 'v' || range, "
        "if(range % 3 = 0, NULL, row(range, 'b' || range)), [row(range), NULL, row(range + 1)], "
        f"MAP {{'k' || range: row(range), 'n': NULL}} FROM range({first}, {end})"
    )


#: What may happen to the columns of a table between two inserts.
ALTERATIONS = {
    "columns": [
        "ALTER TABLE {t} RENAME COLUMN s TO name",
        "ALTER TABLE {t} ADD COLUMN s VARCHAR DEFAULT 'it''s'",
        "ALTER TABLE {t} DROP COLUMN name",
    ],
    "fields": [
        "ALTER TABLE {t} RENAME COLUMN st.a TO aa",
        "ALTER TABLE {t} DROP COLUMN st.b",
        "ALTER TABLE {t} ADD COLUMN l.element.y INTEGER",
        "ALTER TABLE {t} ADD COLUMN m.value.q INTEGER",
    ],
    "types": [
        "ALTER TABLE {t} ALTER COLUMN i SET DATA TYPE BIGINT",
    ],
}


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_columns_that_changed(world: World, alteration: str, inlined: int) -> None:
    lab = new_lab(world, NESTED, insert_nested(0, 4), insert_nested(4, 9), inlined=inlined)
    lab("DELETE FROM {t} WHERE i IN (1, 6)")
    lab(*ALTERATIONS[alteration])
    lab("INSERT INTO {t} (i) VALUES (100), (101)", "INSERT INTO {t} (i) VALUES (102)")
    lab("UPDATE {t} SET i = 200 WHERE i = 7", "DELETE FROM {t} WHERE i = 101")
    with lab.unchanged():
        lab.compact()
        lab.compact()  # on top of what the first one made
    assert sum(file.deleted_count for file in lab.files.files) == 0
    assert lab.files.inlined_rows == 0


def test_files_with_renamed_columns_are_merged_and_with_other_types_are_not(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 5), "ALTER TABLE {t} RENAME COLUMN s TO name")
    lab("INSERT INTO {t} VALUES (5, 'x')")
    with lab.unchanged():
        assert lab.compact().files_merged == 2
    lab("ALTER TABLE {t} ALTER COLUMN i SET DATA TYPE BIGINT", "INSERT INTO {t} VALUES (6, 'x')")
    assert lab.compact().steps == ()


PARTITIONINGS = {
    "values": "SET PARTITIONED BY (k, s)",
    "value and year": "SET PARTITIONED BY (k, year(d))",
}
PARTITIONED = "CREATE TABLE {t} (i INTEGER, k VARCHAR, s VARCHAR, d DATE)"


def insert_partitioned(first: int, end: int) -> str:
    return (
        "INSERT INTO {t} SELECT range, if(range % 4 = 0, NULL, 'k/' || range % 2), 'a b', "
        f"DATE '2023-12-30' + range::INTEGER FROM range({first}, {end})"
    )


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
@pytest.mark.parametrize("partitioning", PARTITIONINGS)
def test_partitions_are_kept_apart(world: World, partitioning: str, inlined: int) -> None:
    lab = new_lab(world, PARTITIONED, insert_partitioned(0, 3), inlined=inlined)
    lab(f"ALTER TABLE {{t}} {PARTITIONINGS[partitioning]}")
    lab(*(insert_partitioned(n, n + 4) for n in (4, 8)), "DELETE FROM {t} WHERE i IN (5, 9)")
    partitions = {file.partition_values for file in lab.files.files}
    with lab.unchanged():
        lab.compact()
        lab.compact()
    now = [(file.partition_id, file.partition_values) for file in lab.files.files]
    assert len(now) == len(set(now))
    assert {values for _, values in now} >= partitions
    for value in ("'k/0'", "'k/1'"):
        found = lab(f"SELECT count(*) FROM {{t}} WHERE k = {value}")
        assert found == lab(f"SELECT count(*) FROM {{t}} WHERE concat(k, '') = {value}")


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_rows_are_sorted_as_the_table_is_now(world: World, inlined: int) -> None:
    lab = new_lab(world, TABLE, insert(0, 5), insert(5, 9), inlined=inlined)
    lab("DELETE FROM {t} WHERE i = 3")
    lab("ALTER TABLE {t} RENAME COLUMN s TO name", "ALTER TABLE {t} ADD COLUMN z INTEGER")
    lab("ALTER TABLE {t} SET SORTED BY (z, name DESC)")
    with lab.unchanged():
        lab.compact()
        lab.compact()
    (file,) = lab.files.files
    names = world.sql(f"SELECT name FROM read_parquet('{file.path}')")
    assert names == sorted(names, reverse=True)


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_older_rows_that_cannot_be_sorted_as_the_table_is_now(world: World, inlined: int) -> None:
    lab = new_lab(world, TABLE, insert(0, 5), insert(5, 9), inlined=inlined)
    lab("DELETE FROM {t} WHERE i = 3")
    lab("ALTER TABLE {t} SET SORTED BY (CAST(s AS INTEGER))")
    with lab.unchanged():
        lab.compact()
    lab("ALTER TABLE {t} DROP COLUMN i", "ALTER TABLE {t} ADD COLUMN i VARCHAR")
    lab("ALTER TABLE {t} SET SORTED BY (upper(i))", "DELETE FROM {t} WHERE s = 'v4'")
    with lab.unchanged():
        lab.compact()
    assert sum(file.deleted_count for file in lab.files.files) == 0
    assert lab.files.inlined_rows == 0


VALUES = {
    "DOUBLE": "'nan', 'inf', '-inf', '1.5', '0.30000000000000004'",
    "FLOAT": "'nan', '-inf', '1.1', '3.4e38'",
    "DECIMAL(20, 3)": "1.5, -2.125, 99999999999999999.999",
    "HUGEINT": "1, -5, 123456789012",
    "UBIGINT": "0, 18446744073709551615",
    "BOOLEAN": "true, false",
    "DATE": "'2024-02-29', 'infinity', '0044-03-15 (BC)'",
    "TIMESTAMP": "'2024-01-02 03:04:05.678901', 'infinity'",
    "TIMESTAMPTZ": "'2024-01-02 03:04:05.678901+02'",
    "TIMESTAMP_NS": "'2024-01-02 03:04:05.123456789'",
    "TIMESTAMP_S": "'2024-01-02 03:04:05'",
    "TIME": "'23:59:59.999999'",
    "INTERVAL": "'1 month 2 days 3.5 seconds', '400 days'",
    "UUID": "'ee53d6a1-f1fe-4bbb-9eda-5df34d45590f'",
    "BLOB": "'ab\\x00\\xFF', ''",
    "VARCHAR": "'it''s', 'ä\n\"x\"', ''",
    "JSON": "'{\"a\": [1, null]}', 'null'",
    "VARCHAR[]": "['a', NULL, 'b, c'], []",
    "STRUCT(a INTEGER, b VARCHAR)": "{'a': 1, 'b': 'x, y'}, {'a': NULL, 'b': NULL}",
    "MAP(VARCHAR, INTEGER)": "MAP {'k': 1}, MAP {}",
}


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_values_of_every_type(world: World, inlined: int) -> None:
    columns = ", ".join(f"c{n} {type_}" for n, type_ in enumerate(VALUES))
    lab = new_lab(world, f"CREATE TABLE {{t}} ({columns})", inlined=inlined)
    lists = (f"unnest([{values}]::{type_}[])" for type_, values in VALUES.items())
    lab(f"INSERT INTO {{t}} SELECT {', '.join(lists)}", "INSERT INTO {t} (c0) VALUES (NULL)")
    with lab.unchanged():
        report = lab.compact()
    assert report.skipped == ()
    assert len(lab.files.files) == 1


#: What cannot be written to a file, and what would be another value in it.
NOT_IN_FILES = {
    "INTERVAL": ["-400 days", "0.000001 seconds"],
    "HUGEINT": [str(2**53 + 1), str(2**127 - 1)],
    "UHUGEINT": [str(2**128 - 1)],
    "TIMETZ": ["01:02:03+04"],
    "TIMESTAMP_S": ["infinity"],
}


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
@pytest.mark.parametrize(
    ("type_", "value"),
    [(type_, value) for type_, values in NOT_IN_FILES.items() for value in values],
)
def test_what_a_file_cannot_hold_stays_where_it_is(
    sqlite_world: World, type_: str, value: str, nested: bool
) -> None:
    _check_stays(sqlite_world, f"STRUCT(a {type_}[])" if nested else type_, type_, value, nested)


@pytest.mark.parametrize("type_", NOT_IN_FILES)
def test_so_it_does_in_postgresql(postgres_world: World, type_: str) -> None:
    _check_stays(postgres_world, type_, type_, NOT_IN_FILES[type_][0], nested=False)


def _check_stays(world: World, column: str, type_: str, value: str, nested: bool) -> None:
    world.clear()
    cast = f"'{value}'::{type_}"
    row = f"{{'a': [NULL, {cast}]}}" if nested else cast
    lab = new_lab(
        world,
        f"CREATE TABLE {{t}} (v {column})",
        f"INSERT INTO {{t}} SELECT {row}",
        inlined=10,
    )
    with lab.unchanged():
        report = lab.compact()
    assert [one.path for one in report.skipped] == [lab.files.inlined[0].name]
    assert report.steps == ()
    assert world.parquet() == set()


# ---- after others, and before others -----------------------------------------------------------


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_stock_duckdb_goes_on_and_so_do_we(world: World, inlined: int) -> None:
    lab = new_lab(world, TABLE, insert(0, 5), insert(5, 9), insert(9, 30), inlined=inlined)
    lab("UPDATE {t} SET s = 'one' WHERE i % 7 = 0", "DELETE FROM {t} WHERE i % 5 = 0")
    with lab.unchanged():
        lab.compact()
    lab("UPDATE {t} SET s = 'two' WHERE i % 4 = 0", insert(30, 33))
    lab("DELETE FROM {t} WHERE i % 3 = 0", "DELETE FROM {t} WHERE i = 1")
    with lab.unchanged():
        lab.compact()
    with lab.unchanged():
        lab.compact()
    lab(insert(40, 43), "UPDATE {t} SET s = 'three' WHERE i = 2")
    world.maintain(lab.catalog, "flush", "merge")  # the latter gives rows that were updated new ids
    with lab.unchanged():
        lab.compact()
    lab("DELETE FROM {t} WHERE i < 10")
    before = lab.version(lab.catalog.snapshot_id())
    world.maintain(lab.catalog, "rewrite")
    lab.compact()
    assert lab.version(lab.catalog.snapshot_id()) == before
    world.maintain(lab.catalog, "expire", "cleanup", "orphans")
    assert lab.version(lab.catalog.snapshot_id()) == before
    assert lab.catalog.missing_files() == []
    lab(insert(50, 52), insert(52, 54))
    with lab.unchanged():
        lab.compact()


def test_deletes_of_ours_that_followed_each_other(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 10))
    (file,) = lab.files.files
    for positions in ([1], [1, 4], [1, 4, 5]):
        current = lab.files.files[0].current_deletes
        delete = world.delete(
            lab.catalog, lab.table, file.id, positions, current.id if current else None
        )
        lab.catalog.commit(Commit((delete,), base=lab.catalog.snapshot_id()))
    assert len(lab.files.files[0].deletes) == 3
    with lab.unchanged():
        lab.compact()
    world.maintain(lab.catalog, "cleanup")
    with lab.unchanged():
        world.maintain(lab.catalog, "orphans")


def test_rows_that_no_snapshot_sees_are_not_written_again(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 10), "DELETE FROM {t} WHERE i < 5", insert(10, 12))
    world.maintain(lab.catalog, "expire")
    with lab.unchanged():
        report = lab.compact()
    assert [step.kind for step in report.steps] == ["rewrite"]
    assert report.files_made == 1


def test_a_file_of_which_no_row_is_left_goes(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 3), "DELETE FROM {t} WHERE i = 1", inlined=0)
    world.inline(10)
    lab("DELETE FROM {t} WHERE i IN (0, 2)")
    with lab.unchanged():
        lab.compact()
    assert lab.files.files == ()


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_snapshots_that_are_kept_lose_nothing_to_expiry_and_clean_up(
    world: World, inlined: int
) -> None:
    lab = new_lab(world, TABLE, insert(0, 20), inlined=inlined)
    for first in (20, 50, 80):
        lab(insert(first, first + 20), insert(first + 20, first + 25))
        lab(f"DELETE FROM {{t}} WHERE i % 7 = 0 AND i < {first}")
        lab(f"UPDATE {{t}} SET s = 'new' WHERE i IN ({first}, {first + 21})")
        before = lab.history()
        report = lab.compact()
        assert report.steps
        # Some that are older than the compaction, and all that it made.
        lab.catalog.expire(keep_last=len(report.snapshot_ids) + 3)
        gone = {garbage.path for garbage in world.lake.cleanup(age=SOON)}
        assert gone
        assert not gone & world.parquet()
        kept = {snapshot.id for snapshot in lab.catalog.snapshots()}
        seen = {number: version for number, version in before.items() if number in kept}
        assert len(seen) == 3
        lab.check(seen)
        assert world.lake.collect(age=SOON, dry_run=True) == []


def test_files_that_were_added_by_name_are_left_alone(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 3), insert(3, 5))
    path = world.home / "added.parquet"
    world.sql(f"COPY (SELECT 7 AS i, 'x' AS s) TO '{path}' (FORMAT parquet)")
    lab(f"CALL ducklake_add_data_files('{{c}}', 't', '{path}')")
    with lab.unchanged():
        report = lab.compact()
    assert report.files_merged == 2
    assert report.skipped == (
        Skipped(str(path), "it was added by name, and its columns have no ids"),
    )


def test_a_fork_keeps_what_its_parent_compacts(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 5), insert(5, 9), "DELETE FROM {t} WHERE i = 3")
    fork = world.lake.fork_catalog("c", "fork")
    world.attach(fork)
    lab.compact()
    lab.compact()
    world.maintain(lab.catalog, "expire", "cleanup")
    assert sorted(world.sql("SELECT i FROM fork.t")) == [(i,) for i in range(9) if i != 3]
    forked = Lab(world, fork)
    with forked.unchanged():
        forked.compact()


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_a_fork_of_the_past_is_compacted_without_what_came_later(
    world: World, inlined: int
) -> None:
    lab = new_lab(world, TABLE, insert(0, 5), "DELETE FROM {t} WHERE i = 1", inlined=inlined)
    at = lab.catalog.snapshot_id()
    lab(insert(5, 9), insert(9, 12), "DELETE FROM {t} WHERE i IN (2, 6)", insert(12, 14))
    lab.compact()
    lab.compact()
    fork = world.lake.fork_catalog("c", "fork", at)
    world.attach(fork)
    forked = Lab(world, fork)
    forked("DELETE FROM {t} WHERE i = 0", insert(20, 23), "DELETE FROM {t} WHERE i = 3")
    with forked.unchanged():
        forked.compact()
    with forked.unchanged():
        forked.compact()
    assert sorted(world.sql("SELECT i FROM fork.t")) == [(2,), (4,), (20,), (21,), (22,)]


def test_a_fork_from_before_its_parent_was_rewritten_is_rewritten_too(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 100))
    at = lab.catalog.snapshot_id()
    lab("DELETE FROM {t} WHERE i > 1")
    lab.compact()
    forked = Lab(world, world.lake.fork_catalog("c", "fork", at))
    world.attach(forked.catalog)
    forked("DELETE FROM {t} WHERE i != 50")
    with forked.unchanged():
        forked.compact()
    assert world.sql("SELECT i FROM fork.t") == [(50,)]


# ---- workers elsewhere -------------------------------------------------------------------------


class OtherDisk(PlainRunner):
    """Workers that write to a disk which the server does not see."""

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        results = super().run(units, title)
        for unit, result in zip(units, results, strict=True):
            unit.undo(result)
        return results


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_rows_stay_where_they_are_if_the_new_files_are_not_to_be_seen(
    world: World, inlined: int
) -> None:
    lab = new_lab(world, TABLE, insert(0, 3), insert(3, 5), inlined=inlined)
    lab.runner = OtherDisk()
    with lab.unchanged(), pytest.raises(PipelineFailed, match="this server does not see it"):
        lab.compact()


class Dropping(PlainRunner):
    """While the work is done somebody drops the catalog and cleans up."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        results = super().run(units, title)
        self._world.sql("DETACH c")
        self._world.lake.drop_catalog("c")
        self._world.lake.cleanup()
        return results


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_a_catalog_that_is_dropped_meanwhile_is_what_is_told(world: World, inlined: int) -> None:
    lab = new_lab(world, TABLE, insert(0, 3), insert(3, 5), inlined=inlined)
    lab.runner = Dropping(world)
    table_id = lab.table.id
    with pytest.raises(CatalogUnreachable, match="metadata of the catalog c cannot be reached"):
        compact(lab.catalog, table_id, lab.runner)
    assert world.parquet() == set()


def test_workers_that_do_not_see_the_directory_write_nothing(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 3), inlined=10)
    files = lab.files
    (inlined,) = files.inlined
    rows = tuple(lab.catalog.inlined_rows(inlined.name, files.snapshot_id))
    elsewhere = replace(files.table, directory=f"{world.home}/elsewhere/")
    unit = FoldUnit(elsewhere, inlined, rows, files.oldest_snapshot)
    with pytest.raises(PipelineFailed, match="does not see"):
        PlainRunner().run([unit], "fold")
    assert not (world.home / "elsewhere").exists()


# ---- what is told ------------------------------------------------------------------------------


def test_a_dry_run_lists_what_a_run_then_does(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 5), insert(5, 9), insert(9, 14))
    lab("DELETE FROM {t} WHERE i = 10")
    world.inline(10)
    lab(insert(20, 22))
    head, parquet = lab.catalog.snapshot_id(), world.parquet()
    listed = lab.compact(dry_run=True)
    assert listed.dry_run
    assert (lab.catalog.snapshot_id(), world.parquet()) == (head, parquet)
    told: list[Progress] = []
    with lab.unchanged():
        done = lab.compact(on_progress=told.append)
    assert [step.kind for step in listed.steps] == ["merge", "rewrite", "fold"]
    for before, after in zip(listed.steps, done.steps, strict=True):
        assert (before.kind, before.sources, before.rows) == (after.kind, after.sources, after.rows)
        assert before.outputs == (lab.table.directory,)
        assert set(after.outputs) <= world.parquet()
    assert done.table == "main.t"
    assert (done.files_merged, done.files_rewritten, done.rows_folded) == (2, 1, 2)
    assert done.snapshot_ids == (head + 1, head + 2, head + 3)
    assert done.bytes_after > 0
    assert [(one.kind, one.done, one.total) for one in told] == [
        (kind, done, 1) for kind in ("merge", "rewrite", "fold") for done in (0, 1)
    ]


def test_a_unit_can_be_sent(world: World) -> None:
    lab = new_lab(world, NESTED, insert_nested(0, 5), insert_nested(5, 9), inlined=0)
    lab("DELETE FROM {t} WHERE i = 3", insert_nested(9, 12))
    world.inline(10)
    lab(insert_nested(20, 22))
    lab.compact()
    kinds = {type(unit) for unit in lab.runner.ran}
    assert kinds == {MergeUnit, RewriteUnit, FoldUnit}
    for unit in lab.runner.ran:
        assert pickle.loads(pickle.dumps(unit)) == unit

"""Compaction changes no snapshot, no change feed and nothing that stock DuckDB reads."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace

import pytest

from swanlake.errors import CatalogUnreachable, PipelineFailed
from swanlake.jobs.runner import R, Unit
from swanlake.lake.files.datafile import write_delete_file
from swanlake.maintenance.compaction.plan import SkippedFile
from swanlake.maintenance.compaction.run import compact
from swanlake.maintenance.compaction.units import FlushInlinedUnit, MergeUnit, RewriteUnit
from tests.integration.lake.compaction_harness import CompactionCase, PlainRunner, new_case
from tests.integration.lake.fixtures import SOON, LakeHarness

pytestmark = pytest.mark.covering(1)

TABLE = "CREATE TABLE {t} (i INTEGER, s VARCHAR)"


def insert(first: int, end: int) -> str:
    return f"INSERT INTO {{t}} SELECT range, 'v' || range FROM range({first}, {end})"


def test_small_files_are_merged(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 5), insert(5, 9), insert(9, 12))
    with case.unchanged():
        report = case.compact()
    assert (report.files_merged, report.files_made) == (3, 1)
    assert len(case.files.files) == 1
    assert case.compact().steps == ()


def test_files_with_deleted_rows_are_rewritten(harness: LakeHarness) -> None:
    case = new_case(
        harness,
        TABLE,
        insert(0, 10),
        insert(10, 14),
        "DELETE FROM {t} WHERE i < 3",
        "DELETE FROM {t} WHERE i IN (3, 11)",
    )
    with case.unchanged():
        report = case.compact()
    assert (report.files_rewritten, report.files_made) == (2, 2)
    (file,) = case.files.files
    assert (file.record_count, file.deletes) == (9, ())


def test_inlined_rows_are_flushed_to_files(harness: LakeHarness) -> None:
    case = new_case(
        harness,
        TABLE,
        insert(0, 3),
        insert(3, 5),
        "DELETE FROM {t} WHERE i = 1",
        "UPDATE {t} SET s = 'new' WHERE i = 2",
        inlined=10,
    )
    with case.unchanged():
        report = case.compact()
    assert report.inlined_rows_flushed == 6
    assert case.files.inlined_rows == 0


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


#: Changes of the columns of a table between two inserts.
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


@pytest.mark.covering(2)
@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
@pytest.mark.parametrize("alteration", ALTERATIONS)
def test_compaction_preserves_altered_columns(
    harness: LakeHarness, alteration: str, inlined: int
) -> None:
    case = new_case(harness, NESTED, insert_nested(0, 4), insert_nested(4, 9), inlined=inlined)
    case("DELETE FROM {t} WHERE i IN (1, 6)")
    case(*ALTERATIONS[alteration])
    case("INSERT INTO {t} (i) VALUES (100), (101)", "INSERT INTO {t} (i) VALUES (102)")
    case("UPDATE {t} SET i = 200 WHERE i = 7", "DELETE FROM {t} WHERE i = 101")
    with case.unchanged():
        case.compact()
        case.compact()  # of the files that the first one wrote
    assert sum(file.deleted_count for file in case.files.files) == 0
    assert case.files.inlined_rows == 0


def test_files_are_merged_across_renames_but_not_across_type_changes(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 5), "ALTER TABLE {t} RENAME COLUMN s TO name")
    case("INSERT INTO {t} VALUES (5, 'x')")
    with case.unchanged():
        assert case.compact().files_merged == 2
    case("ALTER TABLE {t} ALTER COLUMN i SET DATA TYPE BIGINT", "INSERT INTO {t} VALUES (6, 'x')")
    assert case.compact().steps == ()


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
def test_partitions_are_compacted_separately(
    harness: LakeHarness, partitioning: str, inlined: int
) -> None:
    case = new_case(harness, PARTITIONED, insert_partitioned(0, 3), inlined=inlined)
    case(f"ALTER TABLE {{t}} {PARTITIONINGS[partitioning]}")
    case(*(insert_partitioned(n, n + 4) for n in (4, 8)), "DELETE FROM {t} WHERE i IN (5, 9)")
    partitions = {file.partition_values for file in case.files.files}
    with case.unchanged():
        case.compact()
        case.compact()
    now = [(file.partition_id, file.partition_values) for file in case.files.files]
    assert len(now) == len(set(now))
    assert {values for _, values in now} >= partitions
    for value in ("'k/0'", "'k/1'"):
        found = case(f"SELECT count(*) FROM {{t}} WHERE k = {value}")
        assert found == case(f"SELECT count(*) FROM {{t}} WHERE concat(k, '') = {value}")


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_rows_are_sorted_by_the_current_sort_keys(harness: LakeHarness, inlined: int) -> None:
    case = new_case(harness, TABLE, insert(0, 5), insert(5, 9), inlined=inlined)
    case("DELETE FROM {t} WHERE i = 3")
    case("ALTER TABLE {t} RENAME COLUMN s TO name", "ALTER TABLE {t} ADD COLUMN z INTEGER")
    case("ALTER TABLE {t} SET SORTED BY (z, name DESC)")
    with case.unchanged():
        case.compact()
        case.compact()
    (file,) = case.files.files
    names = harness.sql(f"SELECT name FROM read_parquet('{file.path}')")
    assert names == sorted(names, reverse=True)


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_rows_with_an_inapplicable_sort_key_are_compacted(
    harness: LakeHarness, inlined: int
) -> None:
    case = new_case(harness, TABLE, insert(0, 5), insert(5, 9), inlined=inlined)
    case("DELETE FROM {t} WHERE i = 3")
    case("ALTER TABLE {t} SET SORTED BY (CAST(s AS INTEGER))")
    with case.unchanged():
        case.compact()
    case("ALTER TABLE {t} DROP COLUMN i", "ALTER TABLE {t} ADD COLUMN i VARCHAR")
    case("ALTER TABLE {t} SET SORTED BY (upper(i))", "DELETE FROM {t} WHERE s = 'v4'")
    with case.unchanged():
        case.compact()
    assert sum(file.deleted_count for file in case.files.files) == 0
    assert case.files.inlined_rows == 0


VALUES = {
    "DOUBLE": "'nan', 'inf', '-inf', '1.5', '0.30000000000000004'",
    "FLOAT": "'nan', '-inf', '1.1', '3.4e38'",
    "DECIMAL(20, 3)": "1.5, -2.125, 99999999999999999.999",
    "HUGEINT": f"1, {-(2**53) - 1}, {10**38 - 1}",
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
def test_values_of_every_type_are_preserved(harness: LakeHarness, inlined: int) -> None:
    columns = ", ".join(f"c{n} {type_}" for n, type_ in enumerate(VALUES))
    case = new_case(harness, f"CREATE TABLE {{t}} ({columns})", inlined=inlined)
    lists = (f"unnest([{values}]::{type_}[])" for type_, values in VALUES.items())
    case(f"INSERT INTO {{t}} SELECT {', '.join(lists)}", "INSERT INTO {t} (c0) VALUES (NULL)")
    with case.unchanged():
        report = case.compact()
    assert report.skipped == ()
    assert len(case.files.files) == 1


#: Values that a file cannot hold, or would hold as another value.
NOT_IN_FILES = {
    "INTERVAL": ["-400 days", "0.000001 seconds"],
    "HUGEINT": [str(10**38), str(2**127 - 1)],
    "UHUGEINT": [str(2**128 - 1)],
    "TIMETZ": ["01:02:03+04"],
    "TIMESTAMP_S": ["infinity"],
}


@pytest.mark.parametrize("nested", [False, True], ids=["plain", "nested"])
@pytest.mark.parametrize(
    ("type_", "value"),
    [(type_, value) for type_, values in NOT_IN_FILES.items() for value in values],
)
def test_values_unsupported_by_parquet_stay_inlined(
    sqlite_harness: LakeHarness, type_: str, value: str, nested: bool
) -> None:
    _check_stays_inlined(
        sqlite_harness, f"STRUCT(a {type_}[])" if nested else type_, type_, value, nested
    )


@pytest.mark.parametrize("type_", NOT_IN_FILES)
def test_values_unsupported_by_parquet_stay_inlined_on_postgresql(
    postgres_harness: LakeHarness, type_: str
) -> None:
    _check_stays_inlined(postgres_harness, type_, type_, NOT_IN_FILES[type_][0], nested=False)


def _check_stays_inlined(
    harness: LakeHarness, column: str, type_: str, value: str, nested: bool
) -> None:
    harness.clear()
    cast = f"'{value}'::{type_}"
    row = f"{{'a': [NULL, {cast}]}}" if nested else cast
    case = new_case(
        harness,
        f"CREATE TABLE {{t}} (v {column})",
        f"INSERT INTO {{t}} SELECT {row}",
        inlined=10,
    )
    with case.unchanged():
        report = case.compact()
    assert [one.path for one in report.skipped] == [case.files.inlined[0].name]
    assert report.steps == ()
    assert harness.parquet() == set()


# ---- alternating with other writers ------------------------------------------------------------


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_compaction_and_stock_writes_alternate(harness: LakeHarness, inlined: int) -> None:
    case = new_case(harness, TABLE, insert(0, 5), insert(5, 9), insert(9, 30), inlined=inlined)
    case("UPDATE {t} SET s = 'one' WHERE i % 7 = 0", "DELETE FROM {t} WHERE i % 5 = 0")
    with case.unchanged():
        case.compact()
    case("UPDATE {t} SET s = 'two' WHERE i % 4 = 0", insert(30, 33))
    case("DELETE FROM {t} WHERE i % 3 = 0", "DELETE FROM {t} WHERE i = 1")
    with case.unchanged():
        case.compact()
    with case.unchanged():
        case.compact()
    case(insert(40, 43), "UPDATE {t} SET s = 'three' WHERE i = 2")
    harness.maintain(case.catalog, "flush", "merge")  # the merge gives updated rows new ids
    with case.unchanged():
        case.compact()
    case("DELETE FROM {t} WHERE i < 10")
    before = case.version(case.catalog.newest_snapshot())
    harness.maintain(case.catalog, "rewrite")
    case.compact()
    assert case.version(case.catalog.newest_snapshot()) == before
    harness.maintain(case.catalog, "expire", "cleanup", "orphans")
    assert case.version(case.catalog.newest_snapshot()) == before
    assert case.catalog.missing_files() == []
    case(insert(50, 52), insert(52, 54))
    with case.unchanged():
        case.compact()


def test_files_with_repeated_deletes_are_rewritten(harness: LakeHarness) -> None:
    """Delete files of earlier versions: each has all deletes, and ends the one before."""
    deletes = (f"DELETE FROM {{t}} WHERE i = {number}" for number in (1, 4, 5))
    case = new_case(harness, TABLE, insert(0, 10), *deletes)
    (file,) = case.files.files
    newest = case.catalog.newest_snapshot()
    before = case.history()
    statements = ["DELETE FROM ducklake_delete_file"]
    for number, positions in enumerate(([1], [1, 4], [1, 4, 5])):
        written = write_delete_file(harness.duck, case.table, file.path, positions)
        begin = newest - 2 + number
        statements.append(
            "INSERT INTO ducklake_delete_file (delete_file_id, table_id, begin_snapshot, "
            "end_snapshot, data_file_id, path, path_is_relative, format, delete_count, "
            "file_size_bytes, footer_size) VALUES "
            f"({100 + number}, {case.table.id}, {begin}, {begin + 1 if number < 2 else 'NULL'}, "
            f"{file.id}, '{written.path}', true, 'parquet', {written.delete_count}, "
            f"{written.file_size_bytes}, {written.footer_size})"
        )
    harness.tamper(case.catalog, *statements)
    assert len(case.files.files[0].deletes) == 3
    assert case.history() == before
    with case.unchanged():
        case.compact()
    harness.maintain(case.catalog, "cleanup")
    with case.unchanged():
        harness.maintain(case.catalog, "orphans")


def test_change_feed_keeps_what_a_transaction_inserted_and_deleted(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 10))
    case(
        "BEGIN",
        "UPDATE {t} SET s = 'new' WHERE i < 4",
        "DELETE FROM {t} WHERE i IN (1, 3)",
        insert(10, 13),
        "DELETE FROM {t} WHERE i = 11",
        "COMMIT",
    )
    changed = case.catalog.newest_snapshot()
    before = case.feed(changed, changed)
    assert case.compact().files_rewritten == 3
    assert case.feed(changed, changed) == before
    # Snapshots before the one that the transaction changed.
    case.catalog.expire(keep_last=case.catalog.newest_snapshot() - changed + 2)
    assert case.feed(changed, changed) == before


def test_rows_visible_to_no_snapshot_are_not_rewritten(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 10), "DELETE FROM {t} WHERE i < 5", insert(10, 12))
    harness.maintain(case.catalog, "expire")
    with case.unchanged():
        report = case.compact()
    assert [step.kind for step in report.steps] == ["rewrite"]
    assert report.files_made == 1


def test_file_without_live_rows_is_removed(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 3), "DELETE FROM {t} WHERE i = 1", inlined=0)
    harness.inline(10)
    case("DELETE FROM {t} WHERE i IN (0, 2)")
    with case.unchanged():
        case.compact()
    assert case.files.files == ()


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_retained_snapshots_survive_expiry_and_cleanup(harness: LakeHarness, inlined: int) -> None:
    case = new_case(harness, TABLE, insert(0, 20), inlined=inlined)
    for first in (20, 50, 80):
        case(insert(first, first + 20), insert(first + 20, first + 25))
        case(f"DELETE FROM {{t}} WHERE i % 7 = 0 AND i < {first}")
        case(f"UPDATE {{t}} SET s = 'new' WHERE i IN ({first}, {first + 21})")
        before = case.history()
        report = case.compact()
        assert report.steps
        # Some snapshots from before the compaction, and all that it committed.
        case.catalog.expire(keep_last=len(report.snapshot_ids) + 3)
        gone = {garbage.path for garbage in harness.lake.cleanup(age=SOON)}
        assert gone
        assert not gone & harness.parquet()
        retained = {snapshot.id for snapshot in case.catalog.snapshots()}
        seen = {number: version for number, version in before.items() if number in retained}
        assert len(seen) == 3
        case.check(seen)
        assert harness.lake.collect(age=SOON, dry_run=True) == []


def test_files_added_by_name_are_not_compacted(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 3), insert(3, 5))
    path = harness.home / "added.parquet"
    harness.sql(f"COPY (SELECT 7 AS i, 'x' AS s) TO '{path}' (FORMAT parquet)")
    case(f"CALL ducklake_add_data_files('{{c}}', 't', '{path}')")
    with case.unchanged():
        report = case.compact()
    assert report.files_merged == 2
    assert report.skipped == (
        SkippedFile(str(path), "it was added by name, and its columns have no ids"),
    )


def test_fork_is_unchanged_when_its_parent_is_compacted(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 5), insert(5, 9), "DELETE FROM {t} WHERE i = 3")
    fork = harness.lake.fork_catalog("c", "fork")
    harness.attach(fork)
    case.compact()
    case.compact()
    harness.maintain(case.catalog, "expire", "cleanup")
    assert sorted(harness.sql("SELECT i FROM fork.t")) == [(i,) for i in range(9) if i != 3]
    forked = CompactionCase(harness, fork)
    with forked.unchanged():
        forked.compact()


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_fork_at_an_older_snapshot_is_compacted_without_later_rows(
    harness: LakeHarness, inlined: int
) -> None:
    case = new_case(harness, TABLE, insert(0, 5), "DELETE FROM {t} WHERE i = 1", inlined=inlined)
    at = case.catalog.newest_snapshot()
    case(insert(5, 9), insert(9, 12), "DELETE FROM {t} WHERE i IN (2, 6)", insert(12, 14))
    case.compact()
    case.compact()
    fork = harness.lake.fork_catalog("c", "fork", at)
    harness.attach(fork)
    forked = CompactionCase(harness, fork)
    forked("DELETE FROM {t} WHERE i = 0", insert(20, 23), "DELETE FROM {t} WHERE i = 3")
    with forked.unchanged():
        forked.compact()
    with forked.unchanged():
        forked.compact()
    assert sorted(harness.sql("SELECT i FROM fork.t")) == [(2,), (4,), (20,), (21,), (22,)]


def test_fork_before_a_rewrite_of_its_parent_is_rewritten(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 100))
    at = case.catalog.newest_snapshot()
    case("DELETE FROM {t} WHERE i > 1")
    case.compact()
    forked = CompactionCase(harness, harness.lake.fork_catalog("c", "fork", at))
    harness.attach(forked.catalog)
    forked("DELETE FROM {t} WHERE i != 50")
    with forked.unchanged():
        forked.compact()
    assert harness.sql("SELECT i FROM fork.t") == [(50,)]


# ---- workers on other machines -----------------------------------------------------------------


class UnsharedDiskRunner(PlainRunner):
    """Runs units whose files the server cannot see."""

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        results = super().run(units, title)
        for unit, result in zip(units, results, strict=True):
            unit.undo(result)
        return results


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_compaction_fails_without_changes_if_new_files_are_not_visible(
    harness: LakeHarness, inlined: int
) -> None:
    case = new_case(harness, TABLE, insert(0, 3), insert(3, 5), inlined=inlined)
    case.runner = UnsharedDiskRunner()
    with case.unchanged(), pytest.raises(PipelineFailed, match="this server does not see it"):
        case.compact()


class DroppingRunner(PlainRunner):
    """Drops the catalog and cleans up after the units ran."""

    def __init__(self, harness: LakeHarness) -> None:
        super().__init__()
        self._harness = harness

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        results = super().run(units, title)
        self._harness.sql("DETACH c")
        self._harness.lake.drop_catalog("c")
        self._harness.lake.cleanup()
        return results


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
def test_catalog_dropped_during_compaction_is_reported(harness: LakeHarness, inlined: int) -> None:
    case = new_case(harness, TABLE, insert(0, 3), insert(3, 5), inlined=inlined)
    case.runner = DroppingRunner(harness)
    table_id = case.table.id
    with pytest.raises(CatalogUnreachable, match="metadata of the catalog c cannot be reached"):
        compact(case.catalog, table_id, case.runner)
    assert harness.parquet() == set()


def test_workers_without_the_data_directory_write_nothing(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 3), inlined=10)
    files = case.files
    (inlined,) = files.inlined
    rows = tuple(case.catalog.inlined_rows(inlined.name, files.snapshot_id))
    elsewhere = replace(files.table, directory=f"{harness.home}/elsewhere/")
    unit = FlushInlinedUnit(elsewhere, inlined, rows, files.oldest_snapshot)
    with pytest.raises(PipelineFailed, match="does not see"):
        PlainRunner().run([unit], "fold")
    assert not (harness.home / "elsewhere").exists()


# ---- reports -----------------------------------------------------------------------------------


def test_dry_run_lists_what_the_run_then_does(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 5), insert(5, 9), insert(9, 14))
    case("DELETE FROM {t} WHERE i = 10")
    harness.inline(10)
    case(insert(20, 22))
    head, parquet = case.catalog.newest_snapshot(), harness.parquet()
    listed = case.compact(dry_run=True)
    assert (case.catalog.newest_snapshot(), harness.parquet()) == (head, parquet)
    checks: list[str] = []
    with case.unchanged():
        done = case.compact(check=lambda: checks.append("before a step"))
    assert [step.kind for step in listed.steps] == ["merge", "rewrite", "fold"]
    for before, after in zip(listed.steps, done.steps, strict=True):
        assert (before.kind, before.sources, before.rows) == (after.kind, after.sources, after.rows)
        assert before.outputs == (case.table.directory,)
        assert set(after.outputs) <= harness.parquet()
    assert done.table == "main.t"
    assert (done.files_merged, done.files_rewritten, done.inlined_rows_flushed) == (2, 1, 2)
    assert done.snapshot_ids == (head + 1, head + 2, head + 3)
    assert done.bytes_after > 0
    assert len(checks) == len(done.steps)


def test_unit_can_be_pickled(harness: LakeHarness) -> None:
    case = new_case(harness, NESTED, insert_nested(0, 5), insert_nested(5, 9), inlined=0)
    case("DELETE FROM {t} WHERE i = 3", insert_nested(9, 12))
    harness.inline(10)
    case(insert_nested(20, 22))
    case.compact()
    kinds = {type(unit) for unit in case.runner.ran}
    assert kinds == {MergeUnit, RewriteUnit, FlushInlinedUnit}
    for unit in case.runner.ran:
        assert pickle.loads(pickle.dumps(unit)) == unit

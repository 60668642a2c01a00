"""Overlapping writers damage a stock DuckLake catalog, and do not damage a fenced one.

Each case runs on a catalog of the stock extension, where it does damage, and on one with
SwanLake's fence, where it does not.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import duckdb
import psycopg
import pytest

from swanlake.errors import (
    AlreadyExists,
    CatalogNotWritable,
    CatalogUnreachable,
    CommitConflict,
    LakeError,
    NotFound,
)
from swanlake.lake.catalog import Catalog
from swanlake.lake.commit import protocol as committing
from swanlake.lake.commit.protocol import Retries
from swanlake.lake.files.datafile import write_files
from swanlake.lake.metastore.postgres import PostgresStore, postgres_engine
from swanlake.lake.model.operations import Commit, DropTable, Merge
from swanlake.lake.model.types import ColumnSpec
from tests.integration.lake.fixtures import LakeHarness

NUMBERS = count(1)
REFUSED = (psycopg.Error, subprocess.CalledProcessError)
on_postgres = pytest.mark.parametrize("shared_harness", ["postgres"], indirect=True)
fenced_or_not = pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "plain"])


@dataclass
class Case:
    """A catalog with a table ``t`` of the ids 0 to 9 in one file, and two engines on it."""

    harness: LakeHarness
    name: str
    schema: str
    one: duckdb.DuckDBPyConnection
    two: duckdb.DuckDBPyConnection
    #: None for a catalog of the stock extension.
    catalog: Catalog | None

    @property
    def table(self) -> str:
        return f"{self.name}.t"

    def raw(self) -> psycopg.Connection:
        """A connection that writes metadata without any check."""
        connection = psycopg.connect(str(self.harness.metabase))
        connection.execute(f'SET search_path = "{self.schema}"')
        connection.commit()
        return connection

    def ids(self) -> list[int]:
        return sorted(row[0] for row in self.two.execute(f"SELECT id FROM {self.table}").fetchall())


@pytest.fixture
def case(shared_harness: LakeHarness, request: pytest.FixtureRequest) -> Iterator[Case]:
    """A catalog with or without the fence, without inlining."""
    fenced: bool = request.getfixturevalue("fenced")
    name = f"case{next(NUMBERS)}"
    if fenced:
        catalog = shared_harness.lake.create_catalog(name)
        statement = shared_harness.lake.location(catalog.info).statement
        schema = f"lake_{catalog.info.storage_name}"
    else:
        catalog, schema = None, name
        data = shared_harness.home / "plain" / name
        statement = (
            f"ATTACH 'ducklake:postgres:{shared_harness.metabase}' AS {name} "
            f"(METADATA_SCHEMA '{schema}', DATA_PATH '{data}', DATA_INLINING_ROW_LIMIT 0)"
        )
    one, two = shared_harness.engine(1), shared_harness.engine(2)
    for engine in (one, two):
        engine.execute(statement)
        engine.execute("SET ducklake_max_retry_count = 3; SET ducklake_retry_wait_ms = 1")
    one.execute(f"CREATE TABLE {name}.t AS SELECT range AS id FROM range(10)")
    yield Case(shared_harness, name, schema, one, two, catalog)
    for engine in (one, two):
        engine.execute(f"DETACH {name}")


SNAPSHOT = """
INSERT INTO ducklake_snapshot SELECT snapshot_id + {by}, now(), schema_version, next_catalog_id,
 next_file_id + {files} FROM ducklake_snapshot WHERE snapshot_id = {after}
"""
CHANGES = "INSERT INTO ducklake_snapshot_changes VALUES ({id}, '{changes}', NULL, NULL, NULL)"


def head(raw: psycopg.Connection) -> int:
    row = raw.execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone()
    assert row is not None
    raw.commit()
    return int(row[0])


@on_postgres
@fenced_or_not
def test_fence_prevents_snapshot_ids_out_of_order(case: Case, fenced: bool) -> None:
    with case.raw() as late, case.raw() as early:
        base = head(late)
        # Two ids from a sequence without a lock: the second commits first.
        early.execute(SNAPSHOT.format(by=2, files=1, after=base))
        early.execute(CHANGES.format(id=base + 2, changes="deleted_from_table:1"))
        early.commit()
        past = f"SELECT count(*) FROM {case.table} AT (VERSION => {base + 2})"
        assert case.two.execute(past).fetchall() == [(10,)]
        end = f"UPDATE ducklake_data_file SET end_snapshot = {base + 1}"
        if fenced:
            with pytest.raises(psycopg.errors.SerializationFailure, match="concurrent commit"):
                late.execute(SNAPSHOT.format(by=1, files=0, after=base))
            late.rollback()
            assert case.two.execute(past).fetchall() == [(10,)]
        else:
            late.execute(SNAPSHOT.format(by=1, files=0, after=base))
            late.execute(end)
            late.commit()
            assert case.two.execute(past).fetchall() == [(0,)]  # the same query has another result


@on_postgres
@fenced_or_not
def test_fence_prevents_two_deletes_replacing_one_delete_file(case: Case, fenced: bool) -> None:
    case.one.execute(f"DELETE FROM {case.table} WHERE id = 0")
    for engine, row in ((case.one, 1), (case.two, 2)):
        engine.execute("BEGIN")
        engine.execute(f"DELETE FROM {case.table} WHERE id = {row}")
    case.one.execute("COMMIT")
    if fenced:
        with pytest.raises(duckdb.Error, match=r"conflict|unique"):
            case.two.execute("COMMIT")
        assert case.ids() == list(range(2, 10))
        assert case.catalog is not None
        assert case.catalog.check() == []
    else:
        case.two.execute("COMMIT")
        assert case.ids() != list(range(3, 10))  # although both commits succeeded


@on_postgres
@fenced_or_not
def test_fence_prevents_stale_insert_from_filling_a_gap_before_a_drop(
    case: Case, fenced: bool
) -> None:
    case.one.execute("BEGIN")
    case.one.execute(f"INSERT INTO {case.table} VALUES (100)")
    with case.raw() as raw:
        base = head(raw)
        raw.execute(SNAPSHOT.format(by=2, files=0, after=base))  # base + 1 is a gap
        for part in ("table", "column", "data_file"):
            raw.execute(f"UPDATE ducklake_{part} SET end_snapshot = {base + 2}")
        raw.execute(CHANGES.format(id=base + 2, changes="dropped_table:1"))
        raw.commit()
        if fenced:
            with pytest.raises(duckdb.Error, match="dropped it"):
                case.one.execute("COMMIT")
            assert head(raw) == base + 2
        else:
            case.one.execute("COMMIT")  # the row is committed but never visible
            assert head(raw) == base + 2


@on_postgres
@fenced_or_not
def test_fence_prevents_stale_update_from_reviving_deleted_rows(case: Case, fenced: bool) -> None:
    case.one.execute("BEGIN")
    case.one.execute(f"UPDATE {case.table} SET id = 103 WHERE id = 3")
    with case.raw() as raw:
        base = head(raw)
        raw.execute(SNAPSHOT.format(by=2, files=1, after=base))
        raw.execute(f"UPDATE ducklake_data_file SET end_snapshot = {base + 2}")  # all rows deleted
        raw.execute(CHANGES.format(id=base + 2, changes="deleted_from_table:1"))
        raw.commit()
    if fenced:
        with pytest.raises(duckdb.Error, match="conflict"):
            case.one.execute("COMMIT")
        assert case.ids() == []
    else:
        case.one.execute("COMMIT")
        assert case.ids() == [103]


@on_postgres
@fenced_or_not
def test_fence_prevents_file_id_counter_from_going_back(case: Case, fenced: bool) -> None:
    with case.raw() as raw:
        base = head(raw)
        case.one.execute(f"INSERT INTO {case.table} VALUES (100)")
        stale = SNAPSHOT.format(by=2, files=0, after=base)  # a base without that file
        if fenced:
            with pytest.raises(psycopg.errors.SerializationFailure):
                raw.execute(stale)
            raw.rollback()
            case.one.execute(f"INSERT INTO {case.table} VALUES (101)")
        else:
            raw.execute(stale)
            raw.execute(CHANGES.format(id=base + 2, changes='created_schema:"s"'))
            raw.commit()
            with pytest.raises(duckdb.Error, match="ducklake_data_file_pkey"):
                case.one.execute(f"INSERT INTO {case.table} VALUES (101)")


@on_postgres
@fenced_or_not
def test_fence_prevents_two_tables_with_one_id(case: Case, fenced: bool) -> None:
    again = (
        "INSERT INTO ducklake_table SELECT table_id, gen_random_uuid(), begin_snapshot, NULL, "
        "schema_id, 'other', 'other/', true FROM ducklake_table"
    )
    with case.raw() as raw:
        if fenced:
            with pytest.raises(psycopg.errors.UniqueViolation, match="table_active"):
                raw.execute(again)
            raw.rollback()
            assert case.ids() == list(range(10))
        else:
            raw.execute(again)
            raw.execute(
                "INSERT INTO ducklake_column SELECT column_id, begin_snapshot, NULL, table_id, "
                "column_order, column_name, column_type, initial_default, default_value, "
                "nulls_allowed, parent_column, default_value_type, default_value_dialect "
                "FROM ducklake_column"
            )
            raw.execute(
                SNAPSHOT.format(by=1, files=0, after=head(raw)).replace(
                    "schema_version,", "schema_version + 1,"
                )
            )
            raw.commit()
            with pytest.raises(duckdb.Error, match="already exists"):
                case.ids()


@on_postgres
@pytest.mark.parametrize("fenced", [True], ids=["fenced"])
def test_merge_does_not_revive_inlined_deletes_as_the_stock_merge_does(
    case: Case, fenced: bool
) -> None:
    """No trigger can detect this pair, so files with inlined deletes need SwanLake's merge."""
    assert case.catalog is not None
    case.one.execute(f"INSERT INTO {case.table} SELECT range FROM range(10, 20)")
    catalog, harness = case.catalog, case.harness
    harness.attach(catalog)
    table = catalog.table("main", "t")
    sources = harness.files(catalog, table)
    case.one.execute("BEGIN")
    case.one.execute(f"CALL ducklake_merge_adjacent_files('{case.name}')")
    base = catalog.newest_snapshot()
    harness.inline(10)
    harness.sql(f"DELETE FROM {case.table} WHERE id = 3")
    harness.inline(0)
    without = [id for id in range(20) if id != 3]
    assert case.ids() == without
    written = harness.sql(f"SELECT path FROM {harness.metadata(catalog, 'ducklake_data_file')}")
    assert len(written) == 2
    merge = Commit((_merge_of(harness, catalog, sources),), base=base)
    with pytest.raises(CommitConflict, match="rows were deleted from it"):
        catalog.commit(merge)
    assert case.ids() == without
    case.one.execute("COMMIT")
    assert case.ids() == list(range(20))  # the stock merge revived the row


def _merge_of(harness: LakeHarness, catalog: Catalog, sources: list[int]) -> Merge:
    table = catalog.table("main", "t")
    (file,) = write_files(harness.duck, "SELECT range FROM range(20)", table)
    return Merge(table, tuple(sources), file, 1, 0, 2)


# ---- failing commits ---------------------------------------------------------------------------


@on_postgres
def test_rolled_back_commit_leaves_no_gap_in_the_ids(shared_harness: LakeHarness) -> None:
    harness = shared_harness
    catalog = harness.lake.create_catalog("gapless")
    table = harness.table(catalog)
    engine = postgres_engine(str(harness.metabase))
    store = PostgresStore(catalog.name, f"lake_{catalog.info.storage_name}", engine)

    class Stopped(Exception):
        pass

    def stop(step: str) -> None:
        if step == "planned":  # the id is allocated, and the sequence does not roll back
            raise Stopped

    store.reached = stop
    insert = harness.insert(table, range(3))
    before = catalog.newest_snapshot()
    for _ in range(3):
        with pytest.raises(Stopped):
            committing.apply(store, Commit((insert,), base=before), Retries())
    engine.dispose()
    assert catalog.commit(Commit((insert,), base=before)).snapshot_id == before + 1
    assert [snapshot.id for snapshot in catalog.snapshots()] == list(range(before + 2))


def test_base_with_expired_history_is_a_conflict(shared_harness: LakeHarness) -> None:
    harness = shared_harness
    catalog = harness.lake.create_catalog(f"expired{next(NUMBERS)}")
    table = harness.table(catalog, ids=[range(10)])
    harness.attach(catalog)
    base = table.snapshot_id
    insert = harness.insert(table, range(10, 12))
    for row in (100, 101):
        harness.sql(f"INSERT INTO {catalog.name}.t VALUES ({row}, 'x')")
    call = "CALL ducklake_expire_snapshots('{}', versions => [{}])"
    harness.sql(call.format(catalog.name, base + 1))
    with pytest.raises(CommitConflict, match=rf"snapshot {base + 1} has been expired") as expired:
        catalog.commit(Commit((insert,), base=base))
    assert f"based on snapshot {base} of the catalog {catalog.name}" in expired.value.message
    with pytest.raises(CommitConflict, match="may have been restored from a backup"):
        catalog.commit(Commit((insert,), base=base + 10))
    assert catalog.commit(Commit((insert,), base=base + 2)).snapshot_id == base + 3
    assert harness.ids(f"{catalog.name}.t") == [*range(12), 100, 101]


@pytest.mark.parametrize(
    "row",
    [
        "snapshot_id, now, schema_version, next_catalog_id, next_file_id",
        "snapshot_id + 1, now, schema_version, next_catalog_id - 1, next_file_id",
        "snapshot_id + 1, now, schema_version, next_catalog_id, next_file_id - 1",
    ],
    ids=["an old id", "fewer catalog ids", "fewer file ids"],
)
def test_fence_refuses_a_snapshot_that_goes_back(shared_harness: LakeHarness, row: str) -> None:
    harness = shared_harness
    catalog = harness.lake.create_catalog(f"back{next(NUMBERS)}")
    harness.table(catalog, ids=[range(3)])
    newest = "FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1"
    with pytest.raises(REFUSED):
        harness.tamper(
            catalog,
            f"INSERT INTO ducklake_snapshot SELECT {row} {newest}".replace("now", "snapshot_time"),
        )
    assert catalog.check() == []
    catalog.create_schema("goes_on")


# ---- opening -----------------------------------------------------------------------------------


def stock_catalog(harness: LakeHarness, name: str) -> None:
    """Creates a catalog of the stock extension with a table ``t`` at a location of the lake."""
    with harness.another_engine() as stock:
        if isinstance(harness.metabase, Path):
            harness.metabase.mkdir(exist_ok=True)
            place, options = f"sqlite:{harness.metabase / name}.sqlite", []
        else:
            place, options = f"postgres:{harness.metabase}", [f"METADATA_SCHEMA 'lake_{name}'"]
        options.append(f"DATA_PATH '{harness.data / name}/'")
        stock.execute(f"ATTACH 'ducklake:{place}' AS {name} ({', '.join(options)})")
        stock.execute(f"CREATE TABLE {name}.t AS SELECT range AS id, 'v' AS v FROM range(3)")
        stock.execute(f"DETACH {name}")


def test_stock_catalog_must_be_adopted_before_use(
    shared_harness: LakeHarness,
) -> None:
    harness, name = shared_harness, f"foreign{next(NUMBERS)}"
    stock_catalog(harness, name)
    with pytest.raises(AlreadyExists, match=f"`swanlake catalog adopt {name}` registers it"):
        harness.lake.create_catalog(name)
    foreign = harness.lake.ensure_catalog(name)
    table = foreign.table("main", "t")
    insert = harness.insert(table, range(3, 5))
    for _ in range(2):
        with pytest.raises(CatalogNotWritable, match=f"`swanlake catalog adopt {name}`"):
            foreign.commit(Commit((insert,), base=table.snapshot_id))
    assert "fence" in foreign.check()[0]
    assert harness.lake.find(name) is None
    adopted = harness.lake.adopt_catalog(name)
    assert adopted.check() == []
    assert (
        harness.lake.adopt_catalog(name).info.id == adopted.info.id
    )  # adopting again has no effect
    adopted.commit(Commit((insert,), base=table.snapshot_id))
    harness.attach(adopted)
    harness.sql(f"INSERT INTO {name}.t VALUES (5, 'x')")
    assert harness.ids(f"{name}.t") == list(range(6))
    assert adopted.check() == []


def test_writes_stop_after_the_fence_was_bypassed(
    shared_harness: LakeHarness,
) -> None:
    harness = shared_harness
    catalog = harness.lake.create_catalog(f"breach{next(NUMBERS)}")
    table = harness.table(catalog, ids=[range(3)])
    on = " ON ducklake_snapshot" if harness.on_postgres else ""
    harness.tamper(catalog, f"DROP TRIGGER ducklake_fence{on}")
    assert "fence is missing" in catalog.check()[0]
    harness.attach(catalog)
    harness.sql(f"INSERT INTO {catalog.name}.t VALUES (3, 'x')")
    insert = harness.insert(table, range(4, 6))
    with pytest.raises(CatalogNotWritable) as refused:
        catalog.commit(Commit((insert,), base=table.snapshot_id))
    assert "refuses writes" in refused.value.message
    assert f"adopt {catalog.name}" in refused.value.message
    harness.lake.adopt_catalog(catalog.name)
    catalog.commit(Commit((insert,), base=table.snapshot_id))
    assert harness.ids(f"{catalog.name}.t") == list(range(6))
    assert catalog.check() == []


def test_writes_stop_when_the_head_is_behind(shared_harness: LakeHarness) -> None:
    harness = shared_harness
    catalog = harness.lake.create_catalog(f"behind{next(NUMBERS)}")
    harness.table(catalog)
    harness.tamper(catalog, "UPDATE ducklake_head SET snapshot_id = 0")
    with pytest.raises(CatalogNotWritable, match=r"is at snapshot 0 and the newest one is 1"):
        catalog.create_schema("s")
    assert "a writer bypassed the fence" in catalog.check()[0]
    harness.tamper(catalog, "DELETE FROM ducklake_head")
    with pytest.raises(CatalogNotWritable, match="its fence has no head"):
        catalog.create_schema("s")
    harness.lake.adopt_catalog(catalog.name)
    catalog.create_schema("s")


def test_catalog_of_another_format_version_is_refused(shared_harness: LakeHarness) -> None:
    harness = shared_harness
    catalog = harness.lake.create_catalog(f"newer{next(NUMBERS)}")
    harness.tamper(catalog, "UPDATE ducklake_metadata SET value = '1.1-dev1' WHERE key = 'version'")
    sentence = "has the format '1.1-dev1'; this version of SwanLake writes '1.0'"
    for attempt in (
        lambda: catalog.create_schema("s"),
        lambda: harness.lake.adopt_catalog(catalog.name),
        catalog.check,
    ):
        with pytest.raises(CatalogNotWritable, match=sentence):
            attempt()
    assert catalog.newest_snapshot() == 0


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE ducklake_snapshot_changes",
        "DROP TABLE swanlake_ledger",
        "DROP TABLE ducklake_metadata",
        "DELETE FROM ducklake_snapshot",
        "DELETE FROM ducklake_metadata",
    ],
)
def test_damaged_catalog_is_reported_without_a_traceback(
    shared_harness: LakeHarness, damage: str
) -> None:
    harness = shared_harness
    catalog = harness.lake.create_catalog(f"broken{next(NUMBERS)}")
    harness.tamper(catalog, damage)
    with pytest.raises((LakeError, CatalogUnreachable)) as refused:
        catalog.create_table("main", "t", [ColumnSpec("id", "BIGINT")])
    assert catalog.name in refused.value.message
    assert "Traceback" not in refused.value.message
    harness.lake.drop_catalog(catalog.name)
    assert harness.lake.find(catalog.name) is None


def test_location_without_a_catalog_is_not_adopted(shared_harness: LakeHarness) -> None:
    harness = shared_harness
    with pytest.raises(NotFound, match="There is no catalog nowhere"):
        harness.lake.adopt_catalog("nowhere")
    name = f"empty{next(NUMBERS)}"
    if isinstance(harness.metabase, Path):
        (harness.metabase / f"{name}.sqlite").touch()
    else:
        with psycopg.connect(harness.metabase, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA lake_{name}")
    with pytest.raises(CatalogNotWritable, match=f"{name} is not a DuckLake catalog"):
        harness.lake.adopt_catalog(name)
    assert harness.lake.find(name) is None


def test_drop_with_a_base_conflicts_with_later_inserts(shared_harness: LakeHarness) -> None:
    harness = shared_harness
    catalog = harness.lake.create_catalog(f"swallow{next(NUMBERS)}")
    table = harness.table(catalog, ids=[range(3)])
    harness.append(catalog, range(3, 4))
    with pytest.raises(CommitConflict, match="rows were inserted into it"):
        catalog.commit(Commit((DropTable("main", "t"),), base=table.snapshot_id))
    harness.attach(catalog)
    assert harness.ids(f"{catalog.name}.t") == [0, 1, 2, 3]

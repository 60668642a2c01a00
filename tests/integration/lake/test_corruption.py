"""What damages a DuckLake catalog when writers overlap, and what holds it together here.

Each case is played on a catalog as the stock extension makes it, where it does its damage, and on
one with our fence, where it does not.
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
from swanlake.lake import commit as committing
from swanlake.lake.commit import Retries
from swanlake.lake.datafile import write_files
from swanlake.lake.lake import Catalog
from swanlake.lake.operations import Commit, DropTable, Merge
from swanlake.lake.postgres import PostgresStore, postgres_engine
from swanlake.lake.types import ColumnSpec
from tests.integration.lake.world import World

NUMBERS = count(1)
REFUSED = (psycopg.Error, subprocess.CalledProcessError)
on_postgres = pytest.mark.parametrize("shared_world", ["postgres"], indirect=True)
fenced_or_not = pytest.mark.parametrize("fenced", [True, False], ids=["fenced", "plain"])


@dataclass
class Case:
    """A catalog with a table ``t`` of the ids 0 to 9 in one file, and two engines on it."""

    world: World
    name: str
    schema: str
    one: duckdb.DuckDBPyConnection
    two: duckdb.DuckDBPyConnection
    #: None for a catalog that is not ours.
    catalog: Catalog | None

    @property
    def table(self) -> str:
        return f"{self.name}.t"

    def raw(self) -> psycopg.Connection:
        """A writer that follows no rules."""
        connection = psycopg.connect(str(self.world.metabase))
        connection.execute(f'SET search_path = "{self.schema}"')
        connection.commit()
        return connection

    def ids(self) -> list[int]:
        return sorted(row[0] for row in self.two.execute(f"SELECT id FROM {self.table}").fetchall())


@pytest.fixture
def case(shared_world: World, request: pytest.FixtureRequest) -> Iterator[Case]:
    """Fenced or not; without inlining."""
    fenced: bool = request.getfixturevalue("fenced")
    name = f"case{next(NUMBERS)}"
    if fenced:
        catalog = shared_world.lake.create_catalog(name)
        statement = shared_world.lake.location(catalog.info).statement
        schema = f"lake_{catalog.info.place}"
    else:
        catalog, schema = None, name
        data = shared_world.home / "plain" / name
        statement = (
            f"ATTACH 'ducklake:postgres:{shared_world.metabase}' AS {name} "
            f"(METADATA_SCHEMA '{schema}', DATA_PATH '{data}', DATA_INLINING_ROW_LIMIT 0)"
        )
    one, two = shared_world.engine(1), shared_world.engine(2)
    for engine in (one, two):
        engine.execute(statement)
        engine.execute("SET ducklake_max_retry_count = 3; SET ducklake_retry_wait_ms = 1")
    one.execute(f"CREATE TABLE {name}.t AS SELECT range AS id FROM range(10)")
    yield Case(shared_world, name, schema, one, two, catalog)
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
def test_ids_that_become_visible_out_of_order_change_the_past(case: Case, fenced: bool) -> None:
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
            assert case.two.execute(past).fetchall() == [(0,)]  # the same query, another answer


@on_postgres
@fenced_or_not
def test_two_deletes_from_a_file_that_has_a_delete_file(case: Case, fenced: bool) -> None:
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
        assert case.ids() != list(range(3, 10))  # both were told that they succeeded


@on_postgres
@fenced_or_not
def test_a_stale_stock_insert_does_not_fill_the_gap_before_a_drop(case: Case, fenced: bool) -> None:
    case.one.execute("BEGIN")
    case.one.execute(f"INSERT INTO {case.table} VALUES (100)")
    with case.raw() as raw:
        base = head(raw)
        raw.execute(SNAPSHOT.format(by=2, files=0, after=base))  # base + 1 was burnt
        for part in ("table", "column", "data_file"):
            raw.execute(f"UPDATE ducklake_{part} SET end_snapshot = {base + 2}")
        raw.execute(CHANGES.format(id=base + 2, changes="dropped_table:1"))
        raw.commit()
        if fenced:
            with pytest.raises(duckdb.Error, match="dropped it"):
                case.one.execute("COMMIT")
            assert head(raw) == base + 2
        else:
            case.one.execute("COMMIT")  # the row is committed, and nobody will ever see it
            assert head(raw) == base + 2


@on_postgres
@fenced_or_not
def test_a_stale_stock_update_does_not_bring_deleted_rows_back(case: Case, fenced: bool) -> None:
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
def test_a_counter_of_file_ids_that_falls_back_stops_every_later_insert(
    case: Case, fenced: bool
) -> None:
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
def test_two_tables_with_one_id_make_the_catalog_unreadable(case: Case, fenced: bool) -> None:
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
def test_a_stock_merge_revives_rows_that_an_inlined_delete_removed_and_ours_does_not(
    case: Case, fenced: bool
) -> None:
    """No trigger can see this pair: the merge is to be ours where rows are deleted inlined."""
    assert case.catalog is not None
    case.one.execute(f"INSERT INTO {case.table} SELECT range FROM range(10, 20)")
    catalog, world = case.catalog, case.world
    world.attach(catalog)
    table = catalog.table("main", "t")
    sources = world.files(catalog, table)
    case.one.execute("BEGIN")
    case.one.execute(f"CALL ducklake_merge_adjacent_files('{case.name}')")
    base = catalog.snapshot_id()
    world.inline(10)
    world.sql(f"DELETE FROM {case.table} WHERE id = 3")
    world.inline(0)
    without = [id for id in range(20) if id != 3]
    assert case.ids() == without
    written = world.sql(f"SELECT path FROM {world.metadata(catalog, 'ducklake_data_file')}")
    assert len(written) == 2
    merge = Commit((_merge_of(world, catalog, sources),), base=base)
    with pytest.raises(CommitConflict, match="rows were deleted from it"):
        catalog.commit(merge)
    assert case.ids() == without
    case.one.execute("COMMIT")
    assert case.ids() == list(range(20))  # what the stock extension makes of it


def _merge_of(world: World, catalog: Catalog, sources: list[int]) -> Merge:
    table = catalog.table("main", "t")
    (file,) = write_files(world.duck, "SELECT range FROM range(20)", table)
    return Merge(table, tuple(sources), file, 1, 0, 2)


# ---- what ours does when its own steps fail ----------------------------------------------------


@on_postgres
def test_a_commit_that_was_undone_leaves_no_gap_in_the_ids(shared_world: World) -> None:
    world = shared_world
    catalog = world.lake.create_catalog("gapless")
    table = world.table(catalog)
    engine = postgres_engine(str(world.metabase))
    store = PostgresStore(catalog.name, f"lake_{catalog.info.place}", engine)

    class Stopped(Exception):
        pass

    def stop(step: str) -> None:
        if step == "planned":  # the id is allocated, and the sequence does not roll back
            raise Stopped

    store.reached = stop
    insert = world.insert(table, range(3))
    before = catalog.snapshot_id()
    for _ in range(3):
        with pytest.raises(Stopped):
            committing.apply(store, Commit((insert,), base=before), Retries())
    engine.dispose()
    assert catalog.commit(Commit((insert,), base=before)).snapshot_id == before + 1
    assert [snapshot.id for snapshot in catalog.snapshots()] == list(range(before + 2))


def test_a_base_whose_history_was_expired_is_a_conflict(shared_world: World) -> None:
    world = shared_world
    catalog = world.lake.create_catalog(f"expired{next(NUMBERS)}")
    table = world.table(catalog, ids=[range(10)])
    world.attach(catalog)
    base = table.snapshot_id
    insert = world.insert(table, range(10, 12))
    for row in (100, 101):
        world.sql(f"INSERT INTO {catalog.name}.t VALUES ({row}, 'x')")
    call = "CALL ducklake_expire_snapshots('{}', versions => [{}])"
    world.sql(call.format(catalog.name, base + 1))
    with pytest.raises(CommitConflict, match=rf"snapshot {base + 1} has been expired") as expired:
        catalog.commit(Commit((insert,), base=base))
    assert f"based on snapshot {base} of the catalog {catalog.name}" in expired.value.message
    with pytest.raises(CommitConflict, match="may have been restored from a backup"):
        catalog.commit(Commit((insert,), base=base + 10))
    assert catalog.commit(Commit((insert,), base=base + 2)).snapshot_id == base + 3
    assert world.ids(f"{catalog.name}.t") == [*range(12), 100, 101]


@pytest.mark.parametrize(
    "row",
    [
        "snapshot_id, now, schema_version, next_catalog_id, next_file_id",
        "snapshot_id + 1, now, schema_version, next_catalog_id - 1, next_file_id",
        "snapshot_id + 1, now, schema_version, next_catalog_id, next_file_id - 1",
    ],
    ids=["an old id", "fewer catalog ids", "fewer file ids"],
)
def test_no_writer_gets_past_the_fence_with_a_snapshot_that_goes_back(
    shared_world: World, row: str
) -> None:
    world = shared_world
    catalog = world.lake.create_catalog(f"back{next(NUMBERS)}")
    world.table(catalog, ids=[range(3)])
    newest = "FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1"
    with pytest.raises(REFUSED):
        world.tamper(
            catalog,
            f"INSERT INTO ducklake_snapshot SELECT {row} {newest}".replace("now", "snapshot_time"),
        )
    assert catalog.check() == []
    catalog.create_schema("goes_on")


# ---- opening -----------------------------------------------------------------------------------


def stock_catalog(world: World, name: str) -> None:
    """A catalog in one of our places that the stock extension made, with a table ``t``."""
    with world.another_engine() as stock:
        if isinstance(world.metabase, Path):
            world.metabase.mkdir(exist_ok=True)
            place, options = f"sqlite:{world.metabase / name}.sqlite", []
        else:
            place, options = f"postgres:{world.metabase}", [f"METADATA_SCHEMA 'lake_{name}'"]
        options.append(f"DATA_PATH '{world.data / name}/'")
        stock.execute(f"ATTACH 'ducklake:{place}' AS {name} ({', '.join(options)})")
        stock.execute(f"CREATE TABLE {name}.t AS SELECT range AS id, 'v' AS v FROM range(3)")
        stock.execute(f"DETACH {name}")


def test_a_catalog_of_another_program_is_read_and_written_only_after_it_was_adopted(
    shared_world: World,
) -> None:
    world, name = shared_world, f"foreign{next(NUMBERS)}"
    stock_catalog(world, name)
    with pytest.raises(AlreadyExists, match=f"`swanlake catalog adopt {name}` registers it"):
        world.lake.create_catalog(name)
    foreign = world.lake.ensure_catalog(name)
    table = foreign.table("main", "t")
    insert = world.insert(table, range(3, 5))
    for _ in range(2):
        with pytest.raises(CatalogNotWritable, match=f"`swanlake catalog adopt {name}`"):
            foreign.commit(Commit((insert,), base=table.snapshot_id))
    assert "fence" in foreign.check()[0]
    assert world.lake.find(name) is None
    adopted = world.lake.adopt_catalog(name)
    assert adopted.check() == []
    assert world.lake.adopt_catalog(name).info.id == adopted.info.id  # again does no harm
    adopted.commit(Commit((insert,), base=table.snapshot_id))
    world.attach(adopted)
    world.sql(f"INSERT INTO {name}.t VALUES (5, 'x')")
    assert world.ids(f"{name}.t") == list(range(6))
    assert adopted.check() == []


def test_a_fence_that_was_taken_down_and_written_around_stops_our_writes(
    shared_world: World,
) -> None:
    world = shared_world
    catalog = world.lake.create_catalog(f"breach{next(NUMBERS)}")
    table = world.table(catalog, ids=[range(3)])
    on = " ON ducklake_snapshot" if world.on_postgres else ""
    world.tamper(catalog, f"DROP TRIGGER ducklake_fence{on}")
    assert "fence is missing" in catalog.check()[0]
    world.attach(catalog)
    world.sql(f"INSERT INTO {catalog.name}.t VALUES (3, 'x')")
    insert = world.insert(table, range(4, 6))
    with pytest.raises(CatalogNotWritable) as refused:
        catalog.commit(Commit((insert,), base=table.snapshot_id))
    assert "refuses writes" in refused.value.message
    assert f"adopt {catalog.name}" in refused.value.message
    world.lake.adopt_catalog(catalog.name)
    catalog.commit(Commit((insert,), base=table.snapshot_id))
    assert world.ids(f"{catalog.name}.t") == list(range(6))
    assert catalog.check() == []


def test_a_head_that_stands_behind_stops_our_writes_and_says_why(shared_world: World) -> None:
    world = shared_world
    catalog = world.lake.create_catalog(f"behind{next(NUMBERS)}")
    world.table(catalog)
    world.tamper(catalog, "UPDATE ducklake_head SET snapshot_id = 0")
    with pytest.raises(CatalogNotWritable, match=r"stands at snapshot 0 and the newest one is 1"):
        catalog.create_schema("s")
    assert "something wrote around the fence" in catalog.check()[0]
    world.tamper(catalog, "DELETE FROM ducklake_head")
    with pytest.raises(CatalogNotWritable, match="its fence has no head"):
        catalog.create_schema("s")
    world.lake.adopt_catalog(catalog.name)
    catalog.create_schema("s")


def test_a_catalog_of_another_format_is_left_alone(shared_world: World) -> None:
    world = shared_world
    catalog = world.lake.create_catalog(f"newer{next(NUMBERS)}")
    world.tamper(catalog, "UPDATE ducklake_metadata SET value = '1.1-dev1' WHERE key = 'version'")
    sentence = "has the format '1.1-dev1'; this version of SwanLake writes '1.0'"
    for attempt in (
        lambda: catalog.create_schema("s"),
        lambda: world.lake.adopt_catalog(catalog.name),
        catalog.check,
    ):
        with pytest.raises(CatalogNotWritable, match=sentence):
            attempt()
    assert catalog.snapshot_id() == 0


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
def test_a_broken_catalog_is_a_sentence_and_not_a_trace(shared_world: World, damage: str) -> None:
    world = shared_world
    catalog = world.lake.create_catalog(f"broken{next(NUMBERS)}")
    world.tamper(catalog, damage)
    with pytest.raises((LakeError, CatalogUnreachable)) as refused:
        catalog.create_table("main", "t", [ColumnSpec("id", "BIGINT")])
    assert catalog.name in refused.value.message
    assert "Traceback" not in refused.value.message
    world.lake.drop_catalog(catalog.name)
    assert world.lake.find(catalog.name) is None


def test_a_place_without_a_catalog_is_not_adopted(shared_world: World) -> None:
    world = shared_world
    with pytest.raises(NotFound, match="There is no catalog nowhere"):
        world.lake.adopt_catalog("nowhere")
    name = f"empty{next(NUMBERS)}"
    if isinstance(world.metabase, Path):
        (world.metabase / f"{name}.sqlite").touch()
    else:
        with psycopg.connect(world.metabase, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA lake_{name}")
    with pytest.raises(CatalogNotWritable, match=f"There is no DuckLake catalog in {name}"):
        world.lake.adopt_catalog(name)
    assert world.lake.find(name) is None


def test_a_drop_with_a_base_never_swallows_rows(shared_world: World) -> None:
    world = shared_world
    catalog = world.lake.create_catalog(f"swallow{next(NUMBERS)}")
    table = world.table(catalog, ids=[range(3)])
    world.append(catalog, range(3, 4))
    with pytest.raises(CommitConflict, match="rows were inserted into it"):
        catalog.commit(Commit((DropTable("main", "t"),), base=table.snapshot_id))
    world.attach(catalog)
    assert world.ids(f"{catalog.name}.t") == [0, 1, 2, 3]

"""The history of maintenance: begun, finished, bounded, and there in every lake."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine

from swanlake.lake import history
from swanlake.lake.history import MaintenanceEntry, Outcome
from swanlake.lake.lake import Lake
from swanlake.lake.tables import maintenance_table
from tests.integration.lake.world import SOON, World

START = datetime(2026, 11, 16, 6, tzinfo=UTC)


def begun(number: int, catalog: str = "sales", job: str = "expire") -> MaintenanceEntry:
    return MaintenanceEntry(catalog, job, "one", started_at=START + timedelta(seconds=number))


def test_a_job_is_begun_and_then_finished(lake: Lake) -> None:
    assert lake.history() == []
    entry = replace(begun(0), table_name="main.t")
    lake.record(entry)
    assert lake.history() == [entry]
    assert lake.history()[0].finished_at is None
    done = entry.finished(Outcome.DONE, {"files": ["a", "b"], "bytes": 7, "why": None})
    lake.record(done)
    assert lake.history() == [done]
    lake.record(done)  # as after a keeper that was lost when it had written it
    assert lake.history() == [done]


def test_a_job_whose_server_died_stays_unfinished_for_all_others(
    lake: Lake, metabase: str | Path, tmp_path: Path
) -> None:
    entry = begun(0)
    with Lake.open(metabase, tmp_path / "data") as doomed:
        doomed.record(entry)
    (found,) = lake.history()
    assert (found.server, found.outcome, found.finished_at) == ("one", None, None)


def test_the_newest_come_first_and_can_be_narrowed(lake: Lake) -> None:
    some = [
        begun(number, catalog, job)
        for number, (catalog, job) in enumerate(
            [("sales", "expire"), ("sales", "compact"), ("other", "expire"), ("sales", "expire")]
        )
    ]
    for entry in reversed(some):
        lake.record(entry)
    assert lake.history() == some[::-1]
    assert lake.history("sales") == [some[3], some[1], some[0]]
    assert lake.history("SALES", "expire") == [some[3], some[0]]
    assert lake.history(job="expire", limit=2) == [some[3], some[2]]
    assert lake.history("nobody") == []


def test_entries_outlive_their_catalog(lake: Lake) -> None:
    lake.create_catalog("sales")
    lake.record(begun(0))
    lake.drop_catalog("sales")
    assert len(lake.history("sales")) == 1


def test_only_the_newest_of_a_catalog_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert history.KEPT == 10_000
    monkeypatch.setattr(history, "KEPT", 3)
    table = maintenance_table(None)
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        table.create(connection)
        for entry in map(begun, range(5)):
            history.record(connection, table, entry)
            history.record(connection, table, entry.finished(Outcome.DONE))
        history.record(connection, table, begun(9, "other"))
        kept = history.entries(connection, table, None, None, 100)
    engine.dispose()
    found = [(entry.catalog, entry.started_at.second) for entry in kept]
    assert found == [("other", 9), ("sales", 4), ("sales", 3), ("sales", 2)]


def test_only_the_newest_are_kept_in_postgres(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "KEPT", 3)
    with Lake.open(postgres_database, tmp_path / "data") as lake:
        for number in range(5):
            lake.record(begun(number))
        assert [entry.started_at.second for entry in lake.history()] == [4, 3, 2]


def test_a_lake_from_before_gets_its_history(world: World) -> None:
    world.lake.create_catalog("sales")
    forget_history(world)
    with Lake.open(world.metabase, world.data) as lake:
        assert [info.name for info in lake.catalogs()] == ["sales"]
        assert lake.history() == []
        lake.record(begun(0))
        assert len(lake.history()) == 1
        sales = lake.catalog("sales")
    world.attach(sales)
    world.sql("CREATE TABLE sales.t (id BIGINT)")


def forget_history(world: World) -> None:
    if isinstance(world.metabase, Path):
        world.lake.close()
        world.run_sqlite(world.metabase / "registry.sqlite", "DROP TABLE swanlake_maintenance")
        return
    with psycopg.connect(world.metabase, autocommit=True) as connection:
        connection.execute("DROP TABLE swanlake.swanlake_maintenance")


def test_many_write_at_once_beside_forks_and_clean_ups(world: World) -> None:
    sales = world.lake.create_catalog("sales")
    world.table(sales, ids=[range(5)])
    barrier = threading.Barrier(8)

    def run(number: int) -> None:
        barrier.wait()
        if number == 0:
            world.lake.fork_catalog("sales", "fork")
        elif number == 1:
            world.lake.collect(age=SOON)
        entry = begun(number, job="at once")
        world.lake.record(entry)
        world.lake.record(entry.finished(Outcome.DONE))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))
    found = world.lake.history("sales", "at once")
    assert len(found) == 8
    assert all(entry.outcome is Outcome.DONE for entry in found)

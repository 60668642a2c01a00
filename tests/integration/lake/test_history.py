"""The maintenance history of a lake."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine

from swanlake.lake.lake import Lake
from swanlake.lake.lifecycle import history
from swanlake.lake.lifecycle.history import MaintenanceEntry, Outcome
from swanlake.lake.metastore.tables import maintenance_table
from tests.integration.lake.fixtures import SOON, LakeHarness

START = datetime(2026, 11, 16, 6, tzinfo=UTC)


def begun(number: int, catalog: str = "sales", job: str = "expire") -> MaintenanceEntry:
    return MaintenanceEntry(catalog, job, "one", started_at=START + timedelta(seconds=number))


def test_job_is_recorded_at_start_and_end(lake: Lake) -> None:
    assert lake.history() == []
    entry = replace(begun(0), table_name="main.t")
    lake.record(entry)
    assert lake.history() == [entry]
    assert lake.history()[0].finished_at is None
    done = entry.finished(Outcome.DONE, {"files": ["a", "b"], "bytes": 7, "why": None})
    lake.record(done)
    assert lake.history() == [done]
    lake.record(done)  # as after a worker that was lost after writing it
    assert lake.history() == [done]


def test_job_of_a_dead_server_stays_unfinished(
    lake: Lake, metabase: str | Path, tmp_path: Path
) -> None:
    entry = begun(0)
    with Lake.open(metabase, tmp_path / "data") as doomed:
        doomed.record(entry)
    (entry,) = lake.history()
    assert (entry.server, entry.outcome, entry.finished_at) == ("one", None, None)


def test_history_is_newest_first_and_can_be_filtered(lake: Lake) -> None:
    recorded = [
        begun(number, catalog, job)
        for number, (catalog, job) in enumerate(
            [("sales", "expire"), ("sales", "compact"), ("other", "expire"), ("sales", "expire")]
        )
    ]
    for entry in reversed(recorded):
        lake.record(entry)
    assert lake.history() == recorded[::-1]
    assert lake.history("sales") == [recorded[3], recorded[1], recorded[0]]
    assert lake.history("SALES", "expire") == [recorded[3], recorded[0]]
    assert lake.history(job="expire", limit=2) == [recorded[3], recorded[2]]
    assert lake.history("missing") == []


def test_entries_outlive_their_catalog(lake: Lake) -> None:
    lake.create_catalog("sales")
    lake.record(begun(0))
    lake.drop_catalog("sales")
    assert len(lake.history("sales")) == 1


def test_only_the_newest_entries_of_a_catalog_are_retained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert history.MAX_ENTRIES == 10_000
    monkeypatch.setattr(history, "MAX_ENTRIES", 3)
    table = maintenance_table(None)
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        table.create(connection)
        for entry in map(begun, range(5)):
            history.record(connection, table, entry)
            history.record(connection, table, entry.finished(Outcome.DONE))
        history.record(connection, table, begun(9, "other"))
        entries = history.read_entries(connection, table, None, None, 100)
    engine.dispose()
    retained = [(entry.catalog, entry.started_at.second) for entry in entries]
    assert retained == [("other", 9), ("sales", 4), ("sales", 3), ("sales", 2)]


def test_only_the_newest_entries_are_retained_on_postgresql(
    postgres_database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "MAX_ENTRIES", 3)
    with Lake.open(postgres_database, tmp_path / "data") as lake:
        for number in range(5):
            lake.record(begun(number))
        assert [entry.started_at.second for entry in lake.history()] == [4, 3, 2]


def test_lake_without_a_history_table_gets_one(harness: LakeHarness) -> None:
    harness.lake.create_catalog("sales")
    forget_history(harness)
    with Lake.open(harness.metabase, harness.data) as lake:
        assert [info.name for info in lake.catalogs()] == ["sales"]
        assert lake.history() == []
        lake.record(begun(0))
        assert len(lake.history()) == 1
        sales = lake.catalog("sales")
    harness.attach(sales)
    harness.sql("CREATE TABLE sales.t (id BIGINT)")


def forget_history(harness: LakeHarness) -> None:
    if isinstance(harness.metabase, Path):
        harness.lake.close()
        harness.run_sqlite(harness.metabase / "registry.sqlite", "DROP TABLE swanlake_maintenance")
        return
    with psycopg.connect(harness.metabase, autocommit=True) as connection:
        connection.execute("DROP TABLE swanlake.swanlake_maintenance")


def test_concurrent_entries_survive_forks_and_cleanups(harness: LakeHarness) -> None:
    sales = harness.lake.create_catalog("sales")
    harness.table(sales, ids=[range(5)])
    barrier = threading.Barrier(8)

    def run(number: int) -> None:
        barrier.wait()
        if number == 0:
            harness.lake.fork_catalog("sales", "fork")
        elif number == 1:
            harness.lake.collect(age=SOON)
        entry = begun(number, job="at once")
        harness.lake.record(entry)
        harness.lake.record(entry.finished(Outcome.DONE))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(8)))
    entries = harness.lake.history("sales", "at once")
    assert len(entries) == 8
    assert all(entry.outcome is Outcome.DONE for entry in entries)

"""The maintenance service: jobs, locks and history."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest

from swanlake.errors import (
    CommitConflict,
    InvalidRequest,
    MaintenanceRunning,
    PipelineFailed,
    QueryCancelled,
)
from swanlake.jobs.runner import R, Unit, WithoutTransforms
from swanlake.lake.catalog import Catalog
from swanlake.lake.files import datafile
from swanlake.lake.lake import Lake
from swanlake.lake.lifecycle.history import MaintenanceEntry, Outcome
from swanlake.lake.model.types import ColumnSpec
from swanlake.maintenance.runs import RunControl
from swanlake.maintenance.service import MIN_ORPHAN_AGE, Maintenance
from swanlake.maintenance.settings import MaintenanceSettings
from swanlake.maintenance.triggers import JobTarget

WAIT_SECONDS = 60.0
AT_ONCE = RunControl(lock_timeout=0)


class PlainRunner(WithoutTransforms):
    """Runs units on DuckDB without any lake."""

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        with duckdb.connect(":memory:") as connection:
            return [unit.run(connection) for unit in units]


class BlockedRunner(PlainRunner):
    """Reports its start and blocks until it is released."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        self.reached.set()
        assert self.go_on.wait(WAIT_SECONDS)
        return super().run(units, title)


class FailingRunner(PlainRunner):
    """Fails for one table."""

    def __init__(self, table: str, error: Exception | None = None) -> None:
        self._table = table
        self._error = error or PipelineFailed("The disk\nis full.")

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        if title.endswith(self._table):
            raise self._error
        return super().run(units, title)


@contextmanager
def opened(lake: Lake, runner: PlainRunner | None = None) -> Iterator[Maintenance]:
    """The maintenance service of one server, with its own leases."""
    settings = MaintenanceSettings(lock_timeout=WAIT_SECONDS)
    maintenance = Maintenance(lake, runner or PlainRunner(), settings)
    try:
        yield maintenance
    finally:
        maintenance.close()


def fill(catalog: Catalog, *tables: str, files: int = 3) -> None:
    with duckdb.connect(":memory:") as connection:
        for table in tables:
            catalog.create_table("main", table, [ColumnSpec("i", "BIGINT")])
            for number in range(files):
                catalog.append(connection, f"SELECT {number}::BIGINT AS i", "main", table)


def outcomes(lake: Lake) -> list[tuple[str, str | None, str | None]]:
    """Job, table and outcome of all runs, oldest first."""
    return [(entry.job, entry.table_name, entry.outcome) for entry in reversed(lake.history())]


def test_dry_run_lists_the_steps_and_is_not_recorded(lake: Lake) -> None:
    catalog = lake.create_catalog("a")
    fill(catalog, "t", "u")
    fill(catalog, "single", files=1)
    before = catalog.newest_snapshot()
    with opened(lake) as maintenance:
        planned = maintenance.compact("a", dry_run=True)
        assert (catalog.newest_snapshot(), lake.history()) == (before, [])
        done = maintenance.compact("a")
    assert [(report.table.name, report.compaction.files_merged) for report in done] == [
        ("t", 3),
        ("u", 3),
    ]
    assert [one.sources for report in planned for one in report.compaction.steps] == [
        one.sources for report in done for one in report.compaction.steps
    ]
    assert outcomes(lake) == [("compact", "main.t", "done"), ("compact", "main.u", "done")]
    [entry] = lake.history(limit=1)
    assert entry.catalog == "a"
    assert entry.report is not None
    assert entry.report["files_merged"] == 3
    assert entry.finished_at is not None
    assert entry.started_at <= entry.finished_at


def test_catalog_is_locked_during_a_run(lake: Lake) -> None:
    fill(lake.create_catalog("a"), "t")
    fill(lake.create_catalog("b"), "t")
    blocked = BlockedRunner()
    with (
        opened(lake, blocked) as first,
        opened(lake) as second,
        ThreadPoolExecutor(2) as threads,
    ):
        running = threads.submit(first.compact, "a")
        try:
            assert blocked.reached.wait(WAIT_SECONDS)
            refused = r"The catalog a is being maintained: compact of main\.t by .+ since .+ UTC\."
            for maintenance in (first, second):
                with pytest.raises(MaintenanceRunning, match=refused):
                    maintenance.compact("a", ("main", "t"), AT_ONCE)
                with pytest.raises(MaintenanceRunning, match=refused):
                    maintenance.expire("a", AT_ONCE, keep_last=1)
            # Other catalogs and dry runs are not blocked.
            assert len(second.compact("b", control=AT_ONCE)) == 1
            assert len(second.compact("a", control=AT_ONCE, dry_run=True)) == 1
            assert second.cleanup(AT_ONCE) == []
            waiting = threads.submit(second.compact, "a", ("main", "t"))
        finally:
            blocked.go_on.set()
        assert [report.compaction.files_merged for report in running.result(WAIT_SECONDS)] == [3]
        assert [report.compaction.steps for report in waiting.result(WAIT_SECONDS)] == [()]
    runs = [entry for entry in reversed(lake.history("a")) if entry.catalog == "a"]
    assert [entry.outcome for entry in runs] == ["done", "idle"]
    assert runs[0].finished_at is not None
    assert runs[0].finished_at <= runs[1].started_at


def test_lock_timeout_and_cancellation(lake: Lake) -> None:
    fill(lake.create_catalog("a"), "t")
    blocked = BlockedRunner()

    def no_more() -> None:
        raise QueryCancelled("The client has gone.")

    with opened(lake, blocked) as first, ThreadPoolExecutor(1) as threads:
        running = threads.submit(first.compact, "a")
        try:
            assert blocked.reached.wait(WAIT_SECONDS)
            with pytest.raises(QueryCancelled):
                first.compact("a", control=RunControl(no_more))
        finally:
            blocked.go_on.set()
        running.result(WAIT_SECONDS)


def test_failed_table_does_not_stop_the_others(lake: Lake) -> None:
    fill(lake.create_catalog("a"), "t", "u", "v")
    with opened(lake, FailingRunner("main.u")) as maintenance:
        done = maintenance.compact("a")
        assert [(report.table.name, report.error) for report in done] == [
            ("t", None),
            ("u", "The disk is full."),
            ("v", None),
        ]
        with pytest.raises(PipelineFailed):
            maintenance.compact("a", ("main", "u"))
        subject = JobTarget("compact", "a", "main.u")
        past = [run.outcome for run in maintenance.past_runs() if run.target == subject]
        assert past == [Outcome.FAILED, Outcome.FAILED]
    assert [outcome for _, _, outcome in outcomes(lake)] == ["done", "failed", "done", "failed"]
    assert lake.history(limit=1)[0].report == {"error": "The disk is full."}


def test_table_under_constant_change_is_skipped(lake: Lake) -> None:
    fill(lake.create_catalog("a"), "t")
    conflict = CommitConflict("Others were faster.")
    with opened(lake, FailingRunner("main.t", conflict)) as maintenance:
        [report] = maintenance.compact("a")
    assert report.error == "Others were faster."
    assert outcomes(lake) == [("compact", "main.t", "skipped")]


def test_table_with_auto_compact_off_is_compacted_only_by_name(
    lake: Lake, duck: duckdb.DuckDBPyConnection
) -> None:
    catalog = lake.create_catalog("a")
    fill(catalog, "t", "u")
    lake.location(catalog.info).attach(duck)
    duck.execute("CALL a.set_option('auto_compact', false, schema => 'main', table_name => 't')")
    duck.execute("DETACH a")
    with opened(lake) as maintenance:
        assert [report.table.name for report in maintenance.compact("a")] == ["u"]
        [report] = maintenance.compact("a", ("main", "t"))
    assert report.compaction.files_merged == 3


def test_cancellation_between_two_tables(lake: Lake) -> None:
    fill(lake.create_catalog("a"), "t", "u")
    blocked = BlockedRunner()
    stopping = threading.Event()

    def check() -> None:
        if stopping.is_set():
            raise QueryCancelled("The server is shutting down.")

    with opened(lake, blocked) as maintenance, ThreadPoolExecutor(1) as threads:
        running = threads.submit(maintenance.compact, "a", None, RunControl(check))
        assert blocked.reached.wait(WAIT_SECONDS)
        stopping.set()
        blocked.go_on.set()
        with pytest.raises(QueryCancelled):
            running.result(WAIT_SECONDS)
        # Committed work is done, and the lock is free again.
        assert outcomes(lake) == [("compact", "main.t", "done")]
        assert [report.table.name for report in maintenance.compact("a", control=AT_ONCE)] == ["u"]


def test_run_of_a_dead_server_is_closed_by_the_next(lake: Lake) -> None:
    fill(lake.create_catalog("a"), "t")
    begun = datetime.now(UTC) - timedelta(hours=1)
    lake.record(MaintenanceEntry("a", "expire", "gone:1", started_at=begun))
    with opened(lake) as maintenance:
        maintenance.compact("a")
    assert outcomes(lake) == [("expire", None, "stopped"), ("compact", "main.t", "done")]


def test_expire_uses_the_given_rule(lake: Lake) -> None:
    catalog = lake.create_catalog("a")
    fill(catalog, "t")
    with opened(lake) as maintenance:
        with pytest.raises(InvalidRequest, match="Say which snapshots expire"):
            maintenance.expire("a")
        assert lake.history() == []
        planned = maintenance.expire("a", keep_last=2, dry_run=True)
        done = maintenance.expire("a", keep_last=2)
    assert [one.id for one in planned.snapshots] == [one.id for one in done.snapshots]
    assert len(catalog.snapshots()) == 2
    assert outcomes(lake) == [("expire", None, "done")]


def test_cleanup_deletes_files_no_catalog_can_read(lake: Lake, tmp_path: Path) -> None:
    fill(lake.create_catalog("a"), "t")
    lake.fork_catalog("a", "b")
    a, b = lake.catalog("a"), lake.catalog("b")
    with opened(lake) as maintenance:
        now = timedelta(0)
        maintenance.compact("a")
        maintenance.expire("a", keep_last=1)
        assert maintenance.cleanup(older_than=now) == []  # the fork sees all of them
        maintenance.compact("b")
        maintenance.expire("b", keep_last=1)
        planned = maintenance.cleanup(older_than=now, dry_run=True)
        assert all(Path(garbage.path).exists() for garbage in planned)
        assert maintenance.cleanup(older_than=now) == planned
        assert len(planned) == 3
        assert not any(Path(garbage.path).exists() for garbage in planned)
        with pytest.raises(InvalidRequest, match="of the last hour are never deleted"):
            maintenance.orphans(older_than=now)
    assert (a.missing_files(), b.missing_files()) == ([], [])
    assert outcomes(lake)[-1] == ("cleanup", None, "done")


def test_orphans_of_a_dead_write_are_deleted_when_old(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = lake.create_catalog("a")
    fill(catalog, "t")
    with monkeypatch.context() as dying, duckdb.connect(":memory:") as connection:
        # A killed process does not clean up.
        dying.setattr(datafile, "shutil", SimpleNamespace(rmtree=lambda *_, **__: None))
        query = "SELECT if(i < 200_000, i, error('killed')) FROM range(200_001) r(i)"
        with pytest.raises(duckdb.Error, match="killed"):
            catalog.append(connection, query, "main", "t")
    [folder] = Path(catalog.table("main", "t").directory).glob(".swanlake-*")
    inside = list(folder.rglob("*"))
    assert inside
    with opened(lake) as maintenance:
        assert maintenance.orphans() == []  # it might be a write that goes on
        then = time.time() - (maintenance.settings.orphan_age + MIN_ORPHAN_AGE).total_seconds()
        for path in (folder, *inside):
            os.utime(path, (then, then))
        planned = maintenance.orphans(dry_run=True)
        assert [garbage.path for garbage in planned] == [f"{folder}/"]
        assert maintenance.orphans() == planned
    assert not folder.exists()
    assert catalog.missing_files() == []


def test_servers_share_the_maintenance_lock(
    lake: Lake, metabase: str | Path, tmp_path: Path
) -> None:
    catalog = lake.create_catalog("a")
    fill(catalog, "t", files=2)

    def keep_compacting(other: Lake) -> None:
        with opened(other) as maintenance, duckdb.connect(":memory:") as connection:
            for number in range(5):
                other.catalog("a").append(connection, f"SELECT {number} AS i", "main", "t")
                maintenance.compact("a", ("main", "t"))

    with (
        Lake.open(metabase, tmp_path / "data") as first,
        Lake.open(metabase, tmp_path / "data") as second,
        ThreadPoolExecutor(2) as threads,
    ):
        for done in [threads.submit(keep_compacting, one) for one in (first, second)]:
            done.result(WAIT_SECONDS)
    runs = list(reversed(lake.history()))
    assert len(runs) == 10
    for earlier, later in pairwise(runs):
        assert earlier.finished_at is not None
        assert earlier.finished_at <= later.started_at
    assert (
        sum(file.record_count for file in catalog.files(catalog.table("main", "t").id).files) == 12
    )


@pytest.mark.parametrize("missing", ["catalog", "table"])
def test_unknown_catalog_and_table(lake: Lake, missing: str) -> None:
    lake.create_catalog("a")
    work: Callable[[Maintenance], object] = {
        "catalog": lambda maintenance: maintenance.compact("b"),
        "table": lambda maintenance: maintenance.compact("a", ("main", "t")),
    }[missing]
    with opened(lake) as maintenance, pytest.raises(Exception, match=f"There is no {missing} "):
        work(maintenance)
    assert lake.history() == []

"""Maintenance by SQL and by schedule, on real servers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from swanlake.lake.lake import Lake
from tests.server_process import ServerProcess
from tests.waiting import eventually

Sql = Callable[[str], list[dict[str, Any]]]

WAIT_SECONDS = 100.0
#: Maintenance that starts as soon as there is work.
EAGER = (
    *("--maintenance", "on", "--maintenance-interval-seconds", "0.05"),
    *("--maintenance-pause-seconds", "0", "--maintenance-small-files", "2"),
)


@pytest.fixture
def sql(server: ServerProcess) -> Iterator[Sql]:
    """Runs a statement on the shared server, in a new catalog, and returns its rows."""
    with FlightSQLClient(server.url) as connection:
        name = f"c{uuid4().hex}"
        connection.execute(f"CALL swanlake_create_catalog('{name}')")
        connection.execute(f"USE {name}")
        yield statement_runner(connection)


def statement_runner(connection: FlightSQLClient) -> Sql:
    """A function that runs a statement and returns its rows."""
    return lambda text: connection.execute(text).table.to_pylist()


def create_files(sql: Sql, *tables: str, number: int = 3) -> None:
    """Creates tables of a few small files."""
    for table in tables:
        sql(f"CREATE TABLE {table} (i INTEGER)")
        for file in range(number):
            sql(f"INSERT INTO {table} SELECT * FROM range({file * 10}, {file * 10 + 10})")


def refused(sql: Sql, text: str) -> tuple[str, str]:
    with pytest.raises(SwanLakeError) as error:
        sql(text)
    return error.value.identifier, str(error.value)


# ---- compaction ----------------------------------------------------------------------------------


def test_dry_run_lists_what_the_run_does(sql: Sql) -> None:
    create_files(sql, "t", "u")
    planned = sql("CALL swanlake_compact(dry_run := true)")
    assert [(row["table_name"], row["action"], row["files"]) for row in planned] == [
        ("t", "merge", 3),
        ("u", "merge", 3),
    ]
    assert all(row["dry_run"] and row["files_made"] is None for row in planned)
    assert sql("CALL swanlake_maintenance_history(current_catalog())") == []
    done = sql("CALL swanlake_compact()")
    assert [row["sources"] for row in done] == [row["sources"] for row in planned]
    assert [(row["rows"], row["files_made"], row["dry_run"]) for row in done] == [
        (30, 1, False),
        (30, 1, False),
    ]
    assert all(Path(row["outputs"][0]).stat().st_size == row["bytes_after"] for row in done)
    assert sql("CALL swanlake_compact()") == []
    assert sql("SELECT count(*) AS n, sum(i)::INT AS s FROM t") == [{"n": 30, "s": 435}]


def test_table_names_are_resolved_as_in_sql(sql: Sql) -> None:
    sql('CREATE SCHEMA "the other"')
    create_files(sql, "t", "u", '"the other"."a.b"', '"the other".c')
    catalog = sql("SELECT current_catalog() AS c")[0]["c"]

    def compacted(argument: str) -> list[tuple[str, str]]:
        rows = sql(f"CALL swanlake_compact({argument})")
        return [(row["schema_name"], row["table_name"]) for row in rows]

    assert compacted("'T'") == [("main", "t")]
    assert compacted("""'"the other"."a.b"'""") == [("the other", "a.b")]
    sql('USE "the other"')
    assert compacted("'c', dry_run := true") == [("the other", "c")]
    sql("USE swanlake")
    assert compacted(f"'{catalog}.main.u', true") == [("main", "u")]
    assert compacted(f"'u', catalog := '{catalog}'") == [("main", "u")]
    assert compacted(f"catalog := '{catalog}'") == [("the other", "c")]
    assert refused(sql, "CALL swanlake_compact('nothing')")[0] == "TABLE_NOT_FOUND"
    assert refused(sql, "CALL swanlake_compact('a.b.c.d')")[0] == "INVALID_REQUEST"
    assert refused(sql, f"CALL swanlake_compact('x.y.z', catalog := '{catalog}')")[0] == (
        "INVALID_REQUEST"
    )
    assert refused(sql, "CALL swanlake_compact(catalog := 'nowhere')")[0] == "CATALOG_NOT_FOUND"


@pytest.mark.parametrize("call", ["compact()", "expire(keep_last := 1)", "cleanup()", "orphans()"])
def test_maintenance_is_refused_in_a_transaction(sql: Sql, call: str) -> None:
    sql("BEGIN")
    identifier, text = refused(sql, f"CALL swanlake_{call}")
    assert identifier == "TRANSACTION_ACTIVE"
    assert "cannot be part of a transaction" in text
    sql("ROLLBACK")


# ---- snapshots -----------------------------------------------------------------------------------


def test_expire_removes_snapshots_by_number_and_age(sql: Sql) -> None:
    create_files(sql, "t")
    assert sql("SELECT count(*) AS n FROM t AT (VERSION => 2)") == [{"n": 10}]
    assert sql("CALL swanlake_expire(older_than := INTERVAL '7 days')") == []
    assert sql("CALL swanlake_expire(older_than := '7d')") == []
    assert sql("CALL swanlake_expire('0s', 100)") == []
    planned = sql("CALL swanlake_expire(keep_last := 2, dry_run := true)")
    assert sql("SELECT count(*) AS n FROM t AT (VERSION => 2)") == [{"n": 10}]
    done = sql("CALL swanlake_expire(keep_last := 2)")
    assert [row | {"dry_run": True} for row in done] == planned
    expired = [row["snapshot_id"] for row in done if row["kind"] == "snapshot"]
    assert expired == [0, 1, 2]
    refused(sql, "SELECT count(*) FROM t AT (VERSION => 1)")
    assert sql("SELECT count(*) AS n FROM t") == [{"n": 30}]


@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "keep_last := 0",
        "older_than := '7'",
        "older_than := INTERVAL '-1 day'",
        "keep_last := 1.5",
    ],
)
def test_expire_refuses_invalid_rules(sql: Sql, arguments: str) -> None:
    assert refused(sql, f"CALL swanlake_expire({arguments})")[0] == "INVALID_REQUEST"


# ---- files ---------------------------------------------------------------------------------------


def test_cleanup_and_orphans_delete_unused_files(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server()
    with FlightSQLClient(server.url) as connection:
        sql = statement_runner(connection)
        create_files(sql, "t")
        [merged] = sql("CALL swanlake_compact()")
        sources = sorted(merged["sources"])
        assert sql("CALL swanlake_cleanup()") == []  # the default age is one day
        planned = sql("CALL swanlake_cleanup(older_than := '0s', dry_run := true)")
        assert sorted(row["path"] for row in planned) == sources
        assert all(Path(path).exists() for path in sources)
        done = sql("CALL swanlake_cleanup(INTERVAL '0 seconds')")
        assert [row | {"dry_run": True} for row in done] == planned
        assert {row["reason"] for row in done} == {"no snapshot needs it"}
        assert not any(Path(path).exists() for path in sources)

        directory = server.home / "data" / "swanlake" / "main" / "t"
        old, young = directory / "old.parquet", directory / "young.parquet"
        for file in (old, young):
            file.write_bytes(b"orphan")
        long_ago = time.time() - 3 * 86400
        os.utime(old, (long_ago, long_ago))
        assert refused(sql, "CALL swanlake_orphans('1m')")[0] == "INVALID_REQUEST"
        assert [row["path"] for row in sql("CALL swanlake_orphans(dry_run := true)")] == [str(old)]
        assert old.exists()
        assert [row["path"] for row in sql("CALL swanlake_orphans()")] == [str(old)]
        assert not old.exists()
        assert young.exists()
        assert sql("SELECT count(*) AS n FROM t") == [{"n": 30}]


def test_history_lists_runs_and_their_outcome(sql: Sql) -> None:
    create_files(sql, "t")
    sql("CALL swanlake_compact('t')")
    sql("CALL swanlake_compact('t')")
    sql("CALL swanlake_expire(keep_last := 1)")
    rows = sql("CALL swanlake_maintenance_history(current_catalog())")
    assert [(row["job"], row["table_name"], row["outcome"]) for row in rows] == [
        ("expire", None, "done"),
        ("compact", "main.t", "idle"),
        ("compact", "main.t", "done"),
    ]
    assert all(row["started_at"] <= row["finished_at"] for row in rows)
    assert '"files_merged": 3' in rows[2]["report"]
    filtered = sql("CALL swanlake_maintenance_history(current_catalog(), 'compact', last := 1)")
    assert [row["outcome"] for row in filtered] == ["idle"]
    assert refused(sql, "CALL swanlake_maintenance_history(job := 'vacuum')")[0] == (
        "INVALID_REQUEST"
    )


# ---- concurrent runs -----------------------------------------------------------------------------


def test_concurrent_run_is_refused(
    start_server: Callable[..., ServerProcess], metabase: str | Path, tmp_path: Path
) -> None:
    server = start_server(
        "--commit-lock-timeout-seconds",
        "0.2",
        "--data-path",
        str(tmp_path / "data"),
        **({"SWANLAKE_METABASE_URL": metabase} if isinstance(metabase, str) else {}),
    )
    location = metabase if isinstance(metabase, str) else server.home / "catalogs"
    with Lake.open(location, tmp_path / "data") as lake, FlightSQLClient(server.url) as connection:
        sql = statement_runner(connection)
        create_files(sql, "t")
        claims = lake.leases()
        assert claims.acquire(f"maintenance:{lake.catalog('swanlake').info.id}")
        identifier, text = refused(sql, "CALL swanlake_compact()")
        assert identifier == "MAINTENANCE_RUNNING"
        assert text.startswith("The catalog swanlake is being maintained")
        assert len(sql("CALL swanlake_compact(dry_run := true)")) == 1
        claims.close()
        assert len(sql("CALL swanlake_compact()")) == 1


def test_two_servers_never_maintain_one_catalog_at_once(
    start_server: Callable[..., ServerProcess], postgres_database: str, tmp_path: Path
) -> None:
    data = str(tmp_path / "data")
    servers = [
        start_server(*EAGER, "--data-path", data, SWANLAKE_METABASE_URL=postgres_database)
        for _ in range(2)
    ]
    with FlightSQLClient(servers[0].url) as connection:
        connection.execute("CREATE TABLE t (i INTEGER)")

    def write_and_compact(server: ServerProcess) -> None:
        with FlightSQLClient(server.url) as connection:
            for number in range(3):
                connection.execute(f"INSERT INTO t VALUES ({number}), ({number})")
                connection.execute("CALL swanlake_compact('t')")

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(write_and_compact, server) for server in servers]:
            done.result(WAIT_SECONDS)
    with Lake.open(postgres_database, data) as lake:
        catalog = lake.catalog("swanlake")
        eventually(
            lambda: len(catalog.files(catalog.table("main", "t").id).files) <= 1, WAIT_SECONDS
        )
        runs = [entry for entry in reversed(lake.history(limit=1000)) if entry.catalog]
        assert len({entry.server for entry in runs}) == 2
        over = [entry for entry in runs if entry.finished_at is not None]
        for earlier, later in pairwise(over):
            assert earlier.finished_at is not None
            assert earlier.finished_at <= later.started_at
        assert catalog.check() == []
    with FlightSQLClient(servers[1].url) as connection:
        [row] = connection.execute("SELECT count(*) AS n, sum(i)::INT AS s FROM t").to_pylist()
    assert row == {"n": 12, "s": 12}


# ---- scheduled -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_server_maintains_its_lake_on_schedule(
    start_server: Callable[..., ServerProcess], request: pytest.FixtureRequest, kind: str
) -> None:
    environment = (
        {"SWANLAKE_METABASE_URL": request.getfixturevalue("postgres_database")}
        if kind == "postgres"
        else {}
    )
    server = start_server(
        *EAGER,
        "--maintenance-snapshot-keep-last",
        "1",
        "--maintenance-cleanup-age-seconds",
        "0",
        **environment,
    )
    with FlightSQLClient(server.url) as connection:
        sql = statement_runner(connection)
        create_files(sql, "t")
        directory = server.home / "data" / "swanlake" / "main" / "t"
        eventually(lambda: len(list(directory.glob("*.parquet"))) == 1, WAIT_SECONDS)
        eventually(lambda: len(sql("CALL swanlake_snapshots()")) == 1, WAIT_SECONDS)
        assert sql("SELECT count(*) AS n FROM t") == [{"n": 30}]

        def done() -> set[str]:
            history = sql("CALL swanlake_maintenance_history(last := 1000)")
            return {row["job"] for row in history if row["outcome"] == "done"}

        # The end of a job is recorded after its effect can be seen.
        eventually(lambda: {"compact", "expire", "cleanup"} <= done(), WAIT_SECONDS)
        orphans = sql("CALL swanlake_maintenance_history(job := 'orphans')")
        assert len(orphans) == 1  # it runs once a day
    assert server.stop() == 0
    assert "Traceback" not in server.log_text


def test_invalid_window_fails_the_start(
    start_server: Callable[..., ServerProcess],
) -> None:
    with pytest.raises(AssertionError, match="maintenance_window: 'night' is not two times"):
        start_server("--maintenance-window", "night")

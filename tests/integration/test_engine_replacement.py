"""An engine whose caches have grown is replaced; sessions do not notice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from swanlake.config import Settings
from swanlake.engine.host import EngineConnection, EngineHost, InstanceHost, SharedHost, open_host
from swanlake.engine.instance import EngineSpec
from swanlake.lake.lake import Lake
from swanlake.lake.metastore.location import LakeLocation
from swanlake.server.app import Server
from tests.flight import FlightSql
from tests.waiting import eventually

Open = Callable[[], FlightSql]

#: A result that takes more than one batch, so DuckDB still produces it when its first is read.
LARGE_RESULT = "SELECT x FROM range(1000000) r(x)"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server in this process: the tests replace its engine."""
    home = tmp_path_factory.mktemp("home")
    server = Server(Settings(home=home, port=0, status="off", pipeline="inline"))
    yield server
    server.stop(grace=0)


@pytest.fixture
def host(server: Server) -> SharedHost:
    host = server.registry.services.host
    assert isinstance(host, SharedHost)
    return host


@pytest.fixture
def open_flight(server: Server, host: SharedHost) -> Iterator[Open]:
    opened: list[FlightSql] = []

    def open_flight() -> FlightSql:
        opened.append(FlightSql(server.url))
        return opened[-1]

    yield open_flight
    for connection in opened:
        connection.close_session()
        connection.close()
    eventually(lambda: len(host.engines) == 1)


def test_idle_sessions_move_and_keep_their_settings(open_flight: Open, host: SharedHost) -> None:
    session = open_flight()
    session.query("CREATE SCHEMA moved; CREATE TABLE moved.t AS SELECT 7 AS i; USE swanlake.moved")
    session.query("SET threads = 1; SET SESSION integer_division = true")
    [old] = host.engines
    host.replace()
    eventually(lambda: old not in host.engines)
    rows = session.query("SELECT i / 2 AS half, current_setting('threads') AS threads FROM t")
    assert rows.to_pylist() == [{"half": 3, "threads": 1}]
    session.query("RESET threads")


@pytest.mark.parametrize(
    ("state", "query"),
    [
        ("CREATE TEMP TABLE kept AS SELECT 7 AS i", "FROM kept"),
        ("SET VARIABLE drawn = random()", "SELECT getvariable('drawn')"),
        ("PREPARE kept AS SELECT 7", "EXECUTE kept"),
        ("BEGIN; CREATE TABLE uncommitted AS SELECT 7 AS i", "FROM uncommitted"),
    ],
)
def test_session_with_state_stays(
    open_flight: Open, host: SharedHost, state: str, query: str
) -> None:
    session, other = open_flight(), open_flight()
    session.query(state)
    before = session.query(query)
    [old] = host.engines
    host.replace()
    assert session.query(query) == before
    assert other.query("SELECT 1").num_rows == 1
    host.check()
    assert old in host.engines


def test_session_moves_once_its_transaction_has_ended(open_flight: Open, host: SharedHost) -> None:
    session = open_flight()
    session.query("BEGIN; CREATE TABLE committed AS SELECT 7 AS i")
    [old] = host.engines
    host.replace()
    session.query("COMMIT")
    assert session.query("FROM committed")["i"].to_pylist() == [7]
    eventually(lambda: old not in host.engines)


def test_pragma_keeps_the_session_where_it_is(open_flight: Open, host: SharedHost) -> None:
    session = open_flight()
    session.query("PRAGMA disable_verify_parallelism")
    [old] = host.engines
    host.replace()
    session.query("SELECT 1")
    host.check()
    assert old in host.engines


def test_result_is_read_to_its_end_from_the_old_engine(open_flight: Open, host: SharedHost) -> None:
    session = open_flight()
    reader = session.fetch(session.execute(LARGE_RESULT))
    rows = reader.read_chunk().data.num_rows
    [old] = host.engines
    host.replace()
    host.check()
    assert old in host.engines
    assert rows + sum(chunk.data.num_rows for chunk in reader) == 1_000_000
    eventually(lambda: old not in host.engines)


def test_global_settings_move_to_the_new_engine(open_flight: Open, host: SharedHost) -> None:
    open_flight().query("SET GLOBAL s3_region = 'it''s'")
    host.replace()
    setting = open_flight().query("SELECT current_setting('s3_region') AS region")
    assert setting["region"].to_pylist() == ["it's"]


def test_status_shows_memory_by_owner(open_flight: Open, host: SharedHost) -> None:
    session = open_flight()
    session.query("CREATE TABLE counted AS SELECT 7 AS i; FROM counted")
    unread = session.execute("SELECT x FROM range(1000) r(x)")
    memory = session.status()["memory"]
    assert memory["process_bytes"] > 2**20
    assert memory["result_bytes"] >= 8 * 1000
    assert memory["queue_bytes"] == 0
    [engine] = memory["engines"]
    assert not engine["retired"]
    assert engine["total_bytes"] >= engine["cached_bytes"] > 0
    session.fetch(unread).read_all()


@pytest.fixture
def location(tmp_path: Path) -> Iterator[LakeLocation]:
    with Lake.open(tmp_path / "catalogs", tmp_path / "data") as lake:
        yield lake.location(lake.ensure_catalog("swanlake").info)


@pytest.fixture
def open_small(location: LakeLocation, tmp_path: Path) -> Iterator[Callable[..., EngineHost]]:
    """Opens hosts whose engines are outgrown at once."""
    opened: list[EngineHost] = []

    def open_small(host: Callable[..., EngineHost], *arguments: int) -> EngineHost:
        spec = EngineSpec(location, tmp_path / "tmp", max_cached_bytes=0)
        opened.append(host(spec, *arguments))
        return opened[-1]

    yield open_small
    for host in opened:
        host.close()


def change_schema(host: EngineHost) -> None:
    """Makes an engine read more versions of its catalog than an outgrown one may have."""
    lease = host.acquire()
    change_schema_of(lease)
    host.release(lease)


def change_schema_of(lease: EngineConnection) -> None:
    for _ in range(5):
        lease.connection.execute("CREATE OR REPLACE TABLE t (i INTEGER)")
        lease.connection.execute("FROM t").fetchall()


def test_outgrown_engine_is_replaced(open_small: Callable[..., EngineHost]) -> None:
    host = open_small(SharedHost)
    [first] = host.engines
    change_schema(host)
    grown = first.memory().cached_bytes
    eventually(lambda: first not in host.engines)
    [second] = host.engines
    assert second.memory().cached_bytes < grown


def test_engine_with_shared_objects_is_kept(
    open_small: Callable[..., EngineHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swanlake.engine.host._RETRY_SECONDS", 0.0)
    host = open_small(SharedHost)
    [engine] = host.engines
    lease = host.acquire()
    objects = {
        "database shared": "ATTACH ':memory:' AS shared",
        "macro shared": "CREATE MACRO memory.main.shared(x) AS x",
        "secret shared": "CREATE SECRET shared (TYPE s3)",
        "sequence shared": "CREATE SEQUENCE memory.main.shared",
        "table shared": "CREATE TABLE memory.main.shared (i INTEGER)",
        "type shared": "CREATE TYPE memory.main.shared AS INTEGER",
        "view shared_view": "CREATE VIEW memory.main.shared_view AS SELECT 1",
    }
    for create in objects.values():
        lease.connection.execute(create)
    change_schema(host)
    assert engine.session_objects() == list(objects)
    host.check()
    assert host.engines == [engine]
    for name in objects:
        kind, _, shared = name.partition(" ")
        remove = "DETACH" if kind == "database" else f"DROP {kind}"
        schema = "" if kind in ("database", "secret") else "memory.main."
        lease.connection.execute(f"{remove} {schema}{shared}")
    host.release(lease)
    eventually(lambda: engine not in host.engines)


def test_engine_is_kept_while_no_other_can_be_opened(
    location: LakeLocation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    attach = f"ATTACH '{tmp_path / 'file.db'}' AS file"  # a file opens in one instance only
    host = SharedHost(EngineSpec(location, tmp_path / "tmp", init_sql=attach, max_cached_bytes=0))
    engines = host.engines
    change_schema(host)
    eventually(lambda: "cannot take its place" in caplog.text)
    assert host.engines == engines
    change_schema(host)
    host.close()


def test_outgrown_engine_of_one_session_is_retired(open_small: Callable[..., EngineHost]) -> None:
    host = open_small(InstanceHost, 1)
    lease = host.acquire()
    change_schema_of(lease)
    eventually(lambda: lease.engine.retired)
    host.release(lease)
    assert host.engines == []


def test_engines_do_not_share_their_spilled_rows(location: LakeLocation, tmp_path: Path) -> None:
    spec = EngineSpec(location, tmp_path / "tmp", memory_limit="60MB", threads=1)
    host = InstanceHost(spec, warm_instances=1)
    leases = [host.acquire(), host.acquire()]
    for number, lease in enumerate(leases):
        lease.connection.execute(
            f"CREATE TEMP TABLE t AS SELECT {number} AS n, x::VARCHAR || repeat('-', 20) AS s "
            "FROM range(2000000) r(x)"
        )
    counts = [
        lease.connection.execute("SELECT min(n), max(n), count(DISTINCT s[-20:]) FROM t").fetchall()
        for lease in leases
    ]
    assert counts == [[(0, 0, 1)], [(1, 1, 1)]]
    for lease in leases:
        host.release(lease)
    host.close()
    assert list((tmp_path / "tmp").iterdir()) == []


def test_start_removes_the_spilled_rows_of_killed_processes(
    location: LakeLocation, tmp_path: Path
) -> None:
    settings = Settings(home=tmp_path, port=0)
    abandoned = [
        settings.temp_directory / f"engine-{pid}-01234567-89abcdef" for pid in (os.getpid(), 2**22)
    ]
    running = settings.temp_directory / f"engine-{os.getppid()}-01234567-89abcdef"
    for directory in [*abandoned, running]:
        directory.mkdir(parents=True)
        (directory / "duckdb_temp_storage_DEFAULT-0.tmp").touch()
    open_host(settings, location).close()
    assert list(settings.temp_directory.iterdir()) == [running]

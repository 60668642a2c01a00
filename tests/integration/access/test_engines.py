"""Engines of readers and writers: catalogs that are created later, files, and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from click.testing import CliRunner

from swanlake.access.identity import Grant, Privilege, Role
from swanlake.access.scope import Scope
from swanlake.cli.commands import swanlake as command
from swanlake.client import FlightSQLClient
from swanlake.engine import host as host_module
from swanlake.engine.host import EngineSeal, SharedHost
from swanlake.engine.instance import EngineSealed, EngineSpec
from swanlake.errors import AccessDenied
from swanlake.lake.lake import Lake
from swanlake.lake.metastore.location import LakeLocation
from tests.cli_results import assert_succeeded
from tests.flight import FlightSql
from tests.integration.access.conftest import RoleServer
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb

READER, SELLER = "reader/sales=read,late=read,swanlake=read", "writer/sales=write"


@contextmanager
def calling(server: RoleServer, caller: str) -> Iterator[FlightSql]:
    connection = FlightSql(server.url, authorization=f"Bearer {caller}")
    try:
        yield connection
    finally:
        connection.close()


def values(connection: FlightSql, sql: str) -> list[object]:
    found: list[object] = connection.query(sql).column(0).to_pylist()
    return found


def test_grants_hold_on_postgres(postgres_database: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    server = RoleServer(home, SWANLAKE_METABASE_URL=postgres_database)
    with (
        server,
        calling(server, "admin") as admin,
        calling(server, READER) as reader,
        calling(server, SELLER) as seller,
    ):
        admin.query("CALL swanlake_create_catalog('sales')")
        admin.query("CREATE TABLE sales.main.s AS SELECT 1 AS i")
        assert values(reader, "FROM sales.main.s") == [1]
        seller.query("INSERT INTO sales.main.s SELECT range + 10 FROM range(2000)")
        seller.query("UPDATE sales.main.s SET i = 2 WHERE i = 1")
        assert values(reader, "SELECT min(i) FROM sales.main.s") == [2]
        for sql in ("ALTER TABLE sales.main.s ADD COLUMN j INTEGER", "DELETE FROM sales.main.s"):
            with pytest.raises(flight.FlightUnauthorizedError, match="ACCESS_DENIED"):
                reader.query(sql)
        # The reader's engine cannot attach it any more, and another one takes its place.
        admin.query("CALL swanlake_create_catalog('late')")
        admin.query("CREATE TABLE late.main.l AS SELECT 3 AS i")
        transaction = reader.begin()
        with pytest.raises(flight.FlightUnavailableError, match="open a new session"):
            reader.query("FROM late.main.l", transaction)
        reader.end(transaction, commit=False)
        assert values(reader, "FROM late.main.l") == [3]
        assert values(reader, "SELECT min(i) FROM sales.main.s") == [2]
        with pytest.raises(flight.FlightUnauthorizedError, match="may not read the catalog late"):
            seller.query("FROM late.main.l")
    assert "Traceback" not in server.log_text


def test_files_of_open_directories_can_be_used(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "in.csv").write_text("i\n1\n2\n")
    (tmp_path / "other.csv").write_text("i\n3\n")
    (files / "link.csv").symlink_to(files / "in.csv")
    home = tmp_path / "home"
    flags = ("--file-access", "directories", "--file-directories", str(files))
    server = RoleServer(home, *flags)
    with server, calling(server, "writer") as writer, calling(server, "reader") as reader:
        writer.query("CREATE TABLE t (i INTEGER)")
        writer.query(f"COPY t FROM '{files}/in.csv'")
        assert values(reader, f"FROM '{files}/in.csv'") == [1, 2]
        assert values(reader, f"FROM read_csv(['{files}/in.csv', '{files}/link.csv'])")
        reader.query(f"COPY (FROM t) TO '{files}/out.csv'")
        assert (files / "out.csv").read_text() == "i\n1\n2\n"
        for path in (tmp_path / "other.csv", files / ".." / "other.csv", home / "data" / "x.csv"):
            for sql in (
                f"FROM '{path}'",
                f"FROM read_csv('{path}')",
                f"COPY t TO '{path}'",
                f"COPY t FROM '{path}'",
                f"SELECT * FROM t, '{path}'",
                f"INSERT INTO t FROM '{path}'",
            ):
                with pytest.raises(flight.FlightUnauthorizedError, match="ACCESS_DENIED"):
                    writer.query(sql)
        with pytest.raises(flight.FlightUnauthorizedError, match="ACCESS_DENIED"):
            writer.query(f"FROM read_csv('{files}' || '/in.csv')")


def test_databases_of_the_init_sql_need_the_privilege_to_write(tmp_path: Path) -> None:
    attach = f"""
        CREATE TABLE IF NOT EXISTS swanlake.main.made AS SELECT 7 AS i;
        ATTACH '{tmp_path}/file.db' AS file;
        ATTACH ':memory:' AS extra;
        CREATE TABLE extra.main.e AS SELECT 1 AS i
    """
    (tmp_path / "in.csv").write_text("i\n1\n")
    server = RoleServer(
        tmp_path / "home", "--file-access", "all", SWANLAKE_DUCKLAKE_INIT_SQL=attach
    )
    with server, calling(server, "writer") as writer, calling(server, "reader") as reader:
        writer.query("INSERT INTO extra.main.e VALUES (2)")
        assert values(writer, "FROM extra.main.e") == [1, 2]
        with pytest.raises(pa.ArrowInvalid, match='Catalog "extra" does not exist'):
            reader.query("FROM extra.main.e")
        assert values(reader, "FROM made") == [7]
        # With file_access = all, the engines of readers are not sealed.
        assert values(reader, f"FROM '{tmp_path}/in.csv'") == [1]
        assert values(reader, f"FROM read_csv('{tmp_path}' || '/in.csv')") == [1]
        with pytest.raises(flight.FlightUnauthorizedError, match="ACCESS_DENIED"):
            reader.query(f"FROM sqlite_scan('{server.home}/catalogs/swanlake.sqlite', 't')")


@pytest.fixture
def location(tmp_path: Path) -> Iterator[LakeLocation]:
    with Lake.open(tmp_path / "catalogs", tmp_path / "data") as lake:
        yield lake.location(lake.ensure_catalog("swanlake").info)


def test_callers_of_one_scope_share_an_engine_until_it_is_unused(
    location: LakeLocation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = SharedHost(EngineSpec(location, tmp_path / "tmp"))
    readers = Scope(Role.READER)
    first, second = host.acquire(readers), host.acquire(readers)
    other = host.acquire(Scope(Role.READER, (Grant("swanlake", Privilege.NONE),)))
    assert first.engine is second.engine
    assert len({first.engine, other.engine, host.acquire().engine}) == 3
    assert first.engine.attached_names == ["swanlake"]
    assert other.engine.attached_names == []
    monkeypatch.setattr(host_module, "_IDLE_SECONDS", 0.0)
    host.release(first)
    host.check()
    assert first.engine in host.engines
    host.release(second)
    host.check()
    assert first.engine not in host.engines
    assert other.engine in host.engines
    host.close()


def test_sealed_engine_is_replaced_by_one_with_more_catalogs(
    location: LakeLocation, tmp_path: Path
) -> None:
    host = SharedHost(EngineSpec(location, tmp_path / "tmp"))
    host.seal = lambda scope: EngineSeal((str(tmp_path / "data"),))
    only_late = Scope(Role.READER, (Grant("late", Privilege.READ),))
    sealed = host.acquire(only_late)
    late = replace(location, catalog="late")
    with pytest.raises(EngineSealed):
        sealed.engine.attach(late)
    again = host.acquire(only_late, [late])
    assert (sealed.engine.retired, again.engine.attached_names) == (True, ["late"])
    assert host.acquire(only_late, [late]).engine is again.engine
    assert host.acquire(only_late).engine is again.engine
    host.close()


def test_data_outside_of_the_data_path_is_reached_by_its_readers_only(tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "home", tmp_path / "elsewhere"
    (home / "catalogs").mkdir(parents=True)
    with stock_duckdb() as stock:
        path = f"ducklake:sqlite:{home}/catalogs/adopted.sqlite"
        stock.execute(f"ATTACH '{path}' AS adopted (DATA_PATH '{elsewhere}')")
        stock.execute("CREATE TABLE adopted.main.a AS SELECT range AS i FROM range(2)")
    with Lake.open(home / "catalogs", home / "data") as lake:
        lake.adopt_catalog("adopted")
    server = RoleServer(home)
    with server, calling(server, "reader") as reader, calling(server, SELLER) as seller:
        assert values(reader, "FROM adopted.main.a") == [0, 1]
        with pytest.raises(flight.FlightUnauthorizedError, match="may not use the file"):
            seller.query(f"FROM '{elsewhere}/main/a/*.parquet'")


def test_role_of_a_token_holds(tmp_path: Path) -> None:
    home = tmp_path / "home"

    def create_token(name: str, *options: str) -> str:
        arguments = ["token", "create", name, *options, "--home", str(home)]
        return assert_succeeded(CliRunner().invoke(command, arguments)).strip()

    with ServerProcess(home, "--auth", "token") as server:
        writer = create_token("loader", "--role", "writer")
        reader = create_token("viewer", "--role", "reader", "--grant", "sales=read")
        with FlightSQLClient(server.url, token=writer) as connection:
            connection.execute("CREATE TABLE t AS SELECT 1 AS i")
            with pytest.raises(AccessDenied, match="it needs the role admin"):
                connection.execute("CALL swanlake_create_catalog('sales')")
        with FlightSQLClient(server.url, token=reader) as connection:
            assert connection.query("SELECT 1").scalar() == 1
            with pytest.raises(AccessDenied, match="You may not read the catalog swanlake"):
                connection.query("FROM swanlake.main.t")

"""``swanlake catalog`` on lakes in SQLite and in PostgreSQL, checked with stock DuckDB."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import re
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from psycopg.conninfo import make_conninfo

from swanlake.cli.commands import swanlake as command
from swanlake.lake.lake import Lake
from tests.cli_results import assert_failed, assert_succeeded, json_rows
from tests.flight import FlightSql
from tests.server_process import ServerProcess

Catalog = Callable[..., Result]

DOCUMENT = Path(__file__).parents[2] / "docs" / "lake.md"
PASSWORD = "hunter2-not-for-anyone's-eyes"


@pytest.fixture(autouse=True)
def empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides the developer's own swanlake.toml."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def environment(metabase: str | Path, tmp_path: Path) -> dict[str, str]:
    """The settings of a lake in each kind of metabase."""
    settings = {"SWANLAKE_HOME": str(tmp_path)}
    if isinstance(metabase, str):
        settings["SWANLAKE_METABASE_URL"] = metabase
    return settings


@pytest.fixture
def catalog(environment: dict[str, str]) -> Catalog:
    """Runs a command: ``catalog("create", "sales")``."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(
            command, ["catalog", *arguments], env=environment, prog_name="swanlake"
        )

    return run


def attach(duck: duckdb.DuckDBPyConnection, shown: str) -> None:
    """Runs the ATTACH statement that a command printed."""
    duck.execute(shown[shown.index("ATTACH") :])


def snapshot_of_storage(metabase: str | Path, home: Path) -> set[str]:
    """Names of all catalog databases or schemas, complete or not, and of all data files."""
    files = {str(path) for path in (home / "data").rglob("*")}
    if isinstance(metabase, Path):
        paths = metabase.iterdir() if metabase.exists() else ()
        ignored = ("-wal", "-shm", ".turns")
        return files | {path.name for path in paths if not path.name.endswith(ignored)}
    with psycopg.connect(metabase) as connection:
        schemas = connection.execute("SELECT nspname FROM pg_namespace WHERE nspname ~ '^lake_'")
        return files | {name for (name,) in schemas}


def damage(metabase: str | Path, name: str, *statements: str) -> None:
    """Changes a catalog's metadata tables directly."""
    if isinstance(metabase, Path):
        with closing(sqlite3.connect(metabase / f"{name}.sqlite")) as file:
            for statement in statements:
                file.execute(statement)
            file.commit()
    else:
        with psycopg.connect(metabase, options=f"-c search_path=lake_{name}") as connection:
            for statement in statements:
                connection.execute(statement.encode())


def drop_fence(metabase: str | Path, name: str) -> None:
    on = "" if isinstance(metabase, Path) else " ON ducklake_snapshot"
    damage(metabase, name, f"DROP TRIGGER ducklake_fence{on}")


@pytest.fixture
def sales(catalog: Catalog, duck: duckdb.DuckDBPyConnection) -> Catalog:
    """The catalog ``sales`` with a table of three rows, the last one of snapshot 3."""
    attach(duck, assert_succeeded(catalog("create", "sales")))
    duck.execute("CREATE TABLE sales.orders (id BIGINT)")
    duck.execute("INSERT INTO sales.orders VALUES (1), (2)")
    duck.execute("INSERT INTO sales.orders VALUES (3)")
    duck.execute("DETACH sales")
    return catalog


# ---- create --------------------------------------------------------------------------------------


def test_stock_duckdb_attaches_a_new_catalog_as_printed(
    catalog: Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    shown = assert_succeeded(catalog("create", "Sales"))
    assert shown.startswith("The catalog sales is ready.")
    attach(duck, shown)
    duck.execute("CREATE TABLE sales.orders AS SELECT range AS id FROM range(10)")
    assert duck.execute("SELECT count(*) FROM sales.orders").fetchone() == (10,)
    assert assert_succeeded(catalog("check", "sales", "--files")) == "1 catalog is sound.\n"


@pytest.mark.parametrize("name", ["a b", "", "9lives", "x" * 49, "a'b", "../up", "main", "temp"])
def test_create_refuses_invalid_names(tmp_path: Path, name: str) -> None:
    result = CliRunner().invoke(command, ["catalog", "create", "--home", ".", "--", name])
    assert_failed(result, 1, "cannot be the name of a catalog")
    assert snapshot_of_storage(tmp_path / "catalogs", tmp_path) <= {"registry.sqlite"}


def test_invalid_names_leave_nothing_behind(
    sales: Catalog, metabase: str | Path, tmp_path: Path
) -> None:
    before = snapshot_of_storage(metabase, tmp_path)
    assert_failed(sales("create", "a b"), 1, "'a b' cannot be the name of a catalog")
    assert_failed(sales("fork", "sales", "a b"), 1, "'a b' cannot be the name of a catalog")
    assert_failed(sales("adopt", "a b"), 1, "'a b' cannot be the name of a catalog")
    assert snapshot_of_storage(metabase, tmp_path) == before


def test_existing_name_is_refused(sales: Catalog, metabase: str | Path, tmp_path: Path) -> None:
    before = snapshot_of_storage(metabase, tmp_path)
    assert_failed(sales("create", "sales"), 1, "The catalog sales exists already")
    assert_failed(sales("create", "SALES"), 1, "The catalog sales exists already")
    assert_failed(sales("fork", "sales", "sales"), 1, "The catalog sales exists already")
    assert snapshot_of_storage(metabase, tmp_path) == before


def test_create_reports_a_data_path_it_cannot_create(
    catalog: Catalog, metabase: str | Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    assert_failed(
        catalog("create", "sales", "--data-path", str(tmp_path / "file")),
        4,
        "file/sales for the catalog's files cannot be created: Not a directory",
    )
    assert json_rows(catalog("list", "--format", "json")) == []
    assert_succeeded(catalog("create", "sales"))


# ---- fork ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "ids"), [([], [1, 2, 3]), (["--at", "2"], [1, 2])])
def test_fork_holds_the_parents_rows_at_the_snapshot(
    sales: Catalog, duck: duckdb.DuckDBPyConnection, at: list[str], ids: list[int]
) -> None:
    shown = assert_succeeded(sales("fork", "sales", "trial", *at))
    assert f"forks sales at snapshot {len(ids)}." in shown
    attach(duck, shown)
    assert duck.sql("SELECT id FROM trial.orders ORDER BY id").fetchall() == [(i,) for i in ids]
    duck.execute("DELETE FROM trial.orders")
    attach(duck, {row["catalog_name"]: row for row in list_json(sales)}["sales"]["attach"])
    assert duck.sql("SELECT count(*) FROM sales.orders").fetchall() == [(3,)]
    assert assert_succeeded(sales("check", "--files")) == "2 catalogs are sound.\n"


def test_fork_of_unknown_catalog_or_snapshot_is_refused(
    sales: Catalog, metabase: str | Path, tmp_path: Path
) -> None:
    before = snapshot_of_storage(metabase, tmp_path)
    assert_failed(sales("fork", "salse", "trial"), 1, "There is no catalog salse")
    assert_failed(
        sales("fork", "sales", "trial", "--at", "9"), 1, "There is no snapshot 9 to fork at"
    )
    assert_failed(
        sales("fork", "sales", "trial", "--at", "-1"), 1, "There is no snapshot -1 to fork at"
    )
    assert sales("fork", "sales", "trial", "--at", "x").exit_code == 2
    assert snapshot_of_storage(metabase, tmp_path) == before


# ---- drop and collect ----------------------------------------------------------------------------


def test_collect_deletes_files_of_a_dropped_catalog(sales: Catalog, tmp_path: Path) -> None:
    shown = assert_succeeded(sales("drop", "sales", "--yes"))
    assert "The next `swanlake catalog collect` deletes" in shown
    assert list_json(sales) == []
    files = sorted(map(str, tmp_path.glob("data/sales/**/*.parquet")))
    assert len(files) == 2
    would = json_rows(sales("collect", "--dry-run", "--format", "json"))
    assert sorted(row["path"] for row in would) == files
    assert {row["reason"] for row in would} == {"its catalog was dropped"}
    assert assert_succeeded(sales("collect", "--dry-run")).endswith("2 files would be deleted.\n")
    assert sorted(map(str, tmp_path.glob("data/sales/**/*.parquet"))) == files
    assert assert_succeeded(sales("collect")).endswith("2 files deleted.\n")
    assert not list(tmp_path.glob("data/**/*.parquet"))
    assert assert_succeeded(sales("collect")) == "0 files deleted.\n"


def test_collect_keeps_files_that_a_fork_needs(
    sales: Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    attach(duck, assert_succeeded(sales("fork", "sales", "trial")))
    assert_succeeded(sales("drop", "sales", "--yes"))
    assert assert_succeeded(sales("collect", "--older-than", "0s")) == "0 files deleted.\n"
    assert duck.sql("SELECT count(*) FROM trial.orders").fetchall() == [(3,)]
    (row,) = list_json(sales)
    assert (row["parent_name"], row["parent_snapshot"]) == (None, 3)


def test_drop_without_terminal_needs_yes(sales: Catalog) -> None:
    assert_failed(sales("drop", "sales"), 2, "no terminal for the confirmation; use --yes")
    assert_failed(sales("drop", "salse", "--yes"), 1, "There is no catalog salse")
    assert [row["catalog_name"] for row in list_json(sales)] == ["sales"]


@pytest.mark.parametrize(
    ("typed", "code", "answer"),
    [("n", 1, "Nothing was dropped."), ("y", 0, "The catalog sales is dropped.")],
)
def test_drop_asks_for_confirmation_on_a_terminal(
    sales: Catalog, environment: dict[str, str], typed: str, code: int, answer: str
) -> None:
    controller, terminal = pty.openpty()
    os.write(controller, f"{typed}\n".encode())
    asked = subprocess.run(
        [sys.executable, "-m", "swanlake", "catalog", "drop", "sales"],
        stdin=terminal,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    os.close(controller)
    os.close(terminal)
    assert asked.returncode == code, asked.stderr
    assert "Drop the catalog sales with all its tables and snapshots? [y/N]" in asked.stdout
    assert answer in asked.stdout
    assert len(list_json(sales)) == code


@pytest.mark.parametrize("age", ["5", "", "-1d", "2 days", "1e3h", "99999999999w", "nan"])
def test_collect_refuses_invalid_durations(age: str) -> None:
    wrong = CliRunner().invoke(command, ["catalog", "collect", f"--older-than={age}"])
    assert wrong.exit_code == 2
    assert "Invalid value for '--older-than'" in wrong.stderr


# ---- list and snapshots --------------------------------------------------------------------------


def list_json(catalog: Catalog) -> list[dict[str, Any]]:
    return json_rows(catalog("list", "--format", "json"))


def test_list_in_every_format(sales: Catalog, tmp_path: Path) -> None:
    assert_succeeded(sales("fork", "sales", "trial", "--at", "2"))
    rows = list_json(sales)
    assert [{**row, "attach": row["attach"][:6]} for row in rows] == [
        {
            "catalog_name": "sales",
            "parent_name": None,
            "parent_snapshot": None,
            "newest_snapshot": 3,
            "data_path": f"{tmp_path}/data/sales/",
            "attach": "ATTACH",
        },
        {
            "catalog_name": "trial",
            "parent_name": "sales",
            "parent_snapshot": 2,
            "newest_snapshot": 2,
            "data_path": f"{tmp_path}/data/trial/",
            "attach": "ATTACH",
        },
    ]
    text = assert_succeeded(sales("list", "--format", "csv"))
    assert list(csv.DictReader(io.StringIO(text))) == [
        {name: "" if value is None else str(value) for name, value in row.items()} for row in rows
    ]
    arrow = sales("list", "--format", "arrow").stdout_bytes
    assert pa.ipc.open_stream(arrow).read_all().to_pylist() == rows
    table = assert_succeeded(sales("list"))
    assert "newest_snapshot" in table
    assert table.splitlines()[-2:] == [row["attach"] for row in rows]


def test_empty_lake_lists_nothing_and_checks_sound(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "catalogs").mkdir(exist_ok=True)
    assert list_json(catalog) == []
    assert assert_succeeded(catalog("check")) == "0 catalogs are sound.\n"


def test_list_includes_a_damaged_catalog(sales: Catalog, metabase: str | Path) -> None:
    assert_succeeded(sales("create", "broken"))
    damage(metabase, "broken", "DROP TABLE ducklake_snapshot")
    listed = sales("list", "--format", "json")
    assert listed.exit_code == 0
    assert [row["newest_snapshot"] for row in json.loads(listed.stdout)] == [None, 3]
    assert listed.stderr.startswith("swanlake: catalog broken: ")
    assert listed.stderr.count("\n") == 1


def test_snapshots_are_listed_newest_first(sales: Catalog) -> None:
    rows = json_rows(sales("snapshots", "sales", "--format", "json"))
    assert [row["snapshot_id"] for row in rows] == [3, 2, 1, 0]
    assert rows[-1]["changes"] == 'created_schema:"main"'
    assert rows[0]["changes"] == "inserted_into_table:1"
    newest = json_rows(sales("snapshots", "sales", "--limit", "2", "--format", "json"))
    assert newest == rows[:2]
    assert "commit_message" in assert_succeeded(sales("snapshots", "sales"))
    assert_failed(sales("snapshots", "salse"), 1, "There is no catalog salse")
    assert sales("snapshots", "sales", "--limit", "0").exit_code == 2


# ---- check ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "finding"),
    [
        ("DELETE FROM ducklake_head", "The fence has no head row"),
        (
            "UPDATE ducklake_head SET snapshot_id = snapshot_id + 1",
            "The fence is at snapshot 4, the newest is 3",
        ),
        ("DELETE FROM ducklake_snapshot", "no snapshot: its metadata"),
        ("DROP INDEX ducklake_table_active_uidx", "The fence is missing or incomplete"),
        (
            "UPDATE ducklake_metadata SET value = '0.3' WHERE key = 'version'",
            "has the format '0.3'",
        ),
        ("DROP TABLE ducklake_delete_file", "ducklake_delete_file"),
        ("DROP TABLE ducklake_metadata", "sales is not a DuckLake catalog"),
    ],
)
def test_check_finds_damaged_metadata(
    sales: Catalog, metabase: str | Path, statement: str, finding: str
) -> None:
    assert_succeeded(sales("create", "other"))
    damage(metabase, "sales", statement)
    checked = sales("check", "--files", "--format", "json")
    assert checked.exit_code == 1
    assert checked.stderr == ""
    rows = json.loads(checked.stdout)
    assert {row["catalog_name"] for row in rows} == {"sales"}
    assert finding in rows[0]["finding"]


def test_check_of_one_catalog_ignores_the_others(sales: Catalog, metabase: str | Path) -> None:
    assert_succeeded(sales("create", "other"))
    drop_fence(metabase, "sales")
    assert assert_succeeded(sales("check", "other")) == "1 catalog is sound.\n"
    checked = sales("check", "Sales")
    assert (checked.exit_code, checked.stderr) == (1, "")
    assert "The fence is missing or incomplete" in checked.stdout
    assert_failed(sales("check", "salse"), 1, "There is no catalog salse")


def test_check_finds_a_missing_catalog(sales: Catalog, metabase: str | Path) -> None:
    if isinstance(metabase, Path):
        (metabase / "sales.sqlite").unlink()
    else:
        damage(metabase, "sales", "DROP SCHEMA lake_sales CASCADE")
    checked = sales("check", "--files", "--format", "json")
    assert checked.exit_code == 1
    assert len(json.loads(checked.stdout)) == 1
    assert checked.stderr == ""
    assert_succeeded(sales("drop", "sales", "--yes"))
    assert assert_succeeded(sales("check")) == "0 catalogs are sound.\n"


def test_check_finds_a_file_that_is_not_a_database(tmp_path: Path) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(command, ["catalog", *arguments, "--home", str(tmp_path)])

    assert_succeeded(run("create", "sales"))
    for file in tmp_path.glob("catalogs/sales.sqlite*"):
        file.unlink()
    (tmp_path / "catalogs" / "sales.sqlite").write_text("not a database at all " * 100)
    checked = run("check", "--format", "json")
    assert checked.exit_code == 1
    assert "not a database" in json.loads(checked.stdout)[0]["finding"]


def test_check_finds_missing_files_in_the_catalog_and_its_fork(
    sales: Catalog, tmp_path: Path
) -> None:
    assert_succeeded(sales("fork", "sales", "trial", "--at", "2"))
    first, second = sorted(tmp_path.glob("data/sales/**/*.parquet"), key=lambda p: p.stat().st_size)
    for lost in (first, second):
        lost.unlink()
    assert assert_succeeded(sales("check")) == "2 catalogs are sound.\n"
    checked = sales("check", "--files", "--format", "json")
    assert checked.exit_code == 1
    findings = json.loads(checked.stdout)
    assert [row["catalog_name"] for row in findings] == ["sales", "sales", "trial"]
    assert {row["finding"] for row in findings} == {
        f"The file {lost} is missing." for lost in (first, second)
    }


def test_check_and_collect_report_a_file_of_an_unknown_table(
    sales: Catalog, metabase: str | Path
) -> None:
    damage(metabase, "sales", "UPDATE ducklake_data_file SET table_id = 99")
    checked = sales("check", "--files", "--format", "json")
    assert checked.exit_code == 1
    assert "belongs to table 99" in json.loads(checked.stdout)[-1]["finding"]
    assert_failed(sales("collect", "--older-than", "0s"), 1, "belongs to table 99")


# ---- adopt ---------------------------------------------------------------------------------------


@pytest.fixture
def stock(
    catalog: Catalog, metabase: str | Path, duck: duckdb.DuckDBPyConnection, tmp_path: Path
) -> Catalog:
    """The unregistered catalog ``stock``, created by stock DuckDB, with a table of two rows."""
    if isinstance(metabase, Path):
        metabase.mkdir()
        source, options = f"ducklake:sqlite:{metabase}/stock.sqlite", ""
    else:
        source, options = f"ducklake:postgres:{metabase}", ", METADATA_SCHEMA 'lake_stock'"
    source = source.replace("'", "''")
    duck.execute(f"ATTACH '{source}' AS stock (DATA_PATH '{tmp_path}/elsewhere/'{options})")
    duck.execute("CREATE TABLE stock.t AS SELECT range AS id FROM range(2)")
    duck.execute("DETACH stock")
    return catalog


def test_adopt_registers_a_catalog_of_stock_duckdb(
    stock: Catalog,
    environment: dict[str, str],
    lake: Lake,
    duck: duckdb.DuckDBPyConnection,
    tmp_path: Path,
) -> None:
    assert_failed(stock("create", "stock"), 1, "exists but is not in the registry")
    assert_failed(stock("check", "stock"), 1, "swanlake catalog adopt stock")
    shown = assert_succeeded(stock("adopt", "stock"))
    assert shown.startswith("The catalog stock is registered and fenced.")
    assert list_json(stock)[0]["data_path"] == f"{tmp_path}/elsewhere/"
    lake.catalog("stock").append(duck, "SELECT 2::BIGINT", "main", "t")
    attach(duck, shown)
    assert duck.sql("SELECT id FROM stock.t ORDER BY id").fetchall() == [(0,), (1,), (2,)]
    assert assert_succeeded(stock("check", "--files")) == "1 catalog is sound.\n"


def test_adopt_restores_a_missing_fence(sales: Catalog, metabase: str | Path) -> None:
    drop_fence(metabase, "sales")
    assert "`swanlake catalog adopt sales` installs it" in sales("check", "--format", "csv").stdout
    assert_succeeded(sales("adopt", "sales"))
    assert assert_succeeded(sales("check")) == "1 catalog is sound.\n"
    assert len(list_json(sales)) == 1


def test_adopt_refuses_missing_or_unsupported_catalogs(
    stock: Catalog, metabase: str | Path, tmp_path: Path
) -> None:
    assert_failed(stock("adopt", "nothing"), 1, "There is no catalog nothing")
    damage(metabase, "stock", "UPDATE ducklake_metadata SET value = '0.2' WHERE key = 'version'")
    before = snapshot_of_storage(metabase, tmp_path)
    assert_failed(stock("adopt", "stock"), 1, "has the format '0.2'")
    damage(metabase, "stock", "DROP TABLE ducklake_metadata")
    assert_failed(stock("adopt", "stock"), 1, "stock is not a DuckLake catalog")
    assert snapshot_of_storage(metabase, tmp_path) == before
    assert list_json(stock) == []


# ---- settings, and lakes that cannot be reached --------------------------------------------------

EVERY_COMMAND = [
    ["create", "x"],
    ["fork", "x", "y"],
    ["drop", "x", "--yes"],
    ["list"],
    ["snapshots", "x"],
    ["check"],
    ["adopt", "x"],
    ["collect"],
]
every_command = pytest.mark.parametrize("arguments", EVERY_COMMAND, ids=lambda a: a[0])


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that is reserved and refuses connections."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@every_command
def test_unreachable_metabase_exits_4(
    arguments: list[str], closed_port: int, tmp_path: Path
) -> None:
    url = make_conninfo(host="127.0.0.1", port=closed_port, user="lake_owner", password=PASSWORD)
    result = CliRunner().invoke(
        command, ["catalog", *arguments], env={"SWANLAKE_METABASE_URL": url}
    )
    assert_failed(result, 4, "The lake's metadata cannot be reached: .*Connection refused")
    assert PASSWORD not in result.output
    assert not list(tmp_path.iterdir())


@every_command
def test_malformed_metabase_url_exits_2(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(
        command,
        ["catalog", *arguments],
        env={"SWANLAKE_METABASE_URL": f"postgresql://lake_owner:{PASSWORD}@[nowhere"},
    )
    assert_failed(result, 2, "metabase_url is not a PostgreSQL URL")
    assert PASSWORD not in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", EVERY_COMMAND[1:], ids=lambda a: a[0])
def test_missing_home_is_not_created(arguments: list[str], tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["catalog", *arguments, "--home", "hmoe"])
    assert_failed(result, 4, f"There is no lake in {tmp_path}/hmoe")
    assert not list(tmp_path.iterdir())


def test_create_in_a_home_that_is_a_file_exits_4(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = CliRunner().invoke(command, ["catalog", "create", "x", "--home", "file"])
    assert_failed(result, 4, "cannot be reached: .*Not a directory")


@every_command
def test_invalid_settings_exit_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(command, ["catalog", *arguments], env={"SWANLAKE_HOEM": "x"})
    assert_failed(result, 2, "the nearest valid one is 'SWANLAKE_HOME'")
    result = CliRunner().invoke(command, ["catalog", *arguments, "--config", "nope.toml"])
    assert_failed(result, 2, "The configuration file nope.toml does not exist")


def test_settings_are_read_from_flags_environment_and_toml(tmp_path: Path) -> None:
    (tmp_path / "swanlake.toml").write_text('home = "of-toml"\ndata_path = "files-of-toml"\n')
    assert_succeeded(CliRunner().invoke(command, ["catalog", "create", "one"]))
    assert (tmp_path / "of-toml" / "catalogs" / "one.sqlite").is_file()
    assert (tmp_path / "files-of-toml" / "one").is_dir()
    assert_succeeded(
        CliRunner().invoke(command, ["catalog", "create", "two"], env={"SWANLAKE_HOME": "of-env"})
    )
    assert (tmp_path / "of-env" / "catalogs" / "two.sqlite").is_file()
    assert_succeeded(
        CliRunner().invoke(command, ["catalog", "create", "three", "--home", "of-flag"])
    )
    assert (tmp_path / "of-flag" / "catalogs" / "three.sqlite").is_file()


def test_password_is_never_printed(
    postgres_database: str, duck: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"lake_owner_{os.getpid()}"
    literal = PASSWORD.replace("'", "''")
    with psycopg.connect(postgres_database, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {role} SUPERUSER LOGIN PASSWORD '{literal}'".encode())
        try:
            url = make_conninfo(postgres_database, user=role, password=PASSWORD)

            def run(*arguments: str) -> str:
                return assert_succeeded(
                    CliRunner().invoke(
                        command, ["catalog", *arguments], env={"SWANLAKE_METABASE_URL": url}
                    )
                )

            created = run("create", "sales")
            shown = "".join(
                [created, run("fork", "sales", "trial"), run("adopt", "sales"), run("list")]
                + [run("list", "--format", each) for each in ("csv", "json")]
            )
            assert "hunter2" not in shown
            monkeypatch.setenv("PGPASSWORD", PASSWORD)
            attach(duck, created)
            assert duck.sql("FROM ducklake_snapshots('sales')").fetchall()
            duck.execute("DETACH sales")
        finally:
            admin.execute(f"DROP OWNED BY {role} CASCADE".encode())
            admin.execute(f"DROP ROLE {role}".encode())


# ---- a running server, and the documentation -----------------------------------------------------


def test_commands_work_while_a_server_runs(
    catalog: Catalog,
    environment: dict[str, str],
    start_server: Callable[..., ServerProcess],
    flight_sql: Callable[..., FlightSql],
    tmp_path: Path,
) -> None:
    server = start_server(home=tmp_path, **environment)
    client = flight_sql(server.url)
    assert_succeeded(catalog("create", "sales"))
    client.query("CREATE TABLE sales.orders AS SELECT range AS id FROM range(4)")
    assert_succeeded(catalog("fork", "sales", "trial"))
    client.query("DELETE FROM sales.orders WHERE id > 1")
    for name, rows in (("sales", 2), ("trial", 4)):
        counted = client.query(f"SELECT count(*) AS n FROM {name}.orders")
        assert counted["n"].to_pylist() == [rows]
    assert [row["catalog_name"] for row in list_json(catalog)] == ["sales", "swanlake", "trial"]
    assert assert_succeeded(catalog("check", "--files")) == "3 catalogs are sound.\n"


def test_python_example_of_the_documentation_runs(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert ran.stdout == "[(10,)]\n[(3,)]\n"

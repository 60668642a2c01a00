"""Catalog procedures through Flight SQL, and catalogs that a server attaches on first use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pytest

from swanlake.lake.lake import Lake
from swanlake.protocol import messages
from tests.flight import FlightSql
from tests.postgres_server import new_database
from tests.queries import rows
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def deployed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, Lake]]:
    """A server on each kind of metabase, and its lake, opened by the test process."""
    home = tmp_path_factory.mktemp("catalogs") / "home"
    with ExitStack() as cleanup:
        metabase: str | Path = home / "catalogs"
        environment = {}
        if request.param == "postgres":
            postgres = request.getfixturevalue("postgres")
            metabase = cleanup.enter_context(new_database(postgres))
            environment["SWANLAKE_METABASE_URL"] = metabase
        server = cleanup.enter_context(ServerProcess(home, **environment))
        yield server, cleanup.enter_context(Lake.open(metabase, home / "data"))


@pytest.fixture
def same_lake(deployed: tuple[ServerProcess, Lake]) -> Iterator[Lake]:
    """The server's lake; the server drops the catalogs of a test after it."""
    server, lake = deployed
    yield lake
    connection = FlightSql(server.url)
    for catalog in lake.catalogs():
        if catalog.name != "swanlake":
            connection.query(f"CALL swanlake_drop_catalog('{catalog.name}')")
    connection.close()


@pytest.fixture
def own_server(deployed: tuple[ServerProcess, Lake], same_lake: Lake) -> ServerProcess:
    """The server, with no catalog but its own."""
    return deployed[0]


@pytest.fixture
def cursor(own_server: ServerProcess) -> Any:
    with adbc.connect(own_server.url, autocommit=True) as connection:
        with connection.cursor() as cursor:
            yield cursor


def test_procedures_create_fork_and_drop_a_catalog(cursor: Any) -> None:
    [created] = rows(cursor, "CALL swanlake_create_catalog('sales')")
    assert created[:3] == ("sales", None, None)
    assert rows(cursor, "CALL swanlake_create_schema('sales', 'raw')") == [("sales", 1)]
    rows(cursor, "CREATE TABLE sales.raw.t AS SELECT range AS i FROM range(5)")
    [forked] = rows(cursor, "CALL swanlake_fork_catalog('sales', 'trial')")
    assert forked[:3] == ("trial", "sales", 2)
    rows(cursor, "USE trial.raw")
    rows(cursor, "INSERT INTO t VALUES (5)")
    assert rows(cursor, "SELECT count(*) FROM t") == [(6,)]
    assert rows(cursor, "SELECT count(*) FROM sales.raw.t") == [(5,)]
    names = [row[0] for row in rows(cursor, "CALL swanlake_catalogs()")]
    assert names == ["sales", "swanlake", "trial"]
    snapshots = rows(cursor, "CALL swanlake_snapshots('trial')")
    assert [row[0] for row in snapshots] == [0, 1, 2, 3]
    rows(cursor, "USE swanlake")
    rows(cursor, "CALL swanlake_drop_catalog('trial')")
    with pytest.raises(adbc.ProgrammingError, match='Catalog "trial" does not exist'):
        rows(cursor, "SELECT count(*) FROM trial.raw.t")


def test_fork_at_an_older_snapshot_has_its_rows(cursor: Any) -> None:
    rows(cursor, "CALL swanlake_create_catalog('sales')")
    rows(cursor, "CREATE TABLE sales.main.t AS SELECT 1 AS i")
    rows(cursor, "INSERT INTO sales.main.t VALUES (2)")
    rows(cursor, "CALL swanlake_fork_catalog('sales', 'before', at => 1)")
    rows(cursor, "CALL swanlake_fork_catalog('sales', 'also_before', 1)")
    assert rows(cursor, "FROM before.main.t") == [(1,)]
    assert rows(cursor, "FROM also_before.main.t") == [(1,)]


def test_procedure_arguments_can_be_bound_or_computed(cursor: Any) -> None:
    rows(cursor, "CALL swanlake_create_catalog(?)", ("bound",))
    rows(cursor, "CALL swanlake_create_catalog('com' || lower('PUTED'))")
    names = [row[0] for row in rows(cursor, "CALL swanlake_catalogs()")]
    assert names == ["bound", "computed", "swanlake"]


MISTAKES = [
    ("CALL swanlake_create_catalog('swanlake')", "ALREADY_EXISTS: .*swanlake"),
    ("CALL swanlake_create_catalog('two words')", "CATALOG_NAME_INVALID: 'two words'"),
    ("CALL swanlake_create_catalog('')", "CATALOG_NAME_INVALID"),
    ("CALL swanlake_create_catalog('temp')", "CATALOG_NAME_INVALID"),
    ("CALL swanlake_create_catalog(NULL)", "needs a name; it was NULL"),
    ("CALL swanlake_create_catalog()", r"swanlake_create_catalog\(name\) needs"),
    ("CALL swanlake_create_catalog('a', 'b')", "cannot take its argument 2"),
    ("CALL swanlake_create_catalog(title => 'a')", "cannot take its argument 1"),
    ("CALL swanlake_create_catalgo('a')", "Did you mean swanlake_create_catalog"),
    ("CALL swanlake_fork_catalog('absent', 'b')", "CATALOG_NOT_FOUND: .*absent"),
    ("CALL swanlake_fork_catalog('swanlake', 'b', 99)", "SNAPSHOT_NOT_FOUND: .*99"),
    ("CALL swanlake_fork_catalog('swanlake', 'b', 'now')", "cannot take 'now' for at"),
    ("CALL swanlake_fork_catalog('swanlake', 'b', 0.5)", "INVALID_REQUEST: .* for at"),
    ("CALL swanlake_fork_catalog('swanlake', 'b', 1::HUGEINT << 70)", "INVALID_REQUEST: .* for at"),
    ("CALL swanlake_drop_schema('swanlake', 's', 'perhaps')", "cannot take 'perhaps' for cascade"),
    ("CALL swanlake_create_schema('absent', 's')", "CATALOG_NOT_FOUND"),
    ("CALL swanlake_create_schema('swanlake', 'main')", "ALREADY_EXISTS: .*main"),
    ("CALL swanlake_drop_schema('swanlake', 'none')", "SCHEMA_NOT_FOUND: .*none"),
    ("CALL swanlake_drop_catalog('swanlake')", "CATALOG_IN_USE"),
    ("CALL swanlake_snapshots('absent')", "CATALOG_NOT_FOUND"),
    ("DETACH swanlake", "CATALOG_IN_USE"),
    ("DETACH __ducklake_metadata_swanlake", "CATALOG_IN_USE"),
]


def test_invalid_procedure_call_is_refused_and_changes_nothing(cursor: Any) -> None:
    for sql, message in MISTAKES:
        with pytest.raises(adbc.Error, match=message) as refused:
            rows(cursor, sql)
        assert "Traceback" not in str(refused.value)
    assert [row[0] for row in rows(cursor, "CALL swanlake_catalogs()")] == ["swanlake"]


def test_boolean_argument_accepts_text(cursor: Any) -> None:
    rows(cursor, "CALL \"swanlake_create_schema\"('swanlake', 'filled')")
    rows(cursor, "CREATE TABLE filled.t (i INTEGER)")
    with pytest.raises(adbc.Error, match="SCHEMA_NOT_EMPTY"):
        rows(cursor, "CALL swanlake_drop_schema('swanlake', 'filled', ?)", ("false",))
    rows(cursor, "CALL swanlake_drop_schema('swanlake', 'filled', ?)", ("true",))


def test_attached_database_cannot_shadow_a_catalog(
    own_server: ServerProcess, same_lake: Lake, cursor: Any
) -> None:
    """Otherwise rows meant for the lake would go to that database and be lost with the server."""
    rows(cursor, "ATTACH ':memory:' AS mine")
    with pytest.raises(adbc.Error, match=r"ALREADY_EXISTS: A database mine is attached"):
        rows(cursor, "CALL swanlake_create_catalog('Mine')")
    same_lake.create_catalog("mine")
    with pytest.raises(adbc.Error, match=r"CATALOG_UNREACHABLE: .*DETACH that database first"):
        rows(cursor, "FROM mine.main.nothing")
    rows(cursor, "DETACH mine")
    rows(cursor, "CREATE TABLE mine.main.t AS SELECT 1 AS i")
    assert same_lake.catalog("mine").table("main", "t")
    same_lake.create_catalog("unmet")
    for attach in ("':memory:' AS Unmet", f"'{own_server.home}/unmet.db'"):
        with pytest.raises(adbc.Error, match="already exists"):
            rows(cursor, f"ATTACH {attach}")
    with pytest.raises(adbc.Error, match="CATALOG_IN_USE"):
        rows(cursor, "ATTACH OR REPLACE ':memory:' AS unmet")


def test_recreated_catalog_is_usable_by_a_session_in_it(
    own_server: ServerProcess, same_lake: Lake, cursor: Any
) -> None:
    same_lake.create_catalog("fleeting")
    rows(cursor, "USE fleeting")
    same_lake.drop_catalog("fleeting")
    with pytest.raises(adbc.Error):
        rows(cursor, "CREATE TABLE t AS SELECT 1 AS i")
    same_lake.create_catalog("fleeting")
    rows(cursor, "CREATE TABLE t AS SELECT 2 AS i")
    assert rows(cursor, "FROM t") == [(2,)]
    assert same_lake.catalog("fleeting").table("main", "t")


def test_catalog_procedures_are_refused_in_a_transaction(own_server: ServerProcess) -> None:
    with adbc.connect(own_server.url) as connection, connection.cursor() as cursor:
        rows(cursor, "CREATE TABLE t (i INTEGER)")
        with pytest.raises(adbc.Error, match="cannot be part of a transaction"):
            rows(cursor, "CALL swanlake_create_catalog('late')")
        assert len(rows(cursor, "CALL swanlake_catalogs()")) == 1
        connection.rollback()


def test_catalog_of_another_process_is_attached_on_first_use(
    own_server: ServerProcess, same_lake: Lake
) -> None:
    for name in ("used", "named", "optional", "within"):
        same_lake.create_catalog(name).create_schema("raw")
    connection = FlightSql(own_server.url)
    connection.query("USE used.raw")
    connection.query("CREATE TABLE t AS SELECT 1 AS i")
    connection.query("CREATE TABLE named.raw.t AS SELECT 1 AS i")
    assert connection.query("FROM named.raw.t").num_rows == 1
    connection.query("BEGIN")
    connection.query("CREATE TABLE swanlake.main.mine (i INTEGER)")
    connection.query("SELECT * FROM ducklake_snapshots('within')")
    connection.query("COMMIT")
    assert connection.query("FROM swanlake.main.mine").num_rows == 0
    request = messages.SetSessionOptionsRequest()
    request.session_options["catalog"].string_value = "optional"
    connection.action("SetSessionOptions", request, bare=True)
    assert connection.query("SELECT current_catalog()")[0][0].as_py() == "optional"
    with adbc.connect(own_server.url, autocommit=True) as stock, stock.cursor() as cursor:
        cursor.adbc_prepare("SELECT i FROM used.raw.t WHERE i = ?")
        assert rows(cursor, "SELECT i FROM used.raw.t WHERE i = ?", (1,)) == [(1,)]


def test_catalog_dropped_and_recreated_by_another_process_is_usable(
    own_server: ServerProcess, same_lake: Lake, cursor: Any
) -> None:
    same_lake.create_catalog("fleeting")
    rows(cursor, "CREATE TABLE fleeting.main.t AS SELECT 1 AS i")
    same_lake.drop_catalog("fleeting")
    with pytest.raises(adbc.Error):
        rows(cursor, "FROM fleeting.main.t")
    catalogs = cursor.connection.adbc_get_objects(depth="tables").read_all().to_pylist()
    assert "swanlake" in [catalog["catalog_name"] for catalog in catalogs]
    assert rows(cursor, "SELECT 42") == [(42,)]
    same_lake.create_catalog("fleeting")
    with pytest.raises(adbc.Error, match="Table with name t does not exist"):
        rows(cursor, "FROM fleeting.main.t")
    rows(cursor, "CREATE TABLE fleeting.main.t AS SELECT 2 AS i")
    assert rows(cursor, "FROM fleeting.main.t") == [(2,)]
    assert own_server.is_alive


def test_get_objects_lists_catalogs_that_are_not_attached(
    own_server: ServerProcess, same_lake: Lake
) -> None:
    unseen = same_lake.create_catalog("unseen")
    unseen.create_schema("raw")
    with adbc.connect(own_server.url) as connection:
        listed = connection.adbc_get_objects(depth="catalogs").read_all()
        assert {"swanlake", "unseen"} <= set(listed["catalog_name"].to_pylist())
        inside = connection.adbc_get_objects(depth="db_schemas", catalog_filter="unseen")
        [catalog] = inside.read_all().to_pylist()
        schemas = [schema["db_schema_name"] for schema in catalog["catalog_db_schemas"]]
        assert schemas == ["main", "raw"]


def test_unknown_names_keep_duckdbs_errors(own_server: ServerProcess) -> None:
    connection = FlightSql(own_server.url)
    with pytest.raises(pa.ArrowKeyError, match="CATALOG_ERROR"):
        connection.query("FROM nowhere")
    with pytest.raises(pa.ArrowInvalid, match="BINDER_ERROR"):
        connection.query("SELECT nothing.a FROM range(1)")


def test_catalog_is_attached_while_transactions_are_immediate(cursor: Any, same_lake: Lake) -> None:
    same_lake.create_catalog("lazily")
    cursor.execute("SET immediate_transaction_mode = true")
    try:
        cursor.execute("CREATE TABLE lazily.main.t AS SELECT 42 AS i")
        assert rows(cursor, "FROM lazily.t") == [(42,)]
        assert rows(cursor, "SELECT current_setting('immediate_transaction_mode')") == [(True,)]
    finally:
        cursor.execute("RESET immediate_transaction_mode")


@pytest.mark.parametrize(
    "sql",
    [
        "SET enable_external_access = false",
        'SET GLOBAL "lock_configuration" = true',
        "PRAGMA disabled_filesystems = 'LocalFileSystem'",
    ],
)
def test_setting_that_would_take_the_lake_from_all_sessions_is_refused(
    shared_server: ServerProcess, sql: str
) -> None:
    with adbc.connect(shared_server.url, autocommit=True) as connection:
        with connection.cursor() as cursor, pytest.raises(adbc.Error, match="SETTING_REFUSED"):
            cursor.execute(sql)


def test_damaged_catalog_does_not_hide_the_functions_of_others(tmp_path: Path) -> None:
    queries = {
        "by_scalar_macro": "SELECT by_scalar_macro.answer()",
        "by_table_macro": "FROM by_table_macro.answers()",
        "by_function": "SELECT count(*) + 39 FROM ducklake_snapshots('by_function')",
        "by_prepared": "SELECT by_prepared.answer() LIMIT ?",
        "beside_broken": "SELECT beside_broken.answer() AS broken2",
    }
    catalogs = tmp_path / "catalogs"
    with Lake.open(catalogs, tmp_path / "data") as lake:
        for name in [*queries, "broken", "broken2"]:
            lake.create_catalog(name)
    with stock_duckdb() as stock:
        for name in queries:
            stock.execute(f"ATTACH 'ducklake:sqlite:{catalogs}/{name}.sqlite' AS {name}")
            stock.execute(f"CREATE MACRO {name}.main.answer() AS 42")
            stock.execute(f"CREATE MACRO {name}.main.answers() AS TABLE SELECT 42")
    (catalogs / "broken2.sqlite").write_bytes(b"no database" * 1000)
    with ServerProcess(tmp_path) as server, adbc.connect(server.url, autocommit=True) as connection:
        with connection.cursor() as cursor:
            assert rows(cursor, "SELECT count(*) FROM ducklake_snapshots('broken')") == [(1,)]
            for file in catalogs.glob("broken.sqlite*"):
                file.write_bytes(b"no database" * 1000)
            for sql in queries.values():
                assert rows(cursor, sql, (1,) if "?" in sql else None) == [(42,)]

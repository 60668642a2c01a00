"""No secret appears where others could read it, however the server is used."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from click.testing import CliRunner

from swanlake.cli.commands import swanlake as command
from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from tests.cli_results import assert_succeeded
from tests.credentials import is_accepted, write_tokens
from tests.flight import FlightSql
from tests.server_process import ServerProcess
from tests.waiting import eventually

SECRETS = {
    "password of the database": "database-password-5d1f",
    "token of a file": "file-token-8c0e-1234567890",
    "password of a user": "user-password-77ab",
    "wrong password": "wrong-password-91cd",
    "wrong token": "wrong-token-3f3f-1234567890",
    "key of a bucket": "bucket-key-46de",
    "property of Spark": "spark-property-bb12",
}
STATEMENTS = (
    "CREATE TABLE t (i INTEGER)",
    "INSERT INTO t VALUES (1)",
    "INSERT INTO duckling_queue.t VALUES (2)",
    "CALL duckling_queue_flush()",
    "FROM duckdb_secrets()",
    "FROM duckdb_databases()",
    "FROM duckdb_settings()",
    "SELECT sql FROM duckdb_tables()",
    "FROM duckdb_logs",
    "CALL enable_logging('QueryLog')",
    "ATTACH 'ducklake:postgres:' AS other",
    "FROM postgres_query('__ducklake_metadata_swanlake', 'SELECT 1')",
    "FROM read_text('nothing')",
    "SELECT * FROM no_such_table",
    "SELEC 1",
    "CALL swanlake_catalogs()",
)


@pytest.fixture(params=["sqlite", "postgres"])
def guarded(
    request: pytest.FixtureRequest,
    start_server: Callable[..., ServerProcess],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> ServerProcess:
    """A server that has every secret."""
    home = tmp_path / "home"
    write_tokens(home, root=SECRETS["token of a file"])
    environment = {
        "SWANLAKE_DUCKLAKE_INIT_SQL": "CREATE SECRET bucket (TYPE s3, KEY_ID 'known', SECRET "
        f"'{SECRETS['key of a bucket']}', SCOPE 's3://elsewhere')",
        "SWANLAKE_SPARK_CONF_spark_example": SECRETS["property of Spark"],
    }
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_database")
        parts = psycopg.conninfo.conninfo_to_dict(url) | {
            "password": SECRETS["password of the database"]
        }
        user, host, name = parts["user"], parts["host"], parts["dbname"]
        url = f"postgresql://{user}:{parts['password']}@/{name}?host={host}"
        if "port" in parts:
            url += f"&port={parts['port']}"
        environment["SWANLAKE_METABASE_URL"] = url
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return start_server("--auth", "any", home=home)


def use(server: ServerProcess) -> tuple[str, dict[str, str]]:
    """Uses the server in every role; returns all that callers saw, and the secrets of the lake."""
    made: dict[str, str] = {}
    for role in ("reader", "writer"):
        create = ["token", "create", role, "--role", role, "--home", str(server.home)]
        made[f"token of a {role}"] = assert_succeeded(CliRunner().invoke(command, create)).strip()
    create = ["user", "create", "ulla", "--role", "writer", "--home", str(server.home)]
    password = SECRETS["password of a user"]
    assert_succeeded(CliRunner().invoke(command, create, input=password))
    eventually(lambda: is_accepted(server.url, made["token of a reader"]))
    with flight.FlightClient(server.url) as client:
        _, header = client.authenticate_basic_token("ulla", password)
    made["login"] = header.decode().removeprefix("Bearer ")
    seen: list[str] = []
    wrong_token, wrong_password = SECRETS["wrong token"], SECRETS["wrong password"]
    for token, user, wrong in ((wrong_token, None, None), (None, "u", wrong_password)):
        with pytest.raises(SwanLakeError) as refused:
            FlightSQLClient(server.url, token=token, user=user, password=wrong)
        seen.append(str(refused.value))
    for token in (SECRETS["token of a file"], *made.values()):
        connection = FlightSql(server.url, authorization=f"Bearer {token}")
        for statement in STATEMENTS:
            try:
                seen.append(str(connection.query(statement).to_pylist()))
            except (pa.ArrowException, flight.FlightError) as error:
                seen.append(str(error))
        seen.append(json.dumps(connection.status()))
        connection.close_session()
        connection.close()
    return "\n".join(seen), made


def process_texts(server: ServerProcess) -> Iterator[tuple[str, str]]:
    """The command lines of the server and its children, and the environments of the children."""
    process = psutil.Process(server.process.pid)
    yield "command line", " ".join(process.cmdline())
    for child in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            yield "command line of a child", " ".join(child.cmdline())
            yield "environment of a child", json.dumps(child.environ())


def stored_rows(url: str) -> str:
    """All rows of all tables of a PostgreSQL database, as text."""
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT quote_ident(schemaname) || '.' || quote_ident(tablename) FROM pg_tables "
            "WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
        ).fetchall()
        rows: list[Any] = []
        for (table,) in tables:
            rows += connection.execute(f"SELECT t::text FROM {table} t").fetchall()
        return str(rows)


def test_no_secret_is_left_behind(guarded: ServerProcess, request: pytest.FixtureRequest) -> None:
    seen, made = use(guarded)
    texts = [("answers and status", seen), ("log", guarded.log_text), *process_texts(guarded)]
    if "postgres" in request.node.callspec.id:
        texts.append(("database", stored_rows(request.getfixturevalue("postgres_database"))))
    for file in guarded.home.rglob("*"):
        is_secret = file.parent.name == "tokens" or "passfile" in file.name.lower()
        if file.is_file() and not is_secret:
            texts.append((f"file {file.name}", file.read_bytes().decode(errors="replace")))
    for name, secret in (SECRETS | made).items():
        encoded = base64.b64encode(secret.encode()).decode()
        for place, text in texts:
            assert secret not in text, f"the {name} is in the {place}"
            assert encoded not in text, f"the {name} is in the {place}"

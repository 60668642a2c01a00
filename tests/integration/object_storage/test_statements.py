"""Statements, the queue and credentials of a server whose files are in an object store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from swanlake import FlightSQLClient
from swanlake.errors import SwanLakeError
from tests.object_store import KEY_ID, SECRET, S3Server
from tests.server_process import ServerProcess


@pytest.fixture(scope="module")
def bucket(s3: S3Server) -> str:
    return s3.new_bucket()


@pytest.fixture(scope="module")
def s3_server(
    s3: S3Server, bucket: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server whose data path is in a bucket."""
    home = tmp_path_factory.mktemp("s3") / "home"
    with ServerProcess(home, **s3.environment(f"{bucket}/lake")) as server:
        yield server


@pytest.fixture
def client(s3_server: ServerProcess) -> Iterator[FlightSQLClient]:
    with FlightSQLClient(s3_server.url) as client:
        yield client


def rows(client: FlightSQLClient, sql: str) -> list[dict[str, object]]:
    """The rows of a query."""
    found: list[dict[str, object]] = client.query(sql).table.to_pylist()
    return found


def test_statements_write_and_read_files_in_the_bucket(
    client: FlightSQLClient, s3: S3Server, bucket: str
) -> None:
    client.execute("CREATE TABLE written AS SELECT range AS i FROM range(10_000)")
    client.execute("INSERT INTO written SELECT range FROM range(10_000, 20_000)")
    client.execute("UPDATE written SET i = -1 WHERE i < 10")
    client.execute("DELETE FROM written WHERE i = 10")
    assert rows(client, "SELECT count(*) AS n, min(i) AS low FROM written") == [
        {"n": 19_999, "low": -1}
    ]
    assert list(s3.path(f"{bucket}/lake/swanlake/main/written").glob("*.parquet"))


def test_queued_rows_are_flushed_to_the_bucket(client: FlightSQLClient) -> None:
    client.execute("CREATE TABLE queued (i BIGINT)")
    client.execute("INSERT INTO duckling_queue.queued SELECT range FROM range(100)")
    (flushed,) = rows(client, "CALL duckling_queue_flush()")
    assert flushed["rows"] == 100
    assert rows(client, "SELECT sum(i) AS s FROM queued") == [{"s": 4950}]


def test_failed_write_reports_its_own_error(client: FlightSQLClient) -> None:
    client.execute("CREATE TABLE strict (i BIGINT NOT NULL)")
    with pytest.raises(SwanLakeError, match="NOT NULL"):
        client.execute(
            "INSERT INTO strict SELECT CASE WHEN range < 50_000 THEN range END FROM range(50_001)"
        )
    assert rows(client, "SELECT count(*) AS n FROM strict") == [{"n": 0}]


def test_no_statement_and_no_log_shows_a_secret(
    client: FlightSQLClient, s3_server: ServerProcess
) -> None:
    for shown in (
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM duckdb_databases()",
    ):
        assert SECRET not in str(rows(client, shown))
    assert KEY_ID not in str(rows(client, "SELECT * FROM duckdb_settings()"))
    assert SECRET not in s3_server.log_text


def test_keys_of_the_environment_reach_the_store_and_stay_hidden(
    s3: S3Server, tmp_path: Path
) -> None:
    environment = {
        "SWANLAKE_DATA_PATH": f"{s3.new_bucket()}/lake",
        "AWS_ENDPOINT_URL": s3.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
    }
    with (
        ServerProcess(tmp_path / "home", **environment) as server,
        FlightSQLClient(server.url) as client,
    ):
        client.execute("CREATE TABLE t AS SELECT range AS i FROM range(1000)")
        assert rows(client, "SELECT count(*) AS n FROM t") == [{"n": 1000}]
        shown = str(rows(client, "SELECT * FROM duckdb_settings()"))
        assert SECRET not in shown
        assert KEY_ID not in shown


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"SWANLAKE_STORAGE_SECRET": "wrong"}, "the secret does not belong to the key id"),
        ({"SWANLAKE_STORAGE_KEY_ID": "wrong"}, "access key ID"),
        ({"SWANLAKE_DATA_PATH": "s3://no-such-bucket/lake"}, "the bucket does not exist"),
        ({"SWANLAKE_STORAGE_ENDPOINT": "http://127.0.0.1:9"}, "cannot be reached"),
        ({"SWANLAKE_DATA_PATH": "s3a://bucket/lake"}, "Write s3:// instead"),
    ],
)
def test_server_with_unusable_storage_does_not_start(
    s3: S3Server, bucket: str, tmp_path: Path, change: dict[str, str], sentence: str
) -> None:
    environment = s3.environment(f"{bucket}/other") | change
    server = ServerProcess(tmp_path / "home", **environment)
    server.launch()
    assert server.process.wait(120) != 0
    assert sentence in server.log_text
    assert SECRET not in server.log_text
    assert "Traceback" not in server.log_text

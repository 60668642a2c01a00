"""Spark's JDBC source with the Arrow Flight SQL JDBC driver and SwanLake's extension."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.drivers.conftest import Scenario, jdbc_url, run_and_cancel, run_program
from tests.flight import FlightSql
from tests.queries import rows
from tests.server_process import ServerProcess
from tests.waiting import eventually

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SOURCE = """
    SELECT 1::DECIMAL(12, 3) AS d, 2::BIGINT AS b, 3::INTEGER AS i, 4::SMALLINT AS si,
           5::TINYINT AS ti, true AS bo, 1.5::FLOAT AS f, 2.5::DOUBLE AS db, 'x' AS v,
           'ab'::BLOB AS bl, DATE '2024-02-29' AS da,
           TIMESTAMPTZ '2024-02-29 12:30:15.123+00' AS tz
"""
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 15, 123000, datetime.UTC)
ROW = (
    *(Decimal("1.000"), 2, 3, 4, 5, True, 1.5, 2.5, "x", b"ab"),
    *(datetime.date(2024, 2, 29), MOMENT),
)


@pytest.fixture(scope="session")
def extension(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JAR of the extension, built as docs/clients.md says."""
    directory = tmp_path_factory.mktemp("spark-extension")
    spark_jars = Path(pyspark.__file__).parent / "jars" / "*"
    source = ROOT / "connectors" / "spark-jdbc" / "SwanLakeJdbc.java"
    classes = directory / "classes"
    run_program(["javac", "-cp", str(spark_jars), "-d", classes, source])
    jar = directory / "swanlake-spark-jdbc.jar"
    run_program(["jar", "cf", jar, "-C", classes, "."])
    return jar


@pytest.fixture
def program(
    server: ServerProcess,
    jdbc_driver: Path,
    extension: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> list[str]:
    """The command that runs the Spark program, without the name of the scenario."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    module = [sys.executable, "-m", "tests.drivers.spark_program"]
    return [*module, jdbc_url(server), f"{jdbc_driver},{extension}"]


@pytest.fixture
def spark(program: list[str]) -> Scenario:
    """Runs a scenario of the Spark program."""
    return lambda name: run_program([*program, name])


def test_tables_are_read_with_their_types(spark: Scenario, cursor: Any) -> None:
    cursor.execute(f"CREATE TABLE spark_read AS {SOURCE}")
    cursor.execute("CREATE TABLE spark_parts AS SELECT range AS i FROM range(1000)")
    schema, row, parts = spark("read")
    assert schema == (
        "struct<d:decimal(12,3),b:bigint,i:int,si:smallint,ti:tinyint,bo:boolean,f:float,"
        "db:double,v:string,bl:binary,da:date,tz:timestamp>"
    )
    assert row == "1.000 2 3 4 5 True 1.5 2.5 x b'ab' 2024-02-29 2024-02-29 12:30:15.123000"
    assert parts == "4 499500"


def test_rows_are_appended_without_the_extension(spark: Scenario, cursor: Any) -> None:
    cursor.execute(f"CREATE OR REPLACE TABLE spark_source AS {SOURCE}")
    cursor.execute("CREATE TABLE spark_target AS FROM spark_source LIMIT 0")
    spark("append")
    assert rows(cursor, "FROM spark_target") == [ROW]


def test_new_tables_are_created(spark: Scenario, cursor: Any) -> None:
    cursor.execute(f"CREATE OR REPLACE TABLE spark_source AS {SOURCE}")
    spark("create")
    assert rows(cursor, "FROM spark_created") == [ROW, ROW]
    types = "SELECT column_type FROM (DESCRIBE {})"
    assert rows(cursor, types.format("spark_created")) == rows(cursor, types.format("spark_source"))


def test_computing_query_times_out_and_stops(
    spark: Scenario, flight_sql: Callable[..., FlightSql]
) -> None:
    assert spark("timeout") == ["timed out"]
    client = flight_sql()
    eventually(lambda: client.status()["statements_running"] == 0)


def test_computing_query_stops_when_its_job_is_cancelled(
    program: list[str], flight_sql: Callable[..., FlightSql]
) -> None:
    """The job must be cancelled with interruptOnCancel."""
    assert run_and_cancel([*program, "cancel"], flight_sql()) == ["cancelled", "usable"]

"""Spark options from settings, and what messages reveal of them."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest

from swanlake.config import Settings, load
from swanlake.errors import ConfigError
from swanlake.jobs.spark import runner, session
from swanlake.jobs.spark.session import SparkOptions


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The properties of the session that is opened."""
    properties: dict[str, str] = {}

    class Builder:
        def getOrCreate(self) -> None:
            arguments = shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"])
            file = Path(arguments[arguments.index("--properties-file") + 1])
            assert file.stat().st_mode & 0o077 == 0
            for line in file.read_text().splitlines():
                name, _, value = line.partition("=")
                properties[name] = value

    monkeypatch.setattr("pyspark.sql.SparkSession.builder", Builder())
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
    return properties


def test_settings_reach_the_session(opened: dict[str, str], tmp_path: Path) -> None:
    settings = load(
        environ={
            "SWANLAKE_HOME": str(tmp_path),
            "SWANLAKE_SPARK_MASTER": "local[2]",
            "SWANLAKE_SPARK_MEMORY": "3g",
            "SWANLAKE_SPARK_CONF": "spark.a=1\nspark.ui.enabled=true",
            "SWANLAKE_SPARK_CONF_spark_executor_memory": "2g",
        }
    ).settings
    session.open_session(SparkOptions.from_settings(settings))
    assert opened["spark.master"] == "local[2]"
    assert opened["spark.driver.memory"] == "3g"
    assert opened["spark.a"] == "1"
    assert opened["spark.executor.memory"] == "2g"
    assert opened["spark.ui.enabled"] == "true"  # not the default of SwanLake


def test_property_overrides_the_memory_setting(opened: dict[str, str], tmp_path: Path) -> None:
    conf = "spark.driver.memory = 5g"
    settings = Settings(home=tmp_path, spark_memory="3g", spark_conf=conf)
    session.open_session(SparkOptions.from_settings(settings))
    assert opened["spark.driver.memory"] == "5g"


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("spark.a", "b=c:d#e f", "spark.a=b=c:d#e f\n"),
        ("spark.a:b", "c", "spark.a\\:b=c\n"),
        ("spark.a", r"C:\d", "spark.a=C:\\\\d\n"),
        ("spark.a", " b\nc", "spark.a=\\ b\\nc\n"),
    ],
)
def test_property_is_escaped(name: str, value: str, line: str) -> None:
    assert session.property_line(name, value) == line


def test_malformed_property_is_refused_without_quoting_it() -> None:
    with pytest.raises(ConfigError, match="every line is a property") as refused:
        SparkOptions.from_settings(Settings(spark_conf="spark.a=1\ns3cr3t"))
    assert "s3cr3t" not in str(refused.value)


def test_large_log_is_rotated_when_spark_starts(tmp_path: Path) -> None:
    log, old = tmp_path / "logs" / "spark.log", tmp_path / "logs" / "spark.log.old"
    with runner._open_log(log) as file:
        file.write(b"first")
        file.truncate(runner._LOG_BYTES)
    with runner._open_log(log) as file:
        file.write(b"second")
    assert log.stat().st_size == runner._LOG_BYTES + len(b"second")  # appended to
    assert not old.exists()
    for written in (b"third", b"fourth"):
        with runner._open_log(log) as file:
            file.write(written)
    assert log.read_bytes() == b"thirdfourth"
    assert old.read_bytes().startswith(b"first")
    assert old.read_bytes().endswith(b"second")


def options(remote: str) -> SparkOptions:
    return SparkOptions.from_settings(Settings(spark_remote=remote))


@pytest.mark.parametrize(
    ("remote", "place"),
    [
        ("sc://host", "sc://host"),
        ("sc://host:15002/", "sc://host:15002"),
        ("sc://host:15002/;token=s3cr3t%3D%3D", "sc://host:15002"),
        ("sc://[::1]:15002/;use_ssl=true;token=s3cr3t", "sc://[::1]:15002"),
    ],
)
def test_connect_server_is_named_without_its_token(remote: str, place: str) -> None:
    assert options(remote).location == place
    assert options(remote).remote == remote


@pytest.mark.parametrize(
    "remote",
    [
        "sc://host:15002/;token=s3cr3t==",
        "sc://host:15002;token=s3cr3t",
        "sc://host:15002/path;token=s3cr3t",
        "sc://user:s3cr3t@host:15002",
        "sc://host:s3cr3t",
        "sc:///;token=s3cr3t",
        "http://host/;token=s3cr3t",
    ],
)
def test_invalid_connect_url_is_refused_without_quoting_it(remote: str) -> None:
    with pytest.raises(ConfigError) as refused:
        options(remote)
    assert "s3cr3t" not in str(refused.value)
    assert "s3cr3t" not in SparkOptions(remote="sc://host;token=s3cr3t").location

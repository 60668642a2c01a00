"""Spark options from settings, and what messages reveal of them."""

from __future__ import annotations

import pytest

from swanlake.config import Settings
from swanlake.errors import ConfigError
from swanlake.jobs.spark.session import SparkOptions


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

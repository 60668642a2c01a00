"""A server with the default runner, Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pytest

from tests.server_process import ServerProcess

#: The root of the module with the transforms.
_ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def spark_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server for a module; Spark takes a while to start."""
    server = ServerProcess(
        tmp_path_factory.mktemp("spark"),
        SWANLAKE_PIPELINE="spark",
        SWANLAKE_TRANSFORMS="tests.integration.jobs.sample_transforms",
        PYTHONPATH=os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
    )
    with server:
        yield server


@pytest.fixture
def spark(spark_server: ServerProcess) -> Iterator[Any]:
    """A cursor of a stock client on that server."""
    with adbc.connect(spark_server.url, autocommit=True) as connection:
        with connection.cursor() as cursor:
            yield cursor

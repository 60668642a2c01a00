"""SQLAlchemy's own test suite for dialects passes, but for what DuckLake lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import swanlake
from tests.integration.client import sqlalchemy_suite
from tests.server_process import ServerProcess

ROOT = Path(__file__).parents[3]
SUITE = Path(sqlalchemy_suite.__file__).parent


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_suite_of_sqlalchemy_passes(shared_server: ServerProcess) -> None:
    with swanlake.connect(shared_server.url) as client:
        client.execute("CREATE SCHEMA IF NOT EXISTS test_schema")
    # A process of its own: SQLAlchemy's plugin changes how pytest collects every test.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", f"{sqlalchemy_suite.__name__}.plugin", "-c", str(SUITE / "setup.cfg")]
    command += ["--rootdir", str(SUITE), "--confcutdir", str(SUITE)]
    command += ["--dburi", f"swanlake://127.0.0.1:{shared_server.port}", str(SUITE / "suite.py")]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    suite = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, check=False
    )
    assert suite.returncode == 0, suite.stdout

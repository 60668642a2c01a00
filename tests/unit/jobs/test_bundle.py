"""What workers that have nothing of ours are sent."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from swanlake.pipeline.bundle import write_bundle
from tests.spark_cluster import bare_python


def test_a_python_without_our_code_runs_units_with_the_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.zip"
    write_bundle(bundle)
    write_bundle(bundle)  # again, over the old one
    with zipfile.ZipFile(bundle) as packed:
        assert not [name for name in packed.namelist() if "__pycache__" in name]
        packed.extractall(tmp_path / "unpacked")
    program = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from swanlake.pipeline.worker import WarmUp, WorkerSpec, connection\n"
        "from swanlake.pipeline import fetch\n"
        "WarmUp().run(connection(WorkerSpec(urls=True)))\n"
        "print([name for name in ('google', 'psycopg', 'sqlalchemy') if name in sys.modules])\n"
    )
    answer = subprocess.run(
        [bare_python(tmp_path / "bare"), "-c", program, str(tmp_path / "unpacked")],
        capture_output=True,
        text=True,
        timeout=100,
        env={"TMPDIR": str(tmp_path)},
    )
    assert (answer.stdout, answer.stderr) == ("[]\n", "")


def test_the_bundle_fits_the_python_it_was_made_by(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.zip"
    write_bundle(bundle)
    tag = f"cpython-3{sys.version_info.minor}"
    with zipfile.ZipFile(bundle) as packed:
        assert any(tag in name and name.startswith("_duckdb") for name in packed.namelist())
    assert not list(tmp_path.glob("*.partial"))

"""The bundle for workers without our code."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from swanlake.jobs.spark.bundle import write_bundle
from tests.spark_cluster import minimal_python


def test_units_run_on_a_bare_python_with_the_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.zip"
    write_bundle(bundle)
    write_bundle(bundle)  # again, over the old one
    with zipfile.ZipFile(bundle) as packed:
        assert not [name for name in packed.namelist() if "__pycache__" in name]
        packed.extractall(tmp_path / "unpacked")
    program = (
        "import sys\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from swanlake.jobs.spark.worker import WarmUp, WorkerSpec, connection\n"
        "from swanlake.jobs.segment_transfer import fetch\n"
        "units = ('swanlake.queue.flush.units', 'swanlake.maintenance.compaction.units')\n"
        "from swanlake.lake.files.object_store import ObjectStore\n"
        "from swanlake.lake.files.storage_options import StorageOptions\n"
        "options = StorageOptions('http://127.0.0.1:9', 'eu', 'id', 'secret')\n"
        "WarmUp(units).run(connection(WorkerSpec(storage=options)))\n"
        "ObjectStore(options)\n"
        "print([name for name in ('google', 'psycopg', 'sqlalchemy') if name in sys.modules])\n"
    )
    answer = subprocess.run(
        [minimal_python(tmp_path / "bare"), "-c", program, str(tmp_path / "unpacked")],
        capture_output=True,
        text=True,
        timeout=100,
        env={"TMPDIR": str(tmp_path)},
    )
    assert (answer.stdout, answer.stderr) == ("[]\n", "")


def test_bundle_matches_the_python_version(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.zip"
    write_bundle(bundle)
    tag = f"cpython-3{sys.version_info.minor}"
    with zipfile.ZipFile(bundle) as packed:
        assert any(tag in name and name.startswith("_duckdb") for name in packed.namelist())
    assert not list(tmp_path.glob("*.partial"))

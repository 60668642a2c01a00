"""Errors and temporary files of workers."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from swanlake.errors import PipelineFailed, QueryTimeout
from swanlake.jobs.spark import worker
from swanlake.jobs.spark.driver import summarize_error
from swanlake.jobs.spark.worker import WorkerSpec, run_units


class Raise:
    """A unit that fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def run(self, connection: duckdb.DuckDBPyConnection) -> None:
        raise self._error


class TempDirectory:
    """A unit that returns DuckDB's temporary directory."""

    def run(self, connection: duckdb.DuckDBPyConnection) -> str:
        (found,) = connection.execute("SELECT current_setting('temp_directory')").fetchall()[0]
        return str(found)


class Unportable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class RaiseUnportable:
    """A unit that fails with an error that cannot be unpickled."""

    def run(self, connection: duckdb.DuckDBPyConnection) -> None:
        raise Unportable(1, 2)


def outcome(unit: object) -> object:
    batches = [pa.record_batch({"id": [0]})]
    (answer,) = run_units(batches, [pickle.dumps(unit)], pickle.dumps(WorkerSpec()))
    return pickle.loads(answer.column("outcome")[0].as_py())


def failure(unit: object) -> Exception:
    found = outcome(unit)
    assert isinstance(found, Exception)
    return found


def test_disk_error_names_host_and_user() -> None:
    found = failure(Raise(PermissionError(errno.EACCES, "Permission denied", "/data/t")))
    assert type(found) is PipelineFailed
    for word in (os.uname().nodename, f"as user {os.getuid()}", "/data/t", "data path"):
        assert word in str(found)


@pytest.mark.parametrize(
    "error", [duckdb.ConversionException("no"), QueryTimeout("late"), ValueError("wrong")]
)
def test_picklable_errors_are_unchanged(error: Exception) -> None:
    found = failure(Raise(error))
    assert (type(found), str(found)) == (type(error), str(error))


def test_unpicklable_error_is_replaced() -> None:
    assert str(failure(RaiseUnportable())) == "A unit failed: Unportable: 1 and 2"


def test_each_worker_has_its_own_temp_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker._connections.clear()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/does/not/exist,{tmp_path}")
    assert outcome(TempDirectory()) == str(tmp_path / f"swanlake-worker-{os.getpid()}")
    worker._connections.clear()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "other"))
    assert worker.scratch_directory() == tmp_path / "other"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Job aborted.\n\tat org.apache.Spark", "Job aborted."),
        ("Job aborted.\n\tat x\nCaused by: java.io.IOException: gone\n\tat y\n", "java.io"),
        (
            "An exception was thrown from the Python worker.\n"
            "Traceback (most recent call last):\n"
            '  File "x.py", line 1, in f\n    import y\n           ^\n'
            "ModuleNotFoundError: No module named 'y'\n SQLSTATE: 38000\n\tat org.apache.x\n"
            "Caused by: z",
            "ModuleNotFoundError: No module named 'y'",
        ),
        (
            "Job aborted.\nCaused by: a.B: crashed\nCaused by: java.io.EOFException\n",
            "a.B: crashed",
        ),
        ("", "ValueError"),
    ],
)
def test_error_summary_finds_the_cause(text: str, sentence: str) -> None:
    assert summarize_error(ValueError(text)).startswith(sentence)

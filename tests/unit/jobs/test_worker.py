"""What a worker makes of errors, and where it keeps its files."""

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
from swanlake.pipeline import scratch, worker
from swanlake.pipeline.driver import first_sentence
from swanlake.pipeline.worker import Done, Failed, Outcome, WorkerSpec, run_units


class Raise:
    """A unit that fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def run(self, connection: duckdb.DuckDBPyConnection) -> None:
        raise self._error


class TempDirectory:
    """A unit that tells where DuckDB spills."""

    def run(self, connection: duckdb.DuckDBPyConnection) -> str:
        (found,) = connection.execute("SELECT current_setting('temp_directory')").fetchall()[0]
        return str(found)


class Unportable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class RaiseUnportable:
    """A unit that fails with an error that pickle cannot make again."""

    def run(self, connection: duckdb.DuckDBPyConnection) -> None:
        raise Unportable(1, 2)


def outcome(unit: object) -> Outcome:
    batches = [pa.record_batch({"id": [0]})]
    (answer,) = run_units(batches, [pickle.dumps(unit)], pickle.dumps(WorkerSpec()))
    found: Outcome = pickle.loads(answer.column("outcome")[0].as_py())
    return found


def failure(unit: object) -> Exception:
    found = outcome(unit)
    assert isinstance(found, Failed)
    return found.error


def test_a_disk_that_refuses_says_whose_it_is() -> None:
    found = failure(Raise(PermissionError(errno.EACCES, "Permission denied", "/data/t")))
    assert type(found) is PipelineFailed
    for word in (os.uname().nodename, f"as user {os.getuid()}", "/data/t", "data path"):
        assert word in str(found)


@pytest.mark.parametrize(
    "error", [duckdb.ConversionException("no"), QueryTimeout("late"), ValueError("wrong")]
)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    found = failure(Raise(error))
    assert (type(found), str(found)) == (type(error), str(error))


def test_an_error_that_cannot_travel_is_told() -> None:
    assert str(failure(RaiseUnportable())) == "A unit failed: Unportable: 1 and 2"


def test_each_worker_spills_to_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker._connections.clear()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"/does/not/exist,{tmp_path}")
    assert outcome(TempDirectory()) == Done(str(tmp_path / f"swanlake-worker-{os.getpid()}"))
    worker._connections.clear()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", "")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "other"))
    assert scratch.scratch_directory() == tmp_path / "other"


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
def test_the_sentence_that_counts_is_found(text: str, sentence: str) -> None:
    assert first_sentence(ValueError(text)).startswith(sentence)

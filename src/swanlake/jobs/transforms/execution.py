"""Runs a transform in the driver: from queued rows to files that the server commits.

The rows cross the JVM, because Spark changes them there.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, Any

from swanlake.errors import PipelineFailed, SwanLakeError, TransformFailed
from swanlake.jobs.spark.bundle import worker_task
from swanlake.jobs.spark.casts import spark_column
from swanlake.jobs.spark.types import schema_mismatches, spark_schema, spark_type
from swanlake.jobs.transforms.registry import Transform, registered
from swanlake.lake.files import datafile
from swanlake.lake.model.layout import DataFile, Table, folded

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OUTCOME = "outcome binary"


def load(modules: str) -> dict[str, Transform]:
    """Imports a comma-separated list of modules; returns all registered transforms."""
    from pyspark import cloudpickle

    for name in filter(None, map(str.strip, modules.split(","))):
        try:
            module = import_module(name)
        except SwanLakeError:
            raise
        except Exception as error:
            raise PipelineFailed(
                f"The transforms in {name} cannot be imported: {type(error).__name__}: {error}"
            ) from error
        # Workers of a cluster do not have the module: its functions are sent with the job.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return registered()


@dataclass(frozen=True)
class Transformation:
    """One run of a transform over the rows of units."""

    session: SparkSession
    transform: Transform
    source: Table
    targets: Mapping[str, Table]
    #: The configuration of workers, and the folder of our code; None if it is installed.
    spec: bytes
    folder: str | None

    def run(self, units: Sequence[bytes]) -> dict[str, tuple[DataFile, ...]]:
        """The files with the results, by target table; on an error none remain."""
        frames = self._results(self._rows(units))
        checked = {name: self._checked(name, frame) for name, frame in frames.items()}
        files: dict[str, tuple[DataFile, ...]] = {}
        try:
            for name, frame in checked.items():
                outcomes = self._write(self.targets[name], frame, len(units))
                failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
                written = [outcome for outcome in outcomes if not isinstance(outcome, Exception)]
                files[name] = tuple(chain.from_iterable(written))
                if failures:
                    reason = " ".join(str(failures[0]).split())
                    raise self._failure(reason) from failures[0]
        except BaseException:
            for name, incomplete in files.items():
                with suppress(SwanLakeError):  # the first error is the one to report
                    datafile.remove_files(self.targets[name], incomplete)
            raise
        return files

    def _rows(self, units: Sequence[bytes]) -> DataFrame:
        schema = spark_schema(self.source)
        task = worker_task("read_rows", self.folder, units, self.spec)
        return self.session.range(0, len(units), 1, len(units)).mapInArrow(task, schema)

    def _results(self, rows: DataFrame) -> dict[str, DataFrame]:
        try:
            frames = self.transform.results(self.transform.function(rows))
        except Exception as error:
            raise self._failure(f"{type(error).__name__}: {_error_line(error)}") from error
        for name, frame in frames.items():
            if not hasattr(frame, "mapInArrow"):
                raise self._failure(f"it gave {type(frame).__name__} for {name}, not a DataFrame")
        return frames

    def _checked(self, name: str, frame: DataFrame) -> DataFrame:
        """The frame with the table's own names and types; raises TransformFailed."""
        table = self.targets[name]
        try:
            schema = frame.schema
        except Exception as error:  # Spark Connect reports a missing column only here
            raise self._failure(_error_line(error)) from error
        mismatches = list(schema_mismatches(schema, table))
        if mismatches:
            raise self._failure(f"for {table.full_name} {'; '.join(mismatches)}")
        names = {folded(field): field for field in frame.columns}
        return frame.select(
            [
                frame[_quoted(names[folded(column.name)])]
                .cast(spark_type(spark_column(column)))
                .alias(column.name)
                for column in table.columns
                if folded(column.name) in names
            ]
        )

    def _write(self, table: Table, frame: DataFrame, parts: int) -> list[Any]:
        task = worker_task("write_rows", self.folder, pickle.dumps(table), self.spec)
        try:
            # A shuffle leaves many small partitions, and each would become a file.
            written = frame.coalesce(parts).mapInArrow(task, _OUTCOME).toArrow()
        except Exception as error:
            raise self._failure(_error_line(error)) from error
        return [pickle.loads(outcome) for outcome in written["outcome"].to_pylist()]

    def _failure(self, reason: str) -> TransformFailed:
        return TransformFailed(f"The transform of {self.transform.source} failed: {reason}")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _error_line(error: Any) -> str:
    """The message of an error without the stack traces of the JVM and of the worker."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if _is_python_error(line)]
    return (raised[-1:] or lines[:1] or [type(error).__name__])[0].rstrip(".")


def _is_python_error(line: str) -> bool:
    """True for the last line of a Python traceback."""
    name, colon, _ = line.partition(": ")
    return (
        bool(colon)
        and name.replace(".", "").isidentifier()
        and name.endswith(("Error", "Exception"))
    )

"""A transform at work, in the driver: from queued rows to files that the server commits.

Rows cross the JVM here, because that is where Spark can change them.
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
from swanlake.lake import datafile
from swanlake.lake.layout import DataFile, Table, folded
from swanlake.pipeline.spark_types import complaints, spark_schema, spark_type
from swanlake.pipeline.stand_ins import for_spark
from swanlake.pipeline.tasks import in_worker
from swanlake.pipeline.transforms import Transform, registered
from swanlake.pipeline.worker import Done, Failed, Outcome

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OUTCOME = "outcome binary"


def load(modules: str) -> dict[str, Transform]:
    """Imports modules of transforms, by names with commas between; gives all they registered."""
    from pyspark import cloudpickle

    for name in filter(None, map(str.strip, modules.split(","))):
        try:
            module = import_module(name)
        except SwanLakeError:
            raise
        except Exception as failed:
            raise PipelineFailed(
                f"The transforms in {name} cannot be imported: {type(failed).__name__}: {failed}"
            ) from failed
        # Workers of a cluster do not have the module; what they need of it travels with the job.
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return registered()


@dataclass(frozen=True)
class Transformation:
    """One run of a transform over the rows of units."""

    session: SparkSession
    transform: Transform
    source: Table
    #: The tables the results are for, as they are now.
    targets: Mapping[str, Table]
    #: How workers set themselves up, and where they find our code.
    spec: bytes
    folder: str | None

    def run(self, units: Sequence[bytes]) -> dict[str, tuple[DataFile, ...]]:
        """The files that the results became, by table; if it fails, there are none."""
        frames = self._results(self._rows(units))
        checked = {name: self._checked(name, frame) for name, frame in frames.items()}
        made: dict[str, tuple[DataFile, ...]] = {}
        try:
            for name, frame in checked.items():
                outcomes = self._write(self.targets[name], frame, len(units))
                written = [one.result for one in outcomes if isinstance(one, Done)]
                made[name] = tuple(chain.from_iterable(written))
                self._raise_failures(outcomes)
        except BaseException:
            for name, files in made.items():
                with suppress(SwanLakeError):  # what went wrong first is to be told
                    datafile.remove_files(self.targets[name], files)
            raise
        return made

    def _rows(self, units: Sequence[bytes]) -> DataFrame:
        schema = spark_schema(self.source)
        task = in_worker("read_rows", self.folder, units, self.spec)
        return self.session.range(0, len(units), 1, len(units)).mapInArrow(task, schema)

    def _results(self, rows: DataFrame) -> dict[str, DataFrame]:
        try:
            frames = self.transform.results(self.transform.function(rows))
        except Exception as failed:
            raise self._failed(f"{type(failed).__name__}: {_first_line(failed)}") from failed
        for name, frame in frames.items():
            if not hasattr(frame, "mapInArrow"):
                raise self._failed(f"it gave {type(frame).__name__} for {name}, not a DataFrame")
        return frames

    def _checked(self, name: str, frame: DataFrame) -> DataFrame:
        """The frame with the table's own names and types; raises TransformFailed."""
        table = self.targets[name]
        try:
            schema = frame.schema
        except Exception as failed:  # a column that is not there shows only now, with Connect
            raise self._failed(_first_line(failed)) from failed
        found = list(complaints(schema, table))
        if found:
            raise self._failed(f"for {table.full_name} {'; '.join(found)}")
        given = {folded(field): field for field in frame.columns}
        return frame.select(
            [
                frame[_quoted(given[folded(column.name)])]
                .cast(spark_type(for_spark(column)))
                .alias(column.name)
                for column in table.columns
                if folded(column.name) in given
            ]
        )

    def _write(self, table: Table, frame: DataFrame, parts: int) -> list[Outcome]:
        task = in_worker("write_rows", self.folder, pickle.dumps(table), self.spec)
        try:
            # A shuffle leaves many small partitions, and each would become a file.
            written = frame.coalesce(parts).mapInArrow(task, _OUTCOME).toArrow()
        except Exception as failed:
            raise self._failed(_first_line(failed)) from failed
        return [pickle.loads(outcome) for outcome in written["outcome"].to_pylist()]

    def _raise_failures(self, outcomes: Sequence[Outcome]) -> None:
        for outcome in outcomes:
            if isinstance(outcome, Failed):
                raise self._failed(" ".join(str(outcome.error).split())) from outcome.error

    def _failed(self, why: str) -> TransformFailed:
        return TransformFailed(f"The transform of {self.transform.source} failed: {why}")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def _first_line(error: Any) -> str:
    """What went wrong, without the stacks of the JVM and of the worker."""
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

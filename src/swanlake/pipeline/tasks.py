"""Functions for Spark's Python workers, which may have to find our code first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any


def in_worker(
    function: str, folder: str | None, *arguments: Any
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function of batches that calls one of ``swanlake.pipeline.worker`` with the arguments.

    It travels as a value, because a worker elsewhere may have no SwanLake before it has looked into
    the folder of the bundle. For the same reason the arguments are plain.
    """

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        if folder is not None:
            import sys

            from pyspark import SparkFiles

            place = f"{SparkFiles.getRootDirectory()}/{folder}"
            if place not in sys.path:
                sys.path.insert(0, place)
        from swanlake.pipeline import worker

        answers: Iterator[Any] = getattr(worker, function)(batches, *arguments)
        return answers

    return run

"""Our code on workers: the bundle, an archive for remote ones, and the tasks that import it.

Workers on a cluster need PySpark, pyarrow, and the server's Python version and platform. The bundle
adds the rest: SwanLake, DuckDB, and what reaches files in an object store.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: The folder into which Spark unpacks the bundle on a worker.
FOLDER = "swanlake-bundle"
_PACKAGES = (
    "swanlake",
    "duckdb",
    "_duckdb",
    "crc32c",
    "duckdb_extension_httpfs",
    "duckdb_extension_aws",
    *("botocore", "jmespath", "dateutil", "six", "urllib3"),
)
#: Of botocore's descriptions of all services of AWS, only these are needed.
_UNUSED = re.compile(r"botocore/data/(?!s3/)[^/]+/")
#: Distributions that read their own metadata when they are imported.
_WITH_METADATA = ("duckdb", "crc32c")


def write_bundle(path: Path) -> None:
    """Writes the bundle to a file, which is replaced atomically."""
    partial = path.with_name(path.name + ".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bundle:
        for package in _PACKAGES:
            for file, name in _files(package):
                if not _UNUSED.match(name):
                    bundle.write(file, name)
        for distribution in _WITH_METADATA:
            for file, name in _metadata(distribution):
                bundle.write(file, name)
    partial.replace(path)


def worker_task(
    function: str, folder: str | None, *arguments: Any
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function of batches that calls one of ``swanlake.jobs.spark.worker`` with the arguments.

    It is pickled by value, because a remote worker cannot import SwanLake before the folder of the
    bundle is on its path. For the same reason the arguments are of built-in types.
    """

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        if folder is not None:
            import sys

            from pyspark import SparkFiles

            path = f"{SparkFiles.getRootDirectory()}/{folder}"
            if path not in sys.path:
                sys.path.insert(0, path)
        from swanlake.jobs.spark import worker

        results: Iterator[Any] = getattr(worker, function)(batches, *arguments)
        return results

    return run


def _files(package: str) -> Iterator[tuple[Path, str]]:
    """The files of an installed package, with their names in the bundle."""
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed"
    if not spec.submodule_search_locations:
        assert spec.origin is not None
        yield Path(spec.origin), Path(spec.origin).name
        return
    for folder in map(Path, spec.submodule_search_locations):
        for file in folder.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file, str(Path(package) / file.relative_to(folder))


def _metadata(distribution: str) -> Iterator[tuple[Path, str]]:
    """The metadata file of a distribution, with its name in the bundle."""
    for file in files(distribution) or ():
        if file.name == "METADATA":
            yield Path(str(file.locate())), str(file)

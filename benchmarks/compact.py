"""Cost of a compaction on Spark, compared with DuckDB alone on the same small files.

The baseline reads the files in one process and writes Parquet with one COPY: no row ids, no
snapshots, no lake, nothing synced to disk. SwanLake's side is all that ``swanlake_compact`` does:
plan, units on Spark, files synced, one commit; time travel reads the same rows afterwards.

``python benchmarks/compact.py [--quick]``
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._events import COLUMNS, MEGABYTE, events
from benchmarks._measure import Answer, at_least, print_table
from benchmarks._memory import peak_memory
from swanlake.config import Settings
from swanlake.jobs.spark.runner import SparkRunner
from swanlake.lake.catalog import Catalog
from swanlake.lake.files import datafile
from swanlake.lake.lake import Lake
from swanlake.lake.model.operations import Commit, Insert
from swanlake.lake.model.types import ColumnSpec
from swanlake.maintenance.compaction.run import compact

SIZES = (10, 100, 1000, 4000)
#: Rows of a file before the compaction: about 5 MB.
FILE_ROWS = 200_000


def fill(catalog: Catalog, name: str, megabytes: int) -> list[Path]:
    """Creates a table of small files, ten in each commit."""
    columns = [ColumnSpec(column, type_) for column, type_ in COLUMNS.items()]
    catalog.create_table("main", name, columns)
    paths: list[Path] = []
    size, first = 0, 0
    with duckdb.connect() as duck:
        while size < megabytes * MEGABYTE:
            table = catalog.table("main", name)
            files = []
            for _ in range(10):
                query = events(first, first + FILE_ROWS)
                files += datafile.write_files(duck, query, table)
                first += FILE_ROWS
            catalog.commit(Commit((Insert(table, tuple(files), blind=True),)))
            paths += [Path(table.directory + file.path) for file in files]
            size += sum(file.file_size_bytes for file in files)
    return paths


def run_duckdb(paths: list[Path], folder: Path) -> float:
    """Seconds that DuckDB alone needs for the same rows."""
    folder.mkdir()
    with duckdb.connect() as duck:
        started = time.perf_counter()
        duck.execute(
            f"COPY (FROM read_parquet($1)) TO '{folder}' (FORMAT parquet, FILE_SIZE_BYTES '512MB')",
            [[str(path) for path in paths]],
        )
        seconds = time.perf_counter() - started
    shutil.rmtree(folder)
    return seconds


def measure(sizes: tuple[int, ...], home: Path) -> Iterator[Answer]:
    settings = Settings(home=home)
    runner = SparkRunner(settings)
    with Lake.from_settings(settings) as lake:
        catalog = lake.ensure_catalog("swanlake")
        try:
            yield from _first(catalog, runner)
            for megabytes in sizes:
                yield from _size(catalog, runner, megabytes, home)
        finally:
            runner.close()


def _first(catalog: Catalog, runner: SparkRunner) -> Iterator[Answer]:
    fill(catalog, "first", 10)
    started = time.perf_counter()
    compact(catalog, catalog.table("main", "first").id, runner)
    yield Answer("first compaction, of 10 MB, while Spark starts", None, _since(started), "s")


def _size(catalog: Catalog, runner: SparkRunner, megabytes: int, home: Path) -> Iterator[Answer]:
    name = f"events_{megabytes}"
    paths = fill(catalog, name, megabytes)
    size = sum(path.stat().st_size for path in paths) / MEGABYTE
    alone = run_duckdb(paths, home / "alone")
    started = time.perf_counter()
    with peak_memory() as peak:
        report = compact(catalog, catalog.table("main", name).id, runner)
        seconds, memory = _since(started), peak()
    label = f"{megabytes} MB" if megabytes < 1000 else f"{megabytes // 1000} GB"
    target = at_least(0.9) if megabytes == 1000 else None
    yield Answer(
        f"compaction of {label} of files, warm", size / alone, size / seconds, "MB/s", target
    )
    yield Answer("  files before and after", len(paths), report.files_made, "files")
    yield Answer("  peak memory, JVM included", None, memory, "MB")


def _since(started: float) -> float:
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no more than 100 MB")
    sizes = SIZES[:2] if parser.parse_args().quick else SIZES
    with tempfile.TemporaryDirectory(prefix="swanlake-compact-") as folder:
        print_table(
            "Compaction on Spark; baseline: DuckDB alone on the same files",
            list(measure(sizes, Path(folder) / "home")),
        )


if __name__ == "__main__":
    main()

"""Cost of a flush on Spark, compared with DuckDB alone on the same segments.

The baseline reads the segments in one process and writes Parquet with one COPY: no checksums, no
statistics, no lake, nothing synced to disk. SwanLake's side is all that ``duckling_queue_flush``
does: units on Spark, files synced, one commit. Both use all cores.

``python benchmarks/flush.py [--quick]``
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._events import COLUMNS, MEGABYTE, events
from benchmarks._measure import Answer, Target, at_least, p50, print_table
from benchmarks._memory import peak_memory
from swanlake.config import Settings
from swanlake.jobs.spark.runner import SparkRunner
from swanlake.lake.lake import Lake
from swanlake.lake.model.types import ColumnSpec
from swanlake.queue.coordinator import Limits
from swanlake.queue.service import DucklingQueue
from swanlake.queue.settings import QueueSettings

SIZES = (10, 100, 1000, 4000)
#: Rows of a batch that a client sends.
BATCH_ROWS = 50_000


@dataclass(frozen=True)
class Effort:
    """The sizes to measure, and the number of repeats."""

    sizes: tuple[int, ...]
    repeats: int


def batches(megabytes: int) -> Iterator[pa.RecordBatch]:
    """Arrow batches of about this size in total."""
    size, first = 0, 0
    with duckdb.connect() as duck:
        while size < megabytes * MEGABYTE:
            query = events(first, first + BATCH_ROWS)
            for batch in duck.execute(query).to_arrow_table().combine_chunks().to_batches():
                yield batch
                size += batch.nbytes
            first += BATCH_ROWS


class BenchmarkQueue:
    """A queue on Spark with one table, which flushes only on request."""

    def __init__(self, home: Path) -> None:
        self.home = home
        settings = Settings(home=home)
        self.lake = Lake.from_settings(settings)
        catalog = self.lake.ensure_catalog("swanlake")
        columns = [ColumnSpec(name, type_) for name, type_ in COLUMNS.items()]
        catalog.create_table("main", "events", columns)
        self.runner = SparkRunner(settings)
        self.queue = DucklingQueue(
            QueueSettings(home / "queue", Limits(max_rows=1 << 60), max_bytes=1 << 60),
            self.lake,
            self.runner,
        )
        self.target = self.queue.table_cache.find("swanlake", "main", "events")

    def fill(self, megabytes: int) -> int:
        """Fills the paused queue with segments of the default size; returns their bytes on disk."""
        self.queue.pause()
        for batch in batches(megabytes):
            self.queue.enqueue(self.target, [batch])
        return sum(path.stat().st_size for path in self.segments())

    def segments(self) -> list[Path]:
        return sorted((self.home / "queue").glob("*/*/*/*.arrows"))

    def flush(self) -> float:
        """Flushes everything; returns the seconds it took."""
        self.queue.resume()
        started = time.perf_counter()
        self.queue.flush()
        return time.perf_counter() - started

    def close(self) -> None:
        self.queue.stop(60)
        self.runner.close()
        self.lake.close()


def run_duckdb(segments: list[Path], folder: Path) -> float:
    """Seconds that DuckDB alone needs for the same rows."""
    folder.mkdir()
    with duckdb.connect() as duck:
        started = time.perf_counter()
        tables = [pa.ipc.open_stream(pa.memory_map(str(path))).read_all() for path in segments]
        duck.register("rows", pa.concat_tables(tables))
        duck.execute(f"COPY rows TO '{folder}' (FORMAT parquet, FILE_SIZE_BYTES '512MB')")
        seconds = time.perf_counter() - started
    shutil.rmtree(folder)
    return seconds


def measure(effort: Effort, home: Path) -> Iterator[Answer]:
    started = time.perf_counter()
    queue = BenchmarkQueue(home)
    queue.runner.run([], "nothing")
    try:
        yield from _cold(queue, started)
        for megabytes in effort.sizes:
            yield from _size(queue, megabytes, effort.repeats)
    finally:
        queue.close()


def _cold(queue: BenchmarkQueue, started: float) -> Iterator[Answer]:
    """The first flush after the start of Spark."""
    queue.fill(10)
    queue.flush()
    yield Answer("start of Spark and a first 10 MB", None, time.perf_counter() - started, "s")


def _size(queue: BenchmarkQueue, megabytes: int, repeats: int) -> Iterator[Answer]:
    alone, ours, memory, size = [], [], 0.0, 0
    for attempt in range(repeats):
        size = queue.fill(megabytes)
        alone.append(run_duckdb(queue.segments(), queue.home / f"alone{attempt}"))
        with peak_memory() as peak:
            ours.append(queue.flush())
            memory = max(memory, peak())
    label = f"{megabytes} MB" if megabytes < 1000 else f"{megabytes // 1000} GB"
    mb = size / MEGABYTE
    target = at_least(0.9) if megabytes == 1000 else None
    yield Answer(f"flush of {label}, warm", mb / p50(alone), mb / p50(ours), "MB/s", target)
    if megabytes == 10:
        soon = Target("<= 0.3 s", lambda _, seconds: seconds <= 0.3)
        yield Answer("  seconds", p50(alone), p50(ours), "s", soon)
    yield Answer("  peak memory, JVM included", None, memory, "MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no more than 100 MB")
    quick: bool = parser.parse_args().quick
    effort = Effort(SIZES[:2], 3) if quick else Effort(SIZES, 5)
    with tempfile.TemporaryDirectory(prefix="swanlake-flush-") as folder:
        print_table(
            "Flush on Spark; baseline: DuckDB alone on the same segments",
            list(measure(effort, Path(folder) / "home")),
        )


if __name__ == "__main__":
    main()

"""Uses Spark's JDBC source as an application would; the test compares what it prints.

Run with the JDBC URL, the JARs, and the name of a scenario.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession

from tests.drivers.conftest import JAVA_OPTIONS
from tests.queries import ENDLESS_QUERY

EXTENSION = "swanlake.spark.SwanLakeJdbc"
DRIVER = "org.apache.arrow.driver.jdbc.ArrowFlightJdbcDriver"


class SparkJdbc:
    """Reads and writes tables of one server."""

    def __init__(self, url: str, jars: str, *, extension: bool) -> None:
        self._url = url
        builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
        builder.config("spark.driver.extraJavaOptions", " ".join(JAVA_OPTIONS))
        builder.config("spark.sql.session.timeZone", "UTC").config("spark.jars", jars)
        if extension:
            builder.config("spark.sql.extensions", EXTENSION)
        self.session = builder.getOrCreate()
        self.session.sparkContext.setLogLevel("OFF")

    def read(self, table: str, **options: str) -> DataFrame:
        properties = {"driver": DRIVER, **options}
        return self.session.read.jdbc(self._url, table, properties=properties)

    def write(self, rows: DataFrame, table: str, mode: str) -> None:
        rows.write.jdbc(self._url, table, mode=mode, properties={"driver": DRIVER})


def read(jdbc: SparkJdbc) -> None:
    """Prints the schema and the only row of a table, then rows of partitions."""
    rows = jdbc.read("spark_read")
    print(rows.schema.simpleString())
    print(*rows.collect()[0])
    bounds = {"partitionColumn": "i", "lowerBound": "0", "upperBound": "1000"}
    parts = jdbc.read("spark_parts", numPartitions="4", **bounds)
    print(parts.rdd.getNumPartitions(), parts.groupBy().sum("i").collect()[0][0])


def append(jdbc: SparkJdbc) -> None:
    """Copies a table to one that exists."""
    jdbc.write(jdbc.read("spark_source"), "spark_target", "append")


def create(jdbc: SparkJdbc) -> None:
    """Copies a table to a new one, replaces that, and appends to it."""
    rows = jdbc.read("spark_source")
    for mode in ("errorifexists", "overwrite", "append"):
        jdbc.write(rows, "spark_created", mode)


def timeout(jdbc: SparkJdbc) -> None:
    """Reads with a timeout from a query that does not end."""
    try:
        jdbc.read(f"({ENDLESS_QUERY}) AS q", queryTimeout="1").collect()
    except Py4JJavaError as error:
        print("timed out" if "timed out after 1 SECONDS" in str(error) else error)


def cancel(jdbc: SparkJdbc) -> None:
    """Reads from a query that does not end, and cancels the job when a line is entered."""
    context = jdbc.session.sparkContext
    outcomes = []

    def collect() -> None:
        context.setJobGroup("endless", "a query that does not end", interruptOnCancel=True)
        try:
            jdbc.read(f"({ENDLESS_QUERY}) AS q").collect()
        except Py4JJavaError as error:
            outcomes.append("cancelled" if "cancelled" in str(error) else str(error))

    reader = InheritableThread(target=collect)
    reader.start()
    while not context.statusTracker().getActiveJobsIds():
        time.sleep(0.05)
    print("running", flush=True)
    sys.stdin.readline()
    context.cancelJobGroup("endless")
    reader.join()
    print(*outcomes)
    print(jdbc.read("(SELECT 'usable' AS s) AS q").collect()[0].s)


SCENARIOS: Mapping[str, Callable[[SparkJdbc], Any]] = {
    scenario.__name__: scenario for scenario in (read, append, create, timeout, cancel)
}

if __name__ == "__main__":
    url, jars, name = sys.argv[1:]
    SCENARIOS[name](SparkJdbc(url, jars, extension=name != "append"))

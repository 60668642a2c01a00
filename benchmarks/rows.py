"""Cost of Python rows: ``fetchall`` of SQLAlchemy, of the DB-API module and of stock ADBC.

``python benchmarks/rows.py [--quick]``
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import sqlalchemy as sa
from sqlalchemy.dialects import registry

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, at_most, p50, print_table
from swanlake.client import dbapi
from tests.server_process import ServerProcess

ROWS = 200_000
NUMBERS = """
    range AS id, range * 0.5::DOUBLE AS value, 'name-' || range AS name, range % 3 = 0 AS flag,
    (range / 7)::DECIMAL(12, 3) AS price
"""
TIMES = """
    range AS id, TIMESTAMP '2020-01-01' + to_seconds(range) AS seen,
    TIMESTAMPTZ '2020-01-01 00:00:00Z' + to_seconds(range) AS seen_zoned,
    DATE '2020-01-01' + (range % 1000)::INTEGER AS day, TIME '00:00' + to_seconds(range) AS clock
"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="few repetitions")
    rounds = 2 if arguments.parse_args().quick else 7
    registry.register("swanlake", "swanlake.client.sqlalchemy_dialect", "SwanLakeDialect")
    with (
        tempfile.TemporaryDirectory(prefix="swanlake-bench-") as folder,
        ServerProcess(Path(folder) / "server") as server,
        adbc.connect(server.url, autocommit=True) as stock,
        dbapi.connect(server.url, autocommit=True) as ours,
    ):
        engine = sa.create_engine(f"swanlake://127.0.0.1:{server.port}")
        with engine.connect() as connection:
            for name, columns in (("numbers", NUMBERS), ("times", TIMES)):
                create = f"CREATE TABLE {name} AS SELECT {columns} FROM range({ROWS})"
                connection.exec_driver_sql(create)
                connection.commit()
                table = sa.Table(name, sa.MetaData(), autoload_with=connection)
                sql = f"SELECT * FROM {name}"
                compare(
                    name,
                    [
                        lambda sql=sql: fetch(stock, sql),  # type: ignore[misc]
                        lambda sql=sql: fetch(ours, sql),  # type: ignore[misc]
                        lambda table=table: connection.execute(sa.select(table)).fetchall(),  # type: ignore[misc]
                    ],
                    rounds,
                )
        engine.dispose()


def fetch(connection: Any, sql: str) -> Sequence[Any]:
    """All rows of a query, through a DB-API connection."""
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def compare(name: str, readers: Sequence[Callable[[], Sequence[Any]]], rounds: int) -> None:
    """Prints the times of the readers, which alternate within each round."""
    spent: list[list[float]] = [[] for _ in readers]
    for _ in range(rounds):
        for reader, seconds in zip(readers, spent, strict=True):
            start = time.perf_counter()
            rows = reader()
            seconds.append(time.perf_counter() - start)
            assert len(rows) == ROWS
    stock, ours, core = (p50(seconds) for seconds in spent)
    answers = [
        Answer("DB-API, over stock ADBC, p50", stock, ours, "s", at_most(1 / 2, "1/2")),
        Answer("SQLAlchemy Core, over stock ADBC, p50", stock, core, "s", at_most(1 / 2, "1/2")),
    ]
    print_table(f"fetchall of {ROWS:,} rows of 5 columns: {name} ({rounds} rounds)", answers)


if __name__ == "__main__":
    main()

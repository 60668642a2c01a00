"""Transforms between the queue and the lake."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.queue.queries import count, dead_letters, flush, refused, status
from tests.queries import rows
from tests.server_process import ServerProcess
from tests.waiting import eventually


def test_rows_are_filtered_deduplicated_enriched_and_reshaped(spark: Any) -> None:
    spark.execute("CREATE TABLE cleaned (id BIGINT, amount DECIMAL(10, 2), country VARCHAR)")
    spark.execute(
        "INSERT INTO duckling_queue.cleaned VALUES "
        "(1, 10, 'no'), (1, 10, 'no'), (2, -1, 'se'), (3, 2.5, 'fi')"
    )
    [report] = flush(spark, "cleaned")
    assert (report["rows"], report["dead_letters"]) == (2, 0)
    found = rows(spark, "SELECT id, CAST(amount AS DOUBLE), country FROM cleaned ORDER BY id")
    assert found == [(1, 20.0, "NO"), (3, 5.0, "FI")]
    assert flush(spark, "cleaned") == []


def test_transform_into_several_tables_is_one_commit(spark: Any) -> None:
    for table in ("sorted_out", "good", "bad"):
        spark.execute(f"CREATE TABLE {table} (id BIGINT)")
    spark.execute("INSERT INTO duckling_queue.sorted_out SELECT range FROM range(100)")
    before = rows(spark, "SELECT max(snapshot_id) FROM swanlake.snapshots()")
    [report] = flush(spark, "sorted_out")
    assert report["rows"] == 100
    assert rows(spark, "SELECT max(snapshot_id) FROM swanlake.snapshots()") == [(before[0][0] + 1,)]
    assert rows(spark, "SELECT count(*), sum(id) FROM good") == [(50, sum(range(0, 100, 2)))]
    assert rows(spark, "SELECT count(*), sum(id) FROM bad") == [(50, sum(range(1, 100, 2)))]
    assert count(spark, "sorted_out") == 0


def test_transform_into_another_table(spark: Any) -> None:
    spark.execute("CREATE TABLE redirected (id BIGINT, note VARCHAR)")
    spark.execute(
        "CREATE TABLE elsewhere (id INTEGER NOT NULL, extra VARCHAR DEFAULT 'x', note VARCHAR)"
    )
    spark.execute("INSERT INTO duckling_queue.redirected VALUES (7, 'seven')")
    flush(spark, "redirected")
    assert rows(spark, "FROM elsewhere") == [(7, "x", "seven")]
    assert count(spark, "redirected") == 0


def test_python_functions_run_in_the_workers(spark: Any) -> None:
    spark.execute("CREATE TABLE with_udf (id BIGINT, note VARCHAR)")
    spark.execute("INSERT INTO duckling_queue.with_udf VALUES (1, 'honk')")
    flush(spark, "with_udf")
    assert rows(spark, "FROM with_udf") == [(1, "HONK!")]


def test_transform_may_return_no_rows(spark: Any) -> None:
    spark.execute("CREATE TABLE keeps_nothing (id BIGINT)")
    spark.execute("INSERT INTO duckling_queue.keeps_nothing VALUES (1)")
    [report] = flush(spark, "keeps_nothing")
    assert (report["rows"], report["files"]) == (0, 0)
    assert status(spark, "keeps_nothing") is None
    assert flush(spark, "keeps_nothing") == []


_VALUES = {
    "BOOLEAN": "true",
    "TINYINT": "-128",
    "SMALLINT": "-32768",
    "INTEGER": "-2147483648",
    "BIGINT": "9223372036854775807",
    "HUGEINT": "-9007199254740993",
    "UTINYINT": "255",
    "USMALLINT": "65535",
    "UINTEGER": "4294967295",
    "UBIGINT": "18446744073709551615",
    "UHUGEINT": "9007199254740993",
    "FLOAT": "1.5",
    "DOUBLE": "'nan'",
    "DECIMAL(38, 10)": "1234567890123456789012345678.0123456789",
    "DATE": "'1900-01-01'",
    "TIME": "'23:59:59.999999'",
    "TIME WITH TIME ZONE": "'12:00:00+02'",
    "TIMESTAMP": "'1969-12-31 23:59:59.999999'",
    "TIMESTAMP_S": "'2026-01-01 00:00:01'",
    "TIMESTAMP_MS": "'2026-01-01 00:00:01.123'",
    "TIMESTAMP_NS": "'2026-01-01 00:00:01.123456789'",
    "TIMESTAMP WITH TIME ZONE": "'2026-06-01 12:00:00+02'",
    "INTERVAL": "'3 months 2 days 01:02:03.5'",
    "VARCHAR": "'schwäne 🦢'",
    "JSON": "'{\"a\": [1, null]}'",
    "BLOB": "'\\x00\\xFF'::BLOB",
    "UUID": "'00000000-0000-0000-0000-000000000001'",
    "INTEGER[]": "[1, NULL, 3]",
    "STRUCT(a UUID, b HUGEINT[])": "{'a': '00000000-0000-0000-0000-000000000001', 'b': [1]}",
    "MAP(VARCHAR, UBIGINT)": "MAP {'a': 18446744073709551615}",
}


def test_every_type_passes_through_spark_unchanged(spark: Any) -> None:
    columns = ", ".join(f"c{number} {type_}" for number, type_ in enumerate(_VALUES))
    spark.execute(f"CREATE TABLE every_type ({columns})")
    spark.execute(f"CREATE TABLE untouched ({columns})")
    for table in ("duckling_queue.every_type", "untouched"):
        spark.execute(f"INSERT INTO {table} VALUES ({', '.join(_VALUES.values())})")
        spark.execute(f"INSERT INTO {table} VALUES ({', '.join(['NULL'] * len(_VALUES))})")
    flush(spark, "every_type")
    assert count(spark, "every_type") == 2
    both = (
        "(FROM every_type EXCEPT FROM untouched) UNION ALL (FROM untouched EXCEPT FROM every_type)"
    )
    assert rows(spark, f"SELECT count(*) FROM ({both})") == [(0,)]


@pytest.mark.parametrize(
    ("table", "columns", "why"),
    [
        ("raises", "id BIGINT", "RuntimeError: the oracle is silent"),
        ("raises_late", "id BIGINT", "no such bird"),
        ("adds_a_column", "id BIGINT", "a column surprise, which the table does not have"),
        (
            "wrong_type",
            "id BIGINT",
            "is struct<a:bigint>, and the table's needs bigint",
        ),
        ("too_large", "id SMALLINT", "OVERFLOW"),
        (
            "loses_the_key",
            "id BIGINT NOT NULL, note VARCHAR",
            "column id, which must not be NULL",
        ),
        ("not_a_frame", "id BIGINT", "it gave int for main.not_a_frame, not a DataFrame"),
        ("goes_nowhere", "id BIGINT", "writes to main.nowhere, which does not exist"),
    ],
)
def test_failed_transform_keeps_rows_and_reports_why(
    spark: Any, table: str, columns: str, why: str
) -> None:
    spark.execute(f"CREATE TABLE {table} ({columns})")
    spark.execute(f"INSERT INTO duckling_queue.{table} (id) VALUES (1000)")
    with refused("FLUSH_FAILED", why):
        spark.execute(f"CALL duckling_queue_flush('{table}')")
    assert count(spark, f"duckling_queue.{table}") == 1
    assert count(spark, table) == 0
    assert dead_letters(spark, table) == []

    def is_shown() -> bool:
        found = status(spark, table)
        return found is not None and bool(found["last_error"])

    eventually(is_shown)


def test_failed_transform_leaves_no_files(spark: Any, spark_server: ServerProcess) -> None:
    """The files of its first table are written before its second table fails."""
    for table in ("first_half", "second_half", "half_done"):
        spark.execute(f"CREATE TABLE {table} (id BIGINT)")
    spark.execute("INSERT INTO duckling_queue.half_done VALUES (1)")
    with refused("FLUSH_FAILED", "no such bird"):
        spark.execute("CALL duckling_queue_flush('half_done')")
    written = spark_server.home / "data" / "swanlake" / "main" / "first_half"
    assert written.is_dir()  # there were some
    # The queue retries, and files exist during a retry.
    eventually(lambda: not list(written.glob("*.parquet")))

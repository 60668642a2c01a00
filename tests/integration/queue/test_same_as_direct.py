"""The queue accepts and refuses the same values as a direct INSERT."""

from __future__ import annotations

from typing import Any

import adbc_driver_manager
import pytest

from tests.integration.queue.queries import flush
from tests.queries import rows

#: For each type accepted values, in any SQL form, and refused values.
VALUES: dict[str, tuple[list[str], list[str]]] = {
    "BOOLEAN": (["true", "false", "NULL", "1", "'f'", "0.0"], ["'maybe'", "DATE '2024-01-01'"]),
    "TINYINT": (["-128", "127", "'5'", "1.5", "2.5", "true"], ["128", "-129", "'x'", "1e9"]),
    "SMALLINT": (["-32768", "32767", "' 7 '", "NULL"], ["32768", "'7.x'"]),
    "INTEGER": (["-2147483648", "2147483647", "1e3", "'1_000'"], ["2147483648", "'nan'"]),
    "BIGINT": (["-9223372036854775808", "9223372036854775807"], ["9223372036854775808", "1e20"]),
    "HUGEINT": (["1267650600228229401496703205376", "-18446744073709551616", "1"], ["1e39", "'-'"]),
    "UTINYINT": (["0", "255"], ["-1", "256"]),
    "USMALLINT": (["0", "65535"], ["-1", "65536"]),
    "UINTEGER": (["0", "4294967295"], ["-1", "4294967296"]),
    "UBIGINT": (["0", "18446744073709551615"], ["-1", "18446744073709551616"]),
    "UHUGEINT": (["0", "1267650600228229401496703205376"], ["-1"]),
    "FLOAT": (["1.5", "'nan'", "'inf'", "'-inf'", "0.1", "-0.0", "16777217"], ["1e39", "'x'"]),
    "DOUBLE": (["0.1", "'nan'", "'-inf'", "1e308", "-0.0", "1::HUGEINT"], ["'x'", "[1]"]),
    "DECIMAL(9,2)": (["1.005", "-9999999.99", "'2.345'", "1", "0.1::DOUBLE"], ["10000000", "'x'"]),
    "DECIMAL(38,10)": (["1234567890123456789012345678.0123456789", "'-1e-10'"], ["1e30"]),
    "DECIMAL(4,0)": (["9999", "0.5", "1.5", "-0.5"], ["9999.9"]),
    "VARCHAR": (["'a'", "''", "'ünï🦢'", "1", "true", "DATE '2024-02-29'", "[1, 2]", "chr(0)"], []),
    "BLOB": ([r"'\x00\xFF'::BLOB", "''::BLOB", "'abc'", "NULL"], [r"'\xZZ'"]),
    "DATE": (
        ["'2024-02-29'", "'infinity'", "'-infinity'", "'0001-01-01 (BC)'", "'290309-12-22 (BC)'",
         "TIMESTAMP '2024-01-01 23:59:59'"],
        ["'2023-02-29'", "1"],
    ),
    "TIME": (["'23:59:59.999999'", "'00:00:00'", "'24:00:00'", "TIMESTAMP '2024-01-01 01:02:03'"],
             ["'25:00:00'", "1"]),
    "TIMETZ": (["'12:00:00+02'", "'00:00:00-15:59:59'", "'23:59:59.999999+15:59'"], ["'x'"]),
    "TIMESTAMP": (
        ["'2024-02-29 01:02:03.000004'", "'infinity'", "'-infinity'", "DATE '2024-01-01'",
         "'2024-01-01 00:00:00+02'", "'290309-12-22 (BC) 00:00:00'"],
        ["'x'", "'2024-02-30'"],
    ),
    "TIMESTAMP_S": (["'2024-02-29 01:02:03.6'", "DATE '2024-01-01'"], ["'x'", "'infinity'"]),
    "TIMESTAMP_MS": (["'2024-02-29 01:02:03.0006'", "'-infinity'"], ["'x'"]),
    "TIMESTAMP_NS": (["'2024-02-29 01:02:03.000000004'", "'1677-09-22'"], ["'9999-01-01'"]),
    "TIMESTAMPTZ": (["'2024-02-29 01:02:03.000004+05:30'", "'infinity'", "'2024-01-01'"], ["'x'"]),
    "INTERVAL": (
        ["'1 month 2 days 3 milliseconds'", "INTERVAL 3 YEARS", "'00:00:00.001'", "NULL",
         "'1 year 1193:02:47.295'"],
        ["'x'", "'-5 days'", "'1 month -1 second'", "'1193:02:47.296'"],
    ),
    "UUID": (["'e9a1c0f2-7f3b-4d7c-8a11-0123456789ab'", "'{E9A1C0F27F3B4D7C8A110123456789AB}'"],
             ["'e9a1'", "1"]),
    "JSON": (["'{\"a\": [1, null]}'", "'null'", "'  7 '", "NULL", "{'a': 1}"], ["'{'", "'x'"]),
    "INTEGER[]": (["[1, NULL, 3]", "[]", "NULL", "['7']", "'[1, 2]'"], ["['x']", "1"]),
    "VARCHAR[][]": (["[['a'], [], NULL]", "[[NULL]]"], []),
    "STRUCT(a INTEGER, b VARCHAR)": (
        ["{'a': 1, 'b': 'x'}", "{'b': 'only'}", "row(2, 'y')", "NULL", "{'a': NULL, 'b': NULL}"],
        ["{'a': 'x', 'b': 'y'}", "{'c': 1}"],
    ),
    "STRUCT(a STRUCT(b INTEGER[]), c DECIMAL(5,1))[]": (
        ["[{'a': {'b': [1, NULL]}, 'c': 1.25}]", "[NULL]", "[{'a': NULL, 'c': NULL}]"],
        ["[{'a': {'b': ['x']}, 'c': 1}]"],
    ),
    "MAP(VARCHAR, INTEGER)": (
        ["MAP {'a': 1, 'b': NULL}", "MAP {}", "NULL", "MAP {'a': '5'}"],
        ["MAP {'a': 'x'}"],
    ),
    "MAP(VARCHAR, STRUCT(x UUID, y TIMESTAMPTZ)[])": (
        ["MAP {'a': [{'x': 'e9a1c0f2-7f3b-4d7c-8a11-0123456789ab', 'y': '2024-01-01 00:00:00Z'}]}"],
        [],
    ),
}  # fmt: skip


#: Errors that stock DuckLake reports when it writes the file are constraint errors in the queue.
_KNOWN_ONLY_TO_THE_FILE = {"'infinity'", "'-5 days'", "'1 month -1 second'", "'1193:02:47.296'"}


def twins(cursor: Any, name: str, columns: str) -> tuple[str, str]:
    """Two equal tables: one for direct INSERTs, one behind the queue."""
    for table in (f"{name}_direct", f"{name}_queued"):
        cursor.execute(f"CREATE TABLE {table} ({columns})")
    return f"{name}_direct", f"{name}_queued"


def outcome(cursor: Any, sql: str) -> str:
    """The number of written rows, or the identifier of the error."""
    try:
        cursor.execute(sql)
    except adbc_driver_manager.Error as error:
        return str(error).partition("[FlightSQL] ")[2].partition(":")[0]
    return str(cursor.rowcount)


def content(cursor: Any, table: str) -> list[list[tuple[str, str]]]:
    """The rows, with the type and text of each value."""
    [columns] = [rows(cursor, f"SELECT column_name FROM (DESCRIBE {table})")]
    pairs = ", ".join(f"[typeof({column}), {column}::VARCHAR]" for (column,) in columns)
    found = rows(cursor, f"SELECT {pairs} FROM {table} ORDER BY ALL")
    return [[tuple(pair) for pair in row] for row in found]


def without_timetz(content: list[list[tuple[str, str]]]) -> list[list[tuple[str, str]]]:
    """Parquet stores times with a zone in UTC, so a flush changes them."""
    return [[pair for pair in row if pair[0] != "TIME WITH TIME ZONE"] for row in content]


GROUPS = {
    "numbers": [
        kind for kind in VALUES if "INT" in kind or kind[:4] in ("BOOL", "FLOA", "DOUB", "DECI")
    ],
    "times": [kind for kind in VALUES if kind.startswith(("DATE", "TIME", "INTERVAL"))],
}
GROUPS["others"] = [kind for kind in VALUES if not any(kind in group for group in GROUPS.values())]


@pytest.mark.parametrize("group", GROUPS)
def test_values_of_every_type(cursor: Any, name: str, group: str) -> None:
    """Each value is in a separate column, so that only its own type matters."""
    columns = {
        f"v{i}_{j}": (kind, value)
        for i, kind in enumerate(GROUPS[group])
        for j, value in enumerate(VALUES[kind][0])
    }
    direct, queued = twins(
        cursor, name, ", ".join(f"{column} {kind}" for column, (kind, _) in columns.items())
    )
    values = ", ".join(value for _, value in columns.values())
    for i, kind in enumerate(GROUPS[group]):
        for value in VALUES[kind][1]:
            form = f"(v{i}_0) VALUES ({value})"
            in_the_lake = outcome(cursor, f"INSERT INTO {direct} {form}")
            in_the_queue = outcome(cursor, f"INSERT INTO duckling_queue.{queued} {form}")
            assert not in_the_lake.isdigit(), (kind, value)
            if value not in _KNOWN_ONLY_TO_THE_FILE:
                assert (kind, value, in_the_queue) == (kind, value, in_the_lake)
            else:
                assert in_the_queue == "CONSTRAINT_ERROR"
    cursor.execute(f"INSERT INTO {direct} VALUES ({values})")
    cursor.execute(f"INSERT INTO duckling_queue.{queued} VALUES ({values})")
    expected = content(cursor, direct)
    assert without_timetz(content(cursor, f"duckling_queue.{queued}")) == without_timetz(expected)
    flush(cursor, queued)
    assert content(cursor, queued) == expected


STATEMENTS = [
    "VALUES (1, 'a', 1.5, [1])",
    "VALUES ('1', 2, '3.25', '[4]')",
    "VALUES (1, 'a', 1.5)",
    "VALUES (1, 'a', 1.5, [1], 5)",
    "VALUES (NULL, 'a', 1.5, [1])",
    "VALUES (1, NULL, 1.5, [1])",
    "VALUES (1, 'a', 1.5, [1]), (2, 'b', 'x', [2])",
    "VALUES (1, 'a', 1.5, [1]), (NULL, 'b', 2.5, [2])",
    "(id) VALUES (1), (2)",
    "(note) VALUES ('no id')",
    "(id, id) VALUES (1, 2)",
    "(id, stranger) VALUES (1, 2)",
    "(id, price) VALUES (1, DEFAULT), (2, 7)",
    "DEFAULT VALUES",
    "BY NAME SELECT 1 AS id, 2 AS price",
    "BY NAME SELECT 1 AS id, 2 AS stranger",
    "BY NAME SELECT 1 AS id, 2 AS ID",
    "BY NAME SELECT 'x' AS note",
    "BY POSITION SELECT 1, 'a', 1.5, NULL",
    "SELECT range, range, range, [range] FROM range(5000)",
    "SELECT range, range, range, [range] FROM range(5000) WHERE range < 0",
    "SELECT CASE WHEN range = 4999 THEN NULL ELSE range END, 'x', 1, [] FROM range(5000)",
    "SELECT range, 'x', CASE range WHEN 4999 THEN 'bad' ELSE '1' END, [] FROM range(5000)",
    "FROM (SELECT 1, 'a', 1.5, [1])",
    "(id, price) SELECT i, sum(j) FROM (VALUES (1, 2), (1, 3), (2, 4)) v(i, j) GROUP BY i",
    "WITH v(i) AS (VALUES (1)) SELECT i, 'cte', i, [i] FROM v",
    "(id, note) SELECT a.i, b.s FROM (VALUES (1), (2)) a(i) ASOF JOIN (VALUES (1, 'x')) b(i, s) "
    "ON a.i >= b.i",
    "(id, note) SELECT unnest([1, 2]), unnest(['a', 'b'])",
    "SELECT * FROM nowhere",
    "VALUES (1, 'a')  GARBAGE",
    "VALUES ((SELECT 1), (SELECT 'a' WHERE false), 1, NULL)",
    "VALUES (error('no'), 'a', 1, NULL)",
    "VALUES (1, 'a' || chr(10) || 'b', 1e-9, [1, 2, 3])",
]  # fmt: skip


def test_statements_of_every_kind(cursor: Any, name: str) -> None:
    columns = "id BIGINT NOT NULL, note VARCHAR DEFAULT 'none', price DECIMAL(9,2) DEFAULT 0.5"
    direct, queued = twins(cursor, name, f"{columns}, l INTEGER[]")
    for statement in STATEMENTS:
        in_the_lake = outcome(cursor, f"INSERT INTO {direct} {statement}")
        in_the_queue = outcome(cursor, f"INSERT INTO duckling_queue.{queued} {statement}")
        assert (statement, in_the_queue) == (statement, in_the_lake)
    expected = content(cursor, direct)
    assert content(cursor, f"duckling_queue.{queued}") == expected
    flush(cursor, queued)
    assert content(cursor, queued) == expected


def test_session_settings_apply(cursor: Any, name: str) -> None:
    """A time without a zone is in the session's zone, in the queue as in the table."""
    direct, queued = twins(cursor, name, "v TIMESTAMPTZ, w TIMESTAMP DEFAULT '2024-01-01'")
    for zone in ("America/New_York", "Asia/Tokyo"):
        cursor.execute(f"SET TimeZone = '{zone}'")
        cursor.execute(f"INSERT INTO {direct} (v) VALUES ('2024-07-01 12:00:00')")
        cursor.execute(f"INSERT INTO duckling_queue.{queued} (v) VALUES ('2024-07-01 12:00:00')")
    expected = content(cursor, direct)
    assert content(cursor, f"duckling_queue.{queued}") == expected
    flush(cursor, queued)
    assert content(cursor, queued) == expected


@pytest.mark.parametrize("kind", ["VARIANT", "GEOMETRY", "STRUCT(a GEOMETRY)[]"])
def test_unsupported_types_are_refused(cursor: Any, name: str, kind: str) -> None:
    cursor.execute(f"CREATE TABLE {name} (v {kind})")
    refusal = outcome(cursor, f"INSERT INTO duckling_queue.{name} VALUES (NULL)")
    assert refusal == "NOT_SUPPORTED"

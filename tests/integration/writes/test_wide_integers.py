"""HUGEINT and UHUGEINT keep all their digits, or are refused."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from tests.integration.writes.both_sides import Ours, Writes

#: More digits than a DOUBLE has; stock DuckDB reads a neighbour of it.
ODD = 2**53 + 1
WIDEST = 10**38 - 1
TOO_WIDE = 2**127 - 1


def rows(side: Ours, table: str) -> list[str]:
    found = side.run(f"SELECT r::VARCHAR FROM {table} r ORDER BY 1")
    return [] if found is None else [row[0] for row in found]


@pytest.mark.parametrize("value", [ODD, -WIDEST, WIDEST], ids=["odd", "low", "high"])
def test_files_hold_every_digit(
    schema: str,
    ours: Ours,
    other_program: duckdb.DuckDBPyConnection,
    native_only: None,
    tmp_path: Path,
    value: int,
) -> None:
    Path(tmp_path / "in.csv").write_text(f"{value}\n")
    ours.run("CREATE TABLE t (h HUGEINT)")
    ours.run(f"INSERT INTO t VALUES ({value})")
    ours.run("INSERT INTO t SELECT h FROM t")
    ours.run("INSERT INTO t SELECT ?::HUGEINT", [str(value)])
    ours.run(f"COPY t FROM '{tmp_path / 'in.csv'}'")
    ours.run("CREATE TABLE c AS SELECT h, abs(h)::UHUGEINT AS u, {'h': [h]} AS s FROM t")
    for read in (
        lambda sql: ours.run(sql),
        lambda sql: other_program.execute(sql).fetchall(),
    ):
        at = f"swanlake.{schema}"
        assert [row[0] for row in read(f"SELECT h::VARCHAR FROM {at}.t")] == [str(value)] * 4
        found = read(f"SELECT DISTINCT (h, u, s)::VARCHAR FROM {at}.c")
        assert found == [(f"({value}, {abs(value)}, {{'h': [{value}]}})",)]
        assert read(f"SELECT count(*) FROM {at}.c WHERE h = {value} AND u = {abs(value)}") == [(4,)]
        assert read(f"SELECT count(*) FROM {at}.c WHERE h = {value - 1}") == [(0,)]


def test_sum_of_a_bigint_is_stored_exactly(schema: str, ours: Ours, native_only: None) -> None:
    ours.run(f"CREATE TABLE s AS SELECT sum(x) AS total FROM (VALUES ({ODD - 1}), (1)) v(x)")
    assert ours.run("SELECT total::VARCHAR FROM s") == [(str(ODD),)]


@pytest.mark.covering(2)
@pytest.mark.parametrize(
    "column",
    ["HUGEINT", "UHUGEINT", "HUGEINT[]", "STRUCT(h HUGEINT)"],
    ids=["h", "u", "list", "struct"],
)
@pytest.mark.parametrize("is_open", [False, True], ids=["autocommit", "transaction"])
def test_values_that_no_file_holds_are_refused(
    schema: str, ours: Ours, writes: Writes, column: str, is_open: bool
) -> None:
    ours.run(f"CREATE TABLE t (v {column})")
    value = {"HUGEINT[]": "[{}]", "STRUCT(h HUGEINT)": "{{'h': {}}}"}.get(column, "{}")
    if is_open:
        ours.run("BEGIN")
    ours.run(f"INSERT INTO t SELECT {value.format(1)}")
    identifier, words = ours.run(f"INSERT INTO t SELECT {value.format(TOO_WIDE)}")
    assert (identifier, words.count("\n")) == ("CONVERSION_ERROR", 0)
    if is_open:
        assert ours.run("COMMIT")[0] == "TRANSACTION_ABORTED"
        ours.run("ROLLBACK")
    assert len(rows(ours, "t")) == (0 if is_open else 1)
    assert writes.orphans(schema) == [] or is_open


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE t SET n = n + 1",
        f"UPDATE t SET h = {ODD + 2} WHERE n = 2",
        "UPDATE t SET n = 5 FROM (SELECT 1)",
        "MERGE INTO t USING (SELECT 1 AS n) s USING (n) WHEN MATCHED THEN UPDATE SET l = NULL",
        f"MERGE INTO t USING (SELECT {ODD}::HUGEINT AS h, 7 AS n) s USING (n) "
        "WHEN NOT MATCHED THEN INSERT (h, n) VALUES (h, n)",
        f"EXECUTE p({ODD})",
    ],
)
@pytest.mark.parametrize("is_open", [False, True], ids=["autocommit", "transaction"])
def test_change_by_the_extension_that_would_lose_digits_is_refused(
    schema: str, ours: Ours, native_only: None, change: str, is_open: bool
) -> None:
    ours.run("CREATE TABLE t (h HUGEINT, n INTEGER, l HUGEINT[])")
    ours.run(f"INSERT INTO t VALUES ({ODD}, 1, [{ODD}]), (2, 2, [2])")
    ours.run("PREPARE p AS INSERT INTO t VALUES ($1, 9, NULL)")
    before = rows(ours, "t")
    if is_open:
        ours.run("BEGIN")
    identifier, words = ours.run(change)
    assert (identifier, "would lose digits" in words) == ("CONVERSION_ERROR", True)
    if is_open:
        assert ours.run("COMMIT")[0] == "TRANSACTION_ABORTED"
        ours.run("ROLLBACK")
    assert rows(ours, "t") == before


def test_changes_of_small_integers_go_on(schema: str, ours: Ours) -> None:
    ours.run("CREATE TABLE t (h HUGEINT, n INTEGER)")
    ours.run(f"INSERT INTO t VALUES ({2**53 - 1}, 1), ({1 - 2**53}, 2)")
    assert ours.run("UPDATE t SET n = n + 1") == 2
    ours.run("BEGIN")
    assert ours.run("INSERT INTO t VALUES (3, 4)") == 1
    assert ours.run("DELETE FROM t WHERE n = 2") == 1
    ours.run("COMMIT")
    assert rows(ours, "t") == [f"{{'h': {1 - 2**53}, 'n': 3}}", "{'h': 3, 'n': 4}"]


@pytest.mark.parametrize(
    "call",
    [
        "CALL swanlake.merge_adjacent_files()",
        "CALL ducklake_rewrite_data_files('swanlake')",
        "CALL ducklake_flush_inlined_data('swanlake')",
        "CHECKPOINT swanlake",
    ],
)
def test_rewrite_by_the_extension_is_refused(schema: str, ours: Ours, call: str) -> None:
    ours.run("CREATE TABLE t (h HUGEINT)")
    identifier, words = ours.run(call)
    assert (identifier, "CALL swanlake_compact()" in words) == ("NOT_SUPPORTED", True)


def test_queue_keeps_every_digit_and_refuses_what_no_file_holds(schema: str, ours: Ours) -> None:
    ours.run("CREATE TABLE t (h HUGEINT, u UHUGEINT)")
    queue = f"duckling_queue.{schema}.t"
    assert ours.run(f"INSERT INTO {queue} VALUES ({-WIDEST}, {ODD})") == 1
    for refused in (f"{TOO_WIDE}, NULL", f"NULL, '{2**128 - 1}'"):
        assert ours.run(f"INSERT INTO {queue} VALUES ({refused})")[0] == "CONSTRAINT_ERROR"
    ours.run(f"CALL duckling_queue_flush('swanlake.{schema}.t')")
    assert rows(ours, "t") == [f"{{'h': {-WIDEST}, 'u': {ODD}}}"]

"""Files that a query does not read have no rows for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from itertools import product
from typing import Any

import duckdb
import pytest

from swanlake._internal.waiting import never_cancelled
from swanlake.lake.model.layout import Column
from swanlake.lake.model.table_state import ScanFile
from swanlake.lake.read.pruning import ColumnBounds, select_files
from swanlake.lake.read.snapshot_cache import CatalogStates
from swanlake.sql.quoting import literal
from swanlake.sql.syntax_tree import read_syntax_tree
from tests.integration.lake.fixtures import LakeHarness

#: Values in the files of a table, one list for each file, by the type of the column.
FILES: Mapping[str, Sequence[Sequence[str]]] = {
    "BIGINT": [["1", "5"], ["-9223372036854775808"], ["9223372036854775807", "NULL"], ["NULL"]],
    "UBIGINT": [["0", "7"], ["18446744073709551615"], ["8", "NULL"]],
    "TINYINT": [["-128", "-1"], ["0"], ["127"]],
    "DECIMAL(18, 3)": [["1.5", "2.25"], ["-100"], ["99999999999.999", "NULL"]],
    "DOUBLE": [["0.1", "0.3"], ["'nan'", "1"], ["'-inf'"], ["'inf'"], ["-0.0"], ["1e300", "NULL"]],
    "FLOAT": [["0.1"], ["0.3"], ["'nan'"]],
    "VARCHAR": [
        ["'a'", "'b'"],
        ["''"],
        ["'Z'", "'a b'"],
        ["'日本'"],
        [f"'{'z' * 300}'", f"'{'z' * 260}y'"],
        ["'2026-01-01'"],
        ["NULL"],
    ],
    "DATE": [
        ["'2026-01-01'", "'2026-02-01'"],
        ["'0001-01-01'"],
        ["'infinity'"],
        ["'0044-03-15 (BC)'"],
        ["'12026-01-01'", "NULL"],
    ],
    "TIMESTAMP": [
        ["'2026-01-01 00:00:00'", "'2026-01-01 12:30:00.5'"],
        ["'-infinity'"],
        ["'2026-01-02'", "NULL"],
        ["'9999-12-31 23:59:59.999999'"],
    ],
    "BOOLEAN": [["true"], ["false"]],
    "UUID": [["'00000000-0000-0000-0000-000000000001'"], ["uuid()"]],
}
#: What columns are compared with: as text, or bound.
LITERALS = [
    *"1 0 -1 5 7 127 9223372036854775807 -128 1.5 2.25 99999999999.999 0.1 0.3".split(),
    "'a'",
    "'b'",
    "''",
    "'Z'",
    "'日本'",
    "'zz'",
    f"'{'z' * 260}'",
    f"'{'z' * 300}'",
    "'2026-01-01'",
    "'2026-01-01 12:30:00.5'",
    "DATE '2026-01-01'",
    "DATE '2026-01-15'",
    "TIMESTAMP '2026-01-01 12:30:00.5'",
    "TIMESTAMP '2026-01-02'",
]
BOUND: list[Any] = [
    "2026-01-01",
    "2026-01-01 12:30:00",
    "1",
    1,
    5,
    -(2**63),
    2**63 - 1,
    Decimal("1.5"),
    0.1,
    float("nan"),
    float("inf"),
    "a",
    "zz",
    date(2026, 1, 1),
    datetime(2026, 1, 1, 12, 30),
    datetime(2026, 1, 2),
]
OPERATORS = ("=", "<", "<=", ">", ">=")
#: Types whose files are certainly left out by some of the conditions.
PRUNED = {
    "BIGINT",
    "UBIGINT",
    "TINYINT",
    "DECIMAL(18, 3)",
    "DOUBLE",
    "VARCHAR",
    "DATE",
    "TIMESTAMP",
}


@pytest.mark.parametrize("type_", FILES)
def test_files_that_are_left_out_have_no_rows(harness: LakeHarness, type_: str) -> None:
    catalog = harness.lake.create_catalog("c")
    harness.attach(catalog)
    harness.sql(f"CREATE TABLE c.t (v {type_})")
    for values in FILES[type_]:
        rows = ", ".join(f"(CAST({value} AS {type_}))" for value in values)
        harness.sql(f"INSERT INTO c.t VALUES {rows}")
    states = CatalogStates(catalog)
    read = states.read([("main", "t")], never_cancelled)
    assert read is not None
    [state] = read.states
    assert len(state.files) == len(FILES[type_])
    [column] = state.table.columns

    def bounds(_: Column) -> ColumnBounds | None:
        return states.bounds(("main", "t"), column.id)

    left_out = 0
    conditions: list[tuple[str, list[Any]]] = [
        *((f"v {operator} {value}", []) for operator, value in product(OPERATORS, LITERALS)),
        *((f"v {operator} $1", [value]) for operator, value in product(OPERATORS, BOUND)),
        ("v IS NULL", []),
        ("v BETWEEN '2025-12-31' AND $1", ["2026-01-01"]),
        ("v IN (1, 2, 3)", []),
        ("v IN ('a', 'zz')", []),
    ]
    for condition, values in conditions:
        tree = read_syntax_tree(harness.duck, f"SELECT * FROM t WHERE {condition}")
        assert tree is not None
        found = [
            (column, one)
            for filters in tree.filters
            for _, one in filters.of_table({filters.start: frozenset({"v"})})
        ]
        named = {str(number): value for number, value in enumerate(values, 1)}
        chosen = select_files(state.files, found, bounds, named)
        gone = [file for file in state.files if file not in chosen]
        left_out += len(gone) if condition != "v IS NULL" else 0
        assert (condition, values, matches(harness, gone, type_, condition, values)) == (
            condition,
            values,
            [],
        )
    assert (left_out > 0) == (type_ in PRUNED)


def matches(
    harness: LakeHarness, files: Sequence[ScanFile], type_: str, condition: str, values: list[Any]
) -> list[tuple[Any, ...]]:
    """The rows of files that satisfy a condition; none if DuckDB refuses to compare them."""
    if not files:
        return []
    paths = ", ".join(literal(file.path) for file in files)
    source = f"(SELECT CAST(v AS {type_}) AS v FROM read_parquet([{paths}], can_have_nan = true))"
    try:
        return harness.duck.execute(f"SELECT v FROM {source} WHERE {condition}", values).fetchall()
    except duckdb.Error:  # then the whole query fails, whichever files it reads
        return []


def test_a_column_that_was_dropped_meanwhile_has_no_bounds(harness: LakeHarness) -> None:
    catalog = harness.lake.create_catalog("c")
    harness.attach(catalog)
    harness.sql("CREATE TABLE c.t (v INTEGER, w INTEGER)")
    states = CatalogStates(catalog)
    before = states.read([("main", "t")], never_cancelled)
    assert before is not None
    dropped, kept = before.states[0].table.columns
    harness.sql("ALTER TABLE c.t DROP COLUMN v")
    assert states.read([("main", "t")], never_cancelled) is not None
    assert states.bounds(("main", "t"), dropped.id) is None
    assert states.bounds(("main", "t"), kept.id) is not None

"""The Go ADBC driver for Flight SQL, used by a Go program."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.drivers.conftest import Scenario, run_and_cancel
from tests.flight import FlightSql
from tests.server_process import ServerProcess

pytestmark = pytest.mark.slow
USABLE = '[{"usable":"yes"}]'


def test_metadata_can_be_browsed(go: Scenario) -> None:
    assert go("browse") == [
        *("swanlake true", "go_browsed true", "items true", "id true", "price true"),
        *("id int64", "price decimal(12, 3)"),
    ]


def test_results_are_read(go: Scenario) -> None:
    [line] = go("query")
    assert json.loads(line) == [
        {
            "d": "1",
            "b": 2,
            "v": "x",
            "t": True,
            "z": "2024-02-29T12:30:00.123456Z",
            "u": 2**64 - 1,
            "l": [1, 2],
            "s": {"a": 1},
            "n": None,
        }
    ]


def test_parameters_of_every_type_are_stored(go: Scenario) -> None:
    inserted, row, compared = go("parameters")
    assert inserted == "inserted 1"
    assert list(json.loads(row)[0].values()).count(None) == 0
    assert compared == '[{"equal":1}]'


def test_bulk_ingestion_creates_and_appends(go: Scenario) -> None:
    assert go("ingest") == ["ingested 100000"] * 2 + ['[{"n":200000,"s":9999900000}]']


def test_database_sql_prepares_statements_with_parameters(go: Scenario) -> None:
    assert go("standard")[-1] == "one"


def test_computing_query_times_out(go: Scenario) -> None:
    assert go("timeout") == ["timed out Timeout", USABLE]


def test_computing_query_is_cancelled_with_its_context(
    go_program: Path, server: ServerProcess, flight_sql: Callable[..., FlightSql]
) -> None:
    lines = run_and_cancel([go_program, "cancel", server.url], flight_sql())
    assert lines == ["cancelled Cancelled", USABLE]

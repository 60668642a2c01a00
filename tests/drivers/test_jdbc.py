"""The Arrow Flight SQL JDBC driver, used by a Java program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from swanlake.cli.commands import swanlake as command
from tests.cli_results import assert_succeeded
from tests.credentials import write_tokens
from tests.drivers.conftest import JAVA_OPTIONS, Scenario, jdbc_url, run_program
from tests.server_process import ServerProcess

pytestmark = pytest.mark.slow


def test_metadata_can_be_browsed(jdbc: Scenario) -> None:
    assert jdbc("browse") == [
        "product | SwanLake",
        "catalogs | true",
        "schemas | [browsed]",
        "table types | [LOCAL TEMPORARY, TABLE, VIEW]",
        "tables | [items]",
        "primary key | [a, b]",
        "types | []",  # the driver does not ask the server
        "id | BIGINT | 19 | 0 | NO | NO",
        "name | VARCHAR | 65536 | null | YES | NO",
        "price | DECIMAL(12,3) | 12 | 3 | YES | NO",
        "moment | TIMESTAMP WITH TIME ZONE | 32 | 6 | YES | NO",
    ]


def test_results_have_types_that_the_driver_reads(jdbc: Scenario) -> None:
    """Name, type, precision and scale of each column, and its value by getObject()."""
    assert jdbc("query") == [
        "d | DECIMAL | 12 | 3 | 1.000",
        "b | BIGINT | 19 | 0 | 2",
        "v | VARCHAR | 0 | 0 | x",
        "z | TIMESTAMP | 32 | 0 | 2024-02-29 12:30:00.123456",
        "u1 | SMALLINT | 3 | 0 | 255",
        "u2 | INTEGER | 5 | 0 | 65535",
        "u4 | BIGINT | 10 | 0 | 4294967295",
        "u8 | DECIMAL | 20 | 0 | 18446744073709551615",
        "h | DECIMAL | 38 | 0 | 12",
        "u | VARCHAR | 36 | 0 | 00000000-0000-0000-0000-000000000001",
        "l | ARRAY | 0 | 0 | [1,2]",
        's | JAVA_OBJECT | 0 | 0 | {"a":1}',
        "i | JAVA_OBJECT | 32 | 0 | P3D PT0S",
        "n | INTEGER | 10 | 0 | null",
        "instant | 2024-02-29T12:30:00.123456Z",
    ]


def test_parameters_of_every_type_are_stored_and_compared(jdbc: Scenario) -> None:
    inserted, nulls, row = jdbc("parameters")
    assert inserted == nulls == "inserted | 1"
    assert row.split(" | ") == [
        *("true", "-5", "300", "70000", "5000000000", "1180591620717411303424"),
        *("1.5", "2.25", "123.456", "Zoë", "00ff", "2024-02-29", "12:30:15"),
        *("2024-02-29 12:30:15.123", "2024-02-29 12:30:15.123"),
        *("00000000-0000-0000-0000-000000000001", "P3D PT0S", "7", '{"a":1}', "[1,2]"),
    ]


def test_batches_are_executed_as_a_whole(jdbc: Scenario) -> None:
    assert jdbc("batch") == [
        "counts | [1000]",  # the driver returns one count for all rows
        "counts | [2]",
        "1000 | 2023-11-14 22:13:20.999 | 2",
    ]


def test_transactions_are_text(jdbc: Scenario) -> None:
    """The driver's commit() and rollback() do nothing: the last row stays."""
    assert jdbc("transactions") == ["0", "1", "2"]


def test_statements_return_rows_counts_and_errors(jdbc: Scenario) -> None:
    *lines, error = jdbc("statements")
    assert lines == [
        "update | 2",
        "has rows | true",
        "has rows | false",
        "count | 1",
        "3",
        "i | INTEGER | YES | null | NULL | null",
    ]
    assert error.startswith("error | null | ")  # the driver has no SQLState
    assert "CATALOG_ERROR: " in error


def test_computing_query_can_be_cancelled(jdbc: Scenario) -> None:
    cancelled, usable = jdbc("cancel")
    assert cancelled.startswith("cancelled | Error while executing SQL")
    assert usable == "usable"


def test_computing_query_times_out(jdbc: Scenario) -> None:
    timed_out, usable = jdbc("timeout")
    assert "Query timed out after 1 SECONDS" in timed_out
    assert usable == "usable"


def test_user_and_token_log_in(
    jdbc_classes: str, start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    write_tokens(tmp_path / "home0", alice="the-token-of-alice")
    server = start_server("--auth", "any")
    arguments = ["user", "create", "carol", "--role", "admin", "--home", str(server.home)]
    assert_succeeded(CliRunner().invoke(command, arguments, input="correct horse"))
    program = ["java", *JAVA_OPTIONS, "-cp", jdbc_classes, "JdbcProgram"]

    def run(scenario: str, credentials: str) -> list[str]:
        return run_program([*program, scenario, f"{jdbc_url(server)}&{credentials}"])

    assert run("transactions", "user=carol&password=correct%20horse") == ["0", "1", "2"]
    assert run("batch", "token=the-token-of-alice")
    with pytest.raises(AssertionError, match="UNAUTHENTICATED"):
        run("batch", "user=carol&password=wrong")

"""Fetches stock drivers with the clients of their registries, and builds programs with them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.flight import FlightSql
from tests.server_process import ServerProcess
from tests.waiting import eventually

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
_JDBC_DRIVER = "org.apache.arrow:flight-sql-jdbc-driver:18.3.0"
#: Arrow's memory in Java needs the first; the driver shifts timestamps in other zones.
JAVA_OPTIONS = ("--add-opens=java.base/java.nio=ALL-UNNAMED", "-Duser.timezone=UTC")

#: Runs a scenario of a program; returns the lines that it prints.
Scenario = Callable[[str], list[str]]


def run_program(command: Sequence[str | Path], directory: Path | None = None) -> list[str]:
    """The lines that a command prints; fails with its messages if it fails."""
    ended = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=1800)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()


def run_and_cancel(command: Sequence[str | Path], client: FlightSql) -> list[str]:
    """The lines of a program that prints ``running``, and cancels when a line is entered."""
    eventually(lambda: client.status()["statements_running"] == 0)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "running\n"
        eventually(lambda: client.status()["statements_running"] == 1)
        output, _ = program.communicate("\n", timeout=300)
    assert program.returncode == 0
    eventually(lambda: client.status()["statements_running"] == 0)
    return output.splitlines()


@pytest.fixture(scope="session")
def jdbc_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The JAR of the Arrow Flight SQL JDBC driver."""
    directory = tmp_path_factory.mktemp("jdbc-driver")
    run_program(
        ["mvn", "-q", "-B", _COPY, f"-Dartifact={_JDBC_DRIVER}", f"-DoutputDirectory={directory}"]
    )
    [driver] = directory.glob("*.jar")
    return driver


@pytest.fixture(scope="session")
def jdbc_classes(jdbc_driver: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The class path of the JDBC program."""
    directory = tmp_path_factory.mktemp("jdbc-program")
    run_program(["javac", "-d", directory, Path(__file__).parent / "jdbc" / "JdbcProgram.java"])
    return f"{directory}:{jdbc_driver}"


def jdbc_url(server: ServerProcess) -> str:
    """The server's address for the JDBC driver."""
    return f"jdbc:arrow-flight-sql://127.0.0.1:{server.port}/?useEncryption=false"


@pytest.fixture
def jdbc(server: ServerProcess, jdbc_classes: str) -> Scenario:
    """Runs a scenario of the JDBC program."""

    def run(scenario: str) -> list[str]:
        command = ["java", *JAVA_OPTIONS, "-cp", jdbc_classes, "JdbcProgram", scenario]
        return run_program([*command, jdbc_url(server)])

    return run


@pytest.fixture(scope="session")
def go_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that uses the Go ADBC driver."""
    program = tmp_path_factory.mktemp("go-program") / "program"
    command: list[str | Path] = ["go", "build", "-buildvcs=false", "-o", program, "."]
    run_program(command, Path(__file__).parent / "go")
    return program


@pytest.fixture
def go(server: ServerProcess, go_program: Path) -> Scenario:
    """Runs a scenario of the Go program."""
    return lambda scenario: run_program([go_program, scenario, server.url])

"""The commands and programs of the README run as printed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb

README = Path(__file__).parents[2] / "README.md"
DEFAULT_URL = "grpc://127.0.0.1:4214"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)


def test_readme_examples_run(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    environment = {"SWANLAKE_URL": server.url, "SWANLAKE_HOME": str(server.home)}

    def run(*command: str) -> str:
        finished = subprocess.run(
            command, capture_output=True, text=True, env=environment, check=False
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def run_block(containing: str) -> list[str]:
        (shell,) = [block for block in blocks("sh") if containing in block]
        return [
            run(sys.executable, "-m", "swanlake", *shlex.split(line)[1:])
            for line in shell.splitlines()
            if line.startswith(".venv/bin/swanlake")
        ]

    output = run_block("swanlake ping")
    assert "accepting" in output[0]
    assert "Bern" in output[-1]
    first, second, own = (block.replace(DEFAULT_URL, server.url) for block in blocks("python"))
    assert run(sys.executable, "-c", first).startswith("2 rows written")
    run(sys.executable, "-c", "import adbc_driver_flightsql.dbapi as adbc\n" + second)
    assert run(sys.executable, "-c", own) == "3\n"

    output = run_block("swanlake_fork_catalog")
    assert "miles" in output[2]
    miles = [line.split("│")[2:4] for line in output[2].splitlines() if "Bern" in line]
    assert ["7.8", "12.5"] in [[text.strip() for text in row] for row in miles]
    assert "trial" in output[3]

    output = run_block("duckling_queue")
    assert re.search(r"│ +6 │", output[1])
    assert "open" in output[2]
    assert re.search(r"│ +2 │", output[3])

    (sql,) = [block for block in blocks("sql") if "ATTACH" in block]
    stock = stock_duckdb()
    rows: list[Any] = stock.execute(sql.replace("swanlake-home", str(server.home))).fetchall()
    assert sorted(row[0] for row in rows) == ["Bern", "Bern", "Lund", "Oslo", "Riga", "Turku"]
    assert stock.execute("SELECT count(*) FROM lake.numbers").fetchone() == (1_000_000,)
    stock.close()

"""Fixtures of several fault tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def crash_sqlite_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes SQLite workers started from now on crash at a step, a number of times."""
    folder = tmp_path / "crashes"
    folder.mkdir()
    start = subprocess.Popen

    def start_crashing(command: list[Any], **options: Any) -> Any:
        replaced = [
            "tests.faults.crashing_sqlite_worker" if "sqlite_worker" in str(word) else word
            for word in command[:3]
        ]
        return start([*replaced, *command[3:]], **options)

    def crash(step: str, times: int) -> Path:
        for number in range(times):
            (folder / str(number)).touch()
        monkeypatch.setenv("SWANLAKE_TEST_CRASH_AT", step)
        monkeypatch.setenv("SWANLAKE_TEST_CRASHES", str(folder))
        monkeypatch.setattr("swanlake._internal.subprocess_rpc.subprocess.Popen", start_crashing)
        return folder

    return crash

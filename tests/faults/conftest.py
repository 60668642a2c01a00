"""What several fault tests share."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def deaths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Makes the keepers that are started from now on die at a step, a number of times."""
    folder = tmp_path / "deaths"
    folder.mkdir()
    start = subprocess.Popen

    def dying(command: list[Any], **options: Any) -> Any:
        swapped = ["tests.faults.dying_keeper" if "keeper" in str(c) else c for c in command[:3]]
        return start([*swapped, *command[3:]], **options)

    def die(step: str, times: int) -> Path:
        for number in range(times):
            (folder / str(number)).touch()
        monkeypatch.setenv("SWANLAKE_DIE_AT", step)
        monkeypatch.setenv("SWANLAKE_DEATHS", str(folder))
        monkeypatch.setattr("swanlake.child.subprocess.Popen", dying)
        return folder

    return die

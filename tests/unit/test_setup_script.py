"""``scripts/setup`` says what it installs and how long it takes, and shows why a step failed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

SETUP = Path(__file__).parents[2] / "scripts" / "setup"


def run_steps(program: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that may use the script's function ``step``."""
    function = re.search(r"^step\(\) \{\n.*?^\}\n", SETUP.read_text(), re.DOTALL | re.MULTILINE)
    assert function is not None
    text = f"set -euo pipefail\n{function[0]}\n{program}"
    return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=False)


def test_step_tells_its_title_and_its_time_and_hides_its_output() -> None:
    done = run_steps("step 'Python packages' echo noise")
    assert done.returncode == 0
    assert re.fullmatch(r"Python packages …\nPython packages: done in \d+ s\n", done.stdout), (
        done.stdout
    )
    assert done.stderr == ""


def test_step_that_fails_shows_its_output_and_ends_the_script() -> None:
    failed = run_steps("step 'Python packages' bash -c 'echo the reason; exit 7'\necho not reached")
    assert failed.returncode == 7
    assert failed.stderr == "\nPython packages failed:\nthe reason\n"
    assert "not reached" not in failed.stdout


def test_script_is_valid_bash() -> None:
    subprocess.run(["bash", "-n", str(SETUP)], check=True)

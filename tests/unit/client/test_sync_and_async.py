"""The API for threads is generated from the one for tasks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_generated_sync_client_is_current() -> None:
    script = ROOT / "scripts" / "generate_sync_client.py"
    check = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert check.returncode == 0, check.stderr

"""Processes of tests are forks of one template."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.preloaded import ADDRESS_VARIABLE, ForkedProcess, start


def test_fork_has_the_template_of_its_parent(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"import os; print(os.environ[{ADDRESS_VARIABLE!r}], flush=True)")
    with ForkedProcess([str(program)], stdout=subprocess.PIPE, env={}) as process:
        assert process.stdout is not None
        with process.stdout as output:
            assert output.read().decode() == f"{start()}\n"

"""What a command of the CLI answered."""

from __future__ import annotations

import re

from click.testing import Result


def refused(result: Result, code: int, sentence: str) -> None:
    """The command ended with this code and one sentence, and printed nothing else."""
    assert result.exit_code == code, result.output
    assert re.search(sentence, result.stderr), result.stderr
    assert result.stderr.startswith("swanlake: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def done(result: Result) -> str:
    """What it printed; it complained about nothing."""
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout

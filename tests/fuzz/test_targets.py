"""No input of a stranger breaks what reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS, corpus

CAMPAIGN = Path(__file__).with_name("campaign.py")
#: Ten minutes for all targets together.
SECONDS = 600 // len(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_is_read(name: str) -> None:
    inputs = corpus(name)
    assert inputs
    for data in inputs:
        TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_any_input_is_read_or_refused(name: str, data: bytes) -> None:
    TARGETS[name](data)


@pytest.mark.parametrize("name", TARGETS)
@given(st.data())
def test_changed_input_is_read_or_refused(name: str, data: st.DataObject) -> None:
    content = bytearray(data.draw(st.sampled_from(corpus(name))))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(content)))
        end = data.draw(st.integers(start, min(start + 8, len(content))))
        content[start:end] = data.draw(st.binary(max_size=8))
    TARGETS[name](bytes(content))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", TARGETS)
def test_campaign_finds_nothing(name: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="it has wheels for Linux only")
    command = [sys.executable, str(CAMPAIGN), name, str(tmp_path), str(SECONDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert list(tmp_path.glob("failed-*")) == []

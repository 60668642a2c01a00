"""The spill buffer is first in, first out, in memory and on disk."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake._internal.memory_budget import Charge, MemoryBudget
from swanlake.sessions.results.spill import SpillBuffer
from swanlake.sessions.results.stream import rows_per_batch

SCHEMA = pa.schema([("i", pa.int64())])


def charge(limit: int) -> Charge:
    return MemoryBudget(limit).account("alice").open()


def batch(number: int, rows: int = 10) -> pa.RecordBatch:
    return pa.record_batch([pa.array([number] * rows, pa.int64())], schema=SCHEMA)


@given(
    limit=st.sampled_from([0, 80, 160, 1000]),
    steps=st.lists(st.sampled_from(["append", "append", "take"]), max_size=40),
)
def test_order_is_first_in_first_out(
    limit: int, steps: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    buffer = SpillBuffer(SCHEMA, limit, tmp_path_factory.getbasetemp(), charge(200))
    model: list[int] = []
    for number, step in enumerate(steps):
        if step == "append":
            buffer.append(batch(number))
            model.append(number)
        else:
            taken = buffer.take()
            assert (taken["i"][0].as_py() if taken else None) == (model.pop(0) if model else None)
    while (taken := buffer.take()) is not None:
        assert taken["i"][0].as_py() == model.pop(0)
    assert model == []
    buffer.close()


def test_batches_beyond_the_callers_share_go_to_files(tmp_path: Path) -> None:
    budget = MemoryBudget(320)
    buffer = SpillBuffer(SCHEMA, 1000, tmp_path, budget.account("alice").open())
    for number in range(3):
        buffer.append(batch(number))  # 80 bytes each; alone, a caller may have half
    assert (buffer.spilled, budget.held()) == (True, {"alice": 160})
    assert [taken["i"][0].as_py() for taken in buffer] == [0, 1, 2]
    assert budget.held() == {}


def test_buffer_that_is_dropped_gives_its_memory_back(tmp_path: Path) -> None:
    budget = MemoryBudget(1000)
    buffer = SpillBuffer(SCHEMA, 1000, tmp_path, budget.account("alice").open())
    buffer.append(batch(1))
    assert budget.held() == {"alice": 80}
    del buffer
    assert budget.held() == {}


def test_batches_over_the_limit_go_to_unlinked_files(tmp_path: Path) -> None:
    buffer = SpillBuffer(SCHEMA, 100, tmp_path, charge(sys.maxsize))
    buffer.append(batch(1))
    assert not buffer.spilled
    buffer.append(batch(2))
    assert buffer.spilled
    assert list(tmp_path.iterdir()) == []
    buffer.close()
    assert buffer.take() is None


def test_full_disk_raises_oserror(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        SpillBuffer(SCHEMA, 0, tmp_path / "missing", charge(0)).append(batch(1))


def test_batch_size_is_a_few_megabytes() -> None:
    assert rows_per_batch(1) == 131_072
    assert rows_per_batch(8) == 65_536
    assert rows_per_batch(10_000) == 2048
    assert rows_per_batch(0) > 0

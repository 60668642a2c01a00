"""What an Arrow stream needs once it is decoded, known before that."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swanlake._internal.arrow_sizes import decoded_bytes

CODECS = (None, "lz4", "zstd")


def stream(table: Any, codec: str | None) -> bytes:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@pytest.mark.parametrize("codec", CODECS)
def test_buffers_count_with_their_decompressed_size(codec: str | None) -> None:
    zeros = pa.table({"i": pa.array([0] * 1_000_000, pa.int64()), "s": ["x" * 10] * 1_000_000})
    content = stream(zeros, codec)
    assert codec is None or len(content) < 5_000_000
    assert 8_000_000 + 10_000_000 + 4_000_004 <= decoded_bytes(content) < 22_001_000


@pytest.mark.parametrize("codec", CODECS)
def test_dictionaries_count(codec: str | None) -> None:
    texts = [str(number) * 1000 for number in range(100)]
    table = pa.table({"d": pa.array(texts).dictionary_encode()})
    assert decoded_bytes(stream(table, codec)) >= sum(map(len, texts))


def test_stream_without_rows_needs_nothing() -> None:
    assert decoded_bytes(stream(pa.table({"i": pa.array([], pa.int64())}), "zstd")) == 0
    assert decoded_bytes(b"") == 0


VALUES = st.one_of(
    st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)), max_size=50),
    st.lists(st.text(max_size=50), max_size=50),
    st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=20),
)


@given(VALUES, st.sampled_from(CODECS))
def test_no_batch_needs_more_than_was_declared(values: list[Any], codec: str | None) -> None:
    content = stream(pa.table({"v": values}), codec)
    decoded = pa.ipc.open_stream(content).read_all()
    assert decoded.get_total_buffer_size() <= decoded_bytes(content) + 64


@given(st.binary(max_size=300))
def test_any_bytes_are_measured_or_refused(content: bytes) -> None:
    with suppress(ValueError):
        assert decoded_bytes(content) >= 0


@given(st.data())
def test_damaged_stream_is_measured_or_refused(data: st.DataObject) -> None:
    content = bytearray(stream(pa.table({"i": list(range(20)), "s": ["a"] * 20}), "zstd"))
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        assert decoded_bytes(bytes(content)) >= 0

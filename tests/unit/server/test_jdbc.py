"""The schemas for the JDBC driver."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from swanlake.server import jdbc


@pytest.mark.parametrize(
    ("kind", "parameter"),
    [
        (pa.timestamp("us"), pa.timestamp("ms")),
        (pa.timestamp("ns"), pa.timestamp("ms")),
        (pa.timestamp("us", "Europe/Paris"), pa.timestamp("ms", "Europe/Paris")),
        (pa.time64("us"), pa.time32("ms")),
        (pa.date32(), pa.date32()),
        (pa.month_day_nano_interval(), pa.string()),
        (pa.struct([("a", pa.int32())]), pa.string()),
        (pa.map_(pa.string(), pa.int32()), pa.string()),
        (pa.sparse_union([pa.field("a", pa.int32())]), pa.string()),
        (pa.list_(pa.int32()), pa.list_(pa.int32())),
        (pa.uint64(), pa.uint64()),
    ],
)
def test_parameters_have_types_that_the_driver_binds(kind: Any, parameter: Any) -> None:
    assert jdbc.parameter_schema(pa.schema([("1", kind)])).types == [parameter]


@pytest.mark.parametrize(
    ("kind", "sent", "announced"),
    [
        (pa.uint8(), pa.int16(), pa.int16()),
        (pa.uint16(), pa.int32(), pa.int32()),
        (pa.uint32(), pa.int64(), pa.int64()),
        (pa.uint64(), pa.decimal128(20, 0), pa.decimal128(20, 0)),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us")),
        (pa.timestamp("ns"), pa.timestamp("ns"), pa.timestamp("ns")),
    ],
)
def test_columns_have_types_that_the_driver_reads(kind: Any, sent: Any, announced: Any) -> None:
    schema = pa.schema([pa.field("a", kind, metadata={"k": "v"})])
    assert jdbc.result_schema(schema).types == [sent]
    assert jdbc.announced_schema(schema).types == [announced]
    assert jdbc.announced_schema(schema).field("a").metadata == {b"k": b"v"}


def test_schema_without_such_types_stays_the_same_object() -> None:
    schema = pa.schema([("a", pa.int32()), ("b", pa.string())])
    assert jdbc.parameter_schema(schema) is schema
    assert jdbc.announced_schema(schema) is schema

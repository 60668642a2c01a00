"""Converts DuckDB's Arrow types to those that stock clients read.

DuckDB can export every type without loss, but some only as opaque bytes. Those are converted:
BOOLEAN to a bit, HUGEINT to a decimal, UUID, JSON and ENUM to text, and types that Arrow lacks
(UHUGEINT, TIMETZ, BIT, BIGNUM) to the text that DuckDB prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from swanlake.sessions.execution.binding import VARIABLE_PREFIX

Convert = Callable[[Any], Any]

_HEX = np.frombuffer(b"".join(b"%02x" % byte for byte in range(256)), dtype=np.uint16)
#: Positions of the hyphens and of the hexadecimal digits in a UUID's text.
_HYPHENS = [8, 13, 18, 23]
_DIGITS = [i for i in range(36) if i not in _HYPHENS]
_BOUND_VARIABLE = re.compile(rf"getvariable\('{VARIABLE_PREFIX}(\w+)'\)")
_MAX_OFFSET_SECONDS = 16 * 3600 - 1


class WireFormat:
    """The conversion for one result: the schema that clients see, and batches in it."""

    def __init__(self, schema: Any) -> None:
        plans = [_plan(field.type) for field in schema]
        names = [column_name(field.name) for field in schema]
        self._converters = [plan[1] if plan else None for plan in plans]
        self.is_identity = not any(plans) and names == schema.names
        self.schema = schema
        if not self.is_identity:
            self.schema = pa.schema(
                pa.field(name, plan[0] if plan else field.type, field.nullable)
                for field, plan, name in zip(schema, plans, names, strict=True)
            )

    def convert(self, batch: Any) -> Any:
        """One batch in wire format; the same object if nothing had to change."""
        if self.is_identity:
            return batch
        columns = [
            convert(column) if convert else column
            for convert, column in zip(self._converters, batch.columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)


def column_name(name: str) -> str:
    """The column name for clients: a parameter passed to DuckDB as a variable is ``$1`` again."""
    return _BOUND_VARIABLE.sub(r"$\1", name)


def _plan(kind: Any) -> tuple[Any, Convert] | None:
    """The wire type of an Arrow type and its conversion; None if the type stays."""
    if isinstance(kind, pa.UuidType):
        return pa.string(), _uuid_text
    if isinstance(kind, pa.JsonType):
        return kind.storage_type, lambda array: array.storage
    if isinstance(kind, pa.Bool8Type):
        return pa.bool_(), lambda array: array.storage.cast(pa.bool_())
    if pa.types.is_dictionary(kind):
        # pyarrow's Flight server sends no dictionaries with the batches of a generator.
        return kind.value_type, lambda array: array.dictionary_decode()
    if isinstance(kind, pa.OpaqueType) and kind.vendor_name == "DuckDB":
        return _OPAQUE.get(kind.type_name)
    if isinstance(kind, pa.StructType):
        return _plan_struct(kind)
    if pa.types.is_map(kind):
        return _plan_map(kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _plan_list(kind)
    if pa.types.is_union(kind):
        return _plan_union(kind)
    return None


def _plan_list(kind: Any) -> tuple[Any, Convert] | None:
    inner = _plan(kind.value_type)
    if inner is None:
        return None
    child = _wire_field(kind.value_field, inner)
    if pa.types.is_fixed_size_list(kind):
        target, own_buffers = pa.list_(child, kind.list_size), 1
    else:
        target = pa.large_list(child) if pa.types.is_large_list(kind) else pa.list_(child)
        own_buffers = 2
    convert = inner[1]
    return target, lambda array: _rebuild(array, target, own_buffers, [convert(array.values)])


def _plan_map(kind: Any) -> tuple[Any, Convert] | None:
    key, item = _plan(kind.key_type), _plan(kind.item_type)
    if key is None and item is None:
        return None
    target = pa.map_(key[0] if key else kind.key_type, item[0] if item else kind.item_type)

    def convert(array: Any) -> Any:
        entries = array.values
        keys, items = entries.field(0), entries.field(1)
        struct = pa.StructArray.from_arrays(
            [key[1](keys) if key else keys, item[1](items) if item else items],
            fields=[target.key_field, target.item_field],
        )
        return _rebuild(array, target, 2, [struct])

    return target, convert


def _plan_struct(kind: Any) -> tuple[Any, Convert] | None:
    plans = [_plan(field.type) for field in kind]
    if not any(plans):
        return None
    fields = [_wire_field(field, plan) for field, plan in zip(kind, plans, strict=True)]

    def convert(array: Any) -> Any:
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(_children(array, plans), fields=fields, mask=mask)

    return pa.struct(fields), convert


def _plan_union(kind: Any) -> tuple[Any, Convert] | None:
    plans = [_plan(field.type) for field in kind]
    if not any(plans):
        return None
    fields = [_wire_field(field, plan) for field, plan in zip(kind, plans, strict=True)]
    names = [field.name for field in fields]

    def convert(array: Any) -> Any:
        # The children of a slice are sliced, but not what pyarrow calls its type codes.
        codes = np.frombuffer(array.buffers()[1], dtype=np.int8)
        codes = pa.array(codes[array.offset : array.offset + len(array)])
        return pa.UnionArray.from_sparse(codes, _children(array, plans), names, kind.type_codes)

    return pa.sparse_union(fields, kind.type_codes), convert


def _wire_field(field: Any, plan: tuple[Any, Convert] | None) -> Any:
    return pa.field(field.name, plan[0], field.nullable) if plan else field


def _children(array: Any, plans: list[tuple[Any, Convert] | None]) -> list[Any]:
    return [plan[1](array.field(i)) if plan else array.field(i) for i, plan in enumerate(plans)]


def _rebuild(array: Any, target: Any, own_buffers: int, children: list[Any]) -> Any:
    buffers = array.buffers()[:own_buffers]
    return pa.Array.from_buffers(
        target, len(array), buffers, array.null_count, array.offset, children
    )


def _hugeint(array: Any) -> Any:
    """HUGEINT and decimal128 are the same sixteen bytes."""
    storage = array.storage
    return pa.Array.from_buffers(
        pa.decimal128(38, 0), len(storage), storage.buffers(), storage.null_count, storage.offset
    )


def _uuid_text(array: Any) -> Any:
    storage = array.storage
    size = len(storage)
    if size == 0:
        return pa.array([], pa.string())
    raw = np.frombuffer(storage.buffers()[1], dtype=np.uint8)
    raw = raw[storage.offset * 16 : (storage.offset + size) * 16].reshape(size, 16)
    text = np.full((size, 36), ord("-"), dtype=np.uint8)
    text[:, _DIGITS] = _HEX[raw].view(np.uint8).reshape(size, 32)
    offsets = np.arange(0, 36 * (size + 1), 36, dtype=np.int32)
    strings = pa.StringArray.from_buffers(size, pa.py_buffer(offsets), pa.py_buffer(text))
    if not storage.null_count:
        return strings
    return pc.if_else(storage.is_valid(), strings, None)


def _each(convert: Callable[[bytes], str]) -> Convert:
    def converted(array: Any) -> Any:
        values = array.storage.to_pylist()
        return pa.array([None if v is None else convert(v) for v in values], pa.string())

    return converted


def uhugeint_text(raw: bytes) -> str:
    """The number as digits."""
    return str(int.from_bytes(raw, "little"))


def timetz_text(raw: bytes) -> str:
    """``12:00:00+02``: forty bits of microseconds over twenty-four bits of offset, counted down."""
    bits = int.from_bytes(raw, "little")
    seconds, micros = divmod(bits >> 24, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hour, minute = divmod(minutes, 60)
    text = f"{hour:02}:{minute:02}:{second:02}"
    if micros:
        text += f".{micros:06}".rstrip("0")
    offset = _MAX_OFFSET_SECONDS - (bits & 0xFFFFFF)
    hours, rest = divmod(abs(offset), 3600)
    text += f"{'-' if offset < 0 else '+'}{hours:02}"
    if rest:
        text += f":{rest // 60:02}"
    if rest % 60:
        text += f":{rest % 60:02}"
    return text


def bit_text(raw: bytes) -> str:
    """``10101``: the first byte says how many bits of the second are padding."""
    return "".join(f"{byte:08b}" for byte in raw[1:])[raw[0] :]


def bignum_text(raw: bytes) -> str:
    """The number as digits: a three-byte header, then the magnitude, all inverted when negative."""
    negative = not raw[0] & 0x80
    magnitude = bytes(~byte & 0xFF for byte in raw[3:]) if negative else raw[3:]
    return f"{'-' if negative else ''}{int.from_bytes(magnitude, 'big')}"


_OPAQUE: dict[str, tuple[Any, Convert]] = {
    "hugeint": (pa.decimal128(38, 0), _hugeint),
    "uhugeint": (pa.string(), _each(uhugeint_text)),
    "time_tz": (pa.string(), _each(timetz_text)),
    "bit": (pa.string(), _each(bit_text)),
    "bignum": (pa.string(), _each(bignum_text)),
}

"""Results as files: CSV and Parquet, written batch by batch while they are sent."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet

from swanlake.status.blocking import BlockingCalls
from swanlake.status.console.values import python_values, text_value

#: The formats and their media types.
FORMATS: Mapping[str, str] = {
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}
#: How long a statement may take for one batch.
_BATCH_SECONDS = 600.0


class Batches(Protocol):
    """The batches of a result."""

    def read(self) -> Any | None:
        """The next batch, or None at the end."""

    def close(self) -> None:
        """Ends reading."""


async def download(
    batches: Batches, schema: Any, name: str, calls: BlockingCalls
) -> AsyncIterator[bytes]:
    """The bytes of a file with all batches; the connection breaks if the statement fails."""
    file = _File(schema, name)
    try:
        while (content := await calls.run(lambda: file.next(batches), _BATCH_SECONDS)) is not None:
            if content:
                yield content
    finally:
        await calls.run(batches.close)


class _Sink:
    """Collects what a writer writes, until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._position = 0

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        self._position += len(self._parts[-1])
        return len(self._parts[-1])

    def tell(self) -> int:
        return self._position

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def take(self) -> bytes:
        content = b"".join(self._parts)
        self._parts.clear()
        return content


class _File:
    """A file that is written piece by piece."""

    def __init__(self, schema: Any, name: str) -> None:
        has_type = _in_csv if name == "csv" else _in_parquet
        self._schema = pa.schema(
            [
                field if has_type(field.type) else pa.field(field.name, pa.string())
                for field in schema
            ]
        )
        self._sink = _Sink()
        target = pa.PythonFile(self._sink, mode="w")
        if name == "csv":
            self._writer: Any = csv.CSVWriter(target, self._schema)
        else:
            self._writer = parquet.ParquetWriter(target, self._schema, compression="zstd")
        self._has_ended = False

    def next(self, batches: Batches) -> bytes | None:
        """The bytes of the next batch, or of the end of the file; None after that."""
        if self._has_ended:
            return None
        batch = batches.read()
        if batch is None:
            self._has_ended = True
            self._writer.close()
        else:
            self._writer.write_batch(self._convert(batch))
        return self._sink.take()

    def _convert(self, batch: Any) -> Any:
        columns = [
            column.cast(field.type)
            if column.type == field.type or not pa.types.is_string(field.type)
            else _as_text(column)
            for column, field in zip(batch.columns, self._schema, strict=True)
        ]
        return pa.record_batch(columns, schema=self._schema)


def _as_text(column: Any) -> Any:
    values = (None if value is None else text_value(value) for value in python_values(column))
    return pa.array(list(values), pa.string())


def _in_csv(type_: Any) -> bool:
    types = pa.types
    return not (
        types.is_nested(type_)
        or types.is_binary(type_)
        or types.is_large_binary(type_)
        or types.is_fixed_size_binary(type_)
        or types.is_dictionary(type_)
        or _is_only_in_arrow(type_)
    )


def _in_parquet(type_: Any) -> bool:
    children = (type_.field(place).type for place in range(type_.num_fields))
    is_unknown = pa.types.is_union(type_) or _is_only_in_arrow(type_)
    return not is_unknown and all(map(_in_parquet, children))


def _is_only_in_arrow(type_: Any) -> bool:
    return bool(pa.types.is_interval(type_) or isinstance(type_, pa.BaseExtensionType))

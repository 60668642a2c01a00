"""Results on a terminal or in a pipe: table, CSV, JSON, Arrow.

Values become text the way DuckDB itself prints them, in an engine of our own: Python has no dates
beyond the year 9999, no infinite ones, no nanoseconds and no intervals.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa

from swanlake.client.driver import Result
from swanlake.sql.quoting import identifier

FORMATS = ("table", "csv", "json", "arrow")
_MAX_TABLE_ROWS = 1000
#: What JSON can hold; values of all other types are written as text.
_JSON_SCALARS = frozenset(
    {"boolean", "tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger"}
    | {"ubigint", "hugeint", "uhugeint", "float", "double", "decimal", "varchar"}
)


def show(result: Result, output: str, *, quiet: bool = False) -> None:
    """Writes a result to standard output, batch by batch; a table shows its first thousand rows."""
    if len(result.schema) == 0:
        for _ in result.batches:
            pass
        if output == "table" and not quiet:
            print("OK" if result.rows < 0 else f"{_count(result.rows)} affected")
        return
    {"table": _table, "csv": _csv, "json": _json, "arrow": _arrow}[output](result, quiet)


def _table(result: Result, quiet: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.ROUNDED)
    for field in result.schema:
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        right = numeric or pa.types.is_decimal(field.type)
        table.add_column(Text(field.name), justify="right" if right else "left", overflow="fold")
    printer = _Printer()
    total = 0
    for batch in result.batches:
        shown = batch.slice(0, max(_MAX_TABLE_ROWS - total, 0))
        for row in printer.texts(shown):
            table.add_row(*(Text("NULL" if text is None else text) for text in row))
        total += batch.num_rows
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)
    if not quiet:
        hidden = max(total - _MAX_TABLE_ROWS, 0)
        print(_count(total) + (f" ({hidden} more not shown)" if hidden else ""))


def _csv(result: Result, quiet: bool) -> None:
    printer = _Printer()
    print(",".join(_csv_field(name) for name in result.schema.names))
    for batch in result.batches:
        for row in printer.texts(batch):
            print(",".join(_csv_field(text) for text in row))


def _csv_field(text: str | None) -> str:
    """As PostgreSQL writes it: NULL is nothing, the empty text is a pair of quotes."""
    if text is None:
        return ""
    if text == "" or any(special in text for special in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text


def _json(result: Result, quiet: bool) -> None:
    printer = _Printer()
    keys = [json.dumps(name, ensure_ascii=False) for name in _distinct(result.schema.names)]
    separator = "["
    for batch in result.batches:
        for row in printer.values(batch):
            print(separator)
            members = (f"{key}: {_json_text(value)}" for key, value in zip(keys, row, strict=True))
            print("{" + ", ".join(members) + "}", end="")
            separator = ","
    print("[]" if separator == "[" else "\n]")


def _json_text(value: Any) -> str:
    """Valid JSON, and exact: a decimal keeps its digits, NaN and the infinities are text."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}[str(value)]
    if isinstance(value, dict):
        members = (
            f"{json.dumps(key, ensure_ascii=False)}: {_json_text(item)}"
            for key, item in value.items()
        )
        return "{" + ", ".join(members) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_json_text, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def _arrow(result: Result, quiet: bool) -> None:
    with pa.ipc.new_stream(sys.stdout.buffer, result.schema) as writer:
        for batch in result.batches:
            writer.write_batch(batch)


def _distinct(names: list[str]) -> list[str]:
    """Every name once: a second ``a`` is ``a_1``, or a JSON reader would keep only the last."""
    taken: dict[str, None] = {}
    for name in names:
        distinct, number = name, 0
        while distinct in taken or (number and distinct in names):
            number += 1
            distinct = f"{name}_{number}"
        taken[distinct] = None
    return list(taken)


def _count(rows: int) -> str:
    return f"{rows} row{'' if rows == 1 else 's'}"


class _Stream:
    """A batch as a bare Arrow stream: a pyarrow object would go through Arrow's scanner, which
    warns on standard error that what comes from Flight is not aligned."""

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.Table.from_batches([self._batch]).__arrow_c_stream__(requested_schema)


class _Printer:
    """An engine that knows how to write every value."""

    def __init__(self) -> None:
        import duckdb

        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")

    def texts(self, batch: Any) -> Iterator[tuple[str | None, ...]]:
        """The rows of a batch, every value as text or None."""
        yield from self._cast(batch, ["VARCHAR"] * batch.num_columns).fetchall()

    def values(self, batch: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a batch in Python values that have a form in JSON."""
        types = [_json_type(kind) for kind in self._cast(batch, None).types]
        for cast in self._cast(batch, types).to_arrow_table().to_batches():
            columns = [column.to_pylist(maps_as_pydicts="lossy") for column in cast.columns]
            yield from zip(*columns, strict=True)

    def _cast(self, batch: Any, types: list[str] | None) -> Any:
        # Names of our own: those of a result may be anything, and the same twice.
        batch = batch.rename_columns([f"c{i}" for i in range(batch.num_columns)])
        relation = self._connection.from_arrow(_Stream(batch))
        if types is None:
            return relation
        return relation.project(", ".join(f"c{i}::{kind}" for i, kind in enumerate(types)))


def _json_type(kind: Any) -> str:
    """The DuckDB type to cast to, so that every value inside has a form in JSON."""
    if kind.id in _JSON_SCALARS:
        return str(kind)
    if kind.id in ("list", "array"):
        return _json_type(kind.children[0][1]) + "[]"
    if kind.id == "map":
        return f"MAP(VARCHAR, {_json_type(kind.children[1][1])})"
    if kind.id == "struct":
        members = (f"{identifier(name)} {_json_type(child)}" for name, child in kind.children)
        return f"STRUCT({', '.join(members)})"
    return "VARCHAR"

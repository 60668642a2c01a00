"""Results on a terminal or in a pipe: table, CSV, JSON, Arrow.

Values become text the way DuckDB itself prints them, in an engine of our own: Python has no dates
beyond the year 9999, no infinite ones, no nanoseconds and no intervals.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import click
import pyarrow as pa

from swanlake.sql.quoting import identifier

FORMATS = ("table", "csv", "json", "arrow")
_MAX_TABLE_ROWS = 1000
_NEEDS_QUOTES = re.compile(r'[,"\r\n]|^$')
#: What JSON can hold; values of all other types are written as text.
_JSON_SCALARS = frozenset(
    {"boolean", "tinyint", "smallint", "integer", "bigint", "utinyint", "usmallint", "uinteger"}
    | {"ubigint", "hugeint", "uhugeint", "float", "double", "decimal", "varchar"}
)

#: For commands that show rows.
format_option = click.option(
    "--format", "output", type=click.Choice(FORMATS), default="table", show_default=True
)


@dataclass(frozen=True)
class Result:
    """What is to be shown: columns, rows as they arrive, and how many a change affected."""

    schema: Any
    batches: Iterable[Any]
    #: -1 where it is not known.
    affected_rows: int = -1


def show(result: Result, output: str, *, quiet: bool = False) -> None:
    """Writes a result to standard output, batch by batch; a table shows its first thousand rows."""
    if len(result.schema) == 0:
        for _ in result.batches:
            pass
        if output == "table" and not quiet:
            print("OK" if result.affected_rows < 0 else f"{_count(result.affected_rows)} affected")
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
        lines = (",".join(map(_csv_field, row)) + "\n" for row in printer.texts(batch))
        sys.stdout.write("".join(lines))


def _csv_field(text: str | None) -> str:
    """As PostgreSQL writes it: NULL is nothing, the empty text is a pair of quotes."""
    if text is None:
        return ""
    if _NEEDS_QUOTES.search(text):
        return '"' + text.replace('"', '""') + '"'
    return text


def _json(result: Result, quiet: bool) -> None:
    printer = _Printer()
    keys = [_json_text(name) for name in _distinct(result.schema.names)]
    before = "[\n"
    for batch in result.batches:
        rows = [_json_object(keys, row) for row in printer.values(batch)]
        if rows:
            sys.stdout.write(before + ",\n".join(rows))
            before = ",\n"
    print("\n]" if before == ",\n" else "[]")


def _json_object(keys: Iterable[str], values: Iterable[Any]) -> str:
    members = (f"{key}: {_json_text(value)}" for key, value in zip(keys, values, strict=True))
    return "{" + ", ".join(members) + "}"


def _json_text(value: Any) -> str:
    """Valid JSON, and exact: a decimal keeps its digits, NaN and the infinities are text."""
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, float) and not math.isfinite(value):
        return {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}[str(value)]
    if isinstance(value, dict):
        return _json_object(map(_json_text, value), value.values())
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


class _Printer:
    """An engine that knows how to write every value.

    It works in a thread of its own: a Ctrl-C that meets DuckDB in the main thread while it scans
    Arrow leaves both waiting for ever.
    """

    def __init__(self) -> None:
        import duckdb

        # Buffers from the wire are not aligned; by default Arrow's scanner warns of each one.
        os.environ["ACERO_ALIGNMENT_HANDLING"] = "reallocate"
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")
        self._thread = ThreadPoolExecutor(1, "swanlake-printer")

    def texts(self, batch: Any) -> Iterator[tuple[str | None, ...]]:
        """The rows of a batch, every value as text or None."""
        types = ["VARCHAR"] * batch.num_columns
        if batch.num_rows:
            yield from self._thread.submit(lambda: self._cast(batch, types).fetchall()).result()

    def values(self, batch: Any) -> Iterator[tuple[Any, ...]]:
        """The rows of a batch in Python values that have a form in JSON."""
        for cast in self._thread.submit(self._json_batches, batch).result():
            columns = [column.to_pylist(maps_as_pydicts="lossy") for column in cast.columns]
            yield from zip(*columns, strict=True)

    def _json_batches(self, batch: Any) -> list[Any]:
        types = [_json_type(kind) for kind in self._cast(batch, None).types]
        batches: list[Any] = self._cast(batch, types).to_arrow_table().to_batches()
        return batches

    def _cast(self, batch: Any, types: list[str] | None) -> Any:
        # Names of our own: those of a result may be anything, and the same twice.
        batch = batch.rename_columns([f"c{i}" for i in range(batch.num_columns)])
        relation = self._connection.from_arrow(batch)
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

"""Prints results as a table, CSV, JSON or Arrow.

A local DuckDB engine converts values to text, as DuckDB itself prints them: Python has no dates
beyond the year 9999, no infinite dates, no nanoseconds and no intervals.
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
from typing import Any, NoReturn

import click
import pyarrow as pa

from swanlake.errors import SwanLakeError
from swanlake.lake.model.type_registry import LAKE_TYPES, StatsOrder
from swanlake.sql.quoting import identifier

FORMATS = ("table", "csv", "json", "arrow")
_MAX_TABLE_ROWS = 1000
_NEEDS_QUOTES = re.compile(r'[,"\r\n]|^$')
#: The types that JSON can represent; values of all other types become text.
_JSON_SCALARS = frozenset(
    type_.duckdb.lower()
    for type_ in LAKE_TYPES.values()
    if type_.order in (StatsOrder.BOOLEAN, StatsOrder.INTEGER, StatsOrder.FLOAT)
) | {"decimal", "varchar"}

#: For commands that print rows.
format_option = click.option(
    "--format", "output", type=click.Choice(FORMATS), default="table", show_default=True
)


@dataclass(frozen=True)
class Result:
    """A result to print: columns, batches as they arrive, and the number of affected rows."""

    schema: Any
    batches: Iterable[Any]
    #: -1 if unknown.
    affected_rows: int = -1


def show(result: Result, output: str, *, quiet: bool = False) -> None:
    """Prints a result batch by batch; a table shows its first thousand rows."""
    if len(result.schema) == 0:
        for _ in result.batches:
            pass
        if output == "table" and not quiet:
            print("OK" if result.affected_rows < 0 else f"{_count(result.affected_rows)} affected")
        return
    {"table": _table, "csv": _csv, "json": _json, "arrow": _arrow}[output](result, quiet)


def show_table(table: Any, output: str) -> None:
    """Prints the rows of a table only."""
    show(Result(table.schema, table.to_batches()), output, quiet=True)
    sys.stdout.flush()  # rich's output must come before click's


def exit_with(code: int, error: SwanLakeError, prefix: str = "") -> NoReturn:
    """Ends the command with one sentence on standard error."""
    click.echo(f"swanlake: {prefix + ': ' if prefix else ''}{error}", err=True)
    raise SystemExit(code)


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
    """As in PostgreSQL: NULL is empty, the empty string is a pair of quotes."""
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
    """Exact JSON: a decimal keeps its digits; NaN and the infinities are strings."""
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
    """Unique names: a second ``a`` becomes ``a_1``, since JSON readers keep only the last."""
    used: dict[str, None] = {}
    for name in names:
        distinct, number = name, 0
        while distinct in used or (number and distinct in names):
            number += 1
            distinct = f"{name}_{number}"
        used[distinct] = None
    return list(used)


def _count(rows: int) -> str:
    return f"{rows} row{'' if rows == 1 else 's'}"


class _Printer:
    """A DuckDB engine that converts values to text.

    It runs in a separate thread: a Ctrl-C while DuckDB scans Arrow data in the main thread would
    deadlock.
    """

    def __init__(self) -> None:
        import duckdb

        # Received buffers are not aligned; by default Arrow's scanner warns about each one.
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
        """The rows of a batch as Python values that JSON can represent."""
        for cast in self._thread.submit(self._json_batches, batch).result():
            columns = [column.to_pylist(maps_as_pydicts="lossy") for column in cast.columns]
            yield from zip(*columns, strict=True)

    def _json_batches(self, batch: Any) -> list[Any]:
        types = [_json_type(kind) for kind in self._cast(batch, None).types]
        batches: list[Any] = self._cast(batch, types).to_arrow_table().to_batches()
        return batches

    def _cast(self, batch: Any, types: list[str] | None) -> Any:
        # The column names of a result may be arbitrary, and may repeat.
        batch = batch.rename_columns([f"c{i}" for i in range(batch.num_columns)])
        relation = self._connection.from_arrow(batch)
        if types is None:
            return relation
        return relation.project(", ".join(f"c{i}::{kind}" for i, kind in enumerate(types)))


def _json_type(kind: Any) -> str:
    """The DuckDB type to cast to, so that JSON can represent every value inside."""
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

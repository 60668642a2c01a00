"""Results on a terminal or in a pipe: table, CSV, JSON, Arrow."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from itertools import islice
from typing import Any

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from swanlake.client.driver import Result

FORMATS = ("table", "csv", "json", "arrow")
_MAX_TABLE_ROWS = 1000


def show(result: Result, output: str, *, quiet: bool = False) -> None:
    """Writes a result to standard output, batch by batch; a table shows its first thousand rows."""
    if len(result.schema) == 0:
        for _ in result.batches:
            pass
        if output == "table" and not quiet:
            print(f"{result.rows} row{'' if result.rows == 1 else 's'} affected"
                  if result.rows >= 0 else "OK")  # fmt: skip
        return
    {"table": _table, "csv": _csv, "json": _json, "arrow": _arrow}[output](result, quiet)


def _rows(result: Result) -> Iterator[list[Any]]:
    for batch in result.batches:
        columns = [column.to_pylist() for column in batch.columns]
        yield from (list(row) for row in zip(*columns, strict=True))


def _table(result: Result, quiet: bool) -> None:
    table = Table(box=box.ROUNDED)
    for field in result.schema:
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        right = numeric or pa.types.is_decimal(field.type)
        table.add_column(Text(field.name), justify="right" if right else "left", overflow="fold")
    rows = _rows(result)
    shown = 0
    for row in islice(rows, _MAX_TABLE_ROWS):
        table.add_row(*(Text(_text(value, null="NULL")) for value in row))
        shown += 1
    hidden = sum(1 for _ in rows)
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)
    if not quiet:
        more = f" ({hidden} more not shown)" if hidden else ""
        print(f"{shown + hidden} row{'' if shown + hidden == 1 else 's'}{more}")


def _csv(result: Result, quiet: bool) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(result.schema.names)
    for row in _rows(result):
        writer.writerow([_text(value, null="") for value in row])


def _json(result: Result, quiet: bool) -> None:
    names = result.schema.names
    separator = "["
    for row in _rows(result):
        print(separator)
        print(json.dumps(dict(zip(names, row, strict=True)), default=_plain), end="")
        separator = ","
    print("[]" if separator == "[" else "\n]")


def _arrow(result: Result, quiet: bool) -> None:
    with pa.ipc.new_stream(sys.stdout.buffer, result.schema) as writer:
        for batch in result.batches:
            writer.write_batch(batch)


def _text(value: Any, null: str) -> str:
    if value is None:
        return null
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict | list | tuple):
        return json.dumps(value, default=_plain)
    return str(_plain(value))


def _plain(value: Any) -> Any:
    """What JSON has no form for, as text."""
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime | date | clock_time):
        return value.isoformat(" ") if isinstance(value, datetime) else value.isoformat()
    if isinstance(value, Decimal | timedelta):
        return str(value)
    return str(value) if not isinstance(value, int | float | str) else value

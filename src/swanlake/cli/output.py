"""Prints results as a table, as a list of values, as CSV, JSON or Arrow.

A local DuckDB engine converts values to text, as DuckDB itself prints them: Python has no dates
beyond the year 9999, no infinite dates, no nanoseconds and no intervals.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from threading import Thread
from typing import Any, NoReturn, TextIO

import click
import pyarrow as pa

from swanlake.cli.pager import page
from swanlake.cli.table_layout import COLOURS, PLAIN, Column, Style, TableText, vertical_lines
from swanlake.errors import SwanLakeError
from swanlake.lake.model.type_registry import LAKE_TYPES, StatsOrder
from swanlake.sql.quoting import identifier

FORMATS = ("table", "vertical", "csv", "json", "arrow")
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


@dataclass(frozen=True)
class View:
    """How results are printed."""

    format: str = "table"
    #: Print the rows only, without their number.
    quiet: bool = False
    #: Print the type of each column below its name.
    types: bool = False
    null: str = "NULL"
    max_rows: int = 1000
    #: What a table does that is too wide for the terminal: leave columns out, or become vertical.
    elide: bool = True
    #: Show a table that is too long for the terminal in the pager.
    pager: bool = False
    #: Gives the seconds since the statement began, to print below its result.
    clock: Callable[[], float] | None = None


def show(result: Result, view: View) -> None:
    """Prints a result batch by batch; a table shows its first ``max_rows`` rows."""
    if len(result.schema) == 0:
        for _ in result.batches:
            pass
        if view.format in ("table", "vertical") and not view.quiet:
            affected = result.affected_rows
            text = "OK" if affected < 0 else f"{_count(affected, 'row')} affected"
            print(text + _time(view))
        return
    writers = {"table": _table, "vertical": _table, "csv": _csv, "json": _json, "arrow": _arrow}
    writers[view.format](result, view)


def show_table(table: Any, output: str) -> None:
    """Prints the rows of a table only; on a narrow terminal, a line for each value."""
    view = View(output, quiet=True, elide=False)
    show(Result(table.schema, table.to_batches()), view)
    sys.stdout.flush()


def terminal_size() -> os.terminal_size:
    """The size of the terminal; shutil would believe LINES and COLUMNS of a parent's terminal."""
    try:
        size = os.get_terminal_size(sys.stdout.fileno())
    except OSError:
        return os.terminal_size((80, 24))
    return size if size.columns and size.lines else os.terminal_size((80, 24))


def text_style(stream: TextIO) -> Style:
    """Colours for a terminal, unless NO_COLOR is set; nothing elsewhere."""
    return COLOURS if stream.isatty() and not os.environ.get("NO_COLOR") else PLAIN


def exit_with(code: int, error: SwanLakeError, prefix: str = "") -> NoReturn:
    """Ends the command with one sentence on standard error."""
    click.echo(f"swanlake: {prefix + ': ' if prefix else ''}{error}", err=True)
    raise SystemExit(code)


def _table(result: Result, view: View) -> None:
    shown: list[Any] = []
    total = 0
    for batch in result.batches:
        if total < view.max_rows:
            shown.append(batch.slice(0, view.max_rows - total))
        total += batch.num_rows
    # Only now: the time of the statement ends with its last batch.
    columns = _columns(result.schema, view.types)
    rows = [row for batch in shown for row in _printer().texts(batch)]
    terminal = terminal_size() if sys.stdout.isatty() else None
    width = None if terminal is None else terminal.columns
    style = text_style(sys.stdout)
    table = TableText(columns, rows, width, null=view.null, style=style)
    is_vertical = view.format == "vertical" or not (table.fits or view.elide)
    is_long = terminal is not None and len(rows) + 8 > terminal.lines
    if is_vertical:
        lines = list(vertical_lines(columns, rows, width, null=view.null, style=style))
        is_long = terminal is not None and len(lines) + 3 > terminal.lines
    elif view.pager and is_long:  # which scrolls to the sides too
        lines = list(TableText(columns, rows, null=view.null, style=style).lines())
    else:
        lines = list(table.lines())
    if not view.quiet:
        notes = _count(total, "row") + _not_shown(total - len(rows))
        if not is_vertical and not (view.pager and is_long) and table.shown < len(columns):
            notes += f", {len(columns)} columns ({table.shown} shown)"
        lines.append(notes + _time(view))
    if view.pager and is_long:
        page(lines)
    else:
        print("\n".join(lines))


def _columns(schema: Any, types: bool) -> list[Column]:
    names = _printer().type_names(schema) if types else [""] * len(schema)
    return [
        Column(field.name, name, _is_number(field.type))
        for field, name in zip(schema, names, strict=True)
    ]


def _is_number(kind: Any) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    )


def _not_shown(rows: int) -> str:
    return f" ({rows} more not shown)" if rows else ""


def _time(view: View) -> str:
    return "" if view.clock is None else f" ({view.clock():.3f} s)"


def _csv(result: Result, view: View) -> None:
    printer = _printer()
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


def _json(result: Result, view: View) -> None:
    printer = _printer()
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


def _arrow(result: Result, view: View) -> None:
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


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

    def type_names(self, schema: Any) -> list[str]:
        """The names of the columns' types, as DuckDB knows them."""
        none = pa.RecordBatch.from_arrays(
            [pa.array([], field.type) for field in schema], names=schema.names
        )
        relation = self._thread.submit(self._cast, none, None).result()
        return [str(kind).lower() for kind in relation.types]

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


def warm_up() -> None:
    """Has the engine started in the background, so that the first result need not wait for it."""
    Thread(target=_printer, name="swanlake-printer-start", daemon=True).start()


@cache
def _printer() -> _Printer:
    return _Printer()


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

"""Lays rows of text out as a table that fits a terminal, or as a list of columns and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells

from swanlake.cli.logs import escape_control_characters

#: A column is cut to this width before columns are left out.
_NARROWEST = 12
_ELLIPSIS = "…"

Row = Sequence[str | None]


@dataclass(frozen=True)
class Column:
    """A column to print; without a type name, the table has no line of types."""

    name: str
    type_name: str = ""
    align_right: bool = False


@dataclass(frozen=True)
class Style:
    """Escape sequences around headings, types and NULL; none by default."""

    heading: str = ""
    faint: str = ""
    reset: str = ""


PLAIN = Style()
COLOURS = Style(heading="\x1b[1m", faint="\x1b[2m", reset="\x1b[0m")


@dataclass(frozen=True)
class Layout:
    """The width of every column that is shown; None stands for the columns that are left out."""

    widths: tuple[tuple[int, int] | None, ...]

    @property
    def shown(self) -> int:
        """The number of columns that are shown."""
        return sum(1 for entry in self.widths if entry is not None)


def fit(natural: Sequence[int], limit: int | None) -> Layout:
    """Widths of at most ``limit`` characters: wide columns are cut, then middle ones left out."""
    columns = range(len(natural))
    if limit is None or _total(natural) <= limit:
        return Layout(tuple((column, natural[column]) for column in columns))
    cap = _largest_cap(natural, limit)
    if cap >= _NARROWEST:
        return Layout(tuple((column, min(natural[column], cap)) for column in columns))
    widths = [min(width, _NARROWEST) for width in natural]
    left: list[int] = []
    right: list[int] = []
    used = _total([1])  # the column of the ellipsis
    for side, column in _outside_in(len(natural)):
        if used + widths[column] + 3 > limit and left:
            break
        used += widths[column] + 3
        (left if side == 0 else right).append(column)
    shown = [*((column, widths[column]) for column in left), None]
    return Layout((*shown, *((column, widths[column]) for column in reversed(right))))


def _outside_in(count: int) -> Iterator[tuple[int, int]]:
    """Columns from both ends, the left one first: the side, and the column."""
    low, high = 0, count - 1
    while low <= high:
        yield 0, low
        low += 1
        if low <= high:
            yield 1, high
            high -= 1


def _largest_cap(natural: Sequence[int], limit: int) -> int:
    """The largest width of a column with which all of them fit."""
    low, high = 0, max(natural)
    while low < high:
        middle = (low + high + 1) // 2
        if _total([min(width, middle) for width in natural]) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + 3 * len(widths) + 1


class TableText:
    """The lines of a table; ``shown`` tells how many of its columns fit."""

    def __init__(
        self,
        columns: Sequence[Column],
        rows: Sequence[Row],
        limit: int | None = None,
        *,
        null: str = "NULL",
        style: Style = PLAIN,
    ) -> None:
        self._columns = [
            Column(printable(column.name), column.type_name, column.align_right)
            for column in columns
        ]
        self._rows = [[None if text is None else printable(text) for text in row] for row in rows]
        self._null = null
        self._style = style
        self._has_types = any(column.type_name for column in columns)
        natural = self._natural_widths()
        self._layout = fit(natural, limit)
        self.shown = self._layout.shown
        #: False if columns were cut or left out.
        self.fits = limit is None or _total(natural) <= limit

    def lines(self) -> Iterator[str]:
        """The lines from top to bottom."""
        yield self._rule("╭┬╮")
        yield self._line([self._heading(column.name) for column in self._columns])
        if self._has_types:
            yield self._line([(column.type_name, self._style.faint) for column in self._columns])
        yield self._rule("├┼┤")
        for row in self._rows:
            yield self._line([self._cell(text) for text in row])
        yield self._rule("╰┴╯")

    def _natural_widths(self) -> list[int]:
        widths = [max(_width(c.name), _width(c.type_name)) for c in self._columns]
        null = _width(self._null)
        for row in self._rows:
            for column, text in enumerate(row):
                width = null if text is None else _width(text)
                if width > widths[column]:
                    widths[column] = width
        return widths

    def _heading(self, name: str) -> tuple[str, str]:
        return name, self._style.heading

    def _cell(self, text: str | None) -> tuple[str, str]:
        return (self._null, self._style.faint) if text is None else (text, "")

    def _line(self, cells: Sequence[tuple[str, str]]) -> str:
        texts = []
        for entry in self._layout.widths:
            if entry is None:
                texts.append(_ELLIPSIS)
                continue
            column, width = entry
            text, style = cells[column]
            padded = _padded(text, width, self._columns[column].align_right)
            texts.append(f"{style}{padded}{self._style.reset}" if style else padded)
        return "│ " + " │ ".join(texts) + " │"

    def _rule(self, corners: str) -> str:
        widths = [1 if entry is None else entry[1] for entry in self._layout.widths]
        lines = ["─" * (width + 2) for width in widths]
        return corners[0] + corners[1].join(lines) + corners[2]


def vertical_lines(
    columns: Sequence[Column],
    rows: Sequence[Row],
    limit: int | None = None,
    *,
    null: str = "NULL",
    style: Style = PLAIN,
) -> Iterator[str]:
    """A line for each column of each row; values with several lines keep them."""
    names = [printable(column.name) for column in columns]
    width = max(map(_width, names), default=0)
    for number, row in enumerate(rows, 1):
        title = f"─ row {number} "
        yield f"{style.faint}{title}{'─' * max(0, min(limit or 40, 40) - len(title))}{style.reset}"
        for name, text in zip(names, row, strict=True):
            heading = f"{style.heading}{_padded(name, width, False)}{style.reset}"
            if text is None:
                yield f"{heading} │ {style.faint}{null}{style.reset}"
                continue
            first, *others = [printable(line) for line in text.split("\n")]
            yield f"{heading} │ {first}"
            for line in others:
                yield f"{' ' * width} │ {line}"


def printable(text: str) -> str:
    """The text with escapes in place of control characters: it cannot move the cursor."""
    return escape_control_characters(text)


def _padded(text: str, width: int, align_right: bool) -> str:
    cells = _width(text)
    if cells > width:
        text = (chop_cells(text, width - 1)[0] if width > 1 else "") + _ELLIPSIS
        cells = _width(text)
    space = " " * (width - cells)
    return space + text if align_right else text + space


def _width(text: str) -> int:
    return len(text) if text.isascii() else cell_len(text)

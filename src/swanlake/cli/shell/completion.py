"""What Tab offers: decided from the text before the cursor and from the names of the lake."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from swanlake.cli.output import FORMATS
from swanlake.cli.shell.commands import SPELLINGS, MetaCommand
from swanlake.cli.shell.lexing import Kind, Piece, keywords, pieces, reserved_keywords
from swanlake.sql.quoting import identifier, unquoted

_MAX_CANDIDATES = 300
_PLAIN_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_COMMAND = re.compile(r"\s*(?P<name>[\\.]\S*)(?P<space>\s+)?(?P<argument>\S*)$")
#: Words before the name of a table.
_BEFORE_TABLE = frozenset("from join into update table describe summarize show desc".split())
_WORDS = (Kind.NAME, Kind.KEYWORD, Kind.QUOTED_NAME)
_SWITCHES = ("on", "off")
_ARGUMENTS = {
    "mode": FORMATS,
    "timing": _SWITCHES,
    "pager": _SWITCHES,
    "expanded": _SWITCHES,
}


@dataclass(frozen=True)
class Table:
    """A table or view and its columns."""

    catalog: str
    schema: str
    name: str
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class Names:
    """The names that can be completed."""

    catalogs: tuple[str, ...] = ()
    #: Pairs of catalog and schema.
    schemas: tuple[tuple[str, str], ...] = ()
    tables: tuple[Table, ...] = ()
    functions: tuple[str, ...] = ()
    #: Functions that stand in place of a table.
    table_functions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Place:
    """Where the session is: tables of this catalog and schema need no prefix."""

    catalog: str = ""
    schema: str = "main"


@dataclass(frozen=True)
class Candidate:
    """A text to insert in place of the last ``replaced`` characters, and what it is."""

    text: str
    kind: str
    replaced: int


@dataclass(frozen=True)
class _Word:
    """The word at the cursor, and the names before its dots."""

    text: str
    path: tuple[str, ...] = ()
    before: Sequence[Piece] = ()

    @property
    def prefix(self) -> str:
        return self.text.lstrip('"').lower()


def complete(before: str, after: str, names: Names, place: Place) -> list[Candidate]:
    """The candidates at the cursor between two parts of a text, the likeliest first."""
    command = _COMMAND.match(before)
    if command:
        options = _command_candidates(command["name"], command["space"], names, place)
        typed = command["argument"] if command["space"] else command["name"]
        return _matching(options, typed.lower(), len(typed))
    statement = _current_statement(before)
    if statement and (statement[-1].kind in (Kind.STRING, Kind.COMMENT)):
        last = statement[-1]
        if last.is_open or last.text.startswith("--"):
            return []
    word = _word_at_end(statement)
    tables = _tables_in(statement, names, place) + _tables_in(_until_end(after), names, place)
    options = list(_candidates(word, tables, names, place))
    return _matching(options, word.prefix, len(word.text))


def _current_statement(before: str) -> list[Piece]:
    statement: list[Piece] = []
    for piece in pieces(before):
        statement.append(piece)
        if piece.text == ";":
            statement = []
    return statement


def _until_end(after: str) -> list[Piece]:
    statement = []
    for piece in pieces(after):
        if piece.text == ";":
            break
        statement.append(piece)
    return statement


def _word_at_end(statement: Sequence[Piece]) -> _Word:
    code = list(statement)
    text = ""
    if code and code[-1].kind in _WORDS and (code[-1].is_open or code[-1].text[-1] != '"'):
        text = code.pop().text
    path: list[str] = []
    while len(code) >= 2 and code[-1].text == "." and code[-2].kind in _WORDS:
        path.insert(0, unquoted(code[-2].text))
        del code[-2:]
    return _Word(text, tuple(path), [piece for piece in code if piece.is_code])


def _candidates(
    word: _Word, tables: Sequence[tuple[str, Table]], names: Names, place: Place
) -> Iterator[tuple[str, str]]:
    if word.path:
        yield from _members(word.path, tables, names, place)
        return
    previous = word.before[-1].text.lower() if word.before else ""
    if previous in _BEFORE_TABLE:
        yield from _tables_without_prefix(names, place)
        yield from ((name, "catalog") for name in names.catalogs)
        if previous in ("from", "join") and word.text:
            yield from ((name, "function") for name in names.table_functions)
        return
    if previous == "call":
        yield from ((name, "function") for name in names.table_functions)
        return
    if previous == "use":
        yield from ((name, "catalog") for name in names.catalogs)
        return
    for alias, table in tables:
        yield from ((column, "column") for column in table.columns)
        yield alias, "table"
    if not word.text:
        return
    is_upper = word.text.isupper()
    yield from ((name.upper() if is_upper else name, "keyword") for name in sorted(keywords()))
    yield from ((name, "function") for name in names.functions)
    yield from _tables_without_prefix(names, place)


def _tables_without_prefix(names: Names, place: Place) -> Iterator[tuple[str, str]]:
    for table in names.tables:
        here = table.catalog == "temp" or (table.catalog, table.schema) == (
            place.catalog,
            place.schema,
        )
        if here:
            yield table.name, "table"
    yield from ((schema, "schema") for catalog, schema in names.schemas if catalog == place.catalog)


def _members(
    path: tuple[str, ...], tables: Sequence[tuple[str, Table]], names: Names, place: Place
) -> Iterator[tuple[str, str]]:
    """What may follow ``path.``."""
    folded = tuple(part.lower() for part in path)
    for alias, table in tables:
        if folded == (alias.lower(),):
            yield from ((column, "column") for column in table.columns)
    for table in names.tables:
        full = (table.catalog.lower(), table.schema.lower(), table.name.lower())
        if folded in (full[:2], full[1:2]) and full[0] in (folded[0], place.catalog.lower()):
            yield table.name, "table"
        if folded == full[:1] and full[1] == "main":
            yield table.name, "table"
        here = full[0] in (place.catalog.lower(), "temp")
        if folded in (full, (full[0], full[2])) or (here and folded in (full[1:], full[2:])):
            yield from ((column, "column") for column in table.columns)
    if len(folded) == 1:
        for catalog, schema in names.schemas:
            if catalog.lower() == folded[0]:
                yield schema, "schema"


def _tables_in(statement: Sequence[Piece], names: Names, place: Place) -> list[tuple[str, Table]]:
    """The tables that a statement names, with their aliases."""
    code = [piece for piece in statement if piece.is_code]
    found = []
    for position, piece in enumerate(code):
        if piece.text.lower() not in ("from", "join", "into", "update", ","):
            continue
        path, end = _path_at(code, position + 1)
        table = _find(path, names, place) if path else None
        if table is None:
            continue
        if end < len(code) and code[end].text.lower() == "as":
            end += 1
        has_alias = end < len(code) and code[end].kind in (Kind.NAME, Kind.QUOTED_NAME)
        found.append((unquoted(code[end].text) if has_alias else table.name, table))
    return found


def _path_at(code: Sequence[Piece], position: int) -> tuple[tuple[str, ...], int]:
    path: list[str] = []
    while position < len(code) and code[position].kind in _WORDS:
        path.append(unquoted(code[position].text).lower())
        position += 1
        if position < len(code) and code[position].text == ".":
            position += 1
        else:
            break
    return tuple(path), position


def _find(path: tuple[str, ...], names: Names, place: Place) -> Table | None:
    for table in names.tables:
        full = (table.catalog.lower(), table.schema.lower(), table.name.lower())
        here = full[0] in (place.catalog.lower(), "temp")
        if path in (full, (full[0], full[2])) or (here and path in (full[1:], full[2:])):
            return table
    return None


def _command_candidates(
    spelled: str, space: str | None, names: Names, place: Place
) -> list[tuple[str, str]]:
    if not space:
        return [(spelling, "command") for spelling in SPELLINGS]
    command: MetaCommand | None = SPELLINGS.get(spelled.rstrip("+"))
    if command is None:
        return []
    if command.name in ("describe", "tables", "schema", "views"):
        return list(_tables_without_prefix(names, place))
    if command.name == "catalog":
        return [(name, "catalog") for name in names.catalogs]
    if command.name == "functions":
        return [(name, "function") for name in names.functions]
    return [(word, "option") for word in _ARGUMENTS.get(command.name, ())]


def _matching(options: Sequence[tuple[str, str]], prefix: str, replaced: int) -> list[Candidate]:
    found: dict[str, Candidate] = {}
    for text, kind in options:
        if text.lower().startswith(prefix) and text not in found:
            written = text if kind in ("keyword", "function", "command", "option") else quoted(text)
            found[text] = Candidate(written, kind, replaced)
            if len(found) == _MAX_CANDIDATES:
                break
    return list(found.values())


def quoted(name: str) -> str:
    """The name as SQL needs it: in quotes unless it is plain and no reserved word."""
    is_plain = _PLAIN_NAME.fullmatch(name) and name not in reserved_keywords()
    return name if is_plain else identifier(name)

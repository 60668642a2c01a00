"""Finds and replaces the tables of one catalog in the text of a statement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swanlake.sql.quoting import identifier, unquoted
from swanlake.sql.tokens import Token, tokenize


@dataclass(frozen=True)
class Reference:
    """A dotted name: its parts without quotes, and their tokens."""

    parts: tuple[str, ...]
    tokens: tuple[Token, ...]

    def end_of(self, count: int) -> int:
        """The byte at which the first ``count`` parts end."""
        return self.tokens[count - 1].end

    @property
    def start(self) -> int:
        return self.tokens[0].start


def references(text: str, catalog: str) -> list[Reference]:
    """Every name of at least two parts that begins with the catalog."""
    tokens = tokenize(text)
    found: list[Reference] = []
    place = 0
    while place < len(tokens):
        name = [tokens[place]]
        after = place + 1
        while (
            after + 1 < len(tokens)
            and tokens[after].is_operator
            and tokens[after].text == "."
            and not tokens[after + 1].is_operator
        ):
            name.append(tokens[after + 1])
            after += 2
        first = name[0]
        if len(name) > 1 and not first.is_operator and unquoted(first.text).lower() == catalog:
            parts = tuple(unquoted(token.text) for token in name)
            found.append(Reference(parts, tuple(name)))
        place = after
    return found


@dataclass(frozen=True)
class Replacement:
    """The table that replaces the first parts of a reference, and its alias."""

    reference: Reference
    parts: int
    table: str
    alias: str


def replaced(text: str, replacements: list[Replacement], is_sql: Callable[[str], bool]) -> str:
    """The text with its tables replaced.

    A table without an alias gets its name as the alias, so that column references stay valid. The
    parser decides whether it has one: two aliases in a row are not SQL.
    """
    chosen: list[tuple[Replacement, bool]] = [(one, False) for one in replacements]
    for place, (one, _) in enumerate(chosen):
        if len(one.reference.parts) > one.parts:
            continue  # a column reference
        chosen[place] = (one, True)
        if not is_sql(_put(text, chosen)):
            chosen[place] = (one, False)
    return _put(text, chosen)


def _put(text: str, chosen: list[tuple[Replacement, bool]]) -> str:
    content = text.encode()
    for one, with_alias in reversed(chosen):
        end = one.reference.end_of(one.parts)
        if len(one.reference.parts) > one.parts:
            new = identifier(one.alias)
        elif with_alias:
            new = f"{one.table} AS {identifier(one.alias)}"
        else:
            new = one.table
        content = content[: one.reference.start] + new.encode() + content[end:]
    return content.decode()

"""What a snapshot changed, in DuckLake's notation: ``created_table:"main"."t",dropped_table:3``.

The stock extension reads this text to find conflicts, and fails on any word it does not know, so
only the words of the specification are ever written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from swanlake.errors import SwanLakeError


class ChangeType(Enum):
    """The words of the notation, in the order in which the stock extension writes them."""

    DROPPED_SCHEMA = "dropped_schema"
    DROPPED_TABLE = "dropped_table"
    DROPPED_VIEW = "dropped_view"
    CREATED_SCHEMA = "created_schema"
    CREATED_TABLE = "created_table"
    CREATED_VIEW = "created_view"
    CREATED_SCALAR_MACRO = "created_scalar_macro"
    CREATED_TABLE_MACRO = "created_table_macro"
    DROPPED_SCALAR_MACRO = "dropped_scalar_macro"
    DROPPED_TABLE_MACRO = "dropped_table_macro"
    INSERTED = "inserted_into_table"
    DELETED = "deleted_from_table"
    ALTERED_TABLE = "altered_table"
    ALTERED_VIEW = "altered_view"
    INLINED_INSERT = "inlined_insert"
    INLINED_DELETE = "inlined_delete"
    INLINE_FLUSH = "inline_flush"
    FLUSHED_INLINED = "flushed_inlined"
    MERGE_ADJACENT = "merge_adjacent"
    REWRITE_DELETE = "rewrite_delete"
    COMPACTED = "compacted_table"


_BY_WORD = {kind.value: kind for kind in ChangeType}
#: Changes that name what they made; all others carry the id of what they touched.
_NAMED = {kind for kind in ChangeType if kind.value.startswith("created_")}


class UnreadableChanges(SwanLakeError):
    """A snapshot's changes are not in the notation this version knows."""

    identifier = "CATALOG_UNREADABLE"


@dataclass(frozen=True)
class Change:
    """One entry: what happened, and to what.

    A created schema has its name, a created object its schema and name; everything else an id.
    """

    type: ChangeType
    id: int | None = None
    name: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.type in _NAMED:
            return f"{self.type.value}:" + ".".join(_quote(part) for part in self.name)
        return f"{self.type.value}:{self.id}"


def format_changes(changes: Iterable[Change]) -> str:
    """The text of a snapshot's changes."""
    return ",".join(str(change) for change in changes)


@lru_cache(maxsize=4096)
def parse_changes(text: str) -> tuple[Change, ...]:
    """The changes of one snapshot, or of several joined by commas.

    Those of the last snapshots are read again by every commit.
    """
    return tuple(_entries(text))


def _entries(text: str) -> Iterator[Change]:
    position = 0
    while position < len(text):
        word, colon, _ = text[position:].partition(":")
        kind = _BY_WORD.get(word)
        if not colon or kind is None:
            raise UnreadableChanges(
                f"A snapshot holds the change {text[position : position + 40]!r}, which this "
                "version of SwanLake does not know; a newer program may have written it."
            )
        position += len(word) + 1
        if kind in _NAMED:
            name, position = _quoted_names(text, position)
            yield Change(kind, name=name)
        else:
            end = text.find(",", position)
            end = len(text) if end < 0 else end
            try:
                yield Change(kind, int(text[position:end]))
            except ValueError:
                raise UnreadableChanges(
                    f"A snapshot's {word} has {text[position:end]!r} for an id."
                ) from None
            position = end
        if position < len(text) and text[position] != ",":
            raise UnreadableChanges(f"A snapshot's changes go on with {text[position:][:40]!r}.")
        position += 1


def _quoted_names(text: str, position: int) -> tuple[tuple[str, ...], int]:
    """``"a"."b""c"`` from a position on, and where it ends."""
    names = []
    while True:
        if text[position : position + 1] != '"':
            raise UnreadableChanges(f"A name is missing before {text[position:][:40]!r}.")
        name, position = _quoted(text, position + 1)
        names.append(name)
        if text[position : position + 1] != ".":
            return tuple(names), position
        position += 1


def _quoted(text: str, position: int) -> tuple[str, int]:
    pieces = []
    while True:
        end = text.find('"', position)
        if end < 0:
            raise UnreadableChanges("A name in a snapshot's changes does not end.")
        pieces.append(text[position:end])
        if text[end + 1 : end + 2] != '"':
            return "".join(pieces), end + 1
        pieces.append('"')
        position = end + 2


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

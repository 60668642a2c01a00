"""What a snapshot changed, in DuckLake's notation: ``created_table:"main"."t",dropped_table:3``.

The stock extension parses this text to find conflicts and fails on an unknown word, so only words
of the specification are written.
"""

from __future__ import annotations

import re
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


#: ``"b""c"``, and ``"a"."b""c"``
_NAME = re.compile(r'"((?:[^"]|"")*)"')
_NAMES = re.compile(rf"{_NAME.pattern}(?:\.{_NAME.pattern})*")
_BY_WORD = {kind.value: kind for kind in ChangeType}
#: Changes that carry a name; all others carry an id.
_NAMED = {kind for kind in ChangeType if kind.value.startswith("created_")}


class UnreadableChanges(SwanLakeError):
    """A snapshot's changes are not in the notation this version knows."""

    identifier = "CATALOG_UNREADABLE"


@dataclass(frozen=True)
class Change:
    """One entry.

    A created schema has its name, a created object its schema and name; all others have an id.
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

    Cached: every commit reads those of the last snapshots again.
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
            named = _NAMES.match(text, position)
            if named is None:
                raise UnreadableChanges(
                    f"A name is missing, or does not end, in {text[position:][:40]!r}."
                )
            parts = _NAME.findall(named[0])
            yield Change(kind, name=tuple(part.replace('""', '"') for part in parts))
            position = named.end()
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
            raise UnreadableChanges(f"A snapshot's changes continue with {text[position:][:40]!r}.")
        position += 1


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

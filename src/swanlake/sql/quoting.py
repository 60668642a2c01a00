"""Writes names and values into SQL text, and reads names from it."""

from __future__ import annotations

import re

_QUOTED = re.compile(r'"((?:[^"]|"")*)"')
_PLAIN = re.compile(r"[A-Za-z0-9_$\x80-\U0010ffff]+")


def identifier(name: str) -> str:
    """``a"b`` becomes ``"a""b"``: a name that cannot be read as anything else."""
    return '"' + name.replace('"', '""') + '"'


def qualified(*parts: str | None) -> str:
    """A dotted name of the parts there are: ``qualified("a", None, "t")`` is ``"a"."t"``."""
    return ".".join(identifier(part) for part in parts if part)


def literal(text: str) -> str:
    """``it's`` becomes ``'it''s'``: a string constant that cannot end early."""
    return "'" + text.replace("'", "''") + "'"


def unquoted(name: str) -> str:
    """``"a""b"`` becomes ``a"b``; a comment behind the name is no part of it."""
    if quoted := _QUOTED.match(name):
        return quoted[1].replace('""', '"')
    plain = _PLAIN.match(name)
    return plain[0] if plain else name

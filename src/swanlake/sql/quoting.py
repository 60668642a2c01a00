"""How names and values are written into SQL text: the only place that does it."""

from __future__ import annotations


def identifier(name: str) -> str:
    """``a"b`` becomes ``"a""b"``: a name that cannot be read as anything else."""
    return '"' + name.replace('"', '""') + '"'


def qualified(*parts: str | None) -> str:
    """A dotted name of the parts there are: ``qualified("a", None, "t")`` is ``"a"."t"``."""
    return ".".join(identifier(part) for part in parts if part)


def literal(text: str) -> str:
    """``it's`` becomes ``'it''s'``: a string constant that cannot end early."""
    return "'" + text.replace("'", "''") + "'"

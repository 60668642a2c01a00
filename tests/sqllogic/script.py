"""Scripts in the sqllogictest format: records of one statement each, with the expected outcome.

    # A comment. An empty line ends a record.
    statement ok
    CREATE TABLE t (a INTEGER, b VARCHAR)

    statement count 2
    INSERT INTO t VALUES (1, 'x'), (2, NULL)

    statement error CONVERSION_ERROR
    INSERT INTO t VALUES ('x', 'y')

    query IT
    SELECT * FROM t
    ----
    1<TAB>x
    2<TAB>NULL

    history t 1

Both sides must have the same outcome, also where a record names none: ``statement`` alone may fail
or not, ``query`` without ``----`` compares only. A query has one letter per column: I for integers,
R for other numbers, T for everything else. Its rows are compared as a multiset, or in their order
if the statement has an ORDER BY; ``rowsort`` and ``nosort`` after the letters overrule that.
``history t 1`` compares the table at every snapshot since 1, and its change feed in and until each.

``@b`` at the end of a header runs the record in the session ``b``. In statements, ``{catalog}`` is
the script's catalog and ``{dir}`` a directory of each side.

Lines before a header restrict it or declare a known difference, always with the reason. Words after
``if`` are those of a configuration; all of them must apply:

    skipif sqlite: a transaction conflicts with every commit
    onlyif native inlined: ...
    stock differs if inlined: ...
    swanlake differs: ...

The expected outcome then holds for the other side, and the sides must differ: a directive whose
defect was mended fails.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

#: The words of configurations, by what they describe.
WORDS = {"sqlite", "postgres", "files", "inlined", "native", "extension"}

Side = Literal["stock", "swanlake"]

_DIRECTIVE = re.compile(
    r"(?P<kind>skipif|onlyif|stock differs|swanlake differs)(?P<words>( \w+)*): (?P<reason>.+)"
)
_HEADER = re.compile(r"(statement|query|history)\b")


class ScriptError(Exception):
    """A script has a line that is no part of the format."""


@dataclass(frozen=True)
class Condition:
    """Words of a configuration; holds if all of them apply."""

    words: frozenset[str]

    def holds(self, configuration: frozenset[str]) -> bool:
        return self.words <= configuration


@dataclass(frozen=True)
class Record:
    """One statement, and what is expected of it; None expects nothing in particular."""

    place: str
    sql: str
    #: Whether it must succeed.
    succeeds: bool | None = None
    #: The identifier of the expected error.
    error: str | None = None
    #: The expected number of affected rows.
    count: int | None = None
    #: A letter per column.
    letters: str | None = None
    #: Expected rows, as texts.
    rows: tuple[str, ...] | None = None
    is_ordered: bool = False
    session: str = ""
    #: Runs only where all of the first hold and none of the second.
    only: tuple[Condition, ...] = ()
    skip: tuple[Condition, ...] = ()
    #: The sides with a known defect, and where.
    differs: tuple[tuple[Side, Condition], ...] = ()
    #: The first snapshot of a ``history`` record, whose ``sql`` is the name of the table.
    since: int | None = None

    def applies(self, configuration: frozenset[str]) -> bool:
        """True if the record runs in a configuration."""
        return all(c.holds(configuration) for c in self.only) and not any(
            c.holds(configuration) for c in self.skip
        )

    def differing(self, configuration: frozenset[str]) -> Side | None:
        """The side that is known to differ in a configuration."""
        return next((side for side, where in self.differs if where.holds(configuration)), None)


def read_script(path: Path) -> list[Record]:
    """The records of a file."""
    return list(parse(path.read_text(), path.name))


def parse(text: str, name: str = "script") -> Iterator[Record]:
    """The records of a text; raises ScriptError."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.strip():
            if not line.startswith("#"):
                block.append((number, line))
        elif block:
            yield _record(block, name)
            block = []


def _record(block: list[tuple[int, str]], name: str) -> Record:
    conditions: dict[str, list[Condition]] = {}
    while block and (directive := _DIRECTIVE.fullmatch(block[0][1])):
        words = frozenset(directive["words"].removeprefix(" if").split())
        if not words <= WORDS:
            raise ScriptError(f"{name}:{block[0][0]}: unknown words in: {block[0][1]}")
        conditions.setdefault(directive["kind"], []).append(Condition(words))
        block = block[1:]
    if not block or not _HEADER.match(block[0][1]):
        raise ScriptError(f"{name}:{block[0][0] if block else '?'}: a record has no header")
    (number, header), *rest = block
    lines = [line for _, line in rest]
    rows = None
    if "----" in lines:
        end = lines.index("----")
        lines, rows = lines[:end], tuple(lines[end + 1 :])
    kind, *arguments = header.split()
    session = arguments.pop()[1:] if arguments and arguments[-1].startswith("@") else ""
    common = Record(
        f"{name}:{number}",
        "\n".join(lines),
        rows=rows,
        session=session,
        only=tuple(conditions.get("onlyif", ())),
        skip=tuple(conditions.get("skipif", ())),
        differs=tuple(
            (side, condition)
            for side in ("stock", "swanlake")
            for condition in conditions.get(f"{side} differs", ())
        ),
    )
    expected = _expected(kind, arguments, common.sql)
    if expected is None or (rows is not None) > (kind == "query"):
        raise ScriptError(f"{name}:{number}: not a header: {header}")
    return Record(**{**vars(common), **expected})


def _expected(kind: str, arguments: list[str], sql: str) -> dict[str, object] | None:
    """The expectations that a header expresses; None if it is none."""
    match kind, arguments:
        case "statement", []:
            return {}
        case "statement", ["ok"]:
            return {"succeeds": True}
        case "statement", ["count", count] if count.isdigit():
            return {"succeeds": True, "count": int(count)}
        case "statement", ["error", error]:
            return {"succeeds": False, "error": error}
        case "query", [letters, *mode] if not letters.strip("IRT") and len(mode) <= 1:
            is_ordered = mode == ["nosort"] if mode else "ORDER BY" in sql.upper()
            if mode in ([], ["nosort"], ["rowsort"]):
                return {"succeeds": True, "letters": letters, "is_ordered": is_ordered}
        case "history", [table, since] if since.isdigit() and not sql:
            return {"sql": table, "since": int(since), "succeeds": True}
    return None

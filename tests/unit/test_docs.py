"""What the documents say about errors and conflicts is what the code does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import swanlake
from swanlake.lake.changes import ChangeType
from swanlake.lake.conflicts import MATRIX, TOUCHES_FILES, Act

SOURCE = Path(swanlake.__file__).parent
DOCS = Path(__file__).parents[2] / "docs"
#: Words of whole families, in whose place a more exact one is always sent; and errors of the start,
#: which end the process before there is anyone to send them to.
NEVER_SENT = {
    "SWANLAKE_ERROR",
    "NOT_FOUND",
    "QUERY_FAILED",
    "SESSION_ERROR",
    "SERVER_UNAVAILABLE",
    "CONFIG_INVALID",
    "STARTUP_FAILED",
    "ADDRESS_IN_USE",
}


def identifiers() -> set[str]:
    """Every identifier that the source gives to an error."""
    found = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.keyword(arg="identifier", value=ast.Constant(value=str(word))):
                    found.add(word)
                case ast.Assign(
                    targets=[ast.Name(id="identifier")], value=ast.Constant(value=str(word))
                ):
                    found.add(word)
                case ast.AnnAssign(
                    target=ast.Name(id="identifier"), value=ast.Constant(value=str(word))
                ):
                    found.add(word)
    return found


def test_every_identifier_is_documented() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    documented = {word for row in rows for word in re.findall(r"`([A-Z_]+)`", row)}
    assert identifiers() - NEVER_SENT - documented == set()
    assert documented & NEVER_SENT == set()


def test_the_table_of_conflicts_is_the_matrix() -> None:
    columns = {
        "inserted": {ChangeType.INSERTED, ChangeType.INLINED_INSERT},
        "deleted": {ChangeType.DELETED},
        "deleted inlined rows": {ChangeType.INLINED_DELETE},
        "flushed inlined rows": {ChangeType.INLINE_FLUSH, ChangeType.FLUSHED_INLINED},
        "merged or rewrote files": {
            ChangeType.MERGE_ADJACENT,
            ChangeType.REWRITE_DELETE,
            ChangeType.COMPACTED,
        },
        "altered": {ChangeType.ALTERED_TABLE},
        "dropped": {ChangeType.DROPPED_TABLE},
    }
    assert set().union(*columns.values(), *MATRIX.values()) == set().union(*columns.values())

    def cell(act: Act, theirs: set[ChangeType]) -> str:
        if theirs & MATRIX[act]:
            assert theirs <= MATRIX[act]
            return " x "
        return " same file " if act is Act.DELETE and theirs & TOUCHES_FILES else " "

    lines = ["| | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
    lines += [
        f"| {act.value} |" + "|".join(cell(act, theirs) for theirs in columns.values()) + "|"
        for act in MATRIX
    ]
    assert "\n".join(lines) in (DOCS / "lake.md").read_text()

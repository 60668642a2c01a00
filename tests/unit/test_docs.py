"""The documents agree with the code: errors, conflicts, and the files and symbols they name."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

import swanlake
from swanlake.lake.commit.changes import ChangeType
from swanlake.lake.commit.conflicts import MATRIX, Action
from swanlake.server.actions import ACTIONS
from swanlake.sessions.procedures.registry import PROCEDURES

SOURCE = Path(swanlake.__file__).parent
ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
#: The documents that say where things are in the code.
MAP = [
    ROOT / "CONTRIBUTING.md",
    *(
        DOCS / f"{name}.md"
        for name in ("architecture", "concurrency", "glossary", "recipes", "lake")
    ),
    *sorted((DOCS / "decisions").glob("*.md")),
]
FLIGHT_CALLS = {"GetFlightInfo", "GetSchema", "DoGet", "DoPut", "DoAction", "ListActions"}
DOCUMENTS = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
#: Base classes, in whose place a more exact identifier is always sent, and start-up errors, which
#: end the process before a client is connected.
NEVER_SENT = {
    "SWANLAKE_ERROR",
    "NOT_FOUND",
    "QUERY_FAILED",
    "SESSION_ERROR",
    "SERVER_UNAVAILABLE",
    "CONFIG_INVALID",
    "STARTUP_FAILED",
    "ADDRESS_IN_USE",
    "HOME_IN_USE",
}


def identifiers() -> set[str]:
    """Every error identifier in the source."""
    names = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.keyword(arg="identifier", value=ast.Constant(value=str(word))):
                    names.add(word)
                case ast.Assign(
                    targets=[ast.Name(id="identifier")], value=ast.Constant(value=str(word))
                ):
                    names.add(word)
                case ast.AnnAssign(
                    target=ast.Name(id="identifier"), value=ast.Constant(value=str(word))
                ):
                    names.add(word)
    return names


def test_every_identifier_is_documented() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (DOCS / "errors.md").read_text(), re.MULTILINE)
    documented = {word for row in rows for word in re.findall(r"`([A-Z_]+)`", row)}
    assert identifiers() - NEVER_SENT - documented == set()
    assert documented & NEVER_SENT == set()


def test_documented_conflict_table_equals_the_matrix() -> None:
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

    def cell(act: Action, changes: set[ChangeType]) -> str:
        if not changes & MATRIX[act]:
            return " "
        assert changes <= MATRIX[act]
        return " x "

    lines = ["| | " + " | ".join(columns) + " |", "|" + "---|" * (len(columns) + 1)]
    lines += [
        f"| {act.value} |" + "|".join(cell(act, changes) for changes in columns.values()) + "|"
        for act in MATRIX
    ]
    assert "\n".join(lines) in (DOCS / "lake.md").read_text()


def test_every_procedure_is_documented() -> None:
    documents = ("lake", "queue", "maintenance", "activity")
    text = "".join((DOCS / f"{name}.md").read_text() for name in documents)
    assert [name for name in PROCEDURES if f"CALL {name}(" not in text] == []


def test_every_action_is_documented() -> None:
    text = "".join((DOCS / f"{name}.md").read_text() for name in ("sessions", "operations"))
    own = [name for name, action in ACTIONS.items() if not action.for_workers and "." in name]
    assert [name for name in own if f"`{name}`" not in text] == []


def test_every_module_with_threads_or_locks_is_in_the_concurrency_document() -> None:
    uses = re.compile(r"threading\.(Lock|RLock|Condition|Thread|Timer)\b|ThreadPoolExecutor\(")
    text = (DOCS / "concurrency.md").read_text()
    files = [path for path in SOURCE.rglob("*.py") if uses.search(path.read_text())]
    paths = {str(path.relative_to(SOURCE)) for path in files}
    assert {path for path in paths if f"`{path}`" not in text} == set()


def messages() -> str:
    """Every string of the source, a line each; values that a message inserts are ``…``."""
    lines = []
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                lines.append(node.value)
            if isinstance(node, ast.JoinedStr):
                parts = (getattr(part, "value", None) for part in node.values)
                lines.append("".join(part if isinstance(part, str) else "…" for part in parts))
    return "\n".join(lines)


@pytest.mark.parametrize("document", ["pipeline", "operations"])
def test_quoted_messages_exist(document: str) -> None:
    rows = re.findall(r"^\| (.*?) \|", (DOCS / f"{document}.md").read_text(), re.MULTILINE)
    quoted = [span for row in rows for span in re.findall(r"`(.*?)`", row) if " " in span]
    assert quoted
    known = messages()
    missing = [
        text for text in quoted if any(part.strip() not in known for part in text.split("…"))
    ]
    assert missing == []


def code_spans(document: Path) -> list[str]:
    """The inline code of a document, without its fenced examples."""
    text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.findall(r"`([^`\n]+)`", text)


def find_path(name: str) -> Path | None:
    """The file or folder of that name, under a root that documents use or anywhere in src."""
    roots = (ROOT, SOURCE, ROOT / "tests", DOCS)
    path = next((root / name for root in roots if (root / name).exists()), None)
    return path or next(SOURCE.rglob(name), None)


def defined_names(path: Path) -> set[str]:
    """Functions, classes and constants of a module, and methods as ``Class.method``."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                names.add(name)
            case ast.ClassDef(name=name, body=body):
                names.add(name)
                names |= {
                    f"{name}.{part.name}" for part in body if isinstance(part, ast.FunctionDef)
                }
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
    return names


def is_in_code(span: str) -> bool:
    """False if the span names a file or a symbol that does not exist; True for any other text."""
    if match := re.fullmatch(r"([\w./-]+\.py)::([\w.]+)", span):
        path = find_path(match[1])
        return path is not None and match[2] in defined_names(path)
    if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?", span) and ("/" in span or span.endswith(".py")):
        return find_path(span) is not None
    if re.fullmatch(r"swanlake(\.[a-z_]+)+", span):
        return importlib.util.find_spec(span) is not None
    if match := re.fullmatch(r"((?:[a-z_]+\.)+)([A-Z]\w*(?:\.\w+)?)", span):
        module = Path(*match[1].rstrip(".").split("."))
        files = [*SOURCE.rglob(f"{module}.py"), *SOURCE.rglob(f"{module}/__init__.py")]
        return any(match[2] in defined_names(path) for path in files)
    if match := re.fullmatch(r"(?:\w+\.)?([a-z_]+)\(.*\)", span):
        return re.search(rf"\bdef {match[1]}\b", SOURCE_TEXT) is not None
    if re.fullmatch(r"[A-Z][a-z0-9]+(?:[A-Z]\w*)+", span) and span not in FLIGHT_CALLS:
        return re.search(rf"\b{span}\b", SOURCE_TEXT) is not None
    return True


SOURCE_TEXT = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("document", MAP, ids=lambda path: path.stem)
def test_named_files_and_symbols_exist(document: Path) -> None:
    missing = [span for span in code_spans(document) if not is_in_code(span)]
    assert missing == []


def anchors(document: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_links_lead_to_documents_and_headings(document: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        name, _, anchor = link.partition("#")
        if "://" in link:
            continue
        path = document.parent / name if name else document
        if not path.exists() or (anchor and anchor not in anchors(path)):
            broken.append(link)
    assert broken == []

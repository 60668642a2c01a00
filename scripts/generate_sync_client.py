"""Generates the client's API for threads (client/sync) from the one for tasks (client/aio).

    python scripts/generate_sync_client.py           rewrites client/sync
    python scripts/generate_sync_client.py --check   fails if client/sync is not current

``waiting.py`` is written by hand in both packages: it is where they differ.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from itertools import pairwise
from pathlib import Path

CLIENT = Path(__file__).parents[1] / "src" / "swanlake" / "client"
MODULES = ("pool", "session", "statements", "writer")
HEADER = "# Generated from aio/{module}.py by scripts/generate_sync_client.py. Do not edit.\n"

NAMES = {
    "aio": "sync",
    "wait_async": "wait",
    "asynccontextmanager": "contextmanager",
    "AsyncIterator": "Iterator",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
}
#: Replaced in docstrings, in this order.
WORDS = {
    "an async context manager": "a context manager",
    "async with": "with",
    "await ": "",
    "any task or thread": "any thread",
    "for tasks of one event loop": "for any number of threads",
    "tasks": "threads",
}
ASYNC_PREFIX = re.compile(r"\b(_?)Async(?=[A-Z])")
#: Only a task acquires something by awaiting it.
DROPPED = re.compile(r"^ *@acquiring\n|(?<=import )acquiring, ", re.MULTILINE)


def generate(module: str) -> str:
    """The source of a module for threads."""
    source = (CLIENT / "aio" / f"{module}.py").read_text()
    source = HEADER.format(module=module) + _without_async(DROPPED.sub("", source))
    target = str(CLIENT / "sync" / f"{module}.py")
    for command in (["check", "--select", "I", "--fix", "--quiet"], ["format"]):
        source = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", target, "-"],
            input=source,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return source


def _without_async(source: str) -> str:
    """Drops ``async`` and ``await``, and renames what has another name in a thread."""
    lines = source.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for token, following in reversed(list(pairwise(tokens))):
        (row, start), (last_row, end) = token.start, token.end
        if token.type == tokenize.STRING:
            text = ASYNC_PREFIX.sub(r"\1", token.string)
            for old, new in WORDS.items():
                text = text.replace(old, new)
        elif token.string in ("async", "await"):
            text, end = "", following.start[1]
        elif token.type == tokenize.NAME:
            text = NAMES.get(token.string, ASYNC_PREFIX.sub(r"\1", token.string))
        else:
            continue
        lines[row - 1 : last_row] = [lines[row - 1][:start] + text + lines[last_row - 1][end:]]
    return "".join(lines)


def main() -> None:
    outdated = []
    for module in MODULES:
        target = CLIENT / "sync" / f"{module}.py"
        source = generate(module)
        if target.exists() and target.read_text() == source:
            continue
        outdated.append(module)
        if "--check" not in sys.argv:
            target.write_text(source)
    if outdated and "--check" in sys.argv:
        raise SystemExit(f"client/sync is not current ({', '.join(outdated)}): run `make sync`.")


if __name__ == "__main__":
    main()

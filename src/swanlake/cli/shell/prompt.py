"""The prompt: line editing, colours, completion and history."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.lexers import Lexer
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.shortcuts import CompleteStyle
from prompt_toolkit.styles import Style

from swanlake.cli.shell.completion import Names, Place, complete
from swanlake.cli.shell.input import is_complete
from swanlake.cli.shell.lexing import Kind, pieces

_HISTORY = "~/.swanlake_history"
#: The terminal's own colours: they suit dark and light backgrounds.
_STYLE = Style.from_dict(
    {
        "keyword": "bold ansiblue",
        "string": "ansigreen",
        "number": "ansimagenta",
        "comment": "italic ansibrightblack",
        "command": "bold ansicyan",
    }
)
_CLASSES = {
    Kind.KEYWORD: "class:keyword",
    Kind.STRING: "class:string",
    Kind.NUMBER: "class:number",
    Kind.COMMENT: "class:comment",
}


class Prompt:
    """Reads statements and commands; Enter runs what is complete, else it begins a new line."""

    def __init__(self, names: Callable[[], Names], place: Callable[[], Place]) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            completer=_SqlCompleter(names, place),
            complete_while_typing=False,
            complete_style=CompleteStyle.MULTI_COLUMN,
            lexer=_SqlLexer(),
            style=_STYLE,
            key_bindings=_enter_key(),
            multiline=True,
            prompt_continuation=_continuation,
            enable_suspend=True,
            color_depth=ColorDepth.MONOCHROME if os.environ.get("NO_COLOR") else None,
        )

    def read(self, prompt: str, text: str = "") -> str:
        """The next input; raises KeyboardInterrupt on Ctrl-C and EOFError on Ctrl-D."""
        return self._session.prompt(prompt, default=text)


def _continuation(width: int, line_number: int, wrap_count: int) -> str:
    return "...> ".rjust(width)


def _enter_key() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter", filter=has_focus(DEFAULT_BUFFER))
    def enter(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        state = buffer.complete_state
        if state is not None and state.current_completion is not None:
            buffer.complete_state = None  # takes the chosen name
        elif is_complete(buffer.text):
            buffer.validate_and_handle()
        else:
            buffer.newline(copy_margin=False)

    return keys


def _history() -> History:
    """The history file, which only its owner can read; in memory if it cannot be written."""
    path = Path(os.path.expanduser(_HISTORY))  # unchanged without a home directory
    try:
        path.touch(mode=0o600)
        path.chmod(0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


class _SqlLexer(Lexer):
    def lex_document(self, document: Document) -> Callable[[int], StyleAndTextTuples]:
        lines: list[StyleAndTextTuples] = [[]]
        text = document.text
        if text.lstrip().startswith(("\\", ".")):
            lines = [[("class:command", line)] for line in text.split("\n")]
            return lambda number: lines[number]
        for piece in pieces(text):
            for number, part in enumerate(piece.text.split("\n")):
                if number:
                    lines.append([])
                lines[-1].append((_CLASSES.get(piece.kind, ""), part))
        return lambda number: lines[number] if number < len(lines) else []


class _SqlCompleter(Completer):
    def __init__(self, names: Callable[[], Names], place: Callable[[], Place]) -> None:
        self._names = names
        self._place = place

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Any]:
        before, after = document.text_before_cursor, document.text_after_cursor
        for found in complete(before, after, self._names(), self._place()):
            yield Completion(found.text, start_position=-found.replaced, display_meta=found.kind)

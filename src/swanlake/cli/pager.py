"""Shows long text in the user's pager."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterable
from contextlib import suppress

_DEFAULT = "less -S"
_ESCAPES_OFF = {"\x1b[1m": "", "\x1b[2m": "", "\x1b[0m": ""}


def page(lines: Iterable[str]) -> None:
    """Shows the lines in $PAGER, else in ``less -S``; prints them if there is no pager."""
    command = shlex.split(os.environ.get("PAGER") or _DEFAULT)
    text = "\n".join(lines) + "\n"
    if os.path.basename(command[0]) == "less":
        command.append("-R")  # shows colours
    else:
        for escape, nothing in _ESCAPES_OFF.items():
            text = text.replace(escape, nothing)
    try:
        pager = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
    except OSError:
        print(text, end="")
        return
    # Ctrl-C belongs to the pager while it runs.
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with suppress(BrokenPipeError):  # the user quit before the end
            pager.communicate(text)
        pager.wait()
    finally:
        signal.signal(signal.SIGINT, previous)

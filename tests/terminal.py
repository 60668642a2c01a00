"""A command in a real terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

#: Makes the pty the controlling terminal, so that Ctrl-C becomes a signal.
_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; os.setsid(); fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[a-zA-Z]|\][^\x07]*\x07|[=>])")


class Terminal:
    """A terminal with a ``swanlake`` command, for tests to type into and read from."""

    def __init__(
        self, *arguments: str, home: Path, size: tuple[int, int] = (40, 120), **environment: str
    ) -> None:
        self._screen, keyboard = pty.openpty()
        fcntl.ioctl(keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
        terminal = {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "HOME": str(home)}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _TAKE_TERMINAL, "-m", "swanlake", *arguments],
            stdin=keyboard, stdout=keyboard, stderr=keyboard,
            env=os.environ | terminal | environment,
        )  # fmt: skip
        os.close(keyboard)
        self._text = ""

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def expect(self, text: str, seconds: float = 240.0) -> None:
        """Reads until the text appears, and drops everything up to its end."""
        assert self.shows(text, seconds), f"{text!r} is not in {self._text!r}"

    def shows(self, text: str, seconds: float) -> bool:
        """True if the text appears in time; drops everything up to its end."""
        deadline = time.monotonic() + seconds
        while text not in self._text and time.monotonic() < deadline:
            if select.select([self._screen], [], [], 0.1)[0]:
                self._text = _ESCAPES.sub("", self._text + self._read())
        found = text in self._text
        if found:
            self._text = self._text.split(text, 1)[1]
        return found

    def _read(self) -> str:
        try:
            return os.read(self._screen, 65536).decode(errors="replace")
        except OSError:
            raise AssertionError(f"the process ended after {self._text!r}") from None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        os.close(self._screen)

"""The line that shows the progress of a long statement."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

#: A statement shorter than this shows no line.
_FIRST_SECONDS = 0.5
_NEXT_SECONDS = 0.2
_BAR_WIDTH = 30
_CLEAR = "\r\x1b[K"


class RunningLine:
    """Shows the progress, the time and the rows of a statement; a context manager.

    It writes to standard error, and only on a terminal. ``progress`` gives the done part of the
    statement between 0 and 1, or None; it is called in a thread of the line.
    """

    def __init__(self, progress: Callable[[], float | None]) -> None:
        self._progress = progress
        self._began = time.monotonic()
        self._rows = 0
        #: How long the statement took; counts on until it has ended.
        self._took: float | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def follow(self, batches: Iterable[Any], *, until_first: bool) -> Iterator[Any]:
        """The batches; the line ends with the last of them, or before the first."""
        for batch in batches:
            if until_first:
                self.end()
            self._rows += batch.num_rows
            yield batch
        self._took = time.monotonic() - self._began
        self.end()

    @property
    def seconds(self) -> float:
        """How long the statement took, or has been running."""
        return time.monotonic() - self._began if self._took is None else self._took

    def end(self) -> None:
        """Removes the line; idempotent."""
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def __enter__(self) -> RunningLine:
        if sys.stderr.isatty():
            self._thread = threading.Thread(target=self._run, name="swanlake-line", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.end()

    def _run(self) -> None:
        shown = False
        pause = _FIRST_SECONDS
        while not self._ended.wait(pause):
            pause = _NEXT_SECONDS
            done = self._progress()
            if self._ended.is_set():
                break
            sys.stderr.write(_CLEAR + running_text(self.seconds, done, self._rows))
            sys.stderr.flush()
            shown = True
        if shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()


def running_text(seconds: float, done: float | None, rows: int) -> str:
    """The text of the line: a bar if the progress is known, the time, and the rows so far."""
    parts = []
    if done is not None:
        filled = round(max(0.0, min(1.0, done)) * _BAR_WIDTH)
        parts.append(f"{'█' * filled}{'░' * (_BAR_WIDTH - filled)} {done:4.0%}")
    parts.append(_clock(seconds))
    if rows:
        parts.append(f"{rows:,} rows")
    return "  ".join(parts) + "  (Ctrl-C cancels)"


def _clock(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02} min"

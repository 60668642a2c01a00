"""What a server prints when it has started: commands that work as pasted."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from swanlake._version import __version__
from swanlake.config import Settings


def own_command() -> str:
    """The command by which this program runs from any directory, for a shell."""
    program = Path(sys.argv[0])
    if program.name == "swanlake" and program.is_file():
        return shlex.quote(str(program.absolute()))
    return f"{shlex.quote(sys.executable)} -m swanlake"


def banner_lines(
    command: str, url: str, status_url: str | None, settings: Settings
) -> Iterator[str]:
    """The lines: where the server is, how to use it, where the data is, how to stop it."""
    options = f" --url {url}"
    if settings.auth != "none":
        options += " --token-file FILE"
    if settings.tls_cert is not None:
        options += " --tls-ca FILE"
    data = settings.data_location
    home = settings.home.absolute()
    yield f"SwanLake {__version__} accepts connections on {url}"
    yield ""
    yield f"  query   {command} sql{options}"
    yield f"  try     {command} demo{options}"
    yield f"  look    {status_url or 'no console (--status on)'}"
    yield f"  home    {home}"
    yield f"  data    {data if '://' in data else Path(data).absolute()}"
    yield f"  stop    Ctrl-C, or kill {os.getpid()}"
    yield ""

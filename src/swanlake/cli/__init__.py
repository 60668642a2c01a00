"""The ``swanlake`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """The entry point; says what to install where only the client is there."""
    try:
        from swanlake.cli.commands import swanlake
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.split(".")[0] == "swanlake":
            raise
        sys.exit(
            f"The swanlake command needs the server's packages ({missing.name} is missing): "
            "pip install 'swanlake[server]'."
        )
    swanlake(prog_name="swanlake")

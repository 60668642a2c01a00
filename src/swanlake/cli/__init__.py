"""The ``swanlake`` command."""

from __future__ import annotations

import os
import sys

__all__ = ["main"]


def main() -> None:
    """The entry point; names the missing package if only the client is installed."""
    from swanlake._internal.arrow_memory import limit_arrow_memory

    # gRPC writes its own lines about refused connections; ours say it in one sentence.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from swanlake.cli.commands import swanlake
    except ModuleNotFoundError as missing:
        if missing.name and missing.name.split(".")[0] == "swanlake":
            raise
        sys.exit(
            f"The swanlake command needs the server's packages ({missing.name} is missing): "
            "pip install '.[server]' in a checkout of SwanLake."
        )
    os.umask(0o077)  # files of the lake, of the server and of its children are private
    swanlake(prog_name="swanlake", obj=limit_arrow_memory)

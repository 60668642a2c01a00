"""A keeper that kills itself at a step of a commit, as often as it is told.

The environment says at which step, and which folder holds a file for every death that is left.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from swanlake.lake import keeper, store


def die(step: str) -> None:
    """Takes a death out of the folder, if there is one left for this step."""
    if step != os.environ["SWANLAKE_DIE_AT"]:
        return
    for death in Path(os.environ["SWANLAKE_DEATHS"]).iterdir():
        death.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    store._go_on = die
    keeper.main()

"""Where a worker keeps files for a while."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def scratch_directory() -> Path:
    """A directory of Spark's, which clears it up whatever happens; else that of the machine."""
    for place in os.environ.get("SPARK_LOCAL_DIRS", "").split(","):
        if place and os.access(place, os.W_OK | os.X_OK):
            return Path(place)
    return Path(tempfile.gettempdir())

"""A server without one part of native execution, for ``benchmarks/native.py``."""

from __future__ import annotations

import os
from dataclasses import replace

from swanlake.cli import main
from swanlake.sessions.services import NativeParts

#: Names the part to turn off.
PART = "NATIVE_PART_OFF"


def _parts(cls: type[NativeParts], native_statements: str) -> NativeParts:
    return replace(cls(), **{os.environ[PART]: False})


if __name__ == "__main__":
    NativeParts.from_setting = classmethod(_parts)  # type: ignore[assignment,method-assign]
    main()

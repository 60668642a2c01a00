"""A limit for all memory that Arrow allocates in this process.

Flight decodes what a client sends before the server's code sees it, and a compressed batch of
100 kB can become gigabytes. pyarrow has no option for that. But it allocates through mimalloc,
which can be told to use one reservation of address space and no other memory: what does not fit
fails with an error of that call. mimalloc reads its options when pyarrow is loaded, so the program
is started again with them in its environment.
"""

from __future__ import annotations

import os
import sys

#: What Arrow may need besides that of callers: batches on their way, jobs of the queue.
ARROW_HEADROOM_BYTES = 1024**3
_OPTIONS = ("MIMALLOC_RESERVE_OS_MEMORY", "MIMALLOC_DISALLOW_OS_ALLOC")


def limit_arrow_memory(limit: int) -> None:
    """Returns in a process whose Arrow allocates no more than ``limit`` bytes: this one, restarted.

    The second time, takes the options out of the environment: children have needs of their own.
    Leaves options alone that the user has set, and does nothing where the server's code is loaded
    already, since it would be loaded twice.
    """
    if "swanlake.server.app" in sys.modules:
        return
    if any(option in os.environ for option in _OPTIONS):
        for option in _OPTIONS:
            os.environ.pop(option, None)
        return
    environment = os.environ | dict(zip(_OPTIONS, (f"{limit // 1024}K", "1"), strict=True))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)

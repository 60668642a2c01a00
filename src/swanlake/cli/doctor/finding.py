"""What a check of the doctor found."""

from __future__ import annotations

from dataclasses import dataclass

OK, WARNING, PROBLEM = "ok", "warning", "problem"


@dataclass(frozen=True)
class Finding:
    """The outcome of one check, and what to do if it is not ok."""

    check: str
    state: str
    text: str
    remedy: str = ""


#: Seconds to wait for another program.
ANSWER_SECONDS = 5.0

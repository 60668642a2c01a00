"""Fuzzes one target with atheris: ``python tests/fuzz/campaign.py TARGET FINDINGS SECONDS``.

New inputs that reach new code, and those that fail, are written to the folder of findings.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["swanlake"]):
    from tests.fuzz.targets import CORPUS, TARGETS


def main() -> None:
    name, findings, seconds = sys.argv[1:]
    limits = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=60", "-rss_limit_mb=4096"]
    folders = [findings, str(CORPUS / name)]  # the first one takes what is found
    atheris.Setup(
        ["fuzz", f"-artifact_prefix={findings}/failed-", *limits, *folders], TARGETS[name]
    )
    atheris.Fuzz()


if __name__ == "__main__":
    main()

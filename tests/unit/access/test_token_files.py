"""Token files: which of them are private enough."""

from __future__ import annotations

import pytest

from swanlake.access.token_files import is_loose

ROOT, OWN, OTHER = 0, 1000, 1001


@pytest.mark.parametrize(
    ("mode", "owner", "expected"),
    [
        (0o100600, OWN, False),
        (0o100400, OWN, False),
        (0o100640, OWN, True),
        (0o100604, OWN, True),
        (0o100620, OWN, True),
        (0o100440, ROOT, False),
        (0o100640, ROOT, False),
        (0o100660, ROOT, True),
        (0o100444, ROOT, True),
        (0o100640, OTHER, True),
    ],
)
def test_file_that_others_can_use_is_loose(mode: int, owner: int, expected: bool) -> None:
    assert is_loose(mode, owner, OWN) is expected


def test_group_may_not_read_files_of_a_server_that_runs_as_root() -> None:
    assert is_loose(0o100640, ROOT, ROOT)

"""What documents name."""

from __future__ import annotations

import pytest

from swanlake.access.grant_text import parse_grants
from swanlake.access.identity import Identity, Role
from swanlake.status.console.documents import may_name


@pytest.mark.parametrize(
    ("tables", "may"),
    [
        (("sales.main.t",), True),
        (("main.t", "main.u"), True),
        (("hr.main.t",), False),
        (("main.t", "hr.main.u"), False),
    ],
)
def test_table_is_named_to_those_who_may_read_its_catalog(
    tables: tuple[str, ...], may: bool
) -> None:
    reader = Identity("ann", Role.READER, parse_grants(["sales=read"]))
    assert may_name(reader, *tables) is may

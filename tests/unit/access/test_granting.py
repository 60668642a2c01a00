"""Grants only give, revocations only take, and neither opens more by accident."""

from __future__ import annotations

import pytest

from swanlake.access.grant_text import format_grant, parse_grant, parse_grants
from swanlake.access.granting import with_grant, without_grant
from swanlake.access.identity import Identity, Privilege, Role
from swanlake.errors import InvalidRequest

CATALOGS = ("sales", "sales_eu", "hr")


def privileges(role: Role, grants: object) -> list[Privilege]:
    identity = Identity("ann", role, grants)  # type: ignore[arg-type]
    return [identity.privilege(catalog) for catalog in CATALOGS]


@pytest.mark.parametrize(
    ("role", "grants", "added", "expected"),
    [
        (Role.READER, [], "sales=read", ["*=read", "sales=read"]),
        (Role.WRITER, [], "sales=read", ["*=write", "sales=read"]),
        (Role.WRITER, ["*=none"], "sales_*=write", ["*=none", "sales_*=write"]),
        (Role.WRITER, ["sales=read", "hr=read"], "SALES=write", ["hr=read", "SALES=write"]),
    ],
)
def test_grant_is_added(role: Role, grants: list[str], added: str, expected: list[str]) -> None:
    result = with_grant(role, parse_grants(grants), parse_grant(added))
    assert list(map(format_grant, result)) == expected


@pytest.mark.parametrize(
    ("grants", "pattern", "expected"),
    [
        ([], "sales", ["*=write", "sales=none"]),
        (["sales=write"], "sales", ["*=none"]),
        (["sales=write", "hr=read"], "sales", ["hr=read", "sales=none"]),
        (["*=write"], "sales_*", ["*=write", "sales_*=none"]),
        (["sales_eu=write", "sales_*=read", "hr=read"], "sales*", ["hr=read", "sales*=none"]),
        (["*=read"], "*", ["*=none"]),
    ],
)
def test_revocation_takes_everything_on_the_pattern(
    grants: list[str], pattern: str, expected: list[str]
) -> None:
    before = parse_grants(grants)
    after = without_grant(Role.WRITER, before, pattern)
    assert list(map(format_grant, after)) == expected
    matched = parse_grant(f"{pattern}=none")
    pairs = zip(privileges(Role.WRITER, before), privileges(Role.WRITER, after), strict=True)
    for catalog, (old, new) in zip(CATALOGS, pairs, strict=True):
        assert new == (Privilege.NONE if matched.matches(catalog) else old)


def test_role_limits_grants() -> None:
    with pytest.raises(InvalidRequest, match="grant the role writer first"):
        with_grant(Role.READER, (), parse_grant("sales=write"))
    with pytest.raises(InvalidRequest, match="admin"):
        with_grant(Role.ADMIN, (), parse_grant("sales=read"))
    with pytest.raises(InvalidRequest, match="admin"):
        without_grant(Role.ADMIN, (), "sales")

"""The privilege of a caller on a catalog."""

from __future__ import annotations

import pytest

from swanlake.access.identity import Grant, Identity, Privilege, Role

READ_SALES = Grant("sales*", Privilege.READ)
WRITE_EU = Grant("sales_eu", Privilege.WRITE)
NO_SECRETS = Grant("*_secret", Privilege.NONE)


def test_each_privilege_is_higher_than_the_one_before() -> None:
    assert Privilege.NONE < Privilege.READ < Privilege.WRITE


@pytest.mark.parametrize(
    ("role", "included"),
    [
        (Role.READER, [Role.READER]),
        (Role.WRITER, [Role.READER, Role.WRITER]),
        (Role.ADMIN, [Role.READER, Role.WRITER, Role.ADMIN]),
    ],
)
def test_role_includes_itself_and_the_lower_ones(role: Role, included: list[Role]) -> None:
    assert [other for other in Role if role.includes(other)] == included


@pytest.mark.parametrize(
    ("role", "privilege"),
    [
        (Role.READER, Privilege.READ),
        (Role.WRITER, Privilege.WRITE),
        (Role.ADMIN, Privilege.WRITE),
    ],
)
def test_role_holds_in_every_catalog_without_grants(role: Role, privilege: Privilege) -> None:
    assert Identity("ana", role).privilege("sales") is privilege


@pytest.mark.parametrize(
    ("catalog", "privilege"),
    [
        ("sales_us", Privilege.READ),
        ("sales_eu", Privilege.WRITE),
        ("SALES_EU", Privilege.WRITE),
        ("sales_secret", Privilege.NONE),
        ("hr", Privilege.NONE),
    ],
)
def test_most_specific_grant_decides(catalog: str, privilege: Privilege) -> None:
    caller = Identity("ana", Role.WRITER, (READ_SALES, WRITE_EU, NO_SECRETS))
    assert caller.privilege(catalog) is privilege


@pytest.mark.parametrize("wild", ["*", "****************", "????????", "*?s*?*?*?*"])
def test_pattern_with_more_literal_characters_is_more_specific(wild: str) -> None:
    for grants in (
        (READ_SALES, Grant(wild, Privilege.WRITE)),
        (Grant(wild, Privilege.WRITE), READ_SALES),
    ):
        caller = Identity("ana", Role.WRITER, grants)
        assert grants[0].matches("sales_us")
        assert grants[1].matches("sales_us")
        assert caller.privilege("sales_us") is Privilege.READ


def test_lower_of_two_equally_specific_grants_decides() -> None:
    caller = Identity("ana", Role.WRITER, (WRITE_EU, Grant("sales_eu", Privilege.READ)))
    assert caller.privilege("sales_eu") is Privilege.READ


def test_reader_never_writes() -> None:
    assert Identity("ana", Role.READER, (WRITE_EU,)).privilege("sales_eu") is Privilege.READ


def test_admin_is_not_restricted_by_grants() -> None:
    assert Identity("ana", Role.ADMIN, (NO_SECRETS,)).privilege("a_secret") is Privilege.WRITE

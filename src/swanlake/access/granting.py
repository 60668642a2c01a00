"""How a grant changes what a caller may do, and a revocation."""

from __future__ import annotations

from collections.abc import Sequence

from swanlake.access.grant_text import NO_CATALOG
from swanlake.access.identity import Grant, Privilege, Role
from swanlake.errors import InvalidRequest


def with_grant(role: Role, grants: Sequence[Grant], added: Grant) -> tuple[Grant, ...]:
    """The grants of a caller that gets another one, in place of an earlier one of its pattern.

    It takes nothing away: a caller without grants may do in every catalog what its role allows, and
    gets that as a grant. Raises InvalidRequest for a privilege that the role does not allow.
    """
    if added.privilege > role.highest_privilege:
        raise InvalidRequest(
            f"A {role} cannot get the privilege {added.privilege.name.lower()}: grant the role "
            f"{Role.WRITER} first."
        )
    _check_not_admin(role)
    before = grants or (Grant("*", role.highest_privilege),)
    return (*_without_pattern(before, added.pattern), added)


def without_grant(role: Role, grants: Sequence[Grant], pattern: str) -> tuple[Grant, ...]:
    """The grants of a caller that loses its privileges on the catalogs of a pattern.

    Grants on some of these catalogs are removed, and the pattern is denied if other grants remain.
    Never empty: without grants, the role would hold in every catalog.
    """
    _check_not_admin(role)
    denied = Grant(pattern, Privilege.NONE)
    before = grants or (Grant("*", role.highest_privilege),)
    rest = tuple(grant for grant in before if not denied.matches(grant.pattern))
    return (*rest, denied) if any(grant.privilege for grant in rest) else NO_CATALOG


def _check_not_admin(role: Role) -> None:
    if role is Role.ADMIN:
        raise InvalidRequest("Grants do not restrict an admin: give it another role first.")


def _without_pattern(grants: Sequence[Grant], pattern: str) -> tuple[Grant, ...]:
    return tuple(grant for grant in grants if grant.pattern.lower() != pattern.lower())

"""Callers, their roles and their privileges on catalogs."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

__all__ = ["Grant", "Identity", "Privilege", "Role"]


class Privilege(IntEnum):
    """What a caller may do in a catalog; a higher privilege includes the lower ones."""

    NONE = 0
    READ = 1
    WRITE = 2


class Role(StrEnum):
    """What a caller may do at all; grants restrict it to catalogs."""

    READER = "reader"
    WRITER = "writer"
    ADMIN = "admin"

    @property
    def highest_privilege(self) -> Privilege:
        return Privilege.READ if self is Role.READER else Privilege.WRITE

    def includes(self, other: Role) -> bool:
        """True if this role may do what the other may."""
        roles = list(Role)
        return roles.index(self) >= roles.index(other)


@dataclass(frozen=True)
class Grant:
    """A privilege on the catalogs whose names match a pattern with ``*`` and ``?``."""

    pattern: str
    privilege: Privilege

    def matches(self, catalog: str) -> bool:
        # DuckDB compares names of catalogs without regard to case.
        return fnmatch.fnmatchcase(catalog.lower(), self.pattern.lower())

    @property
    def specificity(self) -> tuple[int, int]:
        """Orders grants that match the same catalog: the highest one decides."""
        literal = len(self.pattern) - self.pattern.count("*") - self.pattern.count("?")
        return literal, -self.privilege


@dataclass(frozen=True)
class Identity:
    """A caller: its name, its role, and its grants."""

    name: str
    role: Role
    #: Without grants, the role holds in every catalog; with grants, only where one matches.
    grants: Sequence[Grant] = ()
    #: The bearer token that identifies the caller in later calls.
    bearer: str = field(default="", repr=False)
    #: The token of a Spark worker; it grants access to the segments of its job only.
    grant_token: str = field(default="", repr=False)

    @property
    def is_admin(self) -> bool:
        return self.role is Role.ADMIN

    def privilege(self, catalog: str) -> Privilege:
        """What the caller may do in a catalog.

        The grant with the most specific pattern decides. Of two equally specific ones, the lower
        privilege does. An admin needs no grants and is not restricted by them.
        """
        if self.is_admin or not self.grants:
            return self.role.highest_privilege
        matching = [grant for grant in self.grants if grant.matches(catalog)]
        if not matching:
            return Privilege.NONE
        decisive = max(matching, key=lambda grant: grant.specificity)
        return min(decisive.privilege, self.role.highest_privilege)

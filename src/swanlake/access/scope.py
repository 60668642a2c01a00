"""What callers may do in the catalogs; callers of one scope share an engine."""

from __future__ import annotations

from dataclasses import dataclass

from swanlake.access.identity import Grant, Identity, Privilege, Role


@dataclass(frozen=True)
class Scope:
    """The role and the grants of callers; by default, those of an admin."""

    role: Role = Role.ADMIN
    #: Sorted, and none for an admin.
    grants: tuple[Grant, ...] = ()

    @classmethod
    def from_identity(cls, identity: Identity) -> Scope:
        if identity.is_admin:
            return UNRESTRICTED
        key = {(grant.pattern, grant.privilege): grant for grant in identity.grants}
        return cls(identity.role, tuple(key[entry] for entry in sorted(key)))

    @property
    def is_restricted(self) -> bool:
        return self.role is not Role.ADMIN

    def privilege(self, catalog: str) -> Privilege:
        """What the callers may do in a catalog."""
        return Identity("", self.role, self.grants).privilege(catalog)

    def may_read(self, catalog: str) -> bool:
        return self.privilege(catalog) >= Privilege.READ

    def may_write(self, catalog: str) -> bool:
        return self.privilege(catalog) >= Privilege.WRITE


UNRESTRICTED = Scope()

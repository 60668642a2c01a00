"""``swanlake serve`` whose callers have the role and the grants that their token says.

``reader``, ``writer`` and ``admin`` have the role without grants. ``writer/sales=write,hr=read`` is
a writer with grants.
"""

from __future__ import annotations

from swanlake.access.identity import Grant, Identity, Privilege, Role
from swanlake.cli import main
from swanlake.server import app
from swanlake.server.auth import Authenticator, Credentials


class RoleAuthenticator(Authenticator):
    """Believes what callers say of themselves."""

    def identify(self, credentials: Credentials) -> Identity:
        token = credentials.authorization.removeprefix("Bearer ")
        role, _, granted = token.partition("/")
        grants = [entry.partition("=") for entry in granted.split(",") if entry]
        return Identity(
            token,
            Role(role),
            tuple(Grant(name, Privilege[privilege.upper()]) for name, _, privilege in grants),
            bearer=token,
        )


if __name__ == "__main__":
    app.__dict__["open_authenticator"] = lambda *arguments: RoleAuthenticator()
    main()

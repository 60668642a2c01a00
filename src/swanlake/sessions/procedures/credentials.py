"""Callers of the lake and their grants: ``CALL swanlake_grant('ann', 'sales_*', 'read')``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from swanlake.access.grant_text import format_grant, parse_grant, parse_grants, parse_role
from swanlake.access.granting import with_grant, without_grant
from swanlake.access.identity import Grant, Role
from swanlake.errors import CommitConflict, InvalidRequest, NotFound
from swanlake.lake.model.credentials import Credential, CredentialKind
from swanlake.sessions.procedures.base import Procedure, ProcedureContext, Rows

_TIME = pa.timestamp("us", tz="UTC")
_CALLER = pa.schema(
    [
        ("name", pa.string()),
        ("role", pa.string()),
        ("grants", pa.list_(pa.string())),
        ("created_at", _TIME),
        ("expires_at", _TIME),
    ]
)
#: How often a change is attempted while others change the same caller.
_ATTEMPTS = 5


def _users(context: ProcedureContext) -> Rows:
    return _list(context, CredentialKind.USER)


def _tokens(context: ProcedureContext) -> Rows:
    return _list(context, CredentialKind.TOKEN)


def _list(context: ProcedureContext, kind: CredentialKind) -> Rows:
    return [
        _row(credential)
        for credential in context.lake.credentials().credentials
        if credential.kind is kind
    ]


def _row(credential: Credential) -> dict[str, object]:
    values = dict(vars(credential))
    del values["kind"], values["verifier"]
    return values | {"grants": list(credential.grants)}


def _grant(
    context: ProcedureContext,
    user: str,
    catalogs: str | None,
    privilege: str | None,
    role: str | None,
) -> Rows:
    if role is None and (catalogs is None or privilege is None):
        raise InvalidRequest("swanlake_grant needs catalogs and a privilege, or a role.")
    grant = None if catalogs is None else parse_grant(f"{catalogs}={privilege or ''}")
    new_role = None if role is None else parse_role(role)

    def change(old: Credential) -> Credential:
        role = new_role or Role(old.role)
        grants = parse_grants(old.grants)
        if grant is not None:
            grants = with_grant(role, grants, grant)
        return replace(old, role=role.value, grants=_texts(grants))

    return _change(context, user, change)


def _revoke(context: ProcedureContext, user: str, catalogs: str) -> Rows:
    pattern = parse_grant(f"{catalogs}=none").pattern

    def change(old: Credential) -> Credential:
        grants = without_grant(Role(old.role), parse_grants(old.grants), pattern)
        return replace(old, grants=_texts(grants))

    return _change(context, user, change)


def _texts(grants: tuple[Grant, ...]) -> tuple[str, ...]:
    return tuple(map(format_grant, grants))


def _change(
    context: ProcedureContext, name: str, change: Callable[[Credential], Credential]
) -> Rows:
    """Changes a caller; again if another change came first."""
    for attempt in range(_ATTEMPTS):
        old = next(
            (one for one in context.lake.credentials().credentials if one.name == name), None
        )
        if old is None:
            raise NotFound(
                f"The lake has no token or user {name}. Token files, JWTs and client certificates "
                "have their roles and grants elsewhere.",
                identifier="CALLER_NOT_FOUND",
            )
        new = change(old)
        try:
            context.lake.replace_credential(old, new)
        except CommitConflict:
            if attempt == _ATTEMPTS - 1:
                raise
        else:
            break
    context.services.on_credentials_changed()
    return [_row(new)]


CREDENTIAL_PROCEDURES = (
    Procedure(
        "swanlake_users",
        (),
        0,
        _CALLER,
        False,
        Role.ADMIN,
        _users,
        reads=True,
        help="The users of the lake, who log in with a password.",
    ),
    Procedure(
        "swanlake_tokens",
        (),
        0,
        _CALLER,
        False,
        Role.ADMIN,
        _tokens,
        reads=True,
        help="The tokens of the lake, expired ones too.",
    ),
    Procedure(
        "swanlake_grant",
        ("user", "catalogs", "privilege", "role"),
        3,
        _CALLER,
        True,
        Role.ADMIN,
        _grant,
        help="Gives a user or a token a privilege on catalogs, or another role.",
    ),
    Procedure(
        "swanlake_revoke",
        ("user", "catalogs"),
        0,
        _CALLER,
        True,
        Role.ADMIN,
        _revoke,
        help="Takes all privileges on catalogs from a user or a token.",
    ),
)

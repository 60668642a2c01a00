"""``swanlake token`` and ``swanlake user``: the credentials of a lake; no server need run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pyarrow as pa

from swanlake.access.grant_text import checked_caller_name, format_grant, parse_grants
from swanlake.access.identity import Role
from swanlake.access.secret_text import (
    MIN_PASSWORD_LENGTH,
    new_token,
    password_verifier,
    token_digest,
)
from swanlake.cli.lake import LakeCommands, lake_options, open_lake, show_list
from swanlake.cli.options import Duration
from swanlake.cli.output import format_option
from swanlake.errors import InvalidRequest
from swanlake.lake.model.credentials import Credential, CredentialKind

_COLUMNS = pa.schema(
    [
        ("name", pa.string()),
        ("role", pa.string()),
        ("grants", pa.string()),
        ("created_at", pa.timestamp("s", "UTC")),
        ("expires_at", pa.timestamp("s", "UTC")),
    ]
)


def _rights_options(command: Callable[..., None]) -> Callable[..., None]:
    role = click.option(
        "--role",
        type=click.Choice([role.value for role in Role]),
        default=Role.READER.value,
        show_default=True,
        help="What the caller may do.",
    )
    grants = click.option(
        "--grant",
        "grants",
        multiple=True,
        metavar="PATTERN=PRIVILEGE",
        help="Catalogs in which the role holds, such as 'sales_*=read'; the privileges are read, "
        "write and none. May be repeated. Default: every catalog.",
    )
    return role(grants(command))


@click.group(cls=LakeCommands)
def token() -> None:
    """Create, list and revoke the bearer tokens of a lake.

    All servers of the lake accept them, with --auth token or any, and notice changes within
    seconds. Exit codes: 0 success, 1 refused, 2 wrong arguments or settings, 4 the lake cannot be
    reached.
    """


@token.command(name="create")
@click.argument("name")
@_rights_options
@click.option(
    "--expires-in",
    "lifetime",
    type=Duration(),
    default=None,
    help="How long the token is valid, such as 90d. Default: until it is revoked.",
)
@lake_options
def create_token(
    name: str, role: str, grants: tuple[str, ...], lifetime: timedelta | None, **settings: Any
) -> None:
    """Create a token for the caller NAME and print it; it cannot be shown again."""
    secret = new_token()
    expires_at = None if lifetime is None else datetime.now(UTC) + lifetime
    credential = _credential(
        CredentialKind.TOKEN, name, token_digest(secret), role, grants, expires_at
    )
    with open_lake(settings, make=True) as lake:
        lake.add_credential(credential)
    click.echo(secret)


@token.command(name="list")
@format_option
@lake_options
def list_tokens(output: str, **settings: Any) -> None:
    """Show the tokens of the lake, expired ones too."""
    _list(CredentialKind.TOKEN, output, settings)


@token.command()
@click.argument("name")
@lake_options
def revoke(name: str, **settings: Any) -> None:
    """Revoke the token of the caller NAME."""
    _remove(CredentialKind.TOKEN, name, settings)
    click.echo(f"The token {name} is revoked.")


@click.group(cls=LakeCommands)
def user() -> None:
    """Create, list and remove the users of a lake, who log in with a password.

    All servers of the lake accept them, with --auth any, and notice changes within seconds. Exit
    codes as of `swanlake token`.
    """


@user.command(name="create")
@click.argument("name")
@_rights_options
@lake_options
def create_user(name: str, role: str, grants: tuple[str, ...], **settings: Any) -> None:
    """Create the user NAME; the password comes from a prompt, or from standard input."""
    checked_caller_name(name)
    verifier = password_verifier(_read_password())
    credential = _credential(CredentialKind.USER, name, verifier, role, grants)
    with open_lake(settings, make=True) as lake:
        lake.add_credential(credential)
    click.echo(f"The user {name} can log in.")


@user.command(name="list")
@format_option
@lake_options
def list_users(output: str, **settings: Any) -> None:
    """Show the users of the lake."""
    _list(CredentialKind.USER, output, settings)


@user.command()
@click.argument("name")
@lake_options
def remove(name: str, **settings: Any) -> None:
    """Remove the user NAME; its logins end too."""
    _remove(CredentialKind.USER, name, settings)
    click.echo(f"The user {name} is removed.")


def _credential(
    kind: CredentialKind,
    name: str,
    verifier: str,
    role: str,
    grants: tuple[str, ...],
    expires_at: datetime | None = None,
) -> Credential:
    texts = tuple(format_grant(grant) for grant in parse_grants(grants))
    return Credential(kind, checked_caller_name(name), verifier, role, texts, expires_at)


def _read_password() -> str:
    if sys.stdin.isatty():
        password: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        password = sys.stdin.readline().rstrip("\r\n")
    if len(password) < MIN_PASSWORD_LENGTH:
        raise InvalidRequest(f"The password is shorter than {MIN_PASSWORD_LENGTH} characters.")
    return password


def _list(kind: CredentialKind, output: str, settings: dict[str, Any]) -> None:
    with open_lake(settings) as lake:
        credentials = lake.credentials().credentials
    rows = [
        {
            "name": credential.name,
            "role": credential.role,
            "grants": ", ".join(credential.grants) or None,
            "created_at": credential.created_at,
            "expires_at": credential.expires_at,
        }
        for credential in credentials
        if credential.kind is kind
    ]
    columns = _COLUMNS
    if kind is CredentialKind.USER:
        columns = columns.remove(columns.get_field_index("expires_at"))
    show_list(rows, columns, output)


def _remove(kind: CredentialKind, name: str, settings: dict[str, Any]) -> None:
    with open_lake(settings) as lake:
        lake.remove_credential(kind, name)

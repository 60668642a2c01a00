"""Reads and writes the credentials of callers, next to the registry."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select, update
from sqlalchemy import Table as SqlTable

from swanlake.errors import AlreadyExists, CommitConflict, NotFound
from swanlake.lake.model.credentials import Credential, CredentialKind, StoredCredentials

_SIGNING_KEY_BYTES = 32
#: No caller can have this name: names of callers do not start with a dot.
_SIGNING_KEY = ".signing-key"


def read_all(connection: Connection, table: SqlTable) -> StoredCredentials | None:
    """All credentials by name; None if the lake has no signing key yet."""
    rows = {row.name: row for row in connection.execute(select(table).order_by(table.c.name))}
    key = rows.pop(_SIGNING_KEY, None)
    if key is None:
        return None
    return StoredCredentials([_credential(row) for row in rows.values()], key.verifier.encode())


def create_signing_key(connection: Connection, table: SqlTable) -> StoredCredentials:
    """As ``read_all``, after creating the key; the caller holds the registry lock."""
    stored = read_all(connection, table)
    if stored is not None:
        return stored  # another server was faster
    connection.execute(
        insert(table).values(
            name=_SIGNING_KEY,
            kind="key",
            verifier=secrets.token_hex(_SIGNING_KEY_BYTES),
            role="",
            grants=[],
            created_at=datetime.now(UTC),
        )
    )
    created = read_all(connection, table)
    assert created is not None
    return created


def add(connection: Connection, table: SqlTable, credential: Credential) -> None:
    """Stores a credential; raises AlreadyExists if a token or a user has the name."""
    known = connection.execute(
        select(table.c.kind).where(table.c.name == credential.name)
    ).scalar_one_or_none()
    if known is not None:
        raise AlreadyExists(f"A {known} with the name {credential.name} exists already.")
    connection.execute(insert(table).values(vars(credential) | {"grants": list(credential.grants)}))


def remove(connection: Connection, table: SqlTable, kind: CredentialKind, name: str) -> None:
    """Removes a credential; raises NotFound."""
    matching = (table.c.kind == kind.value) & (table.c.name == name)
    if not connection.execute(delete(table).where(matching)).rowcount:
        raise NotFound(f"There is no {kind} {name}.")


def replace(connection: Connection, table: SqlTable, old: Credential, new: Credential) -> None:
    """Changes role and grants of a caller; raises CommitConflict if it is not ``old`` any more."""
    row = connection.execute(select(table).where(table.c.name == old.name)).one_or_none()
    if row is None or _credential(row) != old:
        raise CommitConflict(f"{old.name} was changed or removed at the same moment. Try again.")
    values = {"role": new.role, "grants": list(new.grants)}
    connection.execute(update(table).where(table.c.name == old.name).values(values))


def _credential(row: Row[Any]) -> Credential:
    values = row._asdict()
    return Credential(**values | {"kind": CredentialKind(row.kind), "grants": tuple(row.grants)})

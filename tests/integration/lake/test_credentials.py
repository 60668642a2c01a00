"""The credentials that a lake stores for all its servers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest

from swanlake.errors import AlreadyExists, NotFound
from swanlake.lake.lake import Lake
from swanlake.lake.model.credentials import Credential, CredentialKind
from tests.integration.lake.fixtures import LakeHarness

TOKEN = Credential(
    CredentialKind.TOKEN,
    "alice",
    "a digest",
    "writer",
    ("sales_*=read", "own=write"),
    datetime.now(UTC) + timedelta(days=1),
)
USER = Credential(CredentialKind.USER, "bob", "a verifier", "reader")


def test_credentials_are_added_and_removed(lake: Lake) -> None:
    assert lake.credentials().credentials == []
    lake.add_credential(USER)
    lake.add_credential(TOKEN)
    assert lake.credentials().credentials == [TOKEN, USER]
    lake.remove_credential(CredentialKind.TOKEN, "alice")
    assert lake.credentials().credentials == [USER]


def test_name_belongs_to_one_credential(lake: Lake) -> None:
    lake.add_credential(USER)
    taken = Credential(CredentialKind.TOKEN, "bob", "a digest", "admin")
    with pytest.raises(AlreadyExists, match="A user with the name bob exists already"):
        lake.add_credential(taken)
    with pytest.raises(NotFound, match="There is no token bob"):
        lake.remove_credential(CredentialKind.TOKEN, "bob")
    assert lake.credentials().credentials == [USER]


def test_all_servers_of_a_new_lake_get_the_same_signing_key(harness: LakeHarness) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        lakes = [stack.enter_context(Lake.open(harness.metabase, harness.data)) for _ in range(4)]
        keys = set(pool.map(lambda lake: lake.credentials().signing_key, lakes))
    assert len(keys) == 1
    assert len(keys.pop()) >= 32


def test_lake_of_an_older_version_gets_the_table(harness: LakeHarness) -> None:
    harness.lake.create_catalog("sales")
    if isinstance(harness.metabase, Path):
        harness.lake.close()
        harness.run_sqlite(harness.metabase / "registry.sqlite", "DROP TABLE swanlake_credential")
    else:
        with psycopg.connect(harness.metabase, autocommit=True) as connection:
            connection.execute("DROP TABLE swanlake.swanlake_credential")
    with Lake.open(harness.metabase, harness.data) as lake:
        lake.add_credential(TOKEN)
        assert lake.credentials().credentials == [TOKEN]
        assert [info.name for info in lake.catalogs()] == ["sales"]

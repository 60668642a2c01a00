"""Addresses, deadlines, options, and which statements are read-only."""

from __future__ import annotations

import pytest

from swanlake.client.api.options import UNSET, PoolConfig, QueryOptions
from swanlake.client.api.requests import deadline, is_read_only
from swanlake.client.transport.address import Address
from swanlake.client.transport.deadline import Deadline
from swanlake.errors import ConfigError, QueryTimeout


@pytest.mark.parametrize(
    ("url", "address", "catalog"),
    [
        ("grpc://host", "grpc://host:4214", None),
        ("grpc://host:1234/lake", "grpc://host:1234", "lake"),
        ("grpc+tcp://host", "grpc://host:4214", None),
        ("grpc+tls://host/", "grpc+tls://host:4214", None),
        ("grpcs://[::1]:5", "grpc+tls://[::1]:5", None),
        ("grpc://host/a%20b", "grpc://host:4214", "a b"),
    ],
)
def test_url_gives_address_and_catalog(url: str, address: str, catalog: str | None) -> None:
    parsed = Address.parse(url)
    assert (parsed.url, parsed.catalog) == (address, catalog)


def test_credentials_from_url_or_arguments_are_not_in_repr() -> None:
    parsed = Address.parse("grpc://us%40er:p%3Aass@host")
    assert (parsed.user, parsed.password) == ("us@er", "p:ass")
    assert "p:ass" not in repr(parsed)
    assert "secret" not in repr(Address.parse("grpc://host", token="secret"))


@pytest.mark.parametrize("url", ["", "host", "http://host", "grpc://", "grpc://h:x", "grpc://h:0"])
def test_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="grpc://host:4214"):
        Address.parse(url)


def test_deadline_counts_down() -> None:
    assert Deadline(None).remaining() is None
    assert Deadline(None).seconds_left(1) is None
    assert 0 < (Deadline(60).remaining() or 0) <= 60
    with pytest.raises(QueryTimeout, match="limit of 0 s"):
        Deadline(0).remaining()
    assert Deadline(0).seconds_left(1) == 1


@pytest.mark.parametrize(
    ("options", "timeout", "seconds"),
    [
        (None, UNSET, 7),
        (None, None, None),
        (None, 2, 2),
        (QueryOptions(timeout=3), UNSET, 3),
        (QueryOptions(timeout=None), UNSET, None),
        (QueryOptions(timeout=3), 2, 2),
        (QueryOptions(query_id="q"), UNSET, 7),
    ],
)
def test_timeout_of_call_precedes_options_and_default(
    options: QueryOptions | None, timeout: float | None, seconds: float | None
) -> None:
    assert deadline(options, timeout, 7).timeout == seconds


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        " select\n1 ;",
        "FROM t",
        "VALUES (1)",
        "SHOW TABLES",
        "DESCRIBE t",
        "summarize t",
    ],
)
def test_read_only_statements_are_recognized(sql: str) -> None:
    assert is_read_only(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t VALUES (1)",
        "SELECT 1; DELETE FROM t",
        "WITH x AS (SELECT 1) INSERT INTO t FROM x",
        "SELECTED",
        "SELECT nextval('s')",
        "FROM postgres_execute('db', 'DELETE FROM t')",
        "FROM query('DELETE FROM t')",
        "FROM ducklake_add_data_files('lake', 't', 'f.parquet')",
        "SELECT \"nextval\"('s')",
        "SELECT nextval/**/('s')",
        "EXPLAIN ANALYZE DELETE FROM t",
        "CALL swanlake_compact('t')",
        "COPY t TO 'f'",
        "-- SELECT\nDELETE FROM t",
        "/* */ SELECT 1",
        "",
    ],
)
def test_other_statements_are_not_read_only(sql: str) -> None:
    assert not is_read_only(sql)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_size": 0},
        {"min_idle": 5, "max_size": 4},
        {"min_idle": -1},
        {"max_waiting": -1},
        {"idle_ttl": -1.0},
        {"acquire_timeout": float("nan")},
    ],
)
def test_invalid_pool_config_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        PoolConfig(**wrong)  # type: ignore[arg-type]


def test_pool_config_from_env(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "MAX_SIZE": "7",
        "ACQUIRE_TIMEOUT": "none",
        "IDLE_TTL": "1.5",
        "RETRY_ON_FAILURE": "false",
        "NAME": "mine",
    }.items():
        monkeypatch.setenv(f"SWANLAKE_POOL_{name}", text)
    config = PoolConfig.from_env()
    assert config == PoolConfig(
        max_size=7, acquire_timeout=None, idle_ttl=1.5, retry_on_failure=False, name="mine"
    )
    monkeypatch.setenv("SWANLAKE_POOL_MAX_SIZE", "many")
    with pytest.raises(ConfigError, match="SWANLAKE_POOL_MAX_SIZE is 'many'"):
        PoolConfig.from_env()

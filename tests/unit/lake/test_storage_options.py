"""Where files may be stored, and how an object store is reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from swanlake.config import Settings
from swanlake.errors import ConfigError
from swanlake.lake.files.storage_options import StorageOptions, check_location


@pytest.mark.parametrize("location", ["", "/data", "data", "s3://bucket", "s3://bucket/a/b/"])
def test_directories_and_s3_urls_are_accepted(location: str) -> None:
    check_location(location, "data_path")


@pytest.mark.parametrize(
    ("location", "hint"),
    [
        ("s3://", "names no bucket"),
        ("s3:///lake", "names no bucket"),
        ("s3:/bucket/lake", "two slashes"),
        ("S3://bucket/lake", "lower case"),
        ("s3a://bucket", "Write s3://"),
        ("r2://bucket", "r2.cloudflarestorage.com"),
        ("gs://bucket", "HMAC"),
        ("gcs://bucket", "HMAC"),
        ("az://container", "or s3://bucket/prefix"),
        ("file:///data", "without a scheme"),
        ("https://host/bucket", "or s3://bucket/prefix"),
        ("s3://b", "not the name of a bucket"),
        ("s3://bucket/a//b", "may not be empty"),
        ("s3://bucket/../b", "may not be empty"),
        ("s3://bucket/a*", "nor contain"),
        ("s3://bucket/a?s3_endpoint=evil", "nor contain"),
    ],
)
def test_other_urls_are_refused_with_a_hint(location: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=f"data_path: .*{hint}"):
        check_location(location, "data_path")


def test_settings_come_before_the_environment() -> None:
    settings = Settings(
        storage_endpoint="host:9000",
        storage_tls=False,
        storage_region="eu-west-1",
        storage_key_id="id",
        storage_secret="secret",
    )
    options = StorageOptions.from_settings(
        settings,
        {"AWS_ACCESS_KEY_ID": "other", "AWS_SESSION_TOKEN": "t", "AWS_ENDPOINT_URL": "http://x"},
    )
    assert options == StorageOptions(
        "http://host:9000", "eu-west-1", "id", "secret", path_style=True, timeout=10.0
    )


def test_environment_stands_in_for_settings() -> None:
    environment = {
        "AWS_ENDPOINT_URL": "https://general",
        "AWS_ENDPOINT_URL_S3": "https://special",
        "AWS_DEFAULT_REGION": "eu",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
    }
    options = StorageOptions.from_settings(Settings(), environment)
    assert options == StorageOptions(
        "https://special", "eu", "id", "secret", "token", path_style=True
    )


def test_without_keys_the_credential_chain_is_used() -> None:
    options = StorageOptions.from_settings(Settings(), {})
    assert not options.has_keys
    assert not options.path_style


def test_secret_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("from a file\n")
    settings = Settings(storage_key_id="id", storage_secret_file=tmp_path / "secret")
    assert StorageOptions.from_settings(settings, {}).secret == "from a file"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(storage_key_id="id"), "storage_secret or storage_secret_file is not set"),
        (Settings(storage_secret="hidden"), "storage_key_id is not set"),
        (
            Settings(storage_secret="hidden", storage_secret_file=Path("x")),
            "are both set",
        ),
        (Settings(storage_secret_file=Path("/none/x")), "/none/x cannot be read"),
        (Settings(storage_endpoint="ftp://host"), "storage_endpoint"),
        (Settings(storage_endpoint="http://user:hidden@host"), "storage_endpoint"),
        (Settings(storage_endpoint="http://host/path"), "storage_endpoint"),
        (Settings(storage_endpoint="host:port"), "storage_endpoint"),
    ],
)
def test_wrong_settings_are_refused_without_their_values(settings: Settings, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        StorageOptions.from_settings(settings, {})
    assert "hidden" not in str(refused.value)


def test_keys_are_not_part_of_the_representation() -> None:
    assert "hidden" not in repr(StorageOptions(key_id="hidden", secret="hidden"))

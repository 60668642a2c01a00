"""How an object store is reached: one value from which every client of it is made.

DuckDB reads and writes Parquet files with a secret of these options; ``object_store`` lists,
deletes, and stores small objects with them. So both always talk to the same store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from swanlake.config import Settings
from swanlake.errors import ConfigError

#: Where DuckDB and AWS's own tools look for another endpoint than Amazon's.
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
#: Characters that DuckDB takes for a pattern or for parameters.
_SPECIAL = re.compile(r"[?*\[\]#%\\\x00-\x1f]")
_SAME_PROTOCOL = {
    "s3a": "Write s3:// instead.",
    "s3n": "Write s3:// instead.",
    "r2": "Cloudflare R2 speaks the protocol of S3: write s3:// and set "
    "SWANLAKE_STORAGE_ENDPOINT=https://<account>.r2.cloudflarestorage.com.",
    "gs": "Google Cloud Storage speaks the protocol of S3: write s3://, set "
    "SWANLAKE_STORAGE_ENDPOINT=https://storage.googleapis.com, and use an HMAC key.",
    "file": "Write the directory without a scheme.",
}
_SAME_PROTOCOL["gcs"] = _SAME_PROTOCOL["gs"]


@dataclass(frozen=True)
class StorageOptions:
    """The endpoint of an object store and the credentials for it."""

    #: As ``https://host:port``; empty for Amazon's.
    endpoint: str = ""
    region: str = ""
    #: Empty: the credential chain of AWS's libraries (profile, web identity, instance role).
    key_id: str = field(default="", repr=False)
    secret: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    #: True for ``http://host/bucket``, False for ``http://bucket.host``.
    path_style: bool = False
    #: Seconds within which a request must be answered.
    timeout: float = 10.0

    @classmethod
    def from_settings(
        cls, settings: Settings, environ: Mapping[str, str] = os.environ
    ) -> StorageOptions:
        """The options of a server; ``AWS_*`` stand in for settings that are not set."""
        endpoint = settings.storage_endpoint or _first(environ, _ENDPOINT_VARIABLES)
        key_id, secret, token = settings.storage_key_id, _read_secret(settings), ""
        if bool(key_id) != bool(secret):
            missing = "storage_secret or storage_secret_file" if key_id else "storage_key_id"
            raise ConfigError(f"{missing} is not set: a key id and its secret belong together.")
        if not key_id:
            key_id = environ.get("AWS_ACCESS_KEY_ID", "")
            secret = environ.get("AWS_SECRET_ACCESS_KEY", "")
            token = environ.get("AWS_SESSION_TOKEN", "")
        style = settings.storage_url_style
        return cls(
            _checked_endpoint(endpoint, settings.storage_tls),
            settings.storage_region or _first(environ, _REGION_VARIABLES),
            key_id,
            secret,
            token,
            path_style=style == "path" or (style == "auto" and bool(endpoint)),
            timeout=settings.storage_timeout_seconds,
        )

    @classmethod
    def from_environment(cls) -> StorageOptions:
        """The options of a process that was given no settings."""
        return cls.from_settings(Settings())

    @property
    def has_keys(self) -> bool:
        """False if the credential chain finds them."""
        return bool(self.key_id)


def check_location(location: str, setting: str) -> None:
    """Raises ConfigError unless a location is a directory or ``s3://bucket/…``.

    Anything else that looks like a URL would become a directory with a strange name.
    """
    scheme = _SCHEME.match(location)
    if scheme is None:
        return
    name = scheme[1]
    if not location.startswith("s3://"):
        hint = _SAME_PROTOCOL.get(name.lower(), "Write a directory, or s3://bucket/prefix.")
        if name.lower() == "s3":
            hint = "Write s3:// in lower case and with two slashes."
        raise ConfigError(f"{setting}: files cannot be stored at {location!r}. {hint}")
    bucket, _, prefix = location.removeprefix("s3://").partition("/")
    if not _BUCKET.fullmatch(bucket):
        problem = f"{bucket!r} is not the name of a bucket" if bucket else "it names no bucket"
        raise ConfigError(f"{setting}: {location!r} cannot be used, because {problem}.")
    folders = prefix.rstrip("/").split("/") if prefix else []
    if _SPECIAL.search(prefix) or any(folder in ("", ".", "..") for folder in folders):
        raise ConfigError(
            f"{setting}: {location!r} cannot be used. Its folders may not be empty, `.` or `..`, "
            "nor contain any of ? * [ ] # % and the backslash."
        )


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def _checked_endpoint(endpoint: str, tls: bool) -> str:
    """The endpoint with its scheme; raises ConfigError."""
    if not endpoint:
        return ""
    if "://" not in endpoint:
        endpoint = f"{'https' if tls else 'http'}://{endpoint}"
    parts = urlsplit(endpoint.rstrip("/"))
    try:
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname)
        is_complete &= not (parts.path or parts.query or parts.username) and parts.port != 0
    except ValueError:  # the port is no number
        is_complete = False
    if not is_complete:
        raise ConfigError(
            "storage_endpoint is not the address of an object store, such as host:9000 or "
            "https://storage.example.com; it has no path, and no credentials."
        )
    return endpoint.rstrip("/")


def _read_secret(settings: Settings) -> str:
    path = settings.storage_secret_file
    if path is None:
        return settings.storage_secret
    if settings.storage_secret:
        raise ConfigError("storage_secret and storage_secret_file are both set; use one.")
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as unreadable:
        raise ConfigError(f"storage_secret_file: {path} cannot be read: {unreadable}.") from None

"""How DuckDB reaches the lake's object store: with a secret, and never by its settings.

Every session can list the settings of an instance, but not the keys of a secret.
"""

from __future__ import annotations

import math
import os
from urllib.parse import urlsplit

import duckdb

from swanlake.errors import StorageUnreachable
from swanlake.lake.files.storage_options import StorageOptions
from swanlake.sql.quoting import literal

_SECRET = "swanlake_storage"
_ENVIRONMENT_SECRET = "swanlake_environment"
#: The httpfs extension takes these from the environment when it is loaded.
_KEY_SETTINGS = ("s3_access_key_id", "s3_secret_access_key", "s3_session_token")
_RETRIES = 1


def hide_environment_keys(connection: duckdb.DuckDBPyConnection) -> None:
    """Moves the keys of ``AWS_*`` from DuckDB's settings to a secret."""
    for setting in _KEY_SETTINGS:
        connection.execute(f"RESET GLOBAL {setting}")
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        _create_secret(connection, _ENVIRONMENT_SECRET, StorageOptions.from_environment(), "")


def use_object_store(
    connection: duckdb.DuckDBPyConnection, options: StorageOptions, scope: str = ""
) -> None:
    """Lets an instance reach the object store, for URLs below ``scope``, or for all.

    Of two secrets for all URLs, DuckDB would take either.
    """
    if not scope:
        connection.execute(f"DROP SECRET IF EXISTS {_ENVIRONMENT_SECRET}")
    connection.execute(
        f"SET GLOBAL http_timeout = {math.ceil(options.timeout)}; "
        f"SET GLOBAL http_retries = {_RETRIES}"
    )
    try:
        _create_secret(connection, _SECRET, options, scope)
    except duckdb.Error as refused:
        # DuckDB's message may quote the statement, and with it the secret.
        kind = type(refused).__name__
        raise StorageUnreachable(
            f"DuckDB cannot use the credentials for the object store ({kind}): set "
            "storage_key_id and storage_secret, or give the server an AWS profile or role."
        ) from None


def _create_secret(
    connection: duckdb.DuckDBPyConnection, name: str, options: StorageOptions, scope: str
) -> None:
    parameters = ["TYPE s3"]
    if options.has_keys:
        parameters += [
            f"KEY_ID {literal(options.key_id)}",
            f"SECRET {literal(options.secret)}",
        ]
        if options.session_token:
            parameters.append(f"SESSION_TOKEN {literal(options.session_token)}")
    else:
        parameters += ["PROVIDER credential_chain", "REFRESH auto"]
    if options.region:
        parameters.append(f"REGION {literal(options.region)}")
    if options.endpoint:
        parts = urlsplit(options.endpoint)
        parameters += [
            f"ENDPOINT {literal(parts.netloc)}",
            f"USE_SSL {parts.scheme == 'https'}",
        ]
    parameters.append(f"URL_STYLE {literal('path' if options.path_style else 'vhost')}")
    if scope:
        parameters.append(f"SCOPE {literal(scope.rstrip('/') + '/')}")
    connection.execute(f"CREATE OR REPLACE SECRET {name} ({', '.join(parameters)})")

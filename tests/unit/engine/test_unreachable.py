"""An object store that does not answer is UNAVAILABLE, whichever words DuckDB has for it."""

from __future__ import annotations

import duckdb
import pytest

from swanlake.engine.errors import translate
from swanlake.errors import Code, StorageUnreachable

URL = "http://127.0.0.1:9000/bucket/f.parquet"


@pytest.mark.parametrize(
    "message",
    [
        f"IO Error: Timeout was reached error for HTTP HEAD to '{URL}?X-Amz-Signature=secret'",
        f"IO Error: Could not connect to server error for HTTP PUT to '{URL}'",
        f"IO Error: Could not resolve hostname error for HTTP GET to '{URL}'",
    ],
)
def test_no_answer_is_unavailable(message: str) -> None:
    translated = translate(duckdb.IOException(message))
    assert isinstance(translated, StorageUnreachable)
    assert (translated.code, translated.identifier) == (Code.UNAVAILABLE, "STORAGE_UNREACHABLE")
    assert URL in translated.message
    assert "secret" not in translated.message


@pytest.mark.parametrize(
    "error",
    [
        duckdb.IOException("IO Error: No files found that match the pattern"),
        duckdb.InvalidInputException(f"Timeout was reached error for HTTP GET to '{URL}'"),
    ],
)
def test_other_errors_are_not(error: Exception) -> None:
    assert not isinstance(translate(error), StorageUnreachable)

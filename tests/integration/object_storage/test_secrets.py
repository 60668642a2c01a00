"""Which credentials DuckDB uses for a URL."""

from __future__ import annotations

from pathlib import Path

import pytest

from swanlake.engine.database import open_database
from swanlake.engine.object_storage import use_object_store
from swanlake.lake.files.storage_options import StorageOptions

LAKE, ENVIRONMENT = "swanlake_storage", "swanlake_environment"


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        # A Spark worker reads and writes only files of the lake.
        ("", {"s3://lake/a/f": LAKE, "s3://lake/f": LAKE, "s3://other/f": LAKE}),
        (
            "s3://lake/a",
            {"s3://lake/a/f": LAKE, "s3://lake/f": ENVIRONMENT, "s3://other/f": ENVIRONMENT},
        ),
    ],
)
def test_settings_of_the_lake_win_over_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, expected: dict[str, str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    options = StorageOptions("http://127.0.0.1:9", "eu", "id", "secret", path_style=True)
    with open_database(tmp_path / "duck", extensions=("httpfs", "aws")) as duck:
        use_object_store(duck, options, scope)
        chosen = {
            url: duck.execute("SELECT name FROM which_secret(?, 's3')", [url]).fetchall()
            for url in expected
        }
        assert chosen == {url: [(name,)] for url, name in expected.items()}
        settings = duck.execute("SELECT value FROM duckdb_settings()").fetchall()
        assert not {("other",), ("hidden",)} & set(settings)

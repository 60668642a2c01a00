"""Our code, packed for workers that do not have it.

Workers on a cluster need PySpark, pyarrow and the Python version and platform of the server; this
brings the rest: SwanLake, DuckDB, and the extensions that reach files at a URL.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.metadata import files
from importlib.util import find_spec
from pathlib import Path

#: The folder in which workers find it unpacked.
FOLDER = "swanlake-bundle"
_PACKAGES = (
    "swanlake",
    "duckdb",
    "_duckdb",
    "crc32c",
    "duckdb_extension_httpfs",
    "duckdb_extension_aws",
)
#: Distributions that ask for their own version when they are imported.
_NAMED = ("duckdb", "crc32c")


def write_bundle(path: Path) -> None:
    """Packs everything into a file; one that is there is replaced at once."""
    partial = path.with_name(path.name + ".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as bundle:
        for package in _PACKAGES:
            for file, name in _files(package):
                bundle.write(file, name)
        for distribution in _NAMED:
            for file, name in _metadata(distribution):
                bundle.write(file, name)
    partial.replace(path)


def _files(package: str) -> Iterator[tuple[Path, str]]:
    """The files of an installed package, with their places in the bundle."""
    spec = find_spec(package)
    assert spec is not None, f"{package} is not installed"
    if not spec.submodule_search_locations:
        assert spec.origin is not None
        yield Path(spec.origin), Path(spec.origin).name
        return
    for folder in map(Path, spec.submodule_search_locations):
        for file in folder.rglob("*"):
            if file.is_file() and "__pycache__" not in file.parts:
                yield file, str(Path(package) / file.relative_to(folder))


def _metadata(distribution: str) -> Iterator[tuple[Path, str]]:
    """The file that says what a distribution is, with its place in the bundle."""
    for file in files(distribution) or ():
        if file.name == "METADATA":
            yield Path(str(file.locate())), str(file)

"""Imports point one way, the client stays light, and the public names are the ones we list."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import swanlake

SOURCE = Path(swanlake.__file__).parent
#: From the outside in: a package may import what stands to its right, and nothing to its left.
LAYERS = [
    {"cli"},
    {"bench"},
    {"server", "client"},
    {"sessions"},
    {"queue"},
    {"pipeline"},
    {"engine"},
    {"lake"},
    {"sql"},
    {"protocol"},
    {"child"},
    {"config", "durations", "errors", "_version"},
]
RANK = {package: rank for rank, layer in enumerate(LAYERS) for package in layer}
CLIENT_MAY_IMPORT = {"client", "sql", "protocol", "errors", "_version"}


def imports(file: Path) -> set[str]:
    """The packages of our own that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "swanlake":
                names = [f"swanlake.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("swanlake.")}
    return found


def test_imports_point_one_way() -> None:
    for file in SOURCE.rglob("*.py"):
        package = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if package in ("__init__", "__main__"):
            continue
        for imported in imports(file):
            if package == "client":
                assert imported in CLIENT_MAY_IMPORT, f"{file} imports {imported}"
            assert RANK[imported] >= RANK[package], f"{file} imports {imported}"


def test_the_client_needs_pyarrow_and_protobuf_and_nothing_else() -> None:
    program = (
        "import sys\n"
        "for name in 'duckdb pyspark click psycopg rich numpy pandas sqlalchemy'.split():\n"
        "    sys.modules[name] = None\n"
        "import swanlake, swanlake.client\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_public_names_are_listed() -> None:
    for name in swanlake.__all__:
        assert hasattr(swanlake, name)

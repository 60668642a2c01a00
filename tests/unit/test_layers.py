"""Imports point one way and stay within the public modules; the client stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

import swanlake

#: From the outside in: a package may import the packages below it, and none above.
LAYERS = [
    {"cli"},
    {"bench"},
    {"server", "client"},
    {"status"},
    {"sessions"},
    {"queue"},
    {"maintenance"},
    {"jobs"},
    {"engine"},
    {"access"},
    {"lake"},
    {"sql"},
    {"protocol"},
    {"_internal"},
    {"config", "durations", "errors", "_version"},
]
#: The same for the parts of one package. A part that is not named may import all others.
INNER_LAYERS: Mapping[str, Sequence[set[str]]] = {
    "status": [
        {"http", "otlp"},
        {"app"},
        {"console", "exposition", "probes"},
        {"guard"},
        {"login_page"},
        {"logins"},
        {"context"},
        {"history", "metrics"},
        {"blocking", "document", "responses", "site", "statements"},
        {"view"},
        {"checks"},
        {"health"},
    ],
    "sessions": [
        {"registry"},
        {"session"},
        {"execution", "native", "procedures", "queue", "results", "services", "staging_tables"},
        {"activity"},
        {"run", "transaction"},
        {"ids"},
    ],
    "queue": [
        {"service"},
        {"director"},
        {"flush", "ingest", "state"},
        {"settings", "status"},
        {"coordinator", "storage"},
        {"batch_ids", "names"},
    ],
    "maintenance": [
        {"scheduler"},
        {"registry", "service"},
        {"runs", "settings"},
        {"compaction", "triggers"},
    ],
    "jobs": [
        {"selection"},
        {"inline", "segment_transfer", "spark", "transforms"},
        {"runner", "shared_directories"},
    ],
    "client": [
        {"sqlalchemy_dialect"},
        {"dbapi"},
        {"aio", "api", "client", "pool", "sync", "writer"},
        {"transport"},
    ],
}
CLIENT_MAY_IMPORT = {"client", "sql", "protocol", "_internal", "errors", "_version"}
#: Modules of the root: the package itself and the program may import everything.
ENTRY_POINTS = ("swanlake", "swanlake.__main__")


@dataclass(frozen=True)
class Import:
    """An import statement: the module that contains it, and the module or name that it imports."""

    importer: str
    target: str

    def __str__(self) -> str:
        return f"{self.importer} imports {self.target}"


class SourceTree:
    """The modules of a package, with their imports of each other."""

    def __init__(self, root: Path) -> None:
        self.files = {_module_name(root, file): file for file in root.rglob("*.py")}

    @cached_property
    def imports(self) -> list[Import]:
        """All imports, also those for type checkers and those by ``import_module``."""
        return [
            Import(module, target)
            for module, file in self.files.items()
            for target in _targets(ast.parse(file.read_text()))
            if target.split(".")[0] == "swanlake"
        ]

    def module_of(self, target: str) -> str:
        """The module of an imported name; the target itself if it is a module."""
        return target if target in self.files else target.rpartition(".")[0]

    def is_package(self, module: str) -> bool:
        return self.files[module].name == "__init__.py"

    def exports(self, package: str) -> set[str]:
        """The ``__all__`` of a package."""
        for node in ast.parse(self.files[package].read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                return {
                    constant.value
                    for constant in ast.walk(node.value)
                    if isinstance(constant, ast.Constant) and isinstance(constant.value, str)
                }
        return set()


def _module_name(root: Path, file: Path) -> str:
    parts = [root.name, *file.relative_to(root).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _targets(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names):
                yield from (f"{module}.{alias.name}" for alias in names)
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(module)), *_],
            ):
                yield module


# ---- the rules -----------------------------------------------------------------------------------


def upward_imports(tree: SourceTree) -> list[str]:
    """Imports of a package in a higher layer, and of a part in a higher inner layer."""
    return [
        str(found)
        for found in tree.imports
        if found.importer not in ENTRY_POINTS
        and (_points_up(found, LAYERS, 1) or _points_up_inside(found))
    ]


def _points_up_inside(found: Import) -> bool:
    package = _part(found.importer, 1)
    if package is None or package != _part(found.target, 1) or package not in INNER_LAYERS:
        return False
    return _points_up(found, INNER_LAYERS[package], 2)


def _points_up(found: Import, layers: Sequence[set[str]], depth: int) -> bool:
    ranks = {part: rank for rank, layer in enumerate(layers) for part in layer}
    importer, target = _part(found.importer, depth), _part(found.target, depth)
    if depth == 1 and target not in ranks:  # a name of swanlake itself
        return target is not None
    if importer not in ranks or target not in ranks:
        return False
    return ranks[target] < ranks[importer]


def _part(module: str, depth: int) -> str | None:
    parts = module.split(".")
    return parts[depth] if len(parts) > depth else None


def private_imports(tree: SourceTree) -> list[str]:
    """Imports from another package of what its ``__all__`` does not export, or of ``_modules``."""
    return [
        str(found)
        for found in tree.imports
        if found.importer not in ENTRY_POINTS and _is_private(tree, found)
    ]


def _is_private(tree: SourceTree, found: Import) -> bool:
    module = tree.module_of(found.target)
    parts = module.split(".")
    for depth, part in enumerate(parts):
        owner = ".".join(parts[:depth])
        if part.startswith("_") and not f"{found.importer}.".startswith(f"{owner}."):
            return True
    if len(parts) < 2 or _part(found.importer, 1) == parts[1]:
        return False  # inside one top-level package
    # A name of a package needs an export like a module; a name of a module does not.
    path = (found.target if tree.is_package(module) else module).split(".")
    return any(
        path[depth] not in tree.exports(".".join(path[:depth])) for depth in range(2, len(path))
    )


# ---- the source ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def source() -> SourceTree:
    return SourceTree(Path(swanlake.__file__).parent)


def test_imports_point_down(source: SourceTree) -> None:
    assert upward_imports(source) == []


def test_packages_import_only_what_others_export(source: SourceTree) -> None:
    assert private_imports(source) == []


def test_every_export_exists(source: SourceTree) -> None:
    for package in filter(source.is_package, source.files):
        text = source.files[package].read_text()
        for name in source.exports(package):
            assert f"{package}.{name}" in source.files or name in text.replace(f'"{name}"', "")


def test_client_imports_only_light_packages(source: SourceTree) -> None:
    imported = {
        _part(found.target, 1)
        for found in source.imports
        if found.importer.startswith("swanlake.client")
    }
    assert imported <= CLIENT_MAY_IMPORT


def test_client_needs_only_pyarrow_and_protobuf() -> None:
    program = (
        "import sys\n"
        "for name in 'duckdb pyspark click psycopg rich numpy pandas sqlalchemy'.split():\n"
        "    sys.modules[name] = None\n"
        "import swanlake, swanlake.client\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_public_names_exist() -> None:
    for name in swanlake.__all__:
        assert hasattr(swanlake, name)


# ---- the rules can fail --------------------------------------------------------------------------


def made_up_tree(root: Path, files: Mapping[str, str]) -> SourceTree:
    """A small source tree; every folder in it is a package."""
    for name, text in files.items():
        path = root / "swanlake" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        for folder in path.parents:
            if folder == root:
                break
            (folder / "__init__.py").touch()
    return SourceTree(root / "swanlake")


@pytest.mark.parametrize(
    "statement",
    [
        "import swanlake.server.app",
        "from swanlake.server import app",
        "from swanlake.server.app import serve",
        "def late():\n    from swanlake.server.app import serve",
        "if TYPE_CHECKING:\n    from swanlake.server.app import Server",
        "importlib.import_module('swanlake.server.app')",
    ],
)
def test_import_of_a_higher_layer_is_found(tmp_path: Path, statement: str) -> None:
    files = {
        "server/__init__.py": "__all__ = ['app']",
        "server/app.py": "from swanlake.lake import api\n",
        "lake/__init__.py": "__all__ = ['api']",
        "lake/api.py": statement,
    }
    [complaint] = upward_imports(made_up_tree(tmp_path, files))
    assert complaint.startswith("swanlake.lake.api imports swanlake.server")


def test_import_of_a_higher_inner_layer_is_found(tmp_path: Path) -> None:
    files = {
        "maintenance/scheduler.py": "from swanlake.maintenance.compaction import plan",
        "maintenance/compaction/plan.py": "import swanlake.maintenance.scheduler",
    }
    assert upward_imports(made_up_tree(tmp_path, files)) == [
        "swanlake.maintenance.compaction.plan imports swanlake.maintenance.scheduler"
    ]


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("from swanlake.lake import api", True),
        ("from swanlake.lake.api import Lake", True),
        ("from swanlake.lake import Catalog", True),
        ("from swanlake.lake.read import listing", True),
        ("from swanlake.lake import inner", False),
        ("from swanlake.lake.inner import helper", False),
        ("from swanlake.lake import Hidden", False),
        ("from swanlake.lake.read.cache import entry", False),
        ("import_module('swanlake.lake.inner')", False),
        ("from swanlake.lake._secret import key", False),
        ("from swanlake._internal import waiting", True),
        ("from swanlake import errors", True),
    ],
)
def test_import_of_a_private_module_is_found(tmp_path: Path, statement: str, allowed: bool) -> None:
    files = {
        "errors.py": "",
        "_internal/__init__.py": "__all__ = ['waiting']",
        "_internal/waiting.py": "",
        "lake/__init__.py": "__all__ = ['Catalog', 'api', 'read', '_secret']",
        "lake/api.py": "from swanlake.lake.inner import helper\nfrom swanlake.lake import _secret",
        "lake/inner.py": "",
        "lake/_secret.py": "",
        "lake/read/__init__.py": "__all__ = ['listing']",
        "lake/read/listing.py": "",
        "lake/read/cache.py": "",
        "queue/flush.py": statement,
    }
    assert bool(private_imports(made_up_tree(tmp_path, files))) is not allowed

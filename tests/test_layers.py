"""The structure of the package: what the contracts of import-linter cannot express."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys
from collections import Counter

import pytest

PROJECT = pathlib.Path(__file__).parent.parent
PACKAGE = PROJECT / "treedbd"
PACKAGES = sorted(file.parent for file in PACKAGE.rglob("*/__init__.py"))
MODULES = sorted(PACKAGE.rglob("*.py"))
PURE = ("tree", "rules", "store")

MAX_FUNCTION_LINES = 30
MAX_FILES = {"GET of a leaf repeated": 20, "GET of a leaf first": 26, "PUT of a leaf first": 58}
MAX_FRAMES = {"GET of a leaf repeated": 40}
MAX_IMPORT_DEPTH = 22
MAX_LOADED = 61

all_modules = pytest.mark.parametrize(
    "module", MODULES, ids=lambda module: str(module.relative_to(PACKAGE))
)


def package_of(module: pathlib.Path) -> str:
    return module.relative_to(PACKAGE).parts[0].removesuffix(".py")


def syntax(module: pathlib.Path) -> ast.Module:
    return ast.parse(module.read_text())


def imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def statement_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function from its first statement on, without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def test_the_package_has_packages_and_modules() -> None:
    assert {"tree", "store", "database", "web"} <= {folder.name for folder in PACKAGES}
    assert len(MODULES) > len(PACKAGES)


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_the_init_file_of_a_package_is_empty(folder: pathlib.Path) -> None:
    assert (folder / "__init__.py").read_bytes() == b""


@all_modules
def test_the_pure_packages_and_the_store_do_not_wait(module: pathlib.Path) -> None:
    if package_of(module) in PURE:
        nodes = ast.walk(syntax(module))
        assert not any(isinstance(node, ast.AsyncFunctionDef | ast.Await) for node in nodes)


@all_modules
def test_below_the_web_there_is_no_http(module: pathlib.Path) -> None:
    if package_of(module) in {"database", *PURE}:
        known = imported(syntax(module))
        assert not [name for name in known if name.startswith(("twisted.web", "http."))]


@all_modules
def test_functions_are_short(module: pathlib.Path) -> None:
    functions = [
        node
        for node in ast.walk(syntax(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert not [each.name for each in functions if statement_lines(each) > MAX_FUNCTION_LINES]


def test_class_names_are_unique() -> None:
    names = Counter(
        node.name
        for module in MODULES
        for node in ast.walk(syntax(module))
        if isinstance(node, ast.ClassDef)
    )
    assert not [name for name, count in names.items() if count > 1]


def test_twisted_finds_the_plugin() -> None:
    assert not list((PROJECT / "twisted").rglob("__init__.py"))


def test_a_request_passes_through_few_files_and_imports_are_shallow() -> None:
    done = subprocess.run(
        [sys.executable, "request_trace.py"],
        cwd=PROJECT / "bench",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^(.+?) +(\w+): +(\d+) files +(\d+) frames", done.stdout, re.MULTILINE)
    files = {f"{name} {which}": int(count) for name, which, count, _ in rows}
    frames = {f"{name} {which}": int(count) for name, which, _, count in rows}
    assert {"SSE open first", "GET of a query again", "PATCH of an object first"} < files.keys()
    assert not {name: files[name] for name, limit in MAX_FILES.items() if files[name] > limit}
    assert not {name: frames[name] for name, limit in MAX_FRAMES.items() if frames[name] > limit}
    (depth,) = re.findall(r"^import depth: (\d+) modules$", done.stdout, re.MULTILINE)
    assert int(depth) <= MAX_IMPORT_DEPTH
    (loaded,) = re.findall(r"^treedb --version: (\d+) modules loaded$", done.stdout, re.MULTILINE)
    assert int(loaded) <= MAX_LOADED
